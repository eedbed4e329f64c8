"""What is news to a run that has seen the like before: more than its own past had."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

__all__ = ["TIMES", "more_than_before"]

#: News is this many times the second largest of what came before by itself. The largest may be the first of what is
#: news. Of sizes that come by chance, and fall off exponentially, some one in a thousand is that much.
TIMES = 2.0


def more_than_before(past: Iterable[float]) -> float:
    """Return what has to be exceeded: from the second largest, or the only one; 0.0 where nothing came before.

    Example:
        >>> more_than_before([1.0, 9.0, 3.0]), more_than_before([])
        (6.0, 0.0)
    """
    largest = heapq.nlargest(2, past)
    return TIMES * largest[-1] if largest else 0.0
