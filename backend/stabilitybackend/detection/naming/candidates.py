"""Confirms by its values what the words of a metric's name make likely: a loss, a learning rate, a gradient norm."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.detectors.engine.metric_roles import GRAD_NORM, LOSS, LR, likely_role_of
from stabilitybackend.stateful import Stateful, fresh

__all__ = ["Candidates"]

#: Finite values after which it is decided.
DECIDED_POINTS = 16
#: Metrics of likely names that are looked at.
MAX_CANDIDATES = 32
#: A learning rate lies below this: Adafactor's relative step is 0.01, SGD's with a large batch has been some tens.
LARGEST_LR = 100.0
#: Half of the changes of a learning rate from one point to the next are smaller than this, as a fraction.
SMOOTH_CHANGE = 0.2


@dataclass(slots=True)
class _Candidate:
    role: str
    points: int = 0
    #: Points with a value that one of this role may have; of a learning rate also those near the one before.
    fitting: int = 0
    smooth: int = 0
    last: float = 0.0


class Candidates(Stateful):
    """Metrics that may be a run's loss, learning rate or gradient norm, which the table of names has none of."""

    _of: dict[str, _Candidate] = fresh(dict)

    def add(self, metric: str) -> None:
        """Look at a metric from here on, where its name makes a role likely."""
        role = likely_role_of(metric)
        if role is not None and len(self._of) < MAX_CANDIDATES:
            self._of.setdefault(metric, _Candidate(role))

    def role(self, metric: str) -> str:
        """Return what a candidate may be."""
        return self._of[metric].role

    def undecided(self, names: Collection[str], chosen: Mapping[str, str]) -> bool:
        """Return whether more values of some of these metrics may still say what they are."""
        return any(
            metric in names and candidate.role not in chosen and candidate.points < DECIDED_POINTS
            for metric, candidate in self._of.items()
        )

    def observe(self, places: Mapping[str, int], values: NDArray[np.float64], chosen: Mapping[str, str]) -> list[str]:
        """Take rows, float64 (m, n); return the metrics that are the one of their role now, at most one a role."""
        news = False
        for metric, candidate in self._of.items():
            if metric in places and candidate.role not in chosen and candidate.points < DECIDED_POINTS:
                _take(candidate, values[places[metric]])
                news = news or candidate.points >= DECIDED_POINTS
        if not news:
            return []
        found = {role: self._one(role) for role in (LOSS, GRAD_NORM, LR) if role not in chosen}
        return [metric for metric in found.values() if metric is not None]

    def _one(self, role: str) -> str | None:
        """Return the metric that has a role; of learning rates the first group's, of others only where it is alone."""
        names = [name for name, one in self._of.items() if one.role == role]
        good = [name for name in names if _confirmed(self._of[name])]
        if role == LR:
            return min(good, default=None)
        return good[0] if len(good) == 1 == len(names) else None

    def several(self, role: str) -> list[str]:
        """Return the metrics of which each may be the one of a role."""
        return sorted(name for name, one in self._of.items() if one.role == role)


def _take(candidate: _Candidate, values: NDArray[np.float64]) -> None:
    for value in values[np.isfinite(values)][: DECIDED_POINTS - candidate.points].tolist():
        fits = value >= 0 if candidate.role != LR else 0 <= value < LARGEST_LR
        candidate.points += 1
        candidate.fitting += fits
        candidate.smooth += abs(value - candidate.last) <= SMOOTH_CHANGE * abs(value)
        candidate.last = value


def _confirmed(candidate: _Candidate) -> bool:
    if candidate.points < DECIDED_POINTS or candidate.fitting < candidate.points:
        return False
    moves = candidate.smooth < candidate.points or candidate.role != LOSS
    return moves and (candidate.role != LR or candidate.smooth >= candidate.points // 2)
