"""A batch: rows that found their segment, in the order of the stream, of any number of processes and steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = ["Batch", "Placed", "Source", "Table"]


class Source(Protocol):
    """The process that logged a row; ``rank`` is None for an agent."""

    @property
    def source(self) -> str: ...
    @property
    def rank(self) -> int | None: ...
    @property
    def node(self) -> str: ...


class Placed(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Rows of one process and one set of metrics. A Struct: a dataclass takes eight times as long.

    Thousands of them are retained for a while: the garbage collector need not look at them, for they hold no others.

    Attributes:
        source, rank, node: the process; rank None for an agent.
        names: the m metric names.
        steps: int64 (n,). times: float64 (n,), unix seconds. values: float64 (m, n).
        stray: low steps that nothing followed: stored, shown as dead, never part of a curve.
        aside: rows of metrics that do not tell where the run is, at steps behind it.
        more: the next change holds other metrics of the same interval of steps, logged in turn with these.
    """

    segment: int
    source: str
    rank: int | None
    node: str
    names: list[str]
    steps: NDArray[np.int64]
    times: NDArray[np.float64]
    values: NDArray[np.float64]
    stray: bool = False
    more: bool = False
    aside: bool = False

    @property
    def low(self) -> int:
        """The smallest step of the rows, of which there must be any."""
        steps = self.steps  # most frames have one row, and a reduction of numpy costs as much as the rest
        return int(steps[0] if len(steps) == 1 else steps.min())

    @property
    def high(self) -> int:
        """The greatest step of the rows, of which there must be any."""
        steps = self.steps
        return int(steps[0] if len(steps) == 1 else steps.max())

    def at(self, segment: int, part: slice = slice(None), *, stray: bool = False) -> Placed:
        """Return some of these rows (default: all) in ``segment``."""
        steps, times, values = self.steps, self.times, self.values
        if part != slice(None):
            steps, times, values = steps[part], times[part], values[:, part]
        return Placed(segment, self.source, self.rank, self.node, self.names, steps, times, values, stray)


