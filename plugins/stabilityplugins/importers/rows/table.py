"""Makes batches of a file's rows: which values are numbers, which are missing, and whose rows they are."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stabilityclient.wire import MAX_NAME_CHARS, MAX_STEP
from stabilityplugins.importers.batches import PAUSE, Batch, Fork, Note, Who, bare
from stabilityplugins.importers.lineage import ExportedLineage
from stabilityplugins.importers.problems import Reading, shown
from stabilityplugins.importers.rows.cells import (
    TIME_UNITS,
    NotAStep,
    as_number,
    as_rank,
    as_step,
    as_time,
    is_missing,
    is_text,
)
from stabilityplugins.importers.rows.lanes import NODE, RANK
from stabilityplugins.importers.rows.layout import LEFT_OUT, Group, Layout
from stabilityplugins.importers.rows.moments import MIN_TIME

__all__ = ["FINGERPRINT", "TableRows"]


class EpochSteps:
    """Counts steps on that begin again with each epoch."""

    def __init__(self) -> None:
        self._ahead = 0
        self._stride = 1
        self._step: int | None = None

    def through(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the steps with those of the epochs before added."""
        found = steps.copy()
        for at, step in enumerate(steps.tolist()):
            if self._step is not None and step < self._step:
                self._ahead += self._step + self._stride - step
            elif self._step is not None and step > self._step:
                self._stride = step - self._step
            self._step = step
            found[at] = step + self._ahead
        return found


#: Keys that are no metrics, and those of our own exports.
PHASE, FINGERPRINT = "phase", "batch_fp"
_EXPORTED = frozenset({"segment", "dead", "stray", "export"})
#: Most characters of a batch's fingerprint that are kept.
_FINGERPRINT_CHARS = 1_000
#: Metrics whose steps are remembered, to tell a row that lost its step from one that never has any.
_MAX_STEPPED = 20_000


