"""SpikeScore: which share of the points of a loss or a gradient norm lie far above those right before them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from stabilitybackend.lineage.tree import PathRange
from stabilitybackend.schema.series import SpikeScore, SpikeScores
from stabilitybackend.storage.archive.series import Extent, Rows
from stabilitybackend.storage.query.downsampling import StoreReader
from stabilitybackend.storage.query.lineage_view import LineageView

__all__ = ["NEWEST_STEPS", "THRESHOLD_STDS", "WINDOW_POINTS", "outliers", "spike_scores"]

#: As in OLMo-core: points whose mean and standard deviation a point is held against, standard deviations above the
#: mean beyond which it is an outlier, newest steps of the running score, and a deviation too small to divide by.
WINDOW_POINTS = 128
THRESHOLD_STDS = 6.0
NEWEST_STEPS = 10_000
LEAST_STD = 1e-10
#: Windows that are computed at a time (8 MiB of numbers), and points that are read at a time, about.
TILE_WINDOWS = 8_192
PIECE_POINTS = 131_072


def outliers(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which points are outliers by OLMo-core's SpikeScore.

    A point is one where it is more than 6 standard deviations above the mean of the 128 points before it. Outliers stay
    in the windows of the points after them, and the first 128 points are none. The number is comparable between runs
    and laboratories, and no alarm: it ignores trends, and a spike hides the rows right after it.

    Args:
        values: finite, in the order in which they were logged.

    Returns:
        As many truth values.

    Source: ``StabilityMonitorCallback`` of OLMo-core (allenai/OLMo-core, ``train/callbacks/stability_monitor.py``);
    population deviation, none where it is below 1e-10.
    """
    found = np.zeros(len(values), np.bool_)
    if len(values) <= WINDOW_POINTS:
        return found
    windows = sliding_window_view(values[:-1], WINDOW_POINTS)
    for at in range(0, len(windows), TILE_WINDOWS):
        tile = windows[at : at + TILE_WINDOWS]
        means, stds = tile.mean(axis=1), tile.std(axis=1)
        first = at + WINDOW_POINTS
        above = values[first : first + len(tile)] > means + THRESHOLD_STDS * stds
        found[first : first + len(tile)] = above & (stds >= LEAST_STD)
    return found


def spike_scores(store: StoreReader, lineage: LineageView, loss: str | None, grad_norm: str | None) -> SpikeScores:
    """Return the SpikeScores of a run's effective timeline. Reads whole series, in pieces: call it in a thread.

    Points that are not finite are left out: an incident is about those, and one NaN would blind 128 windows.

    Args:
        store, lineage: of the same moment. loss, grad_norm: names of the metrics, None for one that is not logged; of
            each the lowest rank counts.
    """
    curves = {name: _Curve(store, name) for name in (loss, grad_norm) if name is not None and store.keys(name)}
    counts, either = {name: _Counts() for name in curves}, _Counts()
    for part in lineage.path:
        for first, last in _pieces(part, [curve.extent(part.segment) for curve in curves.values()]):
            steps, above = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
            for name, curve in curves.items():
                of_piece = curve.read(part.segment, first, last)
                counts[name].add(*of_piece)
                steps.append(of_piece[0])
                above.append(of_piece[1])
            either.add(np.unique(np.concatenate(steps)), np.unique(np.concatenate(above)))
    scores = [one.score(name) for name, one in counts.items() if one.steps]
    return SpikeScores(scores, either.score("") if scores else None)


def _pieces(part: PathRange, extents: Sequence[Extent | None]) -> Iterator[tuple[int, int]]:
    """Yield the first and last step of stretches of a part of the timeline that hold some PIECE_POINTS each."""
    known = [one for one in extents if one is not None]
    if not known:
        return
    first = max(part.first, min(one.first_step for one in known))
    last = max(one.last_step for one in known)
    last = last if part.last is None else min(last, part.last)
    pieces = sum(one.rows for one in known) // PIECE_POINTS + 1
    length = (last - first) // pieces + 1
    for at in range(first, last + 1, max(1, length)):
        yield at, min(last, at + length - 1)


class _Curve:
    """The finite points of one metric's lowest rank, read from the first to the last."""

    def __init__(self, store: StoreReader, metric: str) -> None:
        keys = [key for key in store.keys(metric) if not key.stray]
        lowest = min((key.rank for key in keys if key.rank is not None), default=None)
        self._store = store
        self._keys = {key.segment: key for key in keys if key.rank == lowest}
        #: The newest points, which those that come are held against.
        self._before = np.empty(0)

    def extent(self, segment: int) -> Extent | None:
        """Return the steps and the number of the points of a segment, None where it has none."""
        key = self._keys.get(segment)
        return None if key is None else self._store.extent(key)

    def read(self, segment: int, first: int, last: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the steps of the next points, rising and each once, and those of the outliers among them."""
        key = self._keys.get(segment)
        rows = Rows.EMPTY if key is None else self._store.rows(key, first, last)
        finite = np.isfinite(rows.values)
        steps, values = rows.steps[finite], np.concatenate([self._before, rows.values[finite]])
        above = outliers(values)[len(self._before) :]
        self._before = values[-WINDOW_POINTS:]
        return np.unique(steps), np.unique(steps[above])


class _Counts:
    """How many steps there were, how many of them are outliers, and which of both are new."""

    def __init__(self) -> None:
        self.steps = 0
        self._outliers = 0
        self._newest = np.empty(0, np.int64)
        self._above = np.empty(0, np.int64)

    def add(self, steps: NDArray[np.int64], above: NDArray[np.int64]) -> None:
        """Take the next steps, and the outliers among them."""
        self.steps += len(steps)
        self._outliers += len(above)
        self._newest = np.concatenate([self._newest, steps])[-NEWEST_STEPS:]
        self._above = np.concatenate([self._above, above])[-NEWEST_STEPS:]

    def score(self, metric: str) -> SpikeScore:
        """Return the score."""
        newest = None
        if self.steps >= NEWEST_STEPS:
            newest = float(np.count_nonzero(self._above >= self._newest[0]) / NEWEST_STEPS)
        share = self._outliers / self.steps if self.steps >= WINDOW_POINTS else None
        last = self._above[-1].item() if len(self._above) else None
        return SpikeScore(metric, self.steps, self._outliers, share, newest, last)
