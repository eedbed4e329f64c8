"""All points of one run: the archived parts, and on top the rest of the stream.

The truth is the run's frames; queries read this. Cold parts are files, hot generations are columns in
memory. Both answer the same two questions, exactly: the rows of a series, and its aggregates over blocks of steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol, TypeVar

from stabilitybackend.base.errors import ArchiveError
from stabilitybackend.base.streams import stream_order
from stabilitybackend.lineage.batch import Batch, Placed
from stabilitybackend.storage.archive.aggregates import EMPTY_AGGS, Aggs, aggregate, join_aggs, regroup
from stabilitybackend.storage.archive.series import Extent, Rows, SeriesKey, join_rows
from stabilitybackend.storage.points.memtable import Generation, RowRange
from stabilitybackend.storage.points.row_table import RowTable
from stabilitybackend.storage.points.unloaded import Outline, PointsMissing, StillLoading, UnloadedPoints

if TYPE_CHECKING:
    from stabilitybackend.storage.archive.part import PartReader

__all__ = ["RunStore", "SeriesKey", "StoreView", "series_of"]

T = TypeVar("T")
#: Contents of a part, or the reason why they are unavailable.
Listed = dict[SeriesKey, Extent] | ArchiveError


class _RowSource(Protocol):
    """Where some rows of one series are."""

    @property
    def extent(self) -> Extent: ...
    def rows(self, first: int | None = None, last: int | None = None) -> Rows: ...
    def aggregates(self, first: int, last: int, level: int) -> Aggs: ...


class _ColdSeries:
    """One series of one part."""

    def __init__(self, reader: PartReader, key: SeriesKey, extent: Extent) -> None:
        self.part = reader
        self._key = key
        self.extent = extent

    def rows(self, first: int | None = None, last: int | None = None) -> Rows:
        return self.part.rows(self._key, first, last)

    def aggregates(self, first: int, last: int, level: int) -> Aggs:
        return self.part.aggregates(self._key, first, last, level)


class StoreView:
    """Some series of a run as they were at one moment. Made on the event loop, read in any thread.

    Args:
        sources: series -> where its rows are, oldest first.
        recent: the hot generations of that moment, for ``since``.
        strict: raise PointsMissing where points are not loaded yet; else the loaded ones are served.

    Attributes:
        problems: unreadable points and their places; everything else was served.
    """

    def __init__(
        self, sources: dict[SeriesKey, list[_RowSource]], recent: Sequence[Generation] = (), *, strict: bool = False
    ) -> None:
        self._sources = sources
        self._recent = recent
        self._strict = strict
        self._by_metric: dict[str, list[SeriesKey]] = {}
        for key in sources:
            self._by_metric.setdefault(key.metric, []).append(key)
        self.problems: list[str] = []

    def metrics(self) -> list[str]:
        """Return the metric names, in the order in which they appeared."""
        return list(self._by_metric)

    def keys(self, metric: str) -> list[SeriesKey]:
        """Return the series of one metric."""
        return self._by_metric.get(metric, [])

    def extent(self, key: SeriesKey) -> Extent | None:
        """Return the smallest and greatest step of a series and its rows."""
        extents = [source.extent for source in self._sources.get(key, ())]
        if not extents:
            return None
        return Extent(
            min(e.first_step for e in extents), max(e.last_step for e in extents), sum(e.rows for e in extents)
        )

    def rows(self, key: SeriesKey, first: int | None = None, last: int | None = None) -> Rows:
        """Return the rows of ``first <= step <= last`` by step, those of one step in order of arrival."""
        found = []
        for source in self._sources.get(key, ()):
            if (last is None or source.extent.first_step <= last) and (
                first is None or source.extent.last_step >= first
            ):
                rows = self._read(partial(source.rows, first, last), Rows.EMPTY)
                if len(rows):
                    found.append(rows)
        return found[0] if len(found) == 1 else join_rows(found)

    def aggregates(self, key: SeriesKey, first: int, last: int, level: int) -> Aggs:
        """Return one aggregate per block of ``2**level`` steps over exactly the rows of ``first <= step <= last``."""
        if first > last:
            return EMPTY_AGGS
        pieces: list[Aggs] = []
        for low, high, sources in _stretches(self._sources.get(key, ()), first, last):
            if len(sources) == 1:
                pieces.append(self._read(partial(sources[0].aggregates, low, high, level), EMPTY_AGGS))
            else:
                found = [self._read(partial(source.rows, low, high), Rows.EMPTY) for source in sources]
                pieces.append(aggregate(join_rows(found), level))
        pieces = [piece for piece in pieces if len(piece)]
        if len(pieces) <= 1:
            return pieces[0] if pieces else EMPTY_AGGS
        return regroup(join_aggs(pieces), level)

    def since(self, cursor: str) -> list[Placed] | None:
        """Return the rows after the stream id ``cursor``; None when they are no longer all at hand."""
        after = stream_order(cursor)
        if not self._recent or not stream_order(self._recent[0].from_id) <= after:
            return None
        if after > stream_order(self._recent[-1].to_id):
            return None  # a cursor of a stream that was emptied since
        return [placed for generation in self._recent for placed in generation.since(cursor)]

    def _read(self, read: Callable[[], T], nothing: T) -> T:
        """Return the result of ``read``, ``nothing`` where the archive can't be read: the error is noted."""
        try:
            return read()
        except ArchiveError as error:
            if self._strict and isinstance(error, StillLoading):
                raise PointsMissing from error
            if error.message not in self.problems:
                self.problems.append(error.message)
            return nothing


