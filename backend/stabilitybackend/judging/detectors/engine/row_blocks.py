"""Rows for detectors, in blocks, one for each logged set of metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count, repeat
from typing import NamedTuple

#: A larger number is an overflow: the largest one of float32 and bfloat16 is 3.4e38. It counts as missing; sums and
#: squares of the others are finite.
LARGEST = 1e38

__all__ = ["LARGEST", "QuietRows", "RowBlock", "quiet_from", "rows_in_order"]


class RowBlock(NamedTuple):
    """Rows of one set of metrics.

    Args:
        names: all metrics of the set.
        steps, times: of each row; log times in unix seconds.
        columns: metric -> a value for each row, of wanted metrics only.
    """

    names: Sequence[str]
    steps: Sequence[int]
    times: Sequence[float]
    columns: Mapping[str, Sequence[float]]


class QuietRows(NamedTuple):
    """Evenly spaced rows of one rank and one set of metrics, fed as a batch.

    Args:
        steps, times: of each row.
        columns: metric -> a value for each row, of all wanted metrics.
        ranges: metric -> its least and its largest value, of those whose values are all below LARGEST.
    """

    steps: Sequence[int]
    times: Sequence[float]
    columns: Mapping[str, Sequence[float]]
    ranges: Mapping[str, tuple[float, float]]


def rows_in_order(blocks: Sequence[RowBlock]) -> Iterator[tuple[int, float, int, int]]:
    """Yield (step, time, block, row) of all rows, by index: one block in its order, several by step and time."""
    rows = [zip(block.steps, block.times, repeat(at), count()) for at, block in enumerate(blocks)]
    return rows[0] if len(rows) == 1 else iter(sorted(chain.from_iterable(rows)))


def quiet_from(values: Sequence[float], low: float, high: float) -> int:
    """Return the length of the prefix of some finite values that lies between two bounds.

    Example:
        >>> quiet_from([1.0, 2.0, 9.0, 1.0], 0.0, 3.0)
        2
    """
    if not values or (low < min(values) and max(values) < high):
        return len(values)
    return next(at for at, value in enumerate(values) if not low < value < high)
