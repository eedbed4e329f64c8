"""Folds several messages of the stream at once: rows of ranks that just go on, a row of each rank in a message.

It is the same as one message after another, and costs a third of that: what is done for a message is done once for all
of them, and detectors get many rows at once. Where they find anything in those rows, the messages are folded one by one
all the same, for what follows from a finding follows from what was known when its row came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.detectors.straggler import reports_own_work
from stabilitybackend.lineage.changes import Placed
from stabilitybackend.lineage.usual_rows import go_on, goes_on
from stabilitybackend.runs.changes import Changes
from stabilitybackend.runs.rows.usual_rows import takes_usual
from stabilityclient.wire import Frame, NodeFrame, PointsBlock, SourceInfo

if TYPE_CHECKING:
    from stabilitybackend.runs.state import RunState

__all__ = ["Together"]

#: Rows that are folded at once: some milliseconds, in which the process does nothing else.
MAX_ROWS = 512

#: Whose rows a message has, one of each; the table of each; the tables.
_OneEach = tuple[list[SourceInfo], list[int], Sequence[PointsBlock]]
#: A source's rank, name, and in each of its messages the step and the time of its row.
_Columns = tuple[int, str, list[int], list[float]]


class Together:
    """Messages that may be folded at once. Nothing changes the state between ``take`` and ``fold``."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        #: By their first source.
        self._alike: dict[str, _Alike] = {}
        self._ranks: set[int] = set()
        self._rows = 0
        self._open = takes_usual(state)
        self._judged: _Alike | None = None
        #: The messages in order.
        self.messages: list[_Alike] = []

    def take(self, message: Frame | NodeFrame) -> bool:
        """Take the next message; return False, with nothing done, where it is not like those that may be."""
        found = _one_row_each(message) if self._open else None
        if found is None:
            return False
        infos, numbers, tables = found
        if self._rows + len(infos) > MAX_ROWS:
            return False
        alike = self._alike.get(infos[0].source)
        if alike is None:
            alike = self._begin(infos, numbers, tables)
            if alike is None:
                return False
            self._alike[infos[0].source] = alike
        elif (infos, numbers) != (alike.infos, alike.numbers) or not alike.goes_on(tables):
            return False
        alike.add(tables)
        self.messages.append(alike)
        self._rows += len(infos)
        return True

    def _begin(self, infos: list[SourceInfo], numbers: list[int], tables: Sequence[PointsBlock]) -> _Alike | None:
        """Return where messages like one belong; None where its rows do not just go on."""
        state, alike = self._state, _Alike(infos, numbers, tables)
        primary, ranks = state.judge.primary, {info.rank for info in infos if info.rank is not None}
        if primary is None or len(ranks) < len(infos) or min(ranks) < primary or ranks & self._ranks:
            return None
        if any(not names or reports_own_work(tuple(names)) for names in alike.names):
            return None
        steps, times = alike.newest
        for info, number, at in zip(infos, numbers, alike.places, strict=True):
            names = alike.names[number]
            source = goes_on(state.fold, info, names, int(steps[number][at]), float(times[number][at]))
            if source is None or not state.launch_sizes.knows(info):
                return None
            if info.rank == primary:
                if state.resumes.compares(source.source, source.segment):
                    return None
                alike.judged = len(alike.sources)
                alike.steady_to = state.judge.steady_to(source.source, source.segment, names)
                self._judged = alike
            alike.sources.append((source.source, info.rank or 0, source.segment, source.node))
        self._ranks |= ranks
        return alike if alike.is_steady(steps) else None

    def fold(
        self, changes: Changes, begin: Callable[[int], None], one: Callable[[int], None], *, reports: bool
    ) -> None:
        """Fold the messages.

        Args:
            changes: get what they changed.
            begin: notes that the next rows are of the message of a number, from 0 on.
            one: folds the message of a number, for which ``begin`` was called.
            reports: whether what detectors find is reported.
        """
        state = self._state
        for alike in self._alike.values():
            alike.join()
        judged = self._judged
        if judged is not None and state.judge.look_ahead(judged.rows(judged.judged)):
            for number in range(len(self.messages)):
                begin(number)
                one(number)
            state.judge.looked_ahead()
            return
        for number, alike in enumerate(self.messages):
            begin(number)
            alike.orders.append(state.store.open.reserve(len(alike.infos)))
        try:
            self._all(changes, reports=reports)
        except Exception as error:  # a mistake of ours: what it did so far is kept
            state.unreadable.whole(
                "points", f"{type(error).__name__}: {error}", self.messages[0].infos[0].source, error
            )
        state.judge.looked_ahead()

    def _all(self, changes: Changes, *, reports: bool) -> None:
        """Do what ``_UsualRows._took`` does for each of the rows."""
        state = self._state
        for alike in self._alike.values():
            orders, columns = np.array(alike.orders, dtype=np.int64), list[_Columns]()
            for at, (source, rank, _, _) in enumerate(alike.sources):
                placed = alike.rows(at)
                steps, times = placed.steps.tolist(), placed.times.tolist()
                go_on(state.fold, source, placed.names, steps, times[-1])
                state.summary.add(placed, state.store, state.fold.tree)
                state.store.put(placed, orders + at)
                changes.placed.append(placed)
                if state.stretches.of_rank(rank, (times[0], times[-1])):
                    state.stretches.rows(placed, state.launch_sizes.size)
                state.launch_sizes.row(source, steps[0], steps[-1])
                columns.append((rank, source, steps, times))
            alike.columns = columns
        self._in_turn()
        if self._judged is not None:
            placed = self._judged.rows(self._judged.judged)
            found = [*state.judge.take([placed]), *state.resumes.take([placed], state.launch_sizes.size)]
            if reports:
                state.report(found, changes, [placed])

    def _in_turn(self) -> None:
        """Do for each row what depends on the order in which the rows of ranks came."""
        liveness, clock = self._state.liveness, self._state.step_clock
        for alike in self._alike.values():
            alike.turn = 0
        for alike in self.messages:
            at, alike.turn = alike.turn, alike.turn + 1
            if alike.judged is not None:
                _, _, steps, times = alike.columns[alike.judged]
                clock.row(steps[at], times[at], primary=True)
            for rank, source, steps, times in alike.columns:
                clock.in_step(steps[at] + 1)
                liveness.logged(rank, source, steps[at], times[at])


