"""Reads Parquet: our own long exports, and wide tables with one row a step (W&B's exported history).

Columns of an export: run_id, metric, segment, dead, stray, rank, node, step, time, value; one row a point. Wide: a step
column, perhaps a
time column, and one column per metric; null is missing, NaN is NaN.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stabilitybackend.base.errors import BadRequest
from stabilityclient.wire import MAX_NAME_CHARS, MAX_STEP
from stabilityplugins.importers.base import Importer, ImportPlan
from stabilityplugins.importers.batches import Batch, Who, bare
from stabilityplugins.importers.lineage import ExportedLineage, header_of, named_by_export
from stabilityplugins.importers.problems import Reading
from stabilityplugins.importers.rows.cells import MAX_RANK, MAX_TIME, TIME_UNITS, as_number, as_time
from stabilityplugins.importers.rows.lanes import RANK
from stabilityplugins.importers.rows.layout import LEFT_OUT, Group, Layout, is_axis, layout_of

__all__ = ["EXPORT_KEY", "LONG_COLUMNS", "ParquetImporter", "parquet_header"]

#: Key in the file's metadata under which our exports say which run it is, as JSON.
EXPORT_KEY = "stabilityboard.export"
LONG_COLUMNS = frozenset({"metric", "segment", "rank", "node", "step", "time", "value"})
#: Rows in memory at a time.
WINDOW_ROWS = 400_000
#: Bytes of memory for a window of a wide table: with many columns it has fewer rows.
_WINDOW_CELLS = 4_000_000
#: Columns of a row of a long table, next to its metrics: no metric has such a name.
_STEP, _TIME, _NUMBER = "\0step", "\0time", "\0number"
_ERRORS = (pl.exceptions.PolarsError, OSError, pl.exceptions.PanicException)


def parquet_header(path: Path) -> dict[str, Any] | None:
    """Return an export's facts of its run, None without any."""
    try:
        found = pl.read_parquet_metadata(path).get(EXPORT_KEY)
        return header_of(json.loads(found)) if found else None
    except (*_ERRORS, ValueError):
        return None


class ParquetImporter(Importer):
    """Tables as Parquet."""

    name: ClassVar[str] = "parquet"
    label: ClassVar[str] = "Parquet"
    known: ClassVar[str] = "Parquet with a step column"
    suffixes: ClassVar[tuple[str, ...]] = (".parquet",)

    def takes(self, path: Path, head: bytes) -> bool:
        return head.startswith(b"PAR1")

    def plans(self, paths: list[Path], root: Path) -> list[ImportPlan]:
        return [named_by_export(plan, parquet_header(plan.paths[0])) for plan in super().plans(paths, root)]

    def read(
        self, path: Path, number: int, reading: Reading, *, rank: int = 0, prefix: str = "", step_key: str | None = None
    ) -> Iterator[Batch]:
        try:
            schema = pl.read_parquet_schema(path)
        except _ERRORS as error:
            raise BadRequest(
                f"{path} can't be read as Parquet: {_first_line(error)}", hint="it may be cut: its index is at its end"
            ) from error
        before = reading.bytes_read
        table = _Long(path, number, reading) if set(schema) >= LONG_COLUMNS else _Wide(path, number, reading, schema)
        try:
            yield from table.batches(rank, prefix, step_key)
        except _ERRORS as error:
            reading.problem(path, table.place, f"can't be read from here on: {_first_line(error)}")
        reading.bytes_read = before + path.stat().st_size


