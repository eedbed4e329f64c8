"""Confirms by its values what a metric is that the table of names does not have: loss, learning rate, gradient norm.

The more a name says the fewer values it takes. A loss whose name says nothing is known by what all losses of a
training do: another number at each row, noise of batches on a level that falls or stays, and no other metric like it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.judging.detection.noise import is_noisy
from stabilitybackend.judging.detectors.stats.robust import MEDIAN_ERROR, robust_sigma
from stabilitybackend.schema.metric_roles import (
    GRAD_NORM,
    LOSS,
    LR,
    has_parts,
    likely_role_of,
    loss_rank,
)

__all__ = ["KNOWN", "UNNAMED", "Candidates"]

#: Ranks of names: one of the table or declared, and one that says nothing (``loss_rank``).
KNOWN, UNNAMED = -1, 2
#: Finite values after which it is decided: of a name that says something, of one that does not.
DECIDED_POINTS = 16
UNNAMED_POINTS = 64
#: Metrics of one role and rank that are looked at.
MAX_CANDIDATES = 32
#: A learning rate lies below this: Adafactor's relative step is 0.01, SGD's with a large batch has been some tens.
LARGEST_LR = 100.0
#: Half of the changes of a learning rate from one point to the next are smaller than this, as a fraction.
SMOOTH_CHANGE = 0.2
#: Stretches of a metric whose name says nothing that are looked at.
MAX_TRIES = 8
#: A loss that falls by this fraction learns; of two errors it is also more.
FALLS = 0.05
#: Changes of two metrics with this rank correlation are those of one quantity: a loss, its perplexity, its bits.
SAME = 0.9


@dataclass(slots=True)
class _Candidate:
    role: str
    rank: int
    values: list[float] = field(default_factory=list)
    tries: int = 1

    @property
    def decided(self) -> bool:
        return len(self.values) >= (UNNAMED_POINTS if self.rank == UNNAMED else DECIDED_POINTS)

    def take(self, column: NDArray[np.float64]) -> None:
        """Take values of some rows; a stretch that is like no loss is forgotten for the next one, for some tries."""
        came = column[np.isfinite(column)][: MAX_TRIES * UNNAMED_POINTS].tolist()
        for value in came:
            if self.decided:
                if self.rank < UNNAMED or self.tries >= MAX_TRIES or _confirmed(self):
                    return
                self.values, self.tries = [], self.tries + 1
            self.values.append(value)


class Candidates(Stateful):
    """Metrics that may be a run's loss, learning rate or gradient norm, which the table of names has none of."""

    _of: dict[str, _Candidate] = fresh(dict)
    #: Whether the run has a reward or parts of a loss: what else it has is no loss that can be told by its values.
    _in_parts: bool = False
    #: (role, rank) of which there are enough: thousands of names come at once. No part of the state.
    _full = frozenset[tuple[str, int]]()

    def restored(self) -> None:
        self._full = frozenset()

    def add(self, metric: str) -> None:
        """Look at a metric from here on, where it may have a role."""
        self._in_parts = self._in_parts or has_parts(metric)
        rank = loss_rank(metric)
        role, rank = (likely_role_of(metric), 0) if rank is None else (LOSS, rank)
        if role is None or (role, rank) in self._full:
            return
        if sum(one.role == role and one.rank == rank for one in self._of.values()) < MAX_CANDIDATES:
            self._of.setdefault(metric, _Candidate(role, rank))
        else:
            self._full |= {(role, rank)}

    def remove(self, metric: str) -> None:
        """Look at a metric no longer: its role was declared."""
        self._of.pop(metric, None)
        self._full = frozenset()

    def role(self, metric: str) -> str:
        """Return what a candidate may be."""
        return self._of[metric].role

    def rank(self, metric: str) -> int:
        """Return how little the name of a metric says, KNOWN where it is no candidate."""
        return self._of[metric].rank if metric in self._of else KNOWN

    def undecided(self, names: Collection[str], chosen: Mapping[str, str]) -> bool:
        """Return whether more values of some of these metrics may still say what they are."""
        return any(metric in names and self._is_open(one, chosen) for metric, one in self._of.items())

    def _is_open(self, candidate: _Candidate, chosen: Mapping[str, str]) -> bool:
        """Say whether a candidate may still get its role: nobody has it, or one whose name says less."""
        holder = chosen.get(candidate.role)
        more = not candidate.decided or (candidate.rank == UNNAMED and candidate.tries < MAX_TRIES)
        return more and (holder is None or candidate.rank < self.rank(holder))

    def observe(self, places: Mapping[str, int], values: NDArray[np.float64], chosen: Mapping[str, str]) -> list[str]:
        """Take rows, float64 (m, n); return the metrics that are the one of their role now, at most one a role."""
        news = set[str]()
        for metric, candidate in self._of.items():
            if metric in places and self._is_open(candidate, chosen):
                candidate.take(values[places[metric]])
                news |= {candidate.role} if candidate.decided else set()
        found = {role: one for role in (LOSS, GRAD_NORM, LR) if role in news and (one := self._one(role)) is not None}
        return [metric for role, metric in found.items() if metric != chosen.get(role)]

    def _one(self, role: str) -> str | None:
        """Return the metric that has a role; of learning rates the first group's, of others only where it is alone."""
        for rank in sorted({one.rank for one in self._of.values() if one.role == role}):
            if rank == UNNAMED and self._in_parts:
                return None
            those = {name: one for name, one in self._of.items() if (one.role, one.rank) == (role, rank)}
            good = [name for name, one in those.items() if one.decided and _confirmed(one)]
            if role == LR:
                return min(good, default=None)
            if rank:
                found = _the_loss({name: those[name].values for name in good})
            else:
                found = good[0] if len(good) == 1 == len(those) else None
            if good or any(not one.decided and len(one.values) > UNNAMED_POINTS // 2 for one in those.values()):
                return found
        return None

    def several(self, role: str) -> list[str]:
        """Return the metrics of which each may be the one of a role: those whose names say the most."""
        named = {name: one.rank for name, one in self._of.items() if one.role == role and one.rank < UNNAMED}
        return sorted(name for name, rank in named.items() if rank == min(named.values()))


def _confirmed(candidate: _Candidate) -> bool:
    """Say whether the values of a candidate are such as those of its role."""
    values = np.array(candidate.values)
    if candidate.role == LOSS and candidate.rank:
        return _is_like_a_loss(values) if candidate.rank == UNNAMED else len(set(candidate.values)) > 1
    if candidate.role != LR:
        return bool(values.min() >= 0 and values.max() > 0)
    near = np.abs(np.diff(values)) <= SMOOTH_CHANGE * np.abs(values[1:])
    return bool(values.min() >= 0 and values.max() < LARGEST_LR and near.sum() >= len(values) // 2)


def _is_like_a_loss(values: NDArray[np.float64]) -> bool:
    """Say whether values have the noise of batches on a level that falls or stays."""
    part = bool(values.min() > 0 and (values != np.round(values)).any())
    return part and is_noisy(values) and _fall(values) >= -2.0


def _fall(values: NDArray[np.float64]) -> float:
    """Return how far the level falls from the first third to the last, in standard errors of that."""
    first, last = np.array_split(values, 3)[::2]
    sigma = robust_sigma(np.diff(values).tolist()) / np.sqrt(2.0)
    error = max(MEDIAN_ERROR * sigma * np.sqrt(2.0 / len(first)), 1e-300)
    return float((np.median(first) - np.median(last)) / error)


def _the_loss(columns: Mapping[str, list[float]]) -> str | None:
    """Return the only one of some metrics that are like a loss, of several the only one that learns; None of many.

    What is the same quantity in other units is one metric, the first of them.
    """
    learn = {}
    for name, values in columns.items():
        first, last = (float(np.median(part)) for part in np.array_split(np.array(values), 3)[::2])
        if first - last > FALLS * abs(first) and _fall(np.array(values)) > 2.0:
            learn[name] = values
    names = list(learn or columns)
    if not names:
        return None
    return names[0] if all(_same(columns[names[0]], columns[name]) for name in names[1:]) else None


def _same(one: list[float], other: list[float]) -> bool:
    """Say whether two metrics change alike in each row."""
    if len(one) != len(other):
        return False
    first, second = (np.argsort(np.argsort(np.diff(values))) for values in (one, other))
    return bool(np.corrcoef(first, second)[0, 1] >= SAME)