class _Alike:
    """Messages in which the same sources log the same metrics, a row each, all at steps and times that rise."""

    def __init__(self, infos: list[SourceInfo], numbers: list[int], tables: Sequence[PointsBlock]) -> None:
        self.infos, self.numbers = infos, numbers
        #: Of each table.
        self.names = [table.names for table in tables]
        self.newest = _newest(tables)
        #: The row of each source in its table.
        self.places = []
        taken = [0] * len(tables)
        for number in numbers:
            self.places.append(taken[number])
            taken[number] += 1
        #: Name, rank, segment and node of each source.
        self.sources: list[tuple[str, int, int, str]] = []
        #: Which of them is judged, and up to which step its rows may be given at once.
        self.judged: int | None = None
        self.steady_to = -1.0
        self._tables: list[Sequence[PointsBlock]] = []
        #: Which row of the run the first one of each message is.
        self.orders: list[int] = []
        self.columns: list[_Columns] = []
        self.turn = 0

    def goes_on(self, tables: Sequence[PointsBlock]) -> bool:
        """Return whether a message of the same sources goes on after those that are here."""
        if len(tables) != len(self.names) or any(
            table.names != names for table, names in zip(tables, self.names, strict=True)
        ):
            return False
        before, newest = self.newest, _newest(tables)
        rises = all(
            (new > old).all()
            for olds, news in zip(before, newest, strict=True)
            for old, new in zip(olds, news, strict=True)
        )
        if not rises or not self.is_steady(newest[0]):
            return False
        self.newest = newest
        return True

    def is_steady(self, steps: Sequence[NDArray[np.int64]]) -> bool:
        """Return whether the judged row, where there is one, may be given to detectors with those before it."""
        if self.judged is None:
            return True
        return bool(steps[self.numbers[self.judged]][self.places[self.judged]] < self.steady_to)

    def add(self, tables: Sequence[PointsBlock]) -> None:
        """Keep a message."""
        self._tables.append(tables)

    def join(self) -> None:
        """Put the messages' tables together."""
        count, self._joined = len(self._tables), []
        for number, names in enumerate(self.names):
            own = [tables[number] for tables in self._tables]
            steps, times = (
                np.frombuffer(b"".join(one), dtype=kind).reshape(count, -1)
                for one, kind in (
                    ([table.steps for table in own], "<i8"),
                    ([table.times for table in own], "<f8"),
                )
            )
            values = np.frombuffer(b"".join([table.values for table in own]), dtype="<f8")
            self._joined.append((steps, times, values.reshape(count, len(names), -1)))

    def rows(self, source: int) -> Placed:
        """Return all rows of the source of a number."""
        name, rank, segment, node = self.sources[source]
        number, at = self.numbers[source], self.places[source]
        steps, times, values = self._joined[number]
        return Placed(segment, name, rank, node, self.names[number], steps[:, at], times[:, at], values[:, :, at].T)


def _newest(tables: Iterable[PointsBlock]) -> tuple[list[NDArray[np.int64]], list[NDArray[np.float64]]]:
    """Return the steps and the times of a message's rows, by table."""
    steps = [np.frombuffer(table.steps, dtype="<i8") for table in tables]
    return steps, [np.frombuffer(table.times, dtype="<f8") for table in tables]


def _one_row_each(message: Frame | NodeFrame) -> _OneEach | None:
    """Return whose rows a message has, where it is one of each source and nothing else."""
    if isinstance(message, Frame):
        block = message.blocks[0] if len(message.blocks) == 1 else None
        return ([message.source], [0], [block]) if isinstance(block, PointsBlock) and len(block.steps) == 8 else None
    infos, numbers = [], []
    for part in message.parts:
        block = part.blocks[0] if len(part.blocks) == 1 else None
        if not isinstance(block, tuple) or block[1] != 1:
            return None
        infos.append(part.source)
        numbers.append(block[0])
    return infos, numbers, message.tables
