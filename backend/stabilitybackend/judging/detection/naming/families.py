"""Families of metrics that are shares or counts of a mixture, by their values.

A name is only a hint: ``tokens/web`` may grow with the run or restart with each row, ``mix/web`` may be in percent, and
``parts/web`` is neutral. Values in [0, 1] with sum 1 in row after row are shares.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.schema.metric_roles import RATIO

__all__ = ["Family", "counts_of", "shares_of"]

#: Finite rows before a decision: by chance, numbers in [0, 1] do not add up to 1 so often.
DECIDED_ROWS = 16
#: Error of the sum of shares logged with two decimals; a hundred times as much in percent.
SUM_ERROR = 0.02

#: Undecided, shares of 1, of 100, counts of each row, counts since the start, none of these.
UNDECIDED, SHARES, PERCENT, COUNTS, GROWING, NONE = "", "shares", "percent", "counts", "growing", "none"


@dataclass(slots=True)
class Family:
    """Metrics of one family.

    Args:
        measure: ``ratio``, ``tokens``, ``samples``, or "" for unnamed.
        first_step: the first step with one of them.
        members: metric -> data set.
        are: class of the values, as above.
        declared: as the job's mixture: counts need no name then.
    """

    measure: str
    first_step: int
    members: dict[str, str] = field(default_factory=dict)
    are: str = UNDECIDED
    declared: bool = False
    rows: int = 0
    #: Rows so far with sum 1, with sum 100, of whole numbers, and without a fall.
    ones: int = 0
    hundreds: int = 0
    whole: int = 0
    risen: int = 0
    #: The newest counts by metric: the difference of growing counts is a row's own.
    last: dict[str, float] = field(default_factory=dict)

    def observe(self, names: list[str], values: NDArray[np.float64]) -> bool:
        """Take rows of some of its metrics, float64 (m, n), while undecided; return whether it is decided now."""
        if self.are or len(names) < 2:
            return False
        rows = values[:, np.isfinite(values).all(axis=0)][:, : DECIDED_ROWS - self.rows]
        if not rows.size:
            return False
        sums, positive = rows.sum(axis=0), (rows >= 0).all(axis=0)
        before = np.array([[self.last.get(name, -1.0)] for name in names])
        steps = np.diff(np.concatenate([before, rows], axis=1), axis=1)
        self.rows += rows.shape[1]
        self.ones += int((positive & (abs(sums - 1) <= SUM_ERROR)).sum())
        self.hundreds += int((positive & (abs(sums - 100) <= 100 * SUM_ERROR)).sum())
        self.whole += int((positive & (rows == np.round(rows)).all(axis=0)).sum())
        self.risen += int(((steps >= 0).all(axis=0) & (steps > 0).any(axis=0)).sum())
        self.last = dict(zip(names, rows[:, -1].tolist(), strict=True))
        if self.rows < DECIDED_ROWS:
            return False
        self.last = {}
        self.are = self._decide()
        return True

    def _decide(self) -> str:
        if self.ones == self.rows:
            return SHARES
        if self.hundreds == self.rows:
            return PERCENT
        if self.whole == self.rows and (self.declared or self.measure not in ("", RATIO)):
            return GROWING if self.risen == self.rows else COUNTS
        return NONE

    @property
    def is_mixture(self) -> bool:
        """Whether its values are shares or counts."""
        return self.are not in (UNDECIDED, NONE)


def counts_of(family: Family, names: list[str], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the counts of each row, float64 (m, n); shares of 1 stay.

    NaN for unknown: in the first row of growing counts, and where they fell (another process began again).
    """
    if family.are == PERCENT:
        return values / 100
    if family.are != GROWING:
        return values
    before = np.array([[family.last.get(name, np.nan)] for name in names])
    taken = np.diff(np.concatenate([before, values], axis=1), axis=1)
    family.last = dict(zip(names, values[:, -1].tolist(), strict=True))
    taken[:, ~(taken >= 0).all(axis=0)] = np.nan
    return taken


def shares_of(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the shares of 1 in each row of counts, float64 (m, n); NaN without counts."""
    sums = counts.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(sums > 0, counts / sums, np.nan)
