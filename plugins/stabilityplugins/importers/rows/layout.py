"""Choice of a file's columns of step, time and rank, from its first rows; each choice is reported."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.base.errors import BadRequest
from stabilityclient.step_names import names_steps
from stabilityplugins.importers.problems import Reading
from stabilityplugins.importers.rows.cells import NotAStep, as_number, as_rank, as_step, is_missing
from stabilityplugins.importers.rows.lanes import RANK
from stabilityplugins.importers.rows.moments import TIME_KEYS, ReadTime, clock_of

__all__ = [
    "EXPORT_LAYOUT",
    "HEAD_ROWS",
    "LEFT_OUT",
    "RANK",
    "ROW_NUMBER",
    "Group",
    "Layout",
    "groups_of",
    "is_axis",
    "is_step",
    "layout_of",
    "names_loss",
    "step_error",
]

#: Rows in which columns are looked for.
HEAD_ROWS = 2_000
#: ... and cells: wide tables have fewer rows.
MAX_HEAD_CELLS = 400_000
#: Rows that are looked at where several columns may be the step: which of them goes back shows late.
MAX_LOOKED_ROWS = 1_000_000
#: Names of the step's column, lower case; of several that never go back the first one is taken.
STEP_KEYS = (
    "step", "_step", "global_step", "trainer/global_step", "train/global_step", "train/step", "train/iter",
    "current_steps", "global_step/max_steps", "iteration", "iter", "num_updates",
)  # fmt: skip
#: ... of counts that mostly begin again with each epoch, and of the last resort.
_BATCH_KEYS = ("batch", "batch_idx", "batch_id", "batch_index")
_EPOCH_KEYS = ("epoch", "epochs")
#: The numbers of a table's rows: pandas writes its index without a name, and reads it back under this one.
ROW_NUMBER = "Unnamed: 0"
#: Columns that are no metric.
LEFT_OUT = frozenset({"_runtime", "_wandb", "run_id", ROW_NUMBER})
#: Place of names that only look like those of a step, after the usual ones.
_BY_FORM = len(STEP_KEYS)
_MAX_KEYS = 12
#: Share of the values of a column that must be steps: more than by chance.
_MOST = 0.5
#: A column in so few rows, next to one in most rows, is no step of theirs.
_FEW = 0.1
_NUMBER = re.compile(r"[+-]?[\d.,]+(e[+-]?\d+)?", re.IGNORECASE)
#: 1.234 and 1,234: numbers of either spelling.
_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(?P<sign>[.,])\d{3}(?:(?P=sign)\d{3})*")
_LOSS = re.compile(r"(^|[^a-z])loss(es)?([^a-z]|$)", re.IGNORECASE)
#: In so many parts of one, at most, the epoch is counted where it is the step; by the name of a part.
_PARTS = {10: "tenths", 100: "hundredths", 1_000: "thousandths", 10_000: "ten-thousandths"}


class Group(NamedTuple):
    """Consecutive rows with the same keys, column by column.

    Args:
        keys: m names. numbers: of the n lines or rows in the file. columns: m sequences of n values.
        plain: all values are floats.
    """

    keys: tuple[str, ...]
    numbers: Sequence[int]
    columns: Sequence[Sequence[Any] | NDArray[np.float64]]
    plain: bool = False

    def column(self, key: str | None) -> Sequence[Any] | NDArray[np.float64] | None:
        """Return a column, None where the rows have none of that name."""
        return self.columns[self.keys.index(key)] if key in self.keys else None


@dataclass(frozen=True, slots=True)
class Layout:
    """Roles of the columns.

    Args:
        step: key of the step. time: key of the time, None: the file has no times. read_time: reads one.
        first_time: the earliest time read, unix seconds, for rows before the first one with a time.
        epoch: the steps count within the epochs of this column, None: they count through.
        parts: the step counts so many in one of the column's: hundredths of an epoch.
        decimal_comma: numbers are written as 2,97.
        notes: decisions, as sentences. no_time: reason why the column called a time is none.
    """

    step: str
    time: str | None = None
    read_time: ReadTime | None = None
    first_time: float | None = None
    epoch: str | None = None
    parts: int = 1
    decimal_comma: bool = False
    notes: tuple[str, ...] = ()
    no_time: str = ""


#: Of our own JSONL exports, whose keys are fixed.
EXPORT_LAYOUT = Layout("step", "t")


def layout_of(
    path: Path,
    groups: Iterable[Group | None],
    step_key: str | None,
    delimiter: str = "",
    *,
    looked: Reading | None = None,
) -> Layout:
    """Return the layout of a file.

    Args:
        groups: its rows from the beginning; None ends the first. step_key: of the command line; None: the usual ones.
        delimiter: between the cells of a text table.
        looked: holds, once the groups were looked at, why rows could not be read.

    Raises:
        BadRequest: no column holds the step.
    """
    first = _FirstRows(step_key)
    for group in groups:
        if group is None:
            break
        first.add(group)
        if first.is_enough:
            break
    if first.is_empty and looked is not None and looked.named:
        raise BadRequest(f"{path} has no row that could be read: {looked.named[0].place}, {looked.named[0].reason}")
    step, epoch, why = first.step(path)
    parts = first.parts(step)
    if parts > 1:
        why = (f"{path}: the step is {step} in {_PARTS[parts]}, for no other column counts steps",)
    time, read_time, first_time, no_time = first.time(step)
    comma = first.has_decimal_comma(delimiter)
    return Layout(step, time, read_time, first_time, epoch, parts, comma, why, no_time)


class _Count:
    """One column's fitness as a step: its count of falls, rank by rank."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.rows = self.whole = self.falls = 0
        self.first = self.high = -1.0
        #: Each time that it goes back a new epoch has begun.
        self.by_epoch = True
        self._newest: dict[int, tuple[float, float]] = {}

    def add(self, values: NDArray[np.float64], ranks: NDArray[np.int64], epochs: NDArray[np.float64]) -> None:
        there = np.isfinite(values)
        if not there.any():
            return
        self.rows += int(there.sum())
        good = there & (values >= 0) & (values == np.floor(values))
        self.whole += int(good.sum())
        self.first = self.first if self.first >= 0 else float(values[there][0])
        self.high = max(self.high, float(values[there].max()))
        for rank in np.unique(ranks[there]).tolist():
            mine = there & (ranks == rank)
            before = self._newest.get(rank, (values[mine][0], epochs[mine][0]))
            steps, at = np.append(before[0], values[mine]), np.append(before[1], epochs[mine])
            falls = np.diff(steps) < 0
            self.falls += int(falls.sum())
            with np.errstate(invalid="ignore"):
                turns = np.diff(np.floor(at))
                self.by_epoch &= bool((turns[falls] > 0).all() and (turns >= 0).all())
            self._newest[rank] = float(steps[-1]), float(at[-1])

    @property
    def is_step(self) -> bool:
        return self.whole > 0 and (_plain(self.key) in STEP_KEYS or self.whole >= _MOST * self.rows)

    def rises(self, rows: int) -> bool:
        """Return whether it rises, in a file of so many rows; a column with one value is undecided."""
        return self.high > self.first or (self.rows == 1 and rows * _FEW < 1)


