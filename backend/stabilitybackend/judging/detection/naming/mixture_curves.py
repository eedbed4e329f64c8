"""Declared and realised shares of data sets along the effective path, with bands of chance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.judging.detection.naming.families import GROWING, SHARES
from stabilitybackend.judging.detection.naming.mixture_schedule import Declared
from stabilitybackend.judging.detection.naming.watched_names import WatchedNames
from stabilitybackend.judging.detectors.mixture import MixtureDetector, ShownShare
from stabilitybackend.judging.detectors.stats.mixture_band import Bands
from stabilitybackend.judging.detectors.stats.mixture_blocks import BLOCK_ROWS
from stabilitybackend.lineage.tree import PathRange
from stabilitybackend.schema.json_data import json_number
from stabilitybackend.schema.metric_roles import RATIO, TAKEN
from stabilitybackend.schema.mixture import (
    DeclaredMixture,
    DiscardedShares,
    Mixture,
    MixtureCurve,
    MixtureCurves,
    MixtureShare,
    MixtureStage,
)
from stabilitybackend.storage.archive.aggregates import EMPTY_AGGS, MAX_LEVEL, Aggs
from stabilitybackend.storage.archive.series import SeriesKey
from stabilitybackend.storage.points.store import StoreView
from stabilitybackend.storage.query.lineage_view import LineageView

if TYPE_CHECKING:
    from stabilitybackend.judging.detection.run_detection import Judge

__all__ = ["MAX_BUCKETS", "mixture_of_run", "with_curves"]


def mixture_of_run(judge: Judge) -> Mixture:
    """Return the declared and realised mixture of a run."""
    detector = judge.detector(MixtureDetector.name)
    shown = detector.shown() if isinstance(detector, MixtureDetector) else {}
    found = []
    for unit in dict.fromkeys(one.unit for one in judge.mixtures.known):
        stages = [MixtureStage(one.step or 0, one.shares) for one in judge.mixtures.known if one.unit == unit]
        measure, _, sets = shown.get(unit, ("", 0, []))
        shares = [_share(judge.names, measure, one) for one in sets]
        found.append(DeclaredMixture(unit, measure, shares, stages, _note(judge.names, unit, measure, sets)))
    return Mixture(found)


def _share(names: WatchedNames, measure: str, one: ShownShare) -> MixtureShare:
    metric = names.own_name(f"{TAKEN}{measure}/{one.dataset}")
    known = metric if not metric.startswith(TAKEN) else None
    drawn = known is not None and any(known in f.members and f.are == SHARES for f in names.families.values())
    realised, since = (None if math.isnan(value) else value for value in (one.realised, one.realised_since))
    return MixtureShare(one.dataset, known, drawn, one.declared, realised, since, one.low, one.high, one.off)


def _note(names: WatchedNames, unit: str, measure: str, sets: list[ShownShare]) -> str:
    if measure and any(not math.isnan(one.realised) for one in sets):
        return ""
    other = "samples" if unit == "tokens" else "tokens"
    if not any(any(True for _ in names.mixtures(one)) for one in (unit, RATIO)):
        if any(True for _ in names.mixtures(other)):
            return f"Declared in {unit}, logged in {other}: not compared. Log {unit}/<data set> too."
        return f"No metric counts what is taken: log {unit}/<data set>, or shares as ratio/<data set>."
    if measure:
        return "No data set that is logged has a declared name, or there are too few rows yet."
    return "Compared as soon as there are rows."


#: Most buckets of an answer: two a pixel of a large chart.
MAX_BUCKETS = 2_000
#: Rows of a bucket: two blocks of the detector, its shortest window; fewer than a block at an edge are dropped.
BUCKET_ROWS = 2 * BLOCK_ROWS
#: Discarded branches in an answer, the newest: more of them would hide the effective one.
MAX_DISCARDED = 8


@dataclass(frozen=True, slots=True)
class _Piece:
    """Steps of one segment with one declared mixture (None: none yet)."""

    segment: int
    first: int
    last: int
    shares: Mapping[str, float] | None


def with_curves(
    judge: Judge, mixture: Mixture, buckets: int, start: int | None, stop: int | None
) -> Callable[[], Mixture]:
    """Return a function that adds the curves to ``mixture``. Call this on the event loop, and the result in a thread.

    Args:
        buckets: at most about this many. start, stop: first and last step, inclusive; None for no bound.
    """
    detector = judge.detector(MixtureDetector.name)
    jobs = []
    for one in mixture.mixtures:
        bands = detector.bands(one.unit) if isinstance(detector, MixtureDetector) else None
        if judge.primary is None or bands is None or not one.measure or one.note:
            continue
        stages = [known for known in judge.mixtures.known if known.unit == one.unit]
        metrics = _metrics(judge, one.measure, stages, [share.dataset for share in one.sets])
        growing = any(family.are == GROWING for family in judge.names.mixtures(one.measure))
        view = judge.store.view(metrics.values())
        lineage = LineageView.of(judge.fold)
        pieces = list(_pieces(lineage.path, stages, start, stop))
        left = list(_pieces(_discarded(lineage), [], start, stop))[-MAX_DISCARDED:]
        jobs.append((one, _Reader(view, judge.primary, metrics, growing), pieces, left, bands))

    def made() -> Mixture:
        for one, reader, pieces, left, bands in jobs:
            one.curves = reader.curves(pieces, left, bands, buckets)
        return mixture

    return made


def _metrics(judge: Judge, measure: str, stages: Sequence[Declared], shown: Sequence[str]) -> dict[str, str]:
    """Return data set -> its metric, declared or taken ones."""
    names = dict.fromkeys([*shown, *(name for one in stages for name in one.shares)])
    own = {name: judge.names.own_name(f"{TAKEN}{measure}/{name}") for name in names}
    return {name: metric for name, metric in own.items() if not metric.startswith(TAKEN)}


def _discarded(lineage: LineageView) -> Iterator[PathRange]:
    """Yield the discarded steps of each segment."""
    for segment, limit in enumerate(lineage.limits):
        if limit is not None:
            yield PathRange(segment, max(limit, lineage.forks[segment]) + 1, None)


def _pieces(
    path: Iterable[PathRange], stages: Sequence[Declared], start: int | None, stop: int | None
) -> Iterator[_Piece]:
    """Yield ranges of steps, cut at declarations."""
    cuts = [one.step or 0 for one in stages]
    for part in path:
        low = part.first if start is None else max(part.first, start)
        high = min(end for end in (part.last, stop, 2**53) if end is not None)
        edges = [low, *(cut for cut in cuts if low < cut <= high), high + 1]
        for first, after in pairwise(edges):
            held = [one.shares for one in stages if (one.step or 0) <= first]
            if first < after:
                yield _Piece(part.segment, first, after - 1, held[-1] if held else None)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reader of the counts of each data set.

    Args:
        metrics: data set -> metric. growing: counts since the start.
    """

    view: StoreView
    rank: int
    metrics: Mapping[str, str]
    growing: bool

    def curves(self, pieces: Sequence[_Piece], left: Sequence[_Piece], bands: Bands, buckets: int) -> MixtureCurves:
        """Return declared and realised shares and bands, a value for each bucket; of the ``left`` steps, the shares."""
        level = self._level(pieces, buckets)
        found = self._along(pieces, bands, level)
        for piece in left:
            one = self._along([piece], bands, level)
            shares = {curve.dataset: curve.realised for curve in one.sets}
            if one.first:
                found.discarded.append(DiscardedShares(piece.segment, one.first, one.last, shares))
        return found

    def _along(self, pieces: Sequence[_Piece], bands: Bands, level: int) -> MixtureCurves:
        sets = [MixtureCurve(name, [], [], [], []) for name in self.metrics]
        found = MixtureCurves(1 << level, [], [], [], sets, [])
        known: dict[tuple[str, float, int], tuple[float, float] | None] = {}
        before = np.full(len(self.metrics), np.nan)
        for piece in pieces:
            read = [self._blocks(metric, piece, level) for metric in self.metrics.values()]
            every = np.unique(np.concatenate([aggs["block"] for aggs in read] or [np.empty(0, np.int64)]))
            taken, rows = np.zeros((len(read), len(every))), np.zeros((len(read), len(every)), np.int64)
            first, last = np.full(len(every), piece.last), np.full(len(every), piece.first)
            for line, aggs in enumerate(read):
                at = np.searchsorted(every, aggs["block"])
                taken[line, at] = self._taken(aggs, before, line)
                rows[line, at] = aggs["count"]
                first[at], last[at] = np.minimum(first[at], aggs["first_step"]), np.maximum(last[at], aggs["last_step"])
            _add(found, piece, bands, known, (first, last, rows.max(axis=0, initial=0), taken))
        return found

    def _level(self, pieces: Sequence[_Piece], buckets: int) -> int:
        """Return the level with enough rows a bucket, and not too many buckets."""
        steps = rows = 0.0
        for piece in pieces:
            extents = (self.view.extent(self._key(metric, piece.segment)) for metric in self.metrics.values())
            extent = max((one for one in extents if one is not None), key=lambda one: one.rows, default=None)
            if extent is not None:
                span = max(0, min(piece.last, extent.last_step) - max(piece.first, extent.first_step) + 1)
                steps += span
                rows += extent.rows * span / (extent.last_step - extent.first_step + 1)
        level = 0
        while level < MAX_LEVEL and (rows * 2**level < BUCKET_ROWS * steps or steps > buckets * 2**level):
            level += 1
        return level

    def _key(self, metric: str, segment: int) -> SeriesKey:
        return SeriesKey(metric, segment, self.rank, "")

    def _blocks(self, metric: str, piece: _Piece, level: int) -> Aggs:
        key = self._key(metric, piece.segment)
        extent = self.view.extent(key)
        if extent is None or extent.first_step > piece.last:
            return EMPTY_AGGS
        return self.view.aggregates(key, piece.first, min(piece.last, extent.last_step), level)

    def _taken(self, aggs: Aggs, before: NDArray[np.float64], line: int) -> NDArray[np.float64]:
        """Return the counts of each bucket; NaN for a non-finite value, or a restarted count."""
        broken = (aggs["nan"] + aggs["pinf"] + aggs["ninf"]) > 0
        if not self.growing or not len(aggs):
            return np.where(broken, np.nan, aggs["sum"])
        risen = np.diff(aggs["last"], prepend=before[line])
        before[line] = aggs["last"][-1]
        return np.where(broken | ~(risen >= 0), np.nan, risen)


_Columns = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]


def _add(
    found: MixtureCurves,
    piece: _Piece,
    bands: Bands,
    known: dict[tuple[str, float, int], tuple[float, float] | None],
    columns: _Columns,
) -> None:
    """Append the buckets of a piece that have enough rows."""
    first, last, rows, taken = columns
    totals = taken.sum(axis=0)
    for at in np.flatnonzero(rows >= BLOCK_ROWS).tolist():
        found.first.append(int(first[at]))
        found.last.append(int(last[at]))
        found.rows.append(count := int(rows[at]))
        for curve, took in zip(found.sets, taken[:, at].tolist(), strict=True):
            declared = None if piece.shares is None else piece.shares.get(curve.dataset, 0.0)
            curve.declared.append(declared)
            total = float(totals[at])
            curve.realised.append(None if total == 0 else json_number(took / total))
            band = None
            if declared is not None:
                key = (curve.dataset, declared, count)
                band = known[key] if key in known else known.setdefault(key, bands.of(*key))
            curve.low.append(None if band is None else band[0])
            curve.high.append(None if band is None else band[1])
