"""Feeds many rows at once: detectors take those that change nothing in one go, only the others come one by one.

In a quiet run nearly all rows do no more to a detector than to grow a list until its next block is full. Each detector
says itself which rows are like that for it (``Detector.take_quiet``); it gets the next one by ``update``, in its turn
among the others and with the context as of that row. So findings and states are those of rows that come one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain

from .base import Detector, Finding, Point
from .context import Context
from .row_blocks import LARGEST, QuietRows, RowBlock
from .row_plans import RowPlan

#: Rows at once for which it pays to ask who has nothing to do with them.
MANY_ROWS = 8

__all__ = ["Feeder", "quiet_rows"]

#: Number among all of a row, detector, metric, values. The numbers differ, so that nothing else of it is compared.
_Turn = tuple[int, str, str, Sequence[float]]


def quiet_rows(block: RowBlock, after: int) -> QuietRows | None:
    """Return rows to be fed at once; None where they must come one by one, or are too few for it to pay.

    Args:
        after: the newest step so far. Evenly spaced rows after it are given at once, others not.
    """
    _, steps, times, columns = block
    if len(steps) < MANY_ROWS or not columns:
        return None
    distance = steps[1] - steps[0]
    if steps[0] <= after or distance <= 0 or list(steps) != list(range(steps[0], steps[-1] + 1, distance)):
        return None
    ranges = {}
    for name, values in columns.items():
        if math.isfinite(sum(values)):
            low, high = min(values), max(values)
            if low > -LARGEST and high < LARGEST:
                ranges[name] = (low, high)
    return QuietRows(steps, times, columns, ranges)


class Feeder:
    """Feeds rows to the detectors of a bank.

    Args:
        rows: what comes.
        names, plan: the metrics of the rows, and what becomes of them.
        detectors: those by name as they are now, since one that raises is replaced.
        failed: replaces a detector that raised.
    """

    def __init__(
        self,
        rows: QuietRows,
        names: Sequence[str],
        plan: RowPlan,
        detectors: Callable[[], Mapping[str, Detector]],
        failed: Callable[[Detector, Exception], object],
    ) -> None:
        columns = rows.columns
        self._rows, self._detectors, self._failed = rows, detectors, failed
        self._companions = [(role, columns[of], rows.ranges.get(of)) for role, of in plan.companions if of in columns]
        wanted = [(names[place], name) for place, who in plan.receivers if names[place] in columns for name in who]
        #: Detector -> the metrics that it wants with their values, each with its turn among all in a row.
        self._points: dict[str, list[_Turn]] = {name: [] for _, name in wanted}
        for turn, (metric, name) in enumerate(wanted):
            self._points[name].append((turn, name, metric, columns[metric]))
        #: Detectors -> the points of all of them.
        self._turns: dict[tuple[str, ...], list[_Turn]] = {}
        #: Detector -> the first row that it has not got.
        self._next = dict.fromkeys(self._points, 0)

    def feed(self, context: Context, start: int, stop: int, rank: int) -> tuple[int, list[tuple[float, Finding]]]:
        """Give rows to all: the one of ``start``, and those after it in which nothing happens but to the curves.

        Args:
            start: the bank has entered its step.
            stop: no row from here on.

        Returns:
            The first row that was not given, and what was found.
        """
        rows, following, found = self._rows, self._next, list[tuple[float, Finding]]()
        context.enter(rows.steps[start], rows.times[start])
        for role, values, _ in self._companions:
            context.companion(role, values[start])
        stop = context.calm(rows.steps, self._companions, start, stop)
        at = start
        while True:
            due = [name for name, row in following.items() if row == at]
            found += self._row(at, due, rank)
            if at + 1 == stop:
                self._next = dict.fromkeys(following, stop)
                return stop, found
            for name in due:
                following[name] = self._quiet(name, at + 1, stop)
            then = min(following.values(), default=stop)
            last = min(then, stop - 1)
            context.advance(rows.steps, rows.times, self._companions, at + 1, last + 1)
            if then == stop:
                return stop, found
            at = then

    def _row(self, at: int, due: Sequence[str], rank: int) -> list[tuple[float, Finding]]:
        """Give a row to some of the detectors."""
        rows, detectors, found = self._rows, self._detectors(), list[tuple[float, Finding]]()
        step, time = rows.steps[at], rows.times[at]
        make = tuple.__new__  # a named tuple's own constructor costs twice as much
        for _, name, metric, values in self._turns_of(due):
            try:
                news = detectors[name].update(make(Point, (step, metric, values[at], time, rank)))
            except Exception as error:
                self._failed(detectors[name], error)
                detectors = self._detectors()
                continue
            if news:
                found += [(time, finding) for finding in news]
        return found

    def _turns_of(self, due: Sequence[str]) -> list[_Turn]:
        """Return the points of some detectors in their turns; the same ones come again and again."""
        if len(due) == 1:
            return self._points[due[0]]
        who = tuple(due)
        turns = self._turns.get(who)
        if turns is None:
            turns = self._turns[who] = sorted(chain.from_iterable(self._points[name] for name in due))
        return turns

    def _quiet(self, name: str, start: int, stop: int) -> int:
        detector = self._detectors()[name]
        if not takes_quiet(type(detector)):
            return start
        try:
            return detector.take_quiet(self._rows, start, stop)
        except Exception as error:
            self._failed(detector, error)
            return start


@cache
def takes_quiet(kind: type[Detector]) -> bool:
    """Return whether rows may be taken at once: no class below that of ``take_quiet`` has another ``update``."""
    own = next(each for each in kind.__mro__ if {"update", "take_quiet"} & vars(each).keys())
    return "take_quiet" in vars(own)