class _FirstRows:
    """The first rows of a file, column by column."""

    def __init__(self, step_key: str | None) -> None:
        self._asked = step_key
        self._rows = self._cells = 0
        self._sample: dict[str, list[Any]] = {}
        self._lines: dict[str, list[int]] = {}
        self._counts: dict[str, _Count] = {}

    @property
    def _is_head(self) -> bool:
        return self._rows < HEAD_ROWS and self._cells < MAX_HEAD_CELLS

    @property
    def is_empty(self) -> bool:
        """Whether no row has a key."""
        return not self._sample

    @property
    def is_enough(self) -> bool:
        """Whether further rows would change nothing, or are too many."""
        if self._is_head:
            return False
        several = self._asked is None and len([count for count in self._counts.values() if count.is_step]) > 1
        return not several or self._rows >= MAX_LOOKED_ROWS

    def add(self, group: Group) -> None:
        count = len(group.numbers)
        in_head = self._is_head
        self._rows += count
        self._cells += count * len(group.keys)
        ranks = _ranks(group.column(RANK), count)
        epochs = _numbers(next((group.column(key) for key in group.keys if _plain(key) in _EPOCH_KEYS), None), count)
        for key, column in zip(group.keys, group.columns, strict=True):
            if in_head:
                some = column[:HEAD_ROWS]
                self._sample.setdefault(key, []).extend(some.tolist() if isinstance(some, np.ndarray) else some)
                self._lines.setdefault(key, []).extend(group.numbers[: len(some)])
            if key in self._counts or (in_head and (_place(key) is not None or key == self._asked)):
                self._counts.setdefault(key, _Count(key)).add(_numbers(column, count), ranks, epochs)

    def step(self, path: Path) -> tuple[str, str | None, tuple[str, ...]]:
        """Return the key of the step, the epoch that it counts within, and the note on the choice."""
        if self._asked is not None:
            key = next((key for key in self._sample if key == self._asked or _plain(key) == _plain(self._asked)), None)
            if key is None:
                raise step_error(path, self._sample, self._asked)
            return key, None, ()
        usable = [count for count in self._counts.values() if count.is_step and self._may_count(count)]
        most = max((count.rows for count in usable), default=0)
        usable = [count for count in usable if count.rows > _FEW * most]
        usable.sort(key=lambda count: (_place(count.key), -count.rows))
        rising = [count for count in usable if count.rises(self._rows)]
        steps = [count for count in usable if _plain(count.key) not in _EPOCH_KEYS]
        steps = [count for count in rising if count in steps] or (
            rising or [count for count in steps if _plain(count.key) not in _BATCH_KEYS] or usable
        )
        if rising or (steps and not self._is_numbered()):
            return self._of_several(path, steps)
        return self._of_last_resort(path)

    def _may_count(self, count: _Count) -> bool:
        """Say whether a column may be the step: ``warmup_steps: 500`` in a printed configuration counts nothing."""
        is_setting = count.rows == 1 or _place(count.key) == _BY_FORM
        return not is_setting or count.rises(self._rows)

    def _of_last_resort(self, path: Path) -> tuple[str, str | None, tuple[str, ...]]:
        """Return parts of an epoch, or the row's number in a table with a loss: other tables are no logs."""
        epoch = next((key for key in self._sample if _plain(key) in _EPOCH_KEYS), None)
        if epoch is not None and self.parts(epoch) > 1:
            return epoch, None, ()
        if self._is_numbered():
            return ROW_NUMBER, None, (f"{path}: the step is the row's number, for no column counts steps",)
        raise step_error(path, self._sample, None)

    def _is_numbered(self) -> bool:
        return _rises(self._sample.get(ROW_NUMBER, ())) and any(map(names_loss, self._sample))

    def parts(self, step: str) -> int:
        """Return how many steps an epoch has where it is the step and a fraction, else 1."""
        if self._asked is not None or _plain(step) not in _EPOCH_KEYS:
            return 1
        values = _numbers(self._sample[step], len(self._sample[step]))
        values = values[np.isfinite(values)]
        if not len(values) or values.min() < 0 or values.max() <= values[0] or (values == np.floor(values)).all():
            return 1
        fine = (parts for parts in _PARTS if np.allclose(values * parts, np.round(values * parts), atol=1e-6))
        return next(fine, max(_PARTS))

    def _of_several(self, path: Path, steps: Sequence[_Count]) -> tuple[str, str | None, tuple[str, ...]]:
        first, taken = steps[0], min(steps, key=lambda count: count.falls)
        if taken.falls and taken.by_epoch:
            epoch = next(key for key in self._sample if _plain(key) in _EPOCH_KEYS)
            why = (
                f"{path}: {taken.key} begins again with each {epoch}, so the steps of the epochs before are added; "
                f"as written: --step-key {taken.key}"
            )
            return taken.key, epoch, (why,)
        if taken is not first:
            why = f"{path}: the step is {taken.key}, for {first.key} goes back {first.falls} times"
            return taken.key, None, (why + (f" ({taken.key}: {taken.falls})" if taken.falls else ""),)
        if _plain(taken.key) in _EPOCH_KEYS:
            return taken.key, None, (f"{path}: the step is {taken.key}, for no other column counts steps",)
        better = next((count.key for count in steps if "global_step" in count.key), None)
        if taken.key == "_step" and better is not None:
            why = f"{path}: the step is W&B's own count of log calls; for the training step: --step-key {better}"
            return taken.key, None, (why,)
        return taken.key, None, ()

    def time(self, step: str) -> tuple[str | None, ReadTime | None, float | None, str]:
        """Return the key of the time, its reader, and the first time; or why there is none."""
        plain = {_plain(key): key for key in reversed(self._sample)}
        keys = [plain[name] for name in TIME_KEYS if name in plain and plain[name] != step]
        reasons = []
        for key in keys:
            # In the order of the file: ranks were put side by side.
            lined = sorted(zip(self._lines[key], self._sample[key], strict=True), key=lambda one: one[0])
            found = clock_of([value for _, value in lined])
            if not isinstance(found, str):
                known = (found(value) for _, value in lined)
                return key, found, next((moment for moment in known if moment is not None), None), ""
            reasons.append(f"{key} {found}")
        return None, None, None, ", ".join(reasons)

    def has_decimal_comma(self, delimiter: str) -> bool:
        """Say whether numbers are written as 2,97: the cells are divided by another sign, and none has a point."""
        if delimiter in ("", ","):
            return False
        texts = [v.strip() for column in self._sample.values() for v in column if isinstance(v, str)]
        numbers = [text for text in texts if _NUMBER.fullmatch(text)]
        points = [text for text in numbers if "." in text and "," not in text]
        commas = [text for text in numbers if "," in text]
        if points:  # 1.234 next to 2,97: a point that groups digits
            return all(map(_GROUPED.fullmatch, points)) and not all(map(_GROUPED.fullmatch, commas))
        return bool(commas)


