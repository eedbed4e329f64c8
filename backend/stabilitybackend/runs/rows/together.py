"""Folds several messages of the stream at once: rows of ranks that just go on, a row of each rank in a message.

It is the same as one message after another, and costs a third of that: what is done for a message is done once for all
of them, and detectors get many rows at once. Where they find anything in those rows, the messages are folded one by one
all the same: what follows from a finding follows from what was known when its row came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import gt, lt
from struct import unpack
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.base.name_sets import key_of
from stabilitybackend.judging.detection.run_detection import Found
from stabilitybackend.judging.detectors.straggler import reports_own_work
from stabilitybackend.lineage.changes import Placed
from stabilitybackend.lineage.usual_rows import goes_on, went_on
from stabilitybackend.runs.changes import Changes
from stabilitybackend.runs.rows.usual_rows import takes_usual
from stabilityclient.wire import Frame, NodeFrame, PointsBlock, SourceInfo

if TYPE_CHECKING:
    from stabilitybackend.lineage.sources import SourceState
    from stabilitybackend.runs.state import RunState

__all__ = ["Together"]

#: Rows that are folded at once: some milliseconds, in which the process does nothing else. A message that has more than
#: an eighth of them is folded alone: so few of its like together cost as much.
MAX_ROWS = 512

#: Whose rows a message has, one of each, and which table each is in.
_Whose = tuple[list[SourceInfo], list[int]]


class Together:
    """Messages that may be folded at once. Nothing changes the state between the first ``take`` and ``fold``."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._open = takes_usual(state)
        #: By their first source.
        self._alike: dict[str, _Alike] = {}
        self._ranks: set[int] = set()
        self._rows = 0
        self._judged: _Alike | None = None
        #: The messages in order, each as one of those that are like it.
        self.messages: list[_Alike] = []

    def take(self, message: Frame | NodeFrame) -> bool:
        """Take the next message; return False, with nothing done, where it is to be folded alone."""
        whose = _one_row_each(message) if self._open else None
        if whose is None or len(whose[0]) > min(MAX_ROWS // 8, MAX_ROWS - self._rows):
            return False
        tables: Sequence[PointsBlock] = message.tables if isinstance(message, NodeFrame) else message.blocks  # type: ignore[assignment]
        first = whose[0][0].source
        alike = self._alike.get(first)
        if alike is None:
            alike = self._begin(whose, tables)
            if alike is None:
                return False
            self._alike[first] = alike
        elif whose != alike.whose or not alike.goes_on(tables):
            return False
        alike.tables.append(tables)
        self.messages.append(alike)
        self._rows += len(whose[0])
        return True

    def _begin(self, whose: _Whose, tables: Sequence[PointsBlock]) -> _Alike | None:
        """Return where messages like one belong; None where its rows do not just go on."""
        state, alike = self._state, _Alike(whose, tables)
        primary, ranks = state.judge.primary, {info.rank for info in whose[0] if info.rank is not None}
        if primary is None or len(ranks) < len(whose[0]) or min(ranks) < primary or ranks & self._ranks:
            return None
        if any(not names or reports_own_work(key_of(names)) for names in alike.names):
            return None
        steps, times = alike.newest
        for info, number, at in zip(*whose, alike.among_all, strict=True):
            names = alike.names[number]
            source = goes_on(state.fold, info, names, steps[at], times[at])
            if source is None or not state.launch_sizes.knows(info):
                return None
            if info.rank == primary:
                if state.resumes.compares(source.source, source.segment):
                    return None
                alike.judged = len(alike.sources)
                alike.steady_to = state.judge.steady_to(source.source, source.segment, names)
            alike.sources.append(source)
        if not alike.is_steady():
            return None
        alike.find_in_step(lambda rank: state.stretches.is_of(rank) or state.launch_sizes.is_of(rank))
        self._ranks |= ranks
        self._judged = alike if alike.judged is not None else self._judged
        return alike

    def fold(
        self, changes: Changes, begin: Callable[[int], None], one: Callable[[int], None], *, reports: bool
    ) -> None:
        """Fold the messages.

        Args:
            changes: get what they changed.
            begin: notes that the next rows are those of a message, by its place among all.
            one: folds a message alone.
            reports: whether what is found is reported.
        """
        judge, store = self._state.judge, self._state.store
        for alike in self._alike.values():
            alike.join()
        apart = self._judged is not None and judge.judge_ahead(self._judged.judged_rows())
        for at, alike in enumerate(self.messages):
            begin(at)
            if apart:
                one(at)
            else:
                alike.orders.append(store.open.reserve(len(alike.sources)))
        if not apart:
            try:
                self._all(changes, reports=reports)
            except Exception as error:  # a mistake of ours: what it did so far is kept
                source = self.messages[0].sources[0].source
                self._state.unreadable.whole("points", f"{type(error).__name__}: {error}", source, error)
        judge.end_ahead()

    def _all(self, changes: Changes, *, reports: bool) -> None:
        """Do what ``_UsualRows._took`` does for each of the rows."""
        state = self._state
        for alike in self._alike.values():
            orders, in_step = np.array(alike.orders, dtype=np.int64), list[Placed]()
            for at, source in enumerate(alike.sources):
                placed = alike.rows(at)
                steps, times = placed.steps.tolist(), placed.times.tolist()
                went_on(state.fold, source, placed.names, steps, times[-1])
                state.summary.add(placed, state.store, state.fold.tree)
                if at >= alike.in_step:
                    in_step.append(placed)
                else:
                    state.store.put(placed, orders + at)
                changes.placed.append(placed)
                if state.stretches.of_rank(source.rank or 0, (times[0], times[-1])):
                    state.stretches.rows(placed, state.launch_sizes.size)
                state.launch_sizes.row(source.source, steps[0], steps[-1])
                alike.columns.append((steps, times))
            if in_step:
                state.store.put_in_step(in_step, orders + alike.in_step)
        apart = self._in_turn()
        if self._judged is not None:
            rows = [self._judged.judged_rows()]
            found = [*state.judge.take(rows, compared=True), *state.resumes.take(rows, state.launch_sizes.size)]
            if reports:
                state.report(found, changes, rows)
        if apart and reports:
            state.report(apart, changes)

    def _in_turn(self) -> list[Found]:
        """Do for each row what depends on the order in which the rows of ranks came; return what it shows of ranks."""
        logged, clock, found = self._state.liveness.logged, self._state.step_clock, list[Found]()
        for alike in self.messages:
            at, alike.turn = alike.turn, alike.turn + 1
            for number in range(len(alike.names)):
                found += self._state.judge.compare(*alike.table(number, at))
            if alike.judged is not None:
                steps, times = alike.columns[alike.judged]
                clock.row(steps[at], times[at], primary=True)
            for source, (steps, times) in zip(alike.sources, alike.columns, strict=True):
                clock.in_step(steps[at] + 1)
                logged(source.rank or 0, source.source, steps[at], times[at])
        return found


class _Alike:
    """Messages in which the same sources log the same metrics, a row each, at steps and times that rise.

    Attributes:
        names: the metrics of each table. sources: where each is.
        judged: the place of the rank that is judged among them. steady_to: the step before which its rows may be given
            to detectors at once.
        tables: of each message. orders: which row of the run the first one of each is.
        in_step: the place from which on they are in step: their rows are kept in one table.
        newest: steps and times of the newest message, table after table. among_all: the row of each source there.
        columns: steps and times of each source. turn: messages that were gone through.
    """

    def __init__(self, whose: _Whose, tables: Sequence[PointsBlock]) -> None:
        self.whose = whose
        self.names = [table.names for table in tables]
        self.newest = _steps_and_times(tables)
        self.sources: list[SourceState] = []
        self.judged: int | None = None
        self.steady_to = -1.0
        self.in_step, self._may_be_in_step = 0, False
        self.tables: list[Sequence[PointsBlock]] = []
        self.orders: list[int] = []
        self.columns: list[tuple[list[int], list[float]]] = []
        self.turn = 0
        begin = list(accumulate([len(table.steps) // 8 for table in tables], initial=0))
        taken, self._in_table, self.among_all = [0] * len(tables), list[int](), list[int]()
        for number in whose[1]:
            self._in_table.append(taken[number])
            self.among_all.append(begin[number] + taken[number])
            taken[number] += 1

    def goes_on(self, tables: Sequence[PointsBlock]) -> bool:
        """Return whether a message of the same sources goes on after those that are here."""
        if [table.names for table in tables] != self.names:
            return False
        newest, (steps, times) = _steps_and_times(tables), self.newest
        if not all(map(gt, newest[0], steps)) or not all(map(gt, newest[1], times)):
            return False
        if self._in_step_from(newest[0]) != self.in_step:
            return False
        self.newest = newest
        return self.is_steady()

    def find_in_step(self, has_more: Callable[[int], bool]) -> None:
        """Find out which rows ``rows/in_step.py`` would take; ``has_more``: whether more is kept of a rank."""
        above = [info.rank or 0 for info in self.whose[0][0 if self.judged is None else 1 :]]
        rises = self.judged in (None, 0) and all(map(lt, above, above[1:]))
        self._may_be_in_step = len(self.whose[0]) > 1 and len(self.names) == 1 and rises and not has_more(above[0])
        self.in_step = self._in_step_from(self.newest[0])

    def _in_step_from(self, steps: Sequence[int]) -> int:
        begin = 0 if self.judged is None else 1
        return begin if self._may_be_in_step and len({*steps[begin:]}) == 1 else len(self.sources)

    def is_steady(self) -> bool:
        """Return whether the newest judged row, where there is one, may be given to detectors with those before it."""
        return self.judged is None or self.newest[0][self.among_all[self.judged]] < self.steady_to

    def join(self) -> None:
        """Put the messages' tables together."""
        self._joined = []
        for tables in zip(*self.tables, strict=True):
            steps = np.frombuffer(b"".join([table.steps for table in tables]), "<i8").reshape(len(tables), -1)
            times = np.frombuffer(b"".join([table.times for table in tables]), "<f8").reshape(len(tables), -1)
            values = np.frombuffer(b"".join([table.values for table in tables]), "<f8")
            self._joined.append((steps, times, values.reshape(len(tables), len(tables[0].names), -1)))

    def rows(self, source: int) -> Placed:
        """Return the rows of a source."""
        state, number, at = self.sources[source], self.whose[1][source], self._in_table[source]
        steps, times, values = self._joined[number]
        return Placed(
            state.segment, state.source, state.rank, state.node, self.names[number],
            steps[:, at], times[:, at], values[:, :, at].T,
        )  # fmt: skip

    def table(
        self, number: int, message: int
    ) -> tuple[list[str], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64], list[int]]:
        """Return a table of a message: metrics, steps, times, values, and the ranks of its rows."""
        steps, times, values = self._joined[number]
        ranks = [source.rank or 0 for source, of in zip(self.sources, self.whose[1], strict=True) if of == number]
        return self.names[number], steps[message], times[message], values[message], ranks

    def judged_rows(self) -> Placed:
        """Return the rows of the rank that is judged, which is among the sources."""
        assert self.judged is not None
        return self.rows(self.judged)


def _one_row_each(message: Frame | NodeFrame) -> _Whose | None:
    """Return whose rows a message has, where it is one of each source and nothing else."""
    if isinstance(message, Frame):
        only = message.blocks[0] if len(message.blocks) == 1 else None
        return ([message.source], [0]) if isinstance(only, PointsBlock) and len(only.steps) == 8 else None
    infos, numbers = list[SourceInfo](), list[int]()
    for part in message.parts:
        block = part.blocks[0] if len(part.blocks) == 1 else None
        if not isinstance(block, tuple) or block[1] != 1:
            return None
        infos.append(part.source)
        numbers.append(block[0])
    return infos, numbers


def _steps_and_times(tables: Sequence[PointsBlock]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the steps and the times of a message's rows, table after table."""
    steps, times = b"".join([table.steps for table in tables]), b"".join([table.times for table in tables])
    return unpack(f"<{len(steps) // 8}q", steps), unpack(f"<{len(times) // 8}d", times)
