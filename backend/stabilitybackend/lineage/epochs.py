"""Distinguishes a count that starts again with each epoch from a job that goes back to its beginning.

Both log the first step again. A process that was started again is a launch, and a job that reports ``rolled_back`` has
gone back, however often and however evenly: neither is handled here. The rest are steps of one process that start
again at its very first step without a word. They count within an epoch if one of these shows it:

- a metric ``epoch`` in the rows has risen, where a job that begins again has its first epoch again;
- the loss is another one than at the beginning: its values at the first steps, pair by pair, differ by more than they
  scatter. Twelve restarts of one loop, with whatever seed, begin near one loss, since an untrained model has it;
- they started again at the same step after the same period before, and the loss does not fall as it did at the
  beginning: a training that diverges and begins again does so after another number of steps each time.

Rows with the same values are the same training again, so a rollback. A flat loss without ``epoch`` shows nothing the
first time: that is taken for a rollback, and the second period decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

__all__ = ["FIRST_ROWS", "EpochCount"]

#: First rows of a process that are remembered.
FIRST_ROWS = 9
#: Rows in which they are looked for.
MOST_ROWS = 4 * FIRST_ROWS
#: Fewer pairs of values show nothing.
FEW_PAIRS = 3
#: The loss is another one when its median difference is so many median scatters, and so large a share of its level.
FAR_SCATTERS, FAR_SHARE = 4.0, 0.05
#: Two beginnings are equal where their difference scatters less than this share of the first one.
ALIKE_SHARE = 0.5


@dataclass
class EpochCount:
    """The first rows of a process, and how far the steps that it logs are from those of its curve.

    Attributes:
        rows: rows seen, up to MOST_ROWS. metric: whose values are remembered. first: its (step, value).
        epoch: value of the metric ``epoch`` in the first row, None without it.
        offset: added to the steps of its rows: 0 while they do not count within an epoch.
        period: (first, last) step of the stretch before it last started again and that was no rollback.
    """

    rows: int = 0
    metric: str = ""
    first: list[tuple[int, float]] = field(default_factory=list)
    epoch: float | None = None
    offset: int = 0
    period: tuple[int, int] = (-1, -1)

    @property
    def gathers(self) -> bool:
        """Whether these are the first rows still."""
        return len(self.first) < FIRST_ROWS and self.rows < MOST_ROWS

    @property
    def first_step(self) -> int | None:
        """The step that the process began with, None before it began."""
        return min((step for step, _ in self.first), default=None)

    def gather(self, step: int, values: Mapping[str, float], metric: str | None, *, is_loss: bool) -> None:
        """Take one of the first rows; ``metric``: the one that shows the run's progress, None where there is none."""
        self.rows += 1
        if metric is None:
            return
        if not self.first or (is_loss and metric != self.metric):
            self.metric, self.epoch, self.first = metric, _epoch_of(values), []
        self.first.append((step, values.get(self.metric, math.nan)))

    def starts_again(self, first_step: int, last_step: int, rows: Sequence[tuple[int, Mapping[str, float]]]) -> bool:
        """Return whether low rows are the next epoch, and no earlier training again.

        Args:
            first_step: of the rows. last_step: the greatest before them. rows: (step, metric -> value) of each.
        """
        if first_step != self.first_step or self.offset:
            return False
        period, self.period = self.period, (first_step, last_step)
        epochs = [epoch for _, values in rows if (epoch := _epoch_of(values)) is not None]
        if self.epoch is not None and epochs:
            return min(epochs) > self.epoch
        before = dict(self.first)
        pairs = [
            (before[step], value)
            for step, values in rows
            if math.isfinite(value := values.get(self.metric, math.nan)) and math.isfinite(before.get(step, math.nan))
        ]
        if len(pairs) < min(FEW_PAIRS, last_step - first_step) or all(old == new for old, new in pairs):
            return False
        differences, old = [new - old for old, new in pairs], [old for old, _ in pairs]
        far, scatter = abs(median(differences)), _scatter(differences)
        if period == (first_step, last_step):  # a new beginning falls like the first
            return scatter > ALIKE_SHARE * _scatter(old)
        return far > FAR_SCATTERS * scatter and far > FAR_SHARE * abs(median(old))

    def is_next(self, step: int) -> bool:
        """Return whether a low row, whose step has the offset in it, begins another epoch."""
        return self.offset > 0 and step - self.offset == self.first_step

    def begin(self, newest: int, stride: int) -> int:
        """Let the next epoch continue after ``newest``, the greatest step of the curve; return the added offset."""
        assert self.first_step is not None
        before, self.offset = self.offset, newest + stride - self.first_step
        return self.offset - before


def _scatter(values: Sequence[float]) -> float:
    middle = median(values)
    return median(abs(value - middle) for value in values)


def _epoch_of(values: Mapping[str, float]) -> float | None:
    return next((value for name, value in values.items() if name.rpartition("/")[2].lower() == "epoch"), None)
