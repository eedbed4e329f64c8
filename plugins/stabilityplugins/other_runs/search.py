"""Searches the newest data of a run in the history of others. Pure, and read in a thread.

By the loss: a value's part beyond its own past's forecast is a fingerprint of its batch (``stats/fingerprint.py``).
Two runs with one schedule have similar curves, and no trace of those is left in it. A window of the newest points is
compared with all places of all other runs together; the bound on the correlation follows from how many places there
are, so that chance finds one in a hundred million searches, whatever the size of the project. By batch ids: equal ones,
in their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.judging.detectors.engine.long_past import PAST_BLOCK
from stabilitybackend.judging.detectors.stats.fingerprint import (
    DIFFERS,
    FALSE_HITS,
    NORMAL,
    WORD_POINTS,
    SignWindow,
    places_alike,
    sureness,
)
from stabilitybackend.judging.detectors.stats.innovations import STEPS_PER_SIGMA, ZERO
from stabilityplugins.other_runs.prints import KEPT_OF, Prints

__all__ = [
    "CONFIRM_IDS", "LEAST_POINTS", "Place", "Stretch", "goes_on", "newest_step", "search", "search_ids", "stretch_of",
]  # fmt: skip

#: Points before which nothing is looked for: a window, and the points that the first of its words need.
LEAST_POINTS = WORD_POINTS + PAST_BLOCK
#: Distance from a place in which the structure of the jobs is looked for, points.
BESIDE = 32
#: Equal ids in their order that make a place. One of KEPT_OF ids is kept, so that this is a dozen of batches.
CONFIRM_IDS = 3
#: Newest batches whose ids are looked for.
NEWEST_IDS = 64


class Place(NamedTuple):
    """Where the newest data of a run is in another one.

    Args:
        by: ``ids`` or ``loss``.
        run: id of the other one. shift: how much further the other one was, in steps for ``ids``, else in points.
        r: correlation, 1.0 for ids. sigmas: how far from chance; infinite for ids.
    """

    by: Literal["ids", "loss"]
    run: str
    shift: int
    r: float
    sigmas: float


class Stretch(NamedTuple):
    """Since when a run has the data of another one: the first step of each, and how many points it has been."""

    first: int
    other: int
    points: int


def search(own: Prints, others: Mapping[str, Prints]) -> list[Place]:
    """Return where the newest points of ``own`` are in the losses of others, the surest first."""
    count = len(own.data)
    total = sum(len(other.data) for other in others.values())
    if count < LEAST_POINTS or not total or not (own.data[-WORD_POINTS:] != ZERO).any():
        return []
    least, window = NORMAL.inv_cdf(1 - FALSE_HITS / total), SignWindow.of(own.data)
    found = []
    for name, other in others.items():
        if len(other.data) < LEAST_POINTS:
            continue
        ends = [end for _, end in places_alike(window, other.words, len(other.data))]
        at, r = max(_at_each(own, other, ends), key=_by_r, default=(0, 0.0))
        sure = sureness(r, WORD_POINTS)
        if sure <= least:
            continue
        # Jobs of one make agree near the best place as well, and that is no match.
        beside = [at + by for by in range(-BESIDE, BESIDE + 1) if by]
        _, structure = max(_at_each(own, other, beside), key=_by_r, default=(0, 0.0))
        if sure - sureness(structure, WORD_POINTS) > DIFFERS:
            found.append(Place("loss", name, other.first + at - own.first - count, r, sure))
    return sorted(found, key=lambda place: -place.sigmas)


def search_ids(own: Prints, others: Mapping[str, Prints]) -> list[Place]:
    """Return where the newest batches of ``own`` are among those of others, by their ids."""
    newest = np.argsort(own.id_steps)[-NEWEST_IDS:]
    ids, steps = own.ids[newest], own.id_steps[newest]
    if len(np.unique(ids)) < CONFIRM_IDS:
        return []
    found = []
    for name, other in others.items():
        if not len(other.ids):
            continue
        places = np.minimum(np.searchsorted(other.ids, ids), len(other.ids) - 1)
        equal = other.ids[places] == ids
        shifts = Counter((other.id_steps[places[equal]] - steps[equal]).tolist()).most_common(1)
        if shifts and shifts[0][1] >= CONFIRM_IDS:
            found.append(Place("ids", name, shifts[0][0], 1.0, float("inf")))
    return found


def stretch_of(own: Prints, other: Prints, place: Place) -> Stretch:
    """Return since when the two have had one data: the likeliest change from no agreement to half of today's.

    Page, Continuous inspection schemes, 1954; for ids the first of the equal ones in a row.
    """
    if place.by == "ids":
        at = np.minimum(np.searchsorted(other.ids, own.ids), len(other.ids) - 1)
        equal = (other.ids[at] == own.ids) & (other.id_steps[at] - own.id_steps == place.shift)
        order = np.argsort(own.id_steps)
        others = np.flatnonzero(~equal[order])
        last = int(others[-1]) if len(others) and others[-1] + 1 < len(order) else -1
        since = own.id_steps[order[last + 1 :]]
        return Stretch(int(since[0]), int(since[0]) + place.shift, len(since) * KEPT_OF)
    ahead = _end(own, other, place) - len(own.data)
    begin, end = max(0, -ahead), min(len(own.data), len(other.data) - ahead)
    products = _sigmas(own.data[begin:end]) * _sigmas(other.data[begin + ahead : end + ahead])
    agreed = np.cumsum((products - 0.5 * products[-WORD_POINTS:].mean())[::-1])
    first = end - 1 - int(np.argmax(agreed))
    # The first points of a run, when the model knew nothing, are hardly recognised: it began with one of the runs.
    first = begin if first - begin < WORD_POINTS else first
    return Stretch(own.step_at(first), other.step_at(first + ahead), end - first)


def newest_step(own: Prints, other: Prints, place: Place) -> int:
    """Return the step of the other run whose data is the newest of ``own``."""
    if place.by == "ids":
        return int(own.id_steps.max()) + place.shift
    return other.step_at(_end(own, other, place) - 1)


def goes_on(own: Prints, other: Prints, place: Place) -> bool:
    """Say whether the newest data of ``own`` still is that of the other run at a place that was found before."""
    if place.by == "ids":
        return any(one.shift == place.shift for one in search_ids(own, {place.run: other}))
    agreed = _at_each(own, other, [_end(own, other, place)])
    return bool(agreed) and sureness(agreed[0][1], WORD_POINTS) > DIFFERS


def _end(own: Prints, other: Prints, place: Place) -> int:
    """Return the place in the other run after the data of the newest point of ``own``."""
    return place.shift + own.first + len(own.data) - other.first


def _sigmas(data: NDArray[np.uint8]) -> NDArray[np.float64]:
    return (data.astype(float) - ZERO) / STEPS_PER_SIGMA


def _at_each(own: Prints, other: Prints, ends: Sequence[int]) -> list[tuple[int, float]]:
    """Return (end, r) of the newest points with those of the other run that end at each of the places in it."""
    inside = np.array([end for end in ends if WORD_POINTS <= end <= len(other.data)], np.int64)
    if not len(inside):
        return []
    one = own.data[-WORD_POINTS:].astype(float)
    many = other.data[inside[:, None] + np.arange(-WORD_POINTS, 0)].astype(float)
    one -= one.mean()
    many -= many.mean(axis=1, keepdims=True)
    scale = np.sqrt((one @ one) * np.einsum("ij,ij->i", many, many))
    rs = np.divide(many @ one, scale, out=np.zeros(len(inside)), where=scale > 0)
    return list(zip(inside.tolist(), rs.tolist(), strict=True))


def _by_r(found: tuple[int, float]) -> float:
    return found[1]