def step_error(path: Path, sample: Mapping[str, Sequence[Any]], asked: str | None) -> BadRequest:
    """Return the refusal of a file without a step: its keys, and those that rise."""
    keys = list(sample)
    shown = ", ".join(keys[:_MAX_KEYS]) + (", ..." if len(keys) > _MAX_KEYS else "")
    rising = [key for key in keys if _rises(sample[key])][:_MAX_KEYS]
    told = f"its columns are {shown}" + (f"; rising: {', '.join(rising)}" if rising else "")
    if asked is not None:
        return BadRequest(f"{path} has no column {asked!r} for the step: {told}")
    return BadRequest(
        f"{path} has no step column: {told}", hint=f"name it: --step-key {rising[0] if rising else 'COLUMN'}"
    )


def _rises(column: Sequence[Any]) -> bool:
    values = _numbers(column, len(column))
    values = values[np.isfinite(values)]
    return bool(
        len(values) > 1
        and (values == np.floor(values)).all()
        and (np.diff(values) >= 0).all()
        and values[-1] > values[0]
    )


def is_step(key: str) -> bool:
    """Say whether a key may be that of a step or an epoch."""
    return _place(key) is not None


def names_loss(key: str) -> bool:
    """Say whether a column is a loss: it makes a table without steps a log of training, and not one of data."""
    return _LOSS.search(key) is not None


