"""What a curve around an onset says: the last good value, the worst one, the newest one. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stabilityalerting.actions import Branch, Curve

from .texts import number

__all__ = ["Values", "values_of"]


@dataclass(frozen=True, slots=True)
class Values:
    """Each as (step, value), None where there is none.

    Args:
        good: newest finite one from before the onset.
        peak: from the onset on the finite one that is furthest from ``good``.
        now: newest one that counts.
        broken: how many from the onset on are NaN or infinite. first_broken: step of the first one.
    """

    good: tuple[int, float] | None = None
    peak: tuple[int, float] | None = None
    now: tuple[int, float] | None = None
    broken: int = 0
    first_broken: tuple[int, float] | None = None

    def words(self) -> str:
        """Return them as one line, "" where nothing is known."""
        parts = []
        if self.good is not None:
            parts.append(f"last good {number(self.good[1])} (step {self.good[0]:,})")
        if self.peak is not None:
            parts.append(f"peak {number(self.peak[1])} (step {self.peak[0]:,})")
        if self.first_broken is not None:
            steps = "1 value" if self.broken == 1 else f"{self.broken:,} values"
            parts.append(f"{number(self.first_broken[1])} from step {self.first_broken[0]:,} on ({steps})")
        if self.now is not None:
            parts.append(f"now {number(self.now[1])} (step {self.now[0]:,})")
        return ", ".join(parts)


def values_of(curve: Curve) -> Values:
    """Return what the curve says."""
    good: tuple[int, float] | None = None
    for step, value in _points(curve.branches):
        if step < curve.onset_step and math.isfinite(value):
            good = (step, value) if good is None or step >= good[0] else good
    # Of an incident that was left by a rollback, the branch that was left; not the one that came after.
    left = [
        branch for branch in curve.branches if branch.dead and branch.steps and branch.steps[-1] >= curve.onset_step
    ]
    since = [(step, value) for step, value in _points(left or curve.branches) if step >= curve.onset_step]
    broken = [point for point in since if not math.isfinite(point[1])]
    finite = [point for point in since if math.isfinite(point[1])]
    level = good[1] if good is not None else 0.0
    peak = max(finite, key=lambda point: abs(point[1] - level), default=None)
    return Values(good, peak, curve.now, len(broken), broken[0] if broken else None)


def _points(branches: Sequence[Branch]) -> Iterator[tuple[int, float]]:
    for branch in branches:
        yield from zip(branch.steps, branch.values, strict=True)