class Table(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Rows of one set of metrics: T rows of each of K processes.

    Attributes:
        sources: the K processes. names: the m metric names.
        steps: int64 (T, K). times: float64 (T, K), unix seconds. values: float64 (m, T, K).
        order: int64 (T, K), the place of each row among the rows of its batch.
    """

    sources: Sequence[Source]
    names: list[str]
    steps: NDArray[np.int64]
    times: NDArray[np.float64]
    values: NDArray[np.float64]
    order: NDArray[np.int64]

    def part(self, turns: slice, members: slice, first: int) -> Table:
        """Return the rows of some turns and some processes, in a batch that begins at the row ``first`` of this one."""
        return Table(
            self.sources[members], self.names, self.steps[turns, members], self.times[turns, members],
            self.values[:, turns, members], self.order[turns, members] - first,
        )  # fmt: skip


_ONE_ROW = np.zeros((1, 1), np.int64)
#: Rows below which reductions of numpy cost more than lists.
_FEW = 32


class Batch:
    """Rows of one segment, in the order of the stream.

    Either T turns of the same R rows, a row of each of some processes, in tables by set of metrics; or the rows of one
    process, of several sets of metrics where these were logged in turn. A consumer that needs no order between
    processes takes ``each()``, any other ``tables``.

    Args:
        stray, aside: as of ``Placed``.
    """

    def __init__(
        self, segment: int, tables: Sequence[Table], count: int, turn: int, *, stray: bool = False, aside: bool = False
    ) -> None:
        self.segment, self.tables, self.count, self.stray, self.aside = segment, tables, count, stray, aside
        #: Rows of a turn; 0 where the tables are of one process and have other numbers of rows.
        self._turn = turn
        self._each: list[Placed] | None = None

    @classmethod
    def of(cls, placed: Sequence[Placed]) -> Batch:
        """Return rows of one process as a batch."""
        first, count = placed[0], sum(len(one.steps) for one in placed)
        if count == 1:
            orders = [_ONE_ROW]
        elif len(placed) == 1:
            orders = [np.arange(count)[:, None]]
        else:
            times = np.concatenate([one.times for one in placed])
            came = np.lexsort((times, np.concatenate([one.steps for one in placed])))
            order = np.empty(count, np.int64)
            order[came] = np.arange(count)
            ends = np.cumsum([len(one.steps) for one in placed])
            orders = [part[:, None] for part in np.split(order, ends[:-1])]
        tables = [
            Table([one], one.names, one.steps[:, None], one.times[:, None], one.values[:, :, None], order)
            for one, order in zip(placed, orders, strict=True)
        ]
        batch = cls(first.segment, tables, count, int(len(placed) == 1), stray=first.stray, aside=first.aside)
        batch._each = list(placed)
        return batch

    def each(self) -> list[Placed]:
        """Return the rows of each process and set of metrics, in the order of their first rows."""
        if self._each is None:
            self._each = [
                Placed(
                    self.segment, source.source, source.rank, source.node, table.names,
                    table.steps[:, at], table.times[:, at], table.values[:, :, at], self.stray, False, self.aside,
                )
                for table in self.tables for at, source in enumerate(table.sources)
            ]  # fmt: skip
            if self._turn and len(self.tables) > 1:
                firsts = [place for table in self.tables for place in table.order[0].tolist()]
                self._each = [self._each[at] for at in np.argsort(firsts).tolist()]
        return self._each

    @property
    def low(self) -> int:
        """The smallest step."""
        return self._range[0]

    @property
    def high(self) -> int:
        """The greatest step."""
        return self._range[1]

    @property
    def times(self) -> tuple[float, float]:
        """The earliest and the latest log time, unix seconds."""
        return self._range[2:]

    @cached_property
    def _range(self) -> tuple[int, int, float, float]:
        if self.count <= _FEW:  # the lists of Python are faster there
            steps = [step for table in self.tables for row in table.steps.tolist() for step in row]
            times = [time for table in self.tables for row in table.times.tolist() for time in row]
            return min(steps), max(steps), min(times), max(times)
        ends = [(table.steps.min(), table.steps.max(), table.times.min(), table.times.max()) for table in self.tables]
        lows, highs, firsts, lasts = zip(*ends, strict=True)
        return int(min(lows)), int(max(highs)), float(min(firsts)), float(max(lasts))

    @property
    def is_of_one(self) -> bool:
        """Whether all rows are of one process."""
        return self._turn == 0 or (len(self.tables) == 1 and len(self.tables[0].sources) == 1)

    def merged(self) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
        """Return steps, times and order of the rows of one process, in their order."""
        if len(self.tables) == 1:
            only = self.tables[0]
            return only.steps[:, 0], only.times[:, 0], only.order[:, 0]
        order = np.concatenate([table.order[:, 0] for table in self.tables])
        came = np.argsort(order)
        steps = np.concatenate([table.steps[:, 0] for table in self.tables])[came]
        return steps, np.concatenate([table.times[:, 0] for table in self.tables])[came], order[came]

    def split(self, count: int) -> tuple[list[Batch], list[Batch]]:
        """Return the first ``count`` rows and the others, as batches in the order of their rows."""
        if count >= self.count:
            return [self], []
        if self._turn == 0:
            cuts = [int(table.order[:, 0].searchsorted(count)) for table in self.tables]
            every = slice(None)
            first = [one.part(slice(cut), every, 0) for one, cut in zip(self.tables, cuts, strict=True) if cut]
            others = [
                one.part(slice(cut, None), every, count)
                for one, cut in zip(self.tables, cuts, strict=True)
                if cut < len(one.steps)
            ]
            return [self._with(first, count)], [self._with(others, self.count - count)]
        turns, rest = divmod(count, self._turn)
        end, before = self.count // self._turn, self._turns(0, turns)
        if not rest:
            return before, self._turns(turns, end)
        return (
            [*before, *self._members(turns, 0, rest)],
            [*self._members(turns, rest, self._turn), *self._turns(turns + 1, end)],
        )

    def rows(self) -> Iterator[Batch]:
        """Yield each row as a batch."""
        rest = [self]
        while rest:
            first, after = rest[0].split(1)
            yield first[0]
            rest = after + rest[1:]

    def _with(self, tables: list[Table], count: int) -> Batch:
        turn = count // len(tables[0].steps) if self._turn or len(tables) == 1 else 0
        return Batch(self.segment, tables, count, turn, stray=self.stray, aside=self.aside)

    def _turns(self, first: int, end: int) -> list[Batch]:
        if first >= end:
            return []
        tables = [table.part(slice(first, end), slice(None), first * self._turn) for table in self.tables]
        return [self._with(tables, (end - first) * self._turn)]

    def _members(self, turn: int, first: int, end: int) -> list[Batch]:
        """Return the rows ``first`` to ``end`` of a turn."""
        low, tables = turn * self._turn + first, []
        for table in self.tables:
            begin, stop = table.order[turn].searchsorted((low, low + end - first))
            if begin < stop:
                tables.append(table.part(slice(turn, turn + 1), slice(begin, stop), low))
        return [self._with(tables, end - first)]