def is_axis(key: str) -> bool:
    """Say whether a key is that of a step, an epoch, a time or a rank, and not of a metric."""
    return is_step(key) or _plain(key) in TIME_KEYS or key == RANK


def _place(key: str) -> int | None:
    """Return how sure a name is that of the step, None for one that is not: the least is the surest."""
    plain = _plain(key)
    if plain in STEP_KEYS:
        return STEP_KEYS.index(plain)
    if names_steps(plain):
        return _BY_FORM
    return len(STEP_KEYS) + 1 if plain in _BATCH_KEYS else len(STEP_KEYS) + 2 if plain in _EPOCH_KEYS else None


def _plain(key: str) -> str:
    return key.strip().lower()


def _ranks(column: Sequence[Any] | NDArray[np.float64] | None, count: int) -> NDArray[np.int64]:
    ranks = np.zeros(count, np.int64)
    for at, value in enumerate(column if column is not None else ()):
        try:
            ranks[at] = 0 if is_missing(value) else as_rank(value)
        except NotAStep:
            ranks[at] = -1
    return ranks


def _numbers(column: Sequence[Any] | NDArray[np.float64] | None, count: int) -> NDArray[np.float64]:
    """Return a column as numbers, NaN where there is none; 10 for ``10/438``."""
    if column is None:
        return np.full(count, np.nan)
    if isinstance(column, np.ndarray):
        return column
    if {*map(type, column)} <= {int, float}:
        try:
            return np.array(column, np.float64)
        except OverflowError:
            pass
    return np.fromiter(map(_number, column), np.float64, count)


def _number(value: Any) -> float:
    if is_missing(value) or isinstance(value, bool):
        return np.nan
    number = as_number(value)
    if number is None:
        try:
            return float(as_step(value))
        except NotAStep:
            return np.nan
    return number


def groups_of(numbers: Sequence[int], rows: Sequence[Mapping[str, Any]], *, plain: bool = False) -> Iterator[Group]:
    """Yield rows as groups: consecutive ones with the same keys together."""
    at = 0
    for keys, found in groupby(map(tuple, rows)):
        end = at + sum(1 for _ in found)
        yield Group(keys, numbers[at:end], _columns(keys, rows[at:end], plain=plain), plain)
        at = end


def _columns(keys: tuple[str, ...], rows: Sequence[Mapping[str, Any]], *, plain: bool) -> Sequence[Any]:
    if not keys:
        return ()
    if not plain:
        return tuple(zip(*(row.values() for row in rows), strict=True))
    flat = np.fromiter(chain.from_iterable(row.values() for row in rows), np.float64, len(rows) * len(keys))
    return tuple(np.ascontiguousarray(flat.reshape(len(rows), -1).T))
