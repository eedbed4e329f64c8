"""Recognition of batches by the loss alone: the deviation of a batch's loss from the trend repeats with the batch.

Two passes over the same batches in the same order have correlated residuals, with any numerics; other batches do not.
Correlation by chance is measured, not assumed: in the same run, with the same interval laid against all impossible
places.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.fft import irfft, rfft  # imported at the start: it takes 10 ms
from numpy.typing import NDArray

from stabilitybackend.judging.detectors.stats.robust import MAD_TO_SIGMA
from stabilitybackend.judging.resumes.branches import BranchCurve

#: The largest correlation with a finite arctanh.
ALMOST_ONE = 1 - 1e-12

__all__ = ["LEAST_POINTS", "SAME_R", "Agreement", "RepeatedAt", "laid", "median_of", "noise_of", "on_grid"]

#: Points of the running median under a residual. Shorter ones absorb the batch's own part: of white noise 1/9.
TREND_POINTS = 9
#: Exchanges that put the median of nine values fifth (opt_med9 of Devillard, "Fast median search", 1998): ten times as
#: fast over 4,096 places as to sort each nine.
_EXCHANGES = (
    (1, 2), (4, 5), (7, 8), (0, 1), (3, 4), (6, 7), (1, 2), (4, 5), (7, 8), (0, 3),
    (5, 8), (4, 7), (3, 6), (1, 4), (2, 5), (4, 7), (4, 2), (6, 4), (4, 2),
)  # fmt: skip
#: A larger residual is a spike of another cause, and is clipped here, so that one point never dominates the
#: correlation.
CUT_SIGMAS = 4.0
#: The same batch: most of the variance is the batch's. The passes of real jobs (other GPUs, other dropout, half the
#: learning rate) correlate by 0.75 and more, other batches by less than 0.35 over 50 points.
SAME_R = 0.5
#: Fewest common points for a correlation: below, its own error is above SAME_R / 1.5.
LEAST_POINTS = 12


@dataclass(frozen=True, slots=True)
class Grid:
    """Residuals at regular steps, NaN without a point.

    Attributes:
        first: step of the first one. stride: steps from one to the next.
    """

    first: int
    stride: int
    values: NDArray[np.float64]

    def place(self, step: int) -> int:
        """Return the index of a step."""
        return (step - self.first) // self.stride


@dataclass(frozen=True, slots=True)
class Agreement:
    """Similarity of two intervals.

    Attributes:
        r: Pearson's correlation. points: common ones.
        sigmas: distance of r above that of unrelated intervals, in their spread (both as Fisher's z).
        below: whether r is certainly (two of these sigmas) below SAME_R.
    """

    r: float
    points: int
    sigmas: float
    below: bool


@dataclass(frozen=True, slots=True)
class RepeatedAt:
    """An interval repeated by the newest one: it is ``steps`` further on (below 0: back)."""

    steps: int
    r: float
    sigmas: float
    points: int


def noise_of(before: BranchCurve) -> float:
    """Return one sigma of a loss from batch to batch, 0 for unknown."""
    if len(before) < LEAST_POINTS:
        return 0.0
    missed = _residuals(before.values[-512:])
    missed = missed[np.isfinite(missed)]
    return MAD_TO_SIGMA * median_of(np.abs(missed)) if len(missed) else 0.0


def median_of(values: NDArray[Any]) -> float:
    """Return the median of finite values, one at least: a tenth of the time of ``np.median`` for few."""
    ordered = np.sort(values)
    half = len(ordered) // 2
    return float(ordered[half]) if len(ordered) % 2 else float(ordered[half - 1] + ordered[half]) / 2


def on_grid(before: BranchCurve, since: BranchCurve, sigma: float) -> Grid | None:
    """Return the residuals of a path, those after the fork measured from the trend before it as well.

    None for steps without a common stride, or without noise.
    """
    steps = np.concatenate([before.steps, since.steps])
    values = np.concatenate([before.values, since.values])
    if len(steps) < LEAST_POINTS or not sigma > 0:
        return None
    apart = np.diff(steps)
    stride = int(median_of(apart))
    if stride < 1 or float(np.mean(apart % stride == 0)) < 0.9:
        return None
    missed = np.clip(_residuals(values) / sigma, -CUT_SIGMAS, CUT_SIGMAS)
    places, rest = np.divmod(steps - int(steps[-1]), stride)
    length = int(-places[0]) + 1
    if length > 8 * len(steps):
        return None
    grid = np.full(length, np.nan)
    whole = rest == 0
    grid[places[whole] + length - 1] = missed[whole]
    return Grid(int(steps[-1]) - (length - 1) * stride, stride, grid)


@dataclass(frozen=True, slots=True)
class Laid:
    """An interval of the new branch, laid at every place of the old path.

    Attributes:
        old: the path. first: step of the interval. rs: r at each place, NaN for too few points. counts: common points.
    """

    old: Grid
    first: int
    rs: NDArray[np.float64]
    counts: NDArray[np.int64]

    def agreement(self, shift: int = 0) -> Agreement | None:
        """Compare it with the old path's own steps, or those ``shift`` steps further on; None for too few points."""
        at = self.old.place(self.first + shift)
        if shift % self.old.stride or not 0 <= at < len(self.rs) or not np.isfinite(self.rs[at]):
            return None
        sigmas, unit = _sigmas(self.rs, self.counts, at)
        certain = 2 * unit / (self.counts[at] - 3) ** 0.5
        below = np.arctanh(min(self.rs[at], ALMOST_ONE)) + certain < np.arctanh(SAME_R)
        return Agreement(float(self.rs[at]), int(self.counts[at]), float(sigmas[at]), bool(below))

    def elsewhere(self) -> RepeatedAt | None:
        """Return the other matches on the old path, most sigmas first.

        Only a correlation of at least SAME_R counts; the caller judges its sigmas.
        """
        rs, own = self.rs.copy(), self.old.place(self.first)
        if 0 <= own < len(rs):
            rs[own] = np.nan
        if not (rs >= SAME_R).any():
            return None
        high = np.where(rs >= SAME_R, _sigmas(rs, self.counts, own)[0], -np.inf)
        at = int(np.argmax(high))
        return RepeatedAt((at - own) * self.old.stride, float(rs[at]), float(high[at]), int(self.counts[at]))


def laid(old: Grid, new: Grid, first: int, last: int) -> Laid | None:
    """Lay the new branch's steps ``first..last`` at each place of the old path.

    None for fewer than LEAST_POINTS points, or different strides.
    """
    if old.stride != new.stride or (old.first - new.first) % old.stride:
        return None
    window = new.values[max(0, new.place(first)) : new.place(last) + 1]
    if int(np.isfinite(window).sum()) < LEAST_POINTS:
        return None
    return Laid(old, first, *_all_places(old.values, window))


def _all_places(
    path: NDArray[np.float64], window: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return r and the common points with the window laid at each place of the path; the path is padded at its end."""
    there, mine = np.isfinite(path), np.isfinite(window)
    length, n = len(path), len(window)
    size = 1 << (length + n - 1).bit_length()
    a, b = np.where(there, path, 0.0), np.where(mine, window, 0.0)
    spectra = [rfft(one, size) for one in (a, a * a, there.astype(float))]
    own = [np.conj(rfft(one, size)) for one in (b, b * b, mine.astype(float))]

    def product(left: int, right: int) -> NDArray[np.float64]:
        found: NDArray[np.float64] = irfft(spectra[left] * own[right], size)[:length]
        return found

    counts = np.rint(product(2, 2))
    enough = np.maximum(counts, 1.0)
    sum_a, sum_b = product(0, 2), product(2, 0)
    both = product(0, 0) - sum_a * sum_b / enough
    square = (product(1, 2) - sum_a**2 / enough) * (product(2, 1) - sum_b**2 / enough)
    rs = np.full(length, np.nan)
    good = (counts >= LEAST_POINTS) & (square > 1e-9 * enough**2)
    rs[good] = np.clip(both[good] / np.sqrt(square[good]), -1.0, 1.0)
    return rs, counts.astype(np.int64)


def _sigmas(rs: NDArray[np.float64], counts: NDArray[np.int64], own: int) -> tuple[NDArray[np.float64], float]:
    """Return the distance of each r above the usual one, and the usual spread relative to independent points, 1 or
    more.

    Fisher's z of n independent points has the spread 1 / sqrt(n - 3). Losses are dependent: the unrelated places give
    their spread.
    """
    scores = np.arctanh(np.clip(rs, -0.999999, 0.999999)) * np.sqrt(np.maximum(counts - 3, 1))
    others = scores[np.isfinite(scores) & (np.abs(np.arange(len(rs)) - own) > 1)]
    if len(others) < LEAST_POINTS:
        return scores, 1.0
    centre = median_of(others)
    unit = max(1.0, MAD_TO_SIGMA * median_of(np.abs(others - centre)))
    return (scores - centre) / unit, unit


def _residuals(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the deviation from the running median; non-finite values stay so and do not count."""
    half = TREND_POINTS // 2
    finite = np.isfinite(values)
    if not finite.any():
        return np.full(len(values), np.nan)
    filled = np.interp(np.arange(len(values)), np.flatnonzero(finite), values[finite])
    padded = np.pad(filled, half, mode="reflect")
    near = [padded[at : at + len(values)] for at in range(TREND_POINTS)]
    for low, high in _EXCHANGES:
        near[low], near[high] = np.minimum(near[low], near[high]), np.maximum(near[low], near[high])
    return np.where(finite, values - near[half], np.nan)
