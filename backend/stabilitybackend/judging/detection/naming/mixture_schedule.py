"""Declared mixtures by step: calls of ``run.mixture()`` in the order of the effective path."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.judging.detectors.engine.base import Mark

__all__ = ["Declared", "MixtureSchedule"]

#: Remembered declarations, the newest: a schedule of more stages is a curve.
MAX_DECLARED = 256


class Declared(NamedTuple):
    """A declaration.

    Args:
        step: its first step; None: the next one of the process. planned: the job named it.
        unit: ``tokens`` or ``samples``. shares: data set -> share, together 1.
    """

    step: int | None
    planned: bool
    unit: str
    shares: dict[str, float]


class MixtureSchedule(Stateful):
    """Declarations of the lowest rank that has any; those of others are the same."""

    _rank: int | None = None
    _waiting: list[Declared] = fresh(list)
    #: In the order of their steps.
    _known: list[Declared] = fresh(list)
    #: Last step up to which detectors got the declarations.
    _told: int = -1

    @property
    def known(self) -> list[Declared]:
        """Declarations in the order of their steps, future ones too."""
        return self._known

    def declared(self, rank: int | None, step: int | None, data: Mapping[str, Any]) -> None:
        """Take a ``mixture`` event; valid from its step on, at the earliest from the next row on."""
        if rank is None or (self._rank is not None and rank > self._rank):
            return
        self._rank = rank
        self._waiting.append(Declared(step, step is not None, str(data.get("unit", "tokens")), dict(data["shares"])))
        del self._waiting[:-MAX_DECLARED]

    def row(self, step: int) -> bool:
        """Place pending declarations before the primary rank's row of ``step``; return whether there was one."""
        if not self._waiting:
            return False
        for one in self._waiting:
            at = step if one.step is None else max(step, one.step)
            if self._at(one.unit, at) != one.shares:
                others = [known for known in self._known if (known.step, known.unit) != (at, one.unit)]
                self._known = sorted([*others, one._replace(step=at)], key=_step)[-MAX_DECLARED:]
        self._waiting = []
        return True

    @property
    def steady_to(self) -> float:
        """The step of the next declaration; infinite for none."""
        step = self.next_step(-1)
        return -1 if self._waiting else math.inf if step is None else step

    def forked(self, fork_step: int) -> None:
        """Forget declarations of the discarded branch, but for planned ones."""
        self._known = [one for one in self._known if one.planned or _step(one) <= fork_step]

    def rewound(self, step: int) -> None:
        """Reset to the state of detectors after ``step``."""
        self._told = step

    def due(self, step: int, time: float) -> list[Mark]:
        """Return the marks before a row of ``step``; each is given once."""
        found = [one for one in self._known if self._told < _step(one) <= step]
        self._told = max(self._told, step)
        return [_mark(one, time) for one in found]

    def next_step(self, after: int) -> int | None:
        """Return the step of the next declaration after ``after``."""
        return next((_step(one) for one in self._known if _step(one) > max(after, self._told)), None)

    def _at(self, unit: str, step: int) -> dict[str, float] | None:
        held = [one.shares for one in self._known if one.unit == unit and _step(one) <= step]
        return held[-1] if held else None


def _step(one: Declared) -> int:
    return -1 if one.step is None else one.step


def _mark(one: Declared, time: float) -> Mark:
    shares = ", ".join(f"{name} {share:.3g}" for name, share in one.shares.items())
    data = {"shares": one.shares, "unit": one.unit}
    return Mark("mixture", _step(one), time, f"the job declared {shares} of its {one.unit}", data)
