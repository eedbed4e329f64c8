"""News to a run with similar events before: more than its own past."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

__all__ = ["TIMES", "more_than_before"]

#: Ratio of news to the second largest of earlier self-healed events. The largest may be the first of the news. Of
#: random sizes with an exponential tail, some one in a thousand is that much.
TIMES = 2.0


def more_than_before(past: Iterable[float]) -> float:
    """Return the size to exceed: from the second largest, or the only one; 0.0 for none.

    Example:
        >>> more_than_before([1.0, 9.0, 3.0]), more_than_before([])
        (6.0, 0.0)
    """
    largest = heapq.nlargest(2, past)
    return TIMES * largest[-1] if largest else 0.0