class TableRows:
    """The rows of one file.

    Args:
        number: of the file in its run. rank: whose rows these are where they do not tell. prefix: put before every
            name. base: unix seconds of the row before the first, for a file without times.
        lineage: the segments of an export, None of other files. place: names a record in messages.

    Attributes:
        edition: which export it is.
    """

    def __init__(
        self,
        path: Path,
        number: int,
        reading: Reading,
        layout: Layout,
        *,
        rank: int = 0,
        prefix: str = "",
        base: float = 0.0,
        lineage: ExportedLineage | None = None,
        place: Callable[[int], str] = "line {}".format,
    ) -> None:
        self._path = path
        self._number = number
        self._reading = reading
        self._layout = layout
        self._rank = rank
        self._prefix = prefix
        self._base = base
        self._lineage = lineage
        self._name = place
        self.edition: tuple[str, str] | None = None
        #: Names that held a number so far.
        self.numeric: set[str] = set()
        self._stepped: set[str] = set()
        self._steps: dict[Who, int] = {}
        self._time: float | None = layout.first_time
        self._epochs: dict[Who, EpochSteps] = {}
        self._placed = self._early = 0
        #: The end was reached before: rows from now on were written just now.
        self._live = False
        self._first = True
        self._item = 0

    def batches(self, groups: Iterable[Group | None]) -> Iterator[Batch]:
        """Yield the rows; None among the groups: nothing more for now."""
        for group in groups:
            if group is None:
                yield PAUSE
                self._live = True
                continue
            for batch in self._of_group(group):
                batch.edition, batch.timed = self.edition, self._layout.time is not None
                self._item = max(self._item, batch.last_item)
                yield from self._first_alone(batch)
        if self._lineage is not None and (rest := self._lineage.rest()):
            yield bare(Who(self._number, 0), self._item, rest, self.edition)

    def close(self) -> None:
        """Report the decisions, once all rows are read."""
        reading, path, layout = self._reading, self._path, self._layout
        reading.end_of_file(path, self.numeric)
        for note in layout.notes:
            reading.note(note)
        if layout.time is None:
            reading.untimed.append((path, layout.no_time))
        if self._placed:
            reading.note(f"{path}: {self._placed} rows without {layout.step} are at the step of the row before")
        if self._early:
            reading.note(f"{path}: {self._early} rows before the first step are left out")

    def _first_alone(self, batch: Batch) -> Iterator[Batch]:
        """Yield a batch, the first row of a file by itself: it names the file, and no other rank may come before it."""
        if not self._first or len(batch) < 2:
            self._first = self._first and not len(batch)
            yield batch
            return
        self._first = False
        for part in (slice(0, 1), slice(1, None)):
            items = batch.items[part]
            yield replace(
                batch, items=items, steps=batch.steps[part], times=batch.times[part], values=batch.values[:, part],
                notes=[note for note in batch.notes if items[0] <= note.item <= items[-1]],
                forks=batch.forks if part.start == 0 else [],
            )  # fmt: skip

    def _of_group(self, group: Group) -> Iterator[Batch]:
        rows = self._rows(group)
        self._find_steps(rows)
        times = self._times_of(group, rows.numbers)
        prints = group.column(FINGERPRINT)
        self._leave_strays(rows)
        for first, last in rows.stretches(with_empty=prints is not None):
            part, there = slice(first, last), rows.present[:, first]
            who = rows.lanes[rows.owners[first]]
            forks = yield from self._forks(group, who, int(rows.numbers[first]))
            kept = tuple(name for name, is_there in zip(rows.names, there, strict=True) if is_there)
            self.numeric.update(name.removeprefix(self._prefix) for name in kept)
            notes = [
                Note(int(rows.numbers[at]), "batch", int(rows.steps[at]), float(times[at]),
                     {"fingerprint": str(prints[at])[:_FINGERPRINT_CHARS]})
                for at in range(first, last)
                if prints is not None and prints[at] is not None and who.rank is not None
            ]  # fmt: skip
            values = np.ascontiguousarray(rows.values[there, part])
            yield Batch(who, kept, rows.numbers[part], rows.steps[part], times[part], values, notes, forks)

    def _forks(self, group: Group, who: Who, item: int) -> Generator[Batch, None, list[Fork]]:
        """Yield segments that a node's rows enter as a batch of their own; return those that go with the rows."""
        segments = group.column("segment")
        if self._lineage is None or segments is None:
            return []
        forks = self._lineage.enter(who, int(segments[0]))
        if forks and who.rank is None:
            yield bare(Who(self._number, 0), item, forks, self.edition)
            return []
        return forks

    def _leave_strays(self, rows: _Rows) -> None:
        strays = rows.group.column("stray")
        if self._lineage is not None and strays is not None and any(strays):
            rows.good &= ~np.array(strays, bool)
            self._reading.note(f"{self._path}: rows marked stray (low steps that led nowhere) are left out")

    def _rows(self, group: Group) -> _Rows:
        """Return the rows of a group with their owners and values; the steps come later."""
        count = len(group.numbers)
        numbers = np.asarray(group.numbers, np.int64)
        rows = _Rows(group, numbers, np.ones(count, bool), np.zeros(count, np.int64), np.zeros(count, np.int64))
        self._find_owners(rows)
        layout = self._layout
        own = {layout.step, layout.time, RANK, PHASE, FINGERPRINT, *LEFT_OUT}
        own |= _EXPORTED if self._lineage is not None else set()
        own |= {NODE} if group.column(RANK) is not None else set()
        names: list[str] = []
        values, present = np.empty((len(group.keys), count)), np.ones((len(group.keys), count), bool)
        for key, column in zip(group.keys, group.columns, strict=True):
            if key in own or not self._is_name(group, key):
                continue
            at = len(names)
            if self._fill(rows, key, column, values[at], present[at]):
                names.append(self._prefix + key)
            else:
                present[at] = True  # the next column takes its place
        rows.names, rows.values, rows.present = names, values[: len(names)], present[: len(names)]
        return rows

    def _find_owners(self, rows: _Rows) -> None:
        """Find whose rows these are."""
        given, nodes = rows.group.column(RANK), rows.group.column(NODE)
        own = Who(self._number, self._rank)
        if given is None:
            rows.lanes = [own]
            return
        places: dict[Who, int] = {}
        for at, value in enumerate(given.tolist() if isinstance(given, np.ndarray) else given):
            node = nodes[at] if nodes is not None else None
            try:
                if is_missing(value):
                    who = Who(self._number, None, node) if isinstance(node, str) and node else own
                else:
                    who = Who(self._number, as_rank(value))
            except NotAStep as error:
                rows.good[at], who = False, own
                self._problem(rows.group, at, str(error))
            rows.owners[at] = places.setdefault(who, len(places))
        rows.lanes = list(places)

    def _is_name(self, group: Group, key: str) -> bool:
        name = self._prefix + key
        if not is_text(name):
            self._problem(group, 0, f"the metric name {shown(name)} is no text: half of a character pair")
        elif not 1 <= len(name) <= MAX_NAME_CHARS:
            what = f"the metric name {shown(name)} has {len(name)} characters, expected 1 to {MAX_NAME_CHARS}"
            self._problem(group, 0, what)
        else:
            return True
        return False

    def _fill(
        self,
        rows: _Rows,
        key: str,
        column: Sequence[Any] | NDArray[np.float64],
        values: NDArray[np.float64],
        present: NDArray[np.bool_],
    ) -> bool:
        """Fill the values of a column; return whether it has any."""
        if isinstance(column, np.ndarray):
            values[:] = column
            return True
        comma = self._layout.decimal_comma
        try:
            is_texts = not comma and isinstance(column[0], str)
            values[:] = array("d", map(float, column) if is_texts else column)
            return True
        except (TypeError, ValueError, OverflowError):
            pass
        for at, value in enumerate(column):
            number = as_number(value, decimal_comma=comma)
            if number is not None:
                values[at] = number
                continue
            present[at] = False
            if not is_missing(value):
                self._reading.odd_value(self._path, self._name(rows.group.numbers[at]), key, value)
        return bool(present.any())

    def _find_steps(self, rows: _Rows) -> None:
        """Find the step of each row: of one without, that of the row before."""
        there = self._given_steps(rows)
        for place, who in enumerate(rows.lanes):
            mine = np.flatnonzero(rows.good & there & (rows.owners == place))
            if len(mine) and self._layout.epoch is not None:
                rows.steps[mine] = self._epochs.setdefault(who, EpochSteps()).through(rows.steps[mine])
            if len(mine) and there.all():
                self._steps[who] = int(rows.steps[mine[-1]])
        if not there.all():
            self._place(rows, there)
        elif len(self._stepped) < _MAX_STEPPED:
            self._stepped.update(rows.names)

    def _place(self, rows: _Rows, there: NDArray[np.bool_]) -> None:
        """Give the rows without a step that of the row before, unless they should have one of their own."""
        for at in np.flatnonzero(rows.good).tolist():
            who, names = rows.lanes[rows.owners[at]], rows.names_of(at)
            if there[at]:
                self._steps[who] = int(rows.steps[at])
                self._stepped.update(names if len(self._stepped) < _MAX_STEPPED else ())
                continue
            before = self._steps.get(who)
            if names and before is not None and not self._stepped.issuperset(names):
                rows.steps[at] = before
                self._placed += 1
                continue
            rows.good[at] = False
            if names and before is not None:
                self._problem(rows.group, at, f"no {self._layout.step}, as other rows with {names[0]} have")
            elif names:
                self._early += 1

    def _given_steps(self, rows: _Rows) -> NDArray[np.bool_]:
        """Take the steps that the rows have; return which have one."""
        there = np.ones(len(rows.good), bool)
        column = rows.group.column(self._layout.step)
        if column is None:
            return ~there
        if self._layout.parts > 1 or self._layout.decimal_comma:
            column = [self._whole_step(value) for value in column]
        if isinstance(column, np.ndarray):
            if bool(((column >= 0) & (column <= MAX_STEP) & (column == np.floor(column))).all()):
                rows.steps = column.astype(np.int64)
                return there
            column = column.tolist()
        if (found := _whole(column)) is not None and min(found) >= 0 and max(found) <= MAX_STEP:
            rows.steps = np.array(found, np.int64)
            return there
        for at, value in enumerate(column):
            if is_missing(value):
                there[at] = False
                continue
            try:
                rows.steps[at] = as_step(value)
            except NotAStep as error:
                rows.good[at] = False
                self._problem(rows.group, at, str(error))
        return there

    def _whole_step(self, value: Any) -> Any:
        """Return a step that is written as a part of an epoch, or with another sign than the point, as a number."""
        number, parts = as_number(value, decimal_comma=self._layout.decimal_comma), self._layout.parts
        if number is None or not math.isfinite(number):
            return value
        return float(round(number * parts)) if parts > 1 else number

    def _times_of(self, group: Group, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        layout, count = self._layout, len(numbers)
        if layout.time is None:
            return np.full(count, time.time()) if self._live else self._base + numbers.astype(np.float64)
        column = group.column(layout.time)
        times = np.full(count, np.nan)
        if column is not None and not isinstance(column, np.ndarray):
            column = _floats(column)
        if isinstance(column, np.ndarray) and bool(((column >= MIN_TIME) & (column < TIME_UNITS[-1][0])).all()):
            times[:] = column
        elif column is not None:
            read = layout.read_time or as_time
            found = (read(value) for value in column)
            times[:] = np.array([np.nan if moment is None else moment for moment in found])
        missing = np.isnan(times)
        if missing.any():
            before = self._time if self._time is not None else time.time()
            at = np.maximum.accumulate(np.where(missing, -1, np.arange(count)))
            times[:] = np.where(at >= 0, times[at], before)
        self._time = float(times[-1])
        return times

    def _problem(self, group: Group, at: int, reason: str) -> None:
        self._reading.problem(self._path, self._name(group.numbers[at]), reason)


@dataclass(slots=True)
class _Rows:
    """The n rows of a group.

    Attributes:
        numbers: int64[n], of the lines. good: bool[n], whether it is a row. steps: int64[n].
        lanes: whose rows there are. owners: int64[n], places in ``lanes``.
        names: of m metrics. values: float64[m, n]. present: bool[m, n].
    """

    group: Group
    numbers: NDArray[np.int64]
    good: NDArray[np.bool_]
    steps: NDArray[np.int64]
    owners: NDArray[np.int64]
    lanes: list[Who] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    values: NDArray[np.float64] = field(init=False)
    present: NDArray[np.bool_] = field(init=False)

    def names_of(self, at: int) -> list[str]:
        """Return the metrics that a row has."""
        return [name for name, is_there in zip(self.names, self.present[:, at], strict=True) if is_there]

    def stretches(self, *, with_empty: bool) -> Iterator[tuple[int, int]]:
        """Yield (first, last + 1) of good rows that follow each other with one owner and the same values missing."""
        present, owners, good = self.present, self.owners, self.good
        changes = (owners[1:] != owners[:-1]) | (present[:, 1:] != present[:, :-1]).any(axis=0)
        changes |= good[1:] != good[:-1]
        for first, last in pairwise([0, *(np.flatnonzero(changes) + 1).tolist(), len(good)]):
            if good[first] and (with_empty or present[:, first].any()):
                yield first, last


def _whole(column: Sequence[Any]) -> Sequence[int] | None:
    """Return a column of whole numbers, or of texts of such, None for another one."""
    kinds = {*map(type, column)}
    if kinds == {int}:
        return column
    try:
        return [*map(int, column)] if kinds == {str} else None
    except ValueError:
        return None


def _floats(column: Sequence[Any]) -> Sequence[Any] | NDArray[np.float64]:
    """Return a column as numbers, where all its cells are such."""
    try:
        return np.array(array("d", map(float, column)))
    except (TypeError, ValueError, OverflowError):
        return column
