"""Median and robust deviation, the measures of level and noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

#: Makes the median absolute deviation of a normal distribution its standard deviation.
MAD_TO_SIGMA = 1.4826
#: 90 % quantile of the normal distribution, sigmas above the median.
Q90_SIGMAS = 1.2816
#: Standard error of a median, in those of a mean; also a standard deviation in mean absolute ones.
MEDIAN_ERROR = 1.2533
#: The same of the mean of the middle half of the values: Tukey's midmean.
MIDMEAN_ERROR = 1.09

__all__ = ["MAD_TO_SIGMA", "MEDIAN_ERROR", "MIDMEAN_ERROR", "Q90_SIGMAS", "median", "midmean", "robust_sigma"]


def median(values: Sequence[float]) -> float:
    """Return the median of at least one finite value. Does not overflow.

    Example:
        >>> median([3.0, 1.0, 2.0]), median([1e308, 1e308])
        (2.0, 1e+308)
    """
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else 0.5 * ordered[half - 1] + 0.5 * ordered[half]


def midmean(values: Sequence[float]) -> float:
    """Return the mean of the middle half of at least one finite value: nearly as robust as the median, less noisy.

    Example:
        >>> midmean([1.0, 2.0, 4.0, 99.0])
        3.0
    """
    ordered, cut = sorted(values), len(values) // 4
    return math.fsum(ordered[cut : len(ordered) - cut]) / (len(ordered) - 2 * cut)


def robust_sigma(values: Sequence[float]) -> float:
    """Return the standard deviation by the median absolute deviation, 0 for fewer than two values.

    Example:
        >>> round(robust_sigma([2.0, 2.1, 1.9, 2.0, 9.0]), 5)
        0.14826
    """
    if len(values) < 2:
        return 0.0
    centre = median(values)
    return MAD_TO_SIGMA * median([abs(value - centre) for value in values])