class _Wide:
    """A table with one row a step."""

    def __init__(self, path: Path, number: int, reading: Reading, schema: Any) -> None:
        self._path = path
        self._number = number
        self._reading = reading
        self._schema = schema
        self.place = "row 1"

    def _columns(self, layout: Any, metrics: list[str], rank: int) -> list[Any]:
        """Return the columns that are read: ``step``, ``m<i>`` of each metric, ``time`` and ``rank`` where given."""
        columns = [
            pl.col(layout.step).cast(pl.Float64, strict=False).alias("step"),
            *(_number(name, self._schema[name]).alias(f"m{at}") for at, name in enumerate(metrics)),
        ]
        if layout.time is not None:
            columns.append(_seconds(layout, self._schema[layout.time]).alias("time"))
        if "rank" in self._schema:
            given = pl.col("rank").cast(pl.Float64, strict=False).fill_null(np.nan)
            columns.append(pl.when(pl.col("rank").is_null()).then(float(rank)).otherwise(given).alias("rank"))
        return columns

    def _report(self, items: Any, wrong: Any, name: str, values: Any, expected: str) -> None:
        for row in np.flatnonzero(wrong).tolist():
            what = f"the {name} is {values[row]}, expected {expected}"
            self._reading.problem(self._path, f"row {items[row]}", what)

    def batches(self, rank: int, prefix: str, step_key: str | None) -> Iterator[Batch]:
        layout = layout_of(self._path, self._axes(step_key), step_key)
        step_name, time_name = layout.step, layout.time
        own = {step_name, time_name, RANK, *LEFT_OUT}
        metrics = [
            name
            for name, kind in self._schema.items()
            if name not in own and len(prefix + name) <= MAX_NAME_CHARS and self._is_metric(name, kind)
        ]
        if not metrics:
            raise BadRequest(
                f"{self._path} has no column of numbers beside the step: its columns are {', '.join(self._schema)}"[
                    :400
                ]
            )
        texts = [name for name in self._schema if name not in own and name not in metrics]
        for note in layout.notes:
            self._reading.note(note)
        if texts:
            self._reading.note(f"{self._path}: no numbers, so left out: {', '.join(texts[:5])}")
        if time_name is None:
            self._reading.untimed.append((self._path, layout.no_time))
        columns = self._columns(layout, metrics, rank)
        lazy = pl.scan_parquet(self._path)
        total = int(lazy.select(pl.len()).collect().item())
        size, begun = self._path.stat().st_size, self._reading.bytes_read
        written = self._reading.base(self._number, self._path, total) + total
        window = max(1, min(WINDOW_ROWS, _WINDOW_CELLS // (len(metrics) + 2)))
        names = tuple(prefix + name for name in metrics)
        for start in range(0, total, window):
            self.place = f"row {start + 1}"
            frame = lazy.slice(start, window).select(columns).collect()
            items = np.arange(start + 1, start + len(frame) + 1)
            steps = frame["step"].to_numpy()
            good = np.isfinite(steps) & (steps >= 0) & (steps <= MAX_STEP) & (steps == np.floor(steps))
            self._report(items, ~good, "step", frame["step"], "a whole number")
            times = written - total + items
            if time_name is not None:
                times = frame["time"].fill_null(strategy="forward").fill_null(written).to_numpy()
            ranks = frame["rank"].to_numpy() if "rank" in frame.columns else np.full(len(frame), float(rank))
            known = (ranks >= 0) & (ranks <= MAX_RANK) & (ranks == np.floor(ranks))
            self._report(items, good & ~known, "rank", ranks, f"a whole number from 0 to {MAX_RANK}")
            good &= known
            values = frame.select(f"m{at}" for at in range(len(metrics)))
            present = values.select(pl.all().is_not_null()).to_numpy()
            cells = values.to_numpy()
            for one in np.unique(ranks[good]).tolist():
                rows = np.flatnonzero(good & (ranks == one))
                yield from runs_of(
                    Who(self._number, int(one)), names, items[rows], steps[rows].astype(np.int64),
                    times[rows].astype(np.float64), cells[rows], present[rows], timed=time_name is not None,
                )  # fmt: skip
            self._reading.bytes_read = begun + size * min(total, start + window) // max(1, total)

    def _axes(self, step_key: str | None) -> Iterator[Group]:
        """Yield the columns that may hold step, epoch, time or rank, in windows; the others are named only."""
        axes = [name for name in self._schema if is_axis(name) or name == step_key]
        others = tuple(name for name in self._schema if name not in axes)
        lazy = pl.scan_parquet(self._path).select(axes or others[:1])
        for start in count(0, WINDOW_ROWS // 8):
            frame = lazy.slice(start, WINDOW_ROWS // 8).collect()
            if not len(frame):
                return
            columns: list[list[Any]] = [_plain(frame[name]).to_list() for name in axes]
            yield Group((*axes, *others), range(start + 1, start + len(frame) + 1), columns + [[]] * len(others))

    def _is_metric(self, name: str, kind: pl.DataType) -> bool:
        """Say whether a column holds numbers; one of texts where the first ones are numbers."""
        if kind == pl.String:
            texts = pl.scan_parquet(self._path).select(pl.col(name).drop_nulls().head(100)).collect()[name].to_list()
            return bool(texts) and all(as_number(text) is not None for text in texts)
        return kind.is_numeric() or kind in (pl.Boolean, pl.Duration)


class _Long:
    """Our own export. It lies metric by metric; the rows are put together again step by step, in windows of steps."""

    def __init__(self, path: Path, number: int, reading: Reading) -> None:
        self._path = path
        self._number = number
        self._reading = reading
        self._items = 0
        self.place = "its beginning"

    def batches(self, rank: int, prefix: str, step_key: str | None) -> Iterator[Batch]:
        lazy = pl.scan_parquet(self._path)
        if "stray" in lazy.collect_schema():
            strays = int(lazy.filter("stray").select(pl.len()).collect().item())
            if strays:
                self._reading.note(f"{self._path}: {strays} stray points (low steps that led nowhere) are left out")
            lazy = lazy.filter(~pl.col("stray"))
        parts = lazy.group_by("segment").agg(
            pl.len().alias("rows"), pl.col("step").min().alias("first"), pl.col("step").max().alias("last")
        )
        found = list(parts.sort("segment").collect().iter_rows(named=True))
        header = parquet_header(self._path) or self._guess(found)
        lineage = ExportedLineage(header)
        edition = (str(header.get("run_id")), hashlib.sha256(json.dumps(header).encode()).hexdigest()[:8])
        total, done = max(1, sum(part["rows"] for part in found)), 0
        size, begun = self._path.stat().st_size, self._reading.bytes_read
        for part in found:
            span = part["last"] - part["first"] + 1
            width = max(1, WINDOW_ROWS * span // part["rows"])
            for first in range(part["first"], part["last"] + 1, width):
                self.place = f"segment {part['segment']}, step {first}"
                inside = (pl.col("segment") == part["segment"]) & pl.col("step").is_between(first, first + width - 1)
                frame = lazy.filter(inside).collect()
                done += len(frame)
                for batch in self._window(frame, int(part["segment"]), lineage, prefix):
                    batch.edition = edition
                    yield batch
                self._reading.bytes_read = begun + size * done // total
        rest = lineage.rest()
        if rest:
            yield self._bare(rest, edition)

    def _window(self, frame: pl.DataFrame, segment: int, lineage: ExportedLineage, prefix: str) -> Iterator[Batch]:
        lanes = frame.select("rank", "node").unique().sort("rank", "node", nulls_last=True).rows()
        for rank, node in lanes:
            mine = frame.filter(pl.col("rank").eq_missing(rank), pl.col("node").eq_missing(node))
            # Rows of one step and time: the first of each metric belong together, the second, ...
            index = [_STEP, _TIME, _NUMBER]
            number = pl.int_range(pl.len()).over("metric", "step", "time")
            mine = mine.with_columns(number.alias(_NUMBER)).rename({"step": _STEP, "time": _TIME})
            wide = mine.pivot(on="metric", index=index, values="value").sort(index)
            metrics = [name for name in wide.columns if name not in index]
            cells = wide.select(metrics)
            items = np.arange(self._items + 1, self._items + len(wide) + 1)
            self._items += len(wide)
            who = Who(self._number, None if rank is None else int(rank), node or "")
            forks = lineage.enter(who, segment)
            if forks and who.rank is None:
                yield self._bare(forks, None)
                forks = []
            for batch in runs_of(
                who, tuple(prefix + name for name in metrics), items, wide[_STEP].to_numpy(), wide[_TIME].to_numpy(),
                cells.to_numpy(), cells.select(pl.all().is_not_null()).to_numpy(), timed=True,
            ):  # fmt: skip
                batch.forks, forks = forks, []
                yield batch

    def _bare(self, forks: list[Any], edition: tuple[str, str] | None) -> Batch:
        self._items += 1
        return bare(Who(self._number, 0), self._items, forks, edition)

    def _guess(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """Return a lineage from the segment numbers alone, for a file that another program has written again."""
        self._reading.note(
            f"{self._path}: it does not say how its segments hang together, so each is taken to begin after the step "
            "before its first"
        )
        segments = [
            {"id": part["segment"], "key": f"s{part['segment']}", "parent": 0, "fork_step": part["first"] - 1}
            for part in parts
            if part["segment"] > 0
        ]
        return {"run_id": self._path.stem, "segments": segments}


def runs_of(
    who: Who,
    names: tuple[str, ...],
    items: NDArray[np.int64],
    steps: NDArray[np.int64],
    times: NDArray[np.float64],
    cells: NDArray[np.float64],
    present: NDArray[np.bool_],
    *,
    timed: bool,
) -> Iterator[Batch]:
    """Yield the rows of a table with holes as batches without: consecutive rows with the same cells go together.

    Args:
        cells: float64[n, m], anything where nothing is. present: bool[n, m].
    """
    if not len(steps):
        return
    cuts = np.flatnonzero((present[1:] != present[:-1]).any(axis=1)) + 1
    for start, stop in zip([0, *cuts.tolist()], [*cuts.tolist(), len(steps)], strict=True):
        there = present[start]
        if there.any():
            yield Batch(
                who,
                tuple(name for name, is_there in zip(names, there.tolist(), strict=True) if is_there),
                items[start:stop].astype(np.int64),
                steps[start:stop].astype(np.int64),
                times[start:stop].astype(np.float64),
                cells[start:stop, there].T.astype(np.float64),
                timed=timed,
            )


def _plain(column: pl.Series) -> pl.Series:
    """Return a column of times as unix seconds, any other unchanged."""
    if column.dtype in (pl.Datetime, pl.Date):
        return column.cast(pl.Datetime("us"), strict=False).dt.epoch("us") / 1e6
    return column.dt.total_microseconds() / 1e6 if column.dtype == pl.Duration else column


def _number(name: str, kind: pl.DataType) -> pl.Expr:
    column = pl.col(name)
    return column.dt.total_microseconds() / 1e6 if kind == pl.Duration else column.cast(pl.Float64, strict=False)


def _seconds(layout: Layout, kind: pl.DataType) -> pl.Expr:
    assert layout.time is not None
    column = pl.col(layout.time)
    if kind.is_temporal():
        return column.cast(pl.Datetime("us"), strict=False).dt.epoch("us") / 1e6
    if kind == pl.String:
        return column.map_elements(layout.read_time or as_time, pl.Float64)
    seconds = column.cast(pl.Float64, strict=False)
    size = seconds.abs()
    scaled = seconds
    for limit, unit in reversed(TIME_UNITS):  # the largest unit last: it decides
        scaled = pl.when(size > limit).then(seconds / unit).otherwise(scaled)
    return pl.when(size < MAX_TIME).then(scaled)  # NaN is above all numbers here, so it is missing too


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