def _stretches(sources: Iterable[_RowSource], first: int, last: int) -> list[tuple[int, int, list[_RowSource]]]:
    """Cut ``first..last`` where a source begins or ends: (low, high, the sources that may have rows there)."""
    inside = [s for s in sources if s.extent.first_step <= last and s.extent.last_step >= first]
    edges = sorted(
        {max(s.extent.first_step, first) for s in inside} | {min(s.extent.last_step, last) + 1 for s in inside}
    )
    found: list[tuple[int, int, list[_RowSource]]] = []
    for low, after in pairwise(edges):
        here = [s for s in inside if s.extent.first_step < after and s.extent.last_step >= low]
        if not here:
            continue
        if found and found[-1][2] == here and found[-1][1] == low - 1:
            found[-1] = (found[-1][0], after - 1, here)
        else:
            found.append((low, after - 1, here))
    return found


def series_of(part: PartReader) -> Listed:
    """Return the facts of a part for the store. Reads a file: call it in a thread."""
    try:
        return part.keys()
    except ArchiveError as error:
        return error


class RunStore:
    """All series of one run, hot and cold. Made with parts it reads files: make it in a thread.

    Args:
        parts: the archived parts, oldest first.
        cursor: stream id up to which they reach, "0-0" without any.
    """

    def __init__(self, parts: Sequence[PartReader] = (), cursor: str = "0-0") -> None:
        self.parts: list[PartReader] = []
        #: Sealed generations, oldest first, and at the end the open one.
        self.generations: list[Generation] = [Generation(cursor, 0)]
        #: Segment -> greatest step that a rank logged there.
        self.newest: dict[int, int] = {}
        self._metrics: dict[str, list[SeriesKey]] = {}
        self._known: set[SeriesKey] = set()
        self._cold: dict[SeriesKey, list[_ColdSeries]] = {}
        #: Rows are read to judge by them now (``strictly``).
        self._strict = False
        #: Parts with unknown contents, and the reasons.
        self.unreadable: dict[PartReader, ArchiveError] = {}
        for part in parts:
            self._take(part, series_of(part))

    def _take(self, part: PartReader, series: Listed) -> None:
        self.parts.append(part)
        if isinstance(series, ArchiveError):
            self.unreadable[part] = series
            return
        for key, extent in series.items():
            self._know(key)
            self._cold.setdefault(key, []).append(_ColdSeries(part, key, extent))
            if key.rank is not None and not key.stray:
                self.newest[key.segment] = max(self.newest.get(key.segment, -1), extent.last_step)

    def _know(self, key: SeriesKey) -> None:
        keys = self._metrics.setdefault(key.metric, [])
        if key not in self._known:
            self._known.add(key)
            keys.append(key)

    def _know_of(self, tables: Iterable[RowTable]) -> None:
        """Note the series of new tables of the open generation."""
        for table in tables:
            if len(self.generations) > 1 and self.generations[-2].has(table):
                continue  # as nearly all: its contents are loaded
            for key in table.series():
                self._know(key)

    @property
    def open(self) -> Generation:
        """The generation that grows."""
        return self.generations[-1]

    @property
    def hot_bytes(self) -> int:
        """Bytes of the frames that the stream still holds."""
        return sum(generation.bytes for generation in self.generations)

    @property
    def values(self) -> int:
        """Values stored."""
        return sum(part.part.rows for part in self.parts) + sum(generation.values for generation in self.generations)

    # --- writing -------------------------------------------------------------------------------------------------

    def begin(self, frame_id: str, size: int, ahead: int = 0) -> None:
        """Note that the rows behind the next ``ahead`` ones are of a frame that takes ``size`` bytes of the stream."""
        self.open.begin(frame_id, size, ahead)

    def add(self, batch: Batch) -> None:
        """Store rows that found their segment."""
        if batch.count:
            self._know_of(self.open.add(batch))
        if batch.stray:
            return
        if batch.count and batch.tables[0].sources[0].rank is not None:
            self._note_newest(batch.segment, batch.high)  # also by rows whose metrics were all left out

    def _note_newest(self, segment: int, step: int) -> None:
        if step > self.newest.get(segment, -1):
            self.newest[segment] = step

    def put_back(self, stretch: RowRange) -> None:
        """Take rows that were placed before a restart into the open generation."""
        self._know_of(self.open.put_back(stretch))
        for rows in stretch.tables:
            if rows.placed.rank is not None and not rows.placed.stray:
                self._note_newest(rows.placed.segment, rows.placed.high)

    def cut(self, state: bytes) -> Generation:
        """Seal the open generation with the frozen fold at its end, and open the next. Return the sealed one."""
        sealed = self.open
        sealed.state = state
        self.generations.append(Generation(sealed.to_id, sealed.order))
        return sealed

    def archived(self, count: int, part: PartReader, series: Listed) -> None:
        """Let a part, which holds ``series``, take the place of the ``count`` oldest generations."""
        del self.generations[:count]
        self._take(part, series)

    def skipped(self, part: PartReader, series: Listed) -> None:
        """Take a part whose frames can't be folded: its points as they were placed, and none in memory."""
        self.generations = [Generation(part.part.to_id, self.open.order)]
        self._take(part, series)

    def compacted(self, old: Sequence[PartReader], new: PartReader, series: Listed) -> None:
        """Let one part, which holds ``series``, take the place of the adjacent parts ``old``."""
        at = self.parts.index(old[0])
        self.parts[at : at + len(old)] = [new]
        order = {part: i for i, part in enumerate(self.parts)}
        self.unreadable = {part: error for part, error in self.unreadable.items() if part in order}
        if isinstance(series, ArchiveError):
            self.unreadable[new] = series
            series = {}
        for key in self._cold.keys() | series.keys() if new in self.unreadable else series:
            self._know(key)
            here = [one for one in self._cold.get(key, ()) if one.part in order]
            if key in series:
                here.append(_ColdSeries(new, key, series[key]))
                here.sort(key=lambda one: order[one.part])
            self._cold[key] = here  # another list: views hold the old one

    # --- after a takeover ----------------------------------------------------------------------------------------

    @property
    def loading(self) -> bool:
        """Whether points are not in memory yet."""
        return not self.generations[0].loaded

    def expect(self, known: Outline, state: bytes) -> None:
        """Begin after points that are loaded later; ``state`` is the frozen fold at their end."""
        self.generations = [UnloadedPoints(known, state), Generation(known.end, known.order)]
        for table in known.tables:
            for key in table.series():
                self._know(key)
            if table.rank is not None and not table.stray:
                self.newest[table.segment] = max(self.newest.get(table.segment, -1), table.last_step)

    def load(self, points: Generation) -> None:
        """Let points, sealed, take the place of their outline."""
        assert self.loading
        assert points.to_id == self.generations[0].to_id
        self.generations[0] = points

    @contextlib.contextmanager
    def strictly(self) -> Iterator[None]:
        """Raise PointsMissing from whatever reads points in this context that are not loaded yet."""
        self._strict = self.loading
        try:
            yield
        finally:
            self._strict = False

    # --- reading -------------------------------------------------------------------------------------------------

    @property
    def metric_count(self) -> int:
        """How many metrics there are."""
        return len(self._metrics)

    def metrics(self) -> list[str]:
        """Return the metric names, in the order in which they appeared."""
        return list(self._metrics)

    def keys(self, metric: str) -> list[SeriesKey]:
        """Return the series of one metric."""
        return self._metrics.get(metric, [])

    def view(self, metrics: Iterable[str] | None = None) -> StoreView:
        """Return some metrics (None: all) as they are now, for a query in any thread."""
        sources = {
            key: self._sources(key)
            for metric in (self._metrics if metrics is None else dict.fromkeys(metrics))
            for key in self._metrics.get(metric, ())
        }
        recent = self.generations[1:] if self.loading else self.generations
        view = StoreView(sources, list(recent), strict=self._strict)
        view.problems += [error.message for error in self.unreadable.values()]
        return view

    def view_of(self, keys: Iterable[SeriesKey]) -> StoreView:
        """Return some series as they are now, for a query in any thread."""
        return StoreView({key: self._sources(key) for key in keys}, strict=self._strict)

    def rows(self, key: SeriesKey, first: int | None = None, last: int | None = None) -> Rows:
        """Return rows of one series, as ``StoreView.rows``."""
        return StoreView({key: self._sources(key)}, strict=self._strict).rows(key, first, last)

    def _sources(self, key: SeriesKey) -> list[_RowSource]:
        found: list[_RowSource] = list(self._cold.get(key, ()))
        for generation in self.generations:
            series = generation.series(key)
            if series is not None:
                found.append(series)
        return found
