"""Which worker follows which run. Pure: workers that see the same members and runs come to the same answer.

Rendezvous hashing (Thaler and Ravishankar, 1998) with bounded load (after Mirrokni et al., "Consistent Hashing with
Bounded Loads", 2018): each run goes to the worker that draws the highest number for it, unless that one has its share
and a quarter more already; then to the next one. A worker that comes or goes moves few runs of the others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from functools import lru_cache
from hashlib import blake2b

__all__ = ["MAX_SHARE", "choices", "placed"]

#: A worker gets at most so many times the mean.
MAX_SHARE = 1.25


def placed(runs: Iterable[str], workers: Collection[str]) -> dict[str, str]:
    """Return the worker of each run; none has one where no worker is there."""
    runs = sorted(runs, key=_number)
    if not workers:
        return {}
    most = math.ceil(MAX_SHARE * len(runs) / len(workers))
    load = Counter[str]()
    found = dict[str, str]()
    for run in runs:
        worker = next(one for one in choices(run, workers) if load[one] < most)
        load[worker] += 1
        found[run] = worker
    return found


def choices(run: str, workers: Collection[str]) -> list[str]:
    """Return the workers in the order in which they would follow a run."""
    return sorted(workers, key=lambda worker: (_number(f"{run} {worker}"), worker), reverse=True)


@lru_cache(maxsize=200_000)
def _number(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
