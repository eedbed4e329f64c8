"""Contents of an export of a run: series, steps, order, and pieces of bounded size.

``jsonl_export`` and ``parquet_export`` write it. Nothing here holds more of a run than one piece.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from stabilitybackend.base.errors import NotFound
from stabilitybackend.schema.lineage import Annotation, Segment
from stabilitybackend.schema.runs import Run
from stabilitybackend.schema.series import ExportProgress, SpikeScores
from stabilitybackend.storage.archive.aggregates import row_counts
from stabilitybackend.storage.archive.series import Extent, Rows, SeriesKey
from stabilitybackend.storage.points.store import StoreView
from stabilitybackend.storage.query.lineage_view import LineageView

__all__ = ["EXPORT_VERSION", "PIECE_ROWS", "Export", "ExportPiece", "ExportView"]

#: Written into every export; grows when a reader of this version could not read the next.
EXPORT_VERSION = 1
#: Points in memory at a time, about: 24 bytes each, a few times over while they are turned into rows.
PIECE_ROWS = 400_000
#: The same for pieces of one series: a row of a long table takes 100 bytes and more.
SERIES_PIECE_ROWS = 131_072
#: A stretch of steps that holds too much is cut into about this many blocks, and those put together again.
_BLOCKS = 4_096
#: Tries to read the points of now, and the pause between two, seconds: merging removes the old files a moment before it
#: shows where the points are.
_FRESH_TRIES = 5
_FRESH_PAUSE_S = 0.2
#: Fields of a segment in an export (docs/api.md).
_SEGMENT_FIELDS = (
    "id", "key", "parent", "fork_step", "cause", "reason", "command_id", "issuer", "changes", "applied",
    "created", "returns_to",
)  # fmt: skip

#: Fields of an annotation in an export (docs/annotations.md).
_ANNOTATION_FIELDS = ("annotation_id", "first_step", "last_step", "text", "metric", "segment", "author", "created")

ExportView = Literal["effective", "all"]
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class ExportPiece:
    """The steps ``first..last`` of some series of one segment, both inclusive."""

    segment: int
    keys: tuple[SeriesKey, ...]
    first: int
    last: int


class Export:
    """One export.

    Args:
        store: all points, immutable.
        view: effective leaves dead points out.
        metrics: only these; empty for all.
        cursor: stream id up to which the run is exported. now: unix seconds.
        refresh: gives the points as they are then: files that were merged into others meanwhile are gone.
        annotations: of the run. spike_scores: of its effective timeline; None: left out of the file.

    Raises:
        NotFound: the run has none of that metric.
    """

    def __init__(
        self,
        store: StoreView,
        lineage: LineageView,
        run: Run,
        segments: Sequence[Segment],
        *,
        view: ExportView,
        metrics: Collection[str],
        cursor: str,
        now: float,
        refresh: Callable[[], StoreView] | None = None,
        annotations: Sequence[Annotation] = (),
        spike_scores: SpikeScores | None = None,
    ) -> None:
        self.store = store
        self._refresh = refresh
        self.run_id = run.run_id
        self._limits = lineage.limits
        self._path = {part.segment: part for part in lineage.path}
        self._effective = view == "effective"
        missing = [metric for metric in metrics if not store.keys(metric)]
        if missing:
            raise NotFound(
                f"run {self.run_id} has no metric {missing[0]!r}, it has {', '.join(store.metrics()[:10]) or 'none'}",
                hint="without --metric all of them are exported",
            )
        self.metrics = [metric for metric in store.metrics() if not metrics or metric in metrics]
        kept = [s for s in segments if not s.undone and (not self._effective or s.on_head_path)]
        #: The run's metadata in the file; the import makes the same segments from it.
        self.header: dict[str, Any] = {
            "version": EXPORT_VERSION,
            "run_id": self.run_id,
            "name": run.name,
            "project": run.project,
            "config": run.config,
            "view": view,
            "cursor": cursor,
            "exported": now,
            "segments": [{name: getattr(segment, name) for name in _SEGMENT_FIELDS} for segment in kept],
        }
        noted = [one for one in annotations if not (self._effective and one.dead)]
        if noted:
            self.header["annotations"] = [{name: getattr(one, name) for name in _ANNOTATION_FIELDS} for one in noted]
        if spike_scores is not None and spike_scores.metrics:
            self.header["spike_scores"] = msgspec.to_builtins(spike_scores)
        self._keys: dict[int, list[SeriesKey]] = {}
        self.progress = ExportProgress()
        for metric in self.metrics:
            for key in store.keys(metric):
                extent = store.extent(key)
                if extent is not None and self._range(key, extent) is not None:
                    self._keys.setdefault(key.segment, []).append(key)
                    self.progress.add(total=extent.rows)

    def dead(self, key: SeriesKey, steps: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of these points of a series are off the effective timeline."""
        limit = self._limits[key.segment]
        if key.stray:
            return np.ones(len(steps), np.bool_)
        return np.zeros(len(steps), np.bool_) if limit is None else steps > limit

    def rows(self, key: SeriesKey, piece: ExportPiece) -> Rows:
        """Return the points of a series in a piece."""
        extent = self.store.extent(key)
        inside = None if extent is None else self._range(key, extent)
        if inside is None:
            return Rows.EMPTY
        first, last = max(piece.first, inside[0]), min(piece.last, inside[1])
        return self._fresh(lambda store: store.rows(key, first, last)) if first <= last else Rows.EMPTY

    def by_segment(self) -> Iterator[ExportPiece]:
        """Yield pieces with all series of a segment in them: segments in their order, in each the steps in theirs."""
        for segment in sorted(self._keys):
            keys = self._keys[segment]
            yield from self._pieces(segment, tuple(keys), PIECE_ROWS)

    def by_series(self) -> Iterator[ExportPiece]:
        """Yield pieces of one series each: by segment, metric, rank and node."""
        order = {metric: at for at, metric in enumerate(self.metrics)}
        for segment in sorted(self._keys):
            for key in sorted(self._keys[segment], key=lambda key: (order[key.metric], *key.who, key.stray)):
                yield from self._pieces(segment, (key,), SERIES_PIECE_ROWS)

    def _fresh(self, read: Callable[[StoreView], _Read]) -> _Read:
        """Return the result of ``read``; where a file can't be read, locate the points again before that is reported.

        A live run merges its small files: those that this export began with may be gone, and the points lie in others.
        """
        known = len(self.store.problems)
        found = read(self.store)
        if len(self.store.problems) == known or self._refresh is None:
            return found
        for _ in range(_FRESH_TRIES):
            store = self._refresh()
            known = len(store.problems)
            again = read(store)
            if len(store.problems) == known:
                self.store = store
                return again
            time.sleep(_FRESH_PAUSE_S)
        return found

    def _range(self, key: SeriesKey, extent: Extent) -> tuple[int, int] | None:
        """Return the first and last step to export of a series, None for none."""
        first, last = extent.first_step, extent.last_step
        if self._effective:
            part = self._path.get(key.segment)
            if part is None or key.stray:
                return None
            first = max(first, part.first)
            last = last if part.last is None else min(last, part.last)
        return (first, last) if first <= last else None

    def _pieces(self, segment: int, keys: tuple[SeriesKey, ...], most: int) -> Iterator[ExportPiece]:
        extents = {key: extent for key in keys if (extent := self.store.extent(key)) is not None}
        ranges = [found for key, extent in extents.items() if (found := self._range(key, extent)) is not None]
        first, last = min(r[0] for r in ranges), max(r[1] for r in ranges)
        total = sum(extent.rows for extent in extents.values())
        if total <= most:
            yield ExportPiece(segment, keys, first, last)
            return
        largest = max(extents, key=lambda key: extents[key].rows)
        # The other series of the segment are as dense as its largest one, or sparser.
        share = max(256, most * extents[largest].rows // total)
        low = first
        for high in self._cuts(largest, first, last, share):
            yield ExportPiece(segment, keys, low, high)
            low = high + 1
        if low <= last:
            yield ExportPiece(segment, keys, low, last)

    def _cuts(self, key: SeriesKey, first: int, last: int, most: int) -> Iterator[int]:
        """Yield the last steps of stretches of ``first..last`` with about ``most`` points of a series each."""
        level = max(0, ((last - first + 1) // _BLOCKS).bit_length())
        blocks = self._fresh(lambda store: store.aggregates(key, first, last, level))
        counts = row_counts(blocks)
        held = 0
        for block, count in zip(blocks["block"].tolist(), counts.tolist(), strict=True):
            begin, end = max(first, block << level), min(last, ((block + 1) << level) - 1)
            if held and held + count > most:
                yield begin - 1
                held = 0
            if count > 2 * most and level > 0:
                yield from self._cuts(key, begin, end, most)
                held = 0
            held += count
