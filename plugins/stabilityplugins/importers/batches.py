"""Output of every reader: rows of one rank, column by column, with the number of each row's record.

The number of a record in its file makes an import repeatable: it becomes the sequence number under which the
server stores the row. So a reader counts every record, also one that it can't read.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from stabilityplugins.importers.problems import Reading

__all__ = ["BATCH_ROWS", "PAUSE", "Batch", "Fork", "Grouper", "Note", "Who", "bare"]

#: Rows in one batch, at most.
BATCH_ROWS = 4_096
#: Ranks and nodes in one file whose rows are gathered side by side.
MAX_LANES = 20_000


class Who(NamedTuple):
    """Who logged a row.

    Args:
        file: number of the file in the run; each file is a start of the job. rank: None for a node's own metrics.
        node: host name, empty where unknown.
    """

    file: int
    rank: int | None
    node: str = ""


class Note(NamedTuple):
    """Something that happened at a record: an event of docs/wire.md."""

    item: int
    type: str
    step: int | None
    time: float
    data: dict[str, Any]


class Fork(NamedTuple):
    """A segment that the file names.

    Args:
        key: unique in the run. to_step: its own steps are greater. created: unix seconds.
        facts: further fields of a ``segment`` event.
    """

    key: str
    to_step: int
    created: float
    facts: dict[str, Any]


@dataclass(slots=True)
class Batch:
    """Rows of one rank and one metric set.

    Attributes:
        who: whose they are.
        names: m metric names. items: record number of each row, int64[n], rising.
        steps: int64[n]. times: float64[n], unix seconds. values: float64[m, n].
        notes: events that come before the rows, by record.
        forks: segments that begin before the first row; everything older has to be sent before.
        timed: whether the file has times (else they are made up).
        edition: (run, number of the export) of this server's exports; None for other files.
        at_item: the record of a batch that holds forks and no row.
    """

    who: Who
    names: tuple[str, ...]
    items: NDArray[np.int64]
    steps: NDArray[np.int64]
    times: NDArray[np.float64]
    values: NDArray[np.float64]
    notes: list[Note] = field(default_factory=list)
    forks: list[Fork] = field(default_factory=list)
    timed: bool = True
    edition: tuple[str, str] | None = None
    at_item: int = 0

    def parts(self, rows: int) -> Iterator[Batch]:
        """Yield the batch in pieces of at most ``rows`` rows: forks with the first, each note with its record's row."""
        if len(self) <= rows:
            yield self
            return
        notes, forks = self.notes, self.forks
        for start in range(0, len(self), rows):
            part = slice(start, start + rows)
            items = self.items[part]
            due = [note for note in notes if note.item <= items[-1]]
            notes = notes[len(due) :]
            yield replace(
                self, items=items, steps=self.steps[part], times=self.times[part], values=self.values[:, part],
                notes=due, forks=forks,
            )  # fmt: skip
            forks = []

    @property
    def last_item(self) -> int:
        """Record number up to which this batch counts."""
        return int(self.items[-1]) if len(self.items) else self.at_item

    def __len__(self) -> int:
        return len(self.steps)


def bare(who: Who, item: int, forks: list[Fork], edition: tuple[str, str] | None) -> Batch:
    """Return a batch that holds segments and no row."""
    empty = np.empty(0)
    none = empty.astype(np.int64)
    return Batch(who, (), none, none, empty, empty.reshape(0, 0), forks=forks, edition=edition, at_item=item)


#: Output of a reader at the end of a followed file; the reader continues from there when it is asked
#: again.
PAUSE = bare(Who(-1, None), 0, [], None)


class _RankRows:
    __slots__ = ("flat", "forks", "items", "names", "notes", "steps", "times", "who")

    def __init__(self, who: Who) -> None:
        self.who = who
        self.names: tuple[str, ...] = ()
        self.items: list[int] = []
        self.steps: list[int] = []
        self.times: list[float] = []
        self.flat = array("d")
        self.notes: list[Note] = []
        self.forks: list[Fork] = []


class Grouper:
    """Gathers single rows into batches, rank by rank.

    Args:
        reading: of the run. It flushes at the end of a file any rows that the file's reader did not.
        timed: handed on.
    """

    def __init__(self, reading: Reading, *, timed: bool = True) -> None:
        reading.groupers.append(self)
        self.timed = timed
        self.edition: tuple[str, str] | None = None
        #: Keys that held a number so far.
        self.numeric: set[str] = set()
        self._lanes: dict[Who, _RankRows] = {}
        self._forks: list[Fork] = []
        self._waiting = 0
        self._first = True

    def add(
        self, who: Who, item: int, names: tuple[str, ...], step: int, time: float, values: array[float]
    ) -> Iterator[Batch]:
        """Add a row; yield the batches that are ready."""
        lane = self._lanes.get(who)
        if lane is None:
            if len(self._lanes) >= MAX_LANES:
                yield from self.flush()
                self._lanes.clear()
            lane = self._lanes[who] = _RankRows(who)
        if lane.names != names:
            if lane.items:
                yield self._take(lane)
            lane.names = names
        if self._forks:  # of this rank: another one must not carry them
            lane.forks, self._forks = self._forks, []
        lane.items.append(item)
        lane.steps.append(step)
        lane.times.append(time)
        lane.flat.extend(values)
        self._waiting += 1
        if self._waiting >= BATCH_ROWS or self._first:
            # The first row goes alone: it names the file, and no other rank may come before it when the file has grown.
            self._first = False
            yield from self.flush()

    def note(self, who: Who, note: Note) -> Iterator[Batch]:
        """Add an event that belongs before the next row of ``who``; a row of the same record must follow."""
        lane = self._lanes.setdefault(who, _RankRows(who))
        if lane.steps and note.step is not None and note.step < lane.steps[-1]:
            yield self._take(lane)
        lane.notes.append(note)

    def fork(self, forks: list[Fork]) -> Iterator[Batch]:
        """Let segments begin before the next row that is added."""
        yield from self.flush()
        self._forks += forks

    def bare_forks(self, who: Who, item: int) -> Iterator[Batch]:
        """Yield the segments that no row of a rank follows, as a batch without rows."""
        forks, self._forks = self._forks, []
        if forks:
            yield bare(who, item, forks, self.edition)

    def flush(self) -> Iterator[Batch]:
        """Yield all added rows, in the ranks' order of arrival."""
        for lane in self._lanes.values():
            if lane.items:
                yield self._take(lane)
        self._lanes.clear()

    def _take(self, lane: _RankRows) -> Batch:
        count = len(lane.items)
        self.numeric.update(lane.names)
        batch = Batch(
            lane.who,
            lane.names,
            np.array(lane.items, np.int64),
            np.array(lane.steps, np.int64),
            np.array(lane.times, np.float64),
            np.frombuffer(lane.flat, np.float64).reshape(count, -1).T.copy(),
            lane.notes,
            lane.forks,
            self.timed,
            self.edition,
        )
        self._waiting -= count
        lane.forks = []
        lane.items, lane.steps, lane.times, lane.notes = [], [], [], []
        lane.flat = array("d")
        return batch
