"""Which worker follows which run. Pure: workers that see the same members and runs come to the same answer.

Rendezvous hashing (Thaler and Ravishankar, 1998) with bounded load (after Mirrokni et al., "Consistent Hashing with
Bounded Loads", 2018): each run goes to the worker that draws the highest number for it, unless that one has its share
and a quarter more already; then to the next one. A worker that comes or goes moves few runs of the others.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

__all__ = ["MAX_SHARE", "choices", "placed"]

#: A worker gets at most so many times the mean.
MAX_SHARE = 1.25


def placed(runs: Iterable[str], workers: Collection[str]) -> dict[str, str]:
    """Return the worker of each run; none has one where no worker is there.

    In arrays: for 10,000 runs and 60 workers it takes 0.1 s, one draw at a time took 1.5 s.
    """
    if not workers:
        return {}
    in_order, names = sorted(runs, key=_number), sorted(workers)
    most = math.ceil(MAX_SHARE * len(in_order) / len(names))
    load = [0] * len(names)
    found = dict[str, str]()
    for run, order in zip(in_order, _orders(in_order, names).tolist(), strict=True):
        place = next(one for one in order if load[one] < most)
        load[place] += 1
        found[run] = names[place]
    return found


def choices(run: str, workers: Collection[str]) -> list[str]:
    """Return the workers in the order in which they would follow a run."""
    names = sorted(workers)
    return [names[place] for place in _orders([run], names)[0]]


def _orders(runs: Sequence[str], workers: Sequence[str]) -> NDArray[np.intp]:
    """Return for each run the places of the workers, those with the highest draws first."""
    ours, theirs = (np.array([_number(name) for name in names], np.uint64) for names in (runs, workers))
    draws = ours[:, None] ^ theirs[None, :]
    # The finalizer of splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
    draws = (draws ^ (draws >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    draws = (draws ^ (draws >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.argsort(~(draws ^ (draws >> np.uint64(31))), axis=1, kind="stable")


@lru_cache(maxsize=50_000)
def _number(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
