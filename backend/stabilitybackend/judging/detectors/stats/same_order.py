"""Intervals in which two runs had the same data in the same order, by the innovations of their losses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.judging.detectors.engine.long_past import PAST_BLOCK, LongPast

from .fingerprint import DIFFERS, FALSE_HITS, NORMAL, SignWindow, places_alike, sign_words, step_of, sureness

#: Windows of a run searched in the other one, spread evenly: an interval shorter than their distance may be missed.
SEARCHES = 32
#: Points of a window, distance of a search off its place for the structure of the jobs, and points of a window at
#: the edge of an interval.
POINTS, BESIDE, EDGE = 96, 32, 48
#: Windows in a row that have to agree at one shift.
CONFIRM_WINDOWS = 2

__all__ = ["same_order"]


class SameStretch(NamedTuple):
    """Steps of one run with the data of another one.

    Args:
        first, last: its steps. other: the step of the other run that ``first`` equals. r: least correlation.
    """

    first: int
    last: int
    other: int
    r: float


def same_order(own: LongPast, other: LongPast) -> list[SameStretch]:
    """Return the intervals of ``own`` with the data of ``other``, in its order; oldest first, empty for none.

    Both have to log at the same distances of steps. Two jobs with equally alternating sources agree at many places
    next to the best one as well, which proves nothing.
    """
    count, there = len(own.data), len(other.data)
    if min(count, there) < POINTS + PAST_BLOCK:
        return []
    mine, theirs = np.frombuffer(bytes(own.data), np.uint8), np.frombuffer(bytes(other.data), np.uint8)
    words = sign_words(theirs)
    least = NORMAL.inv_cdf(1 - FALSE_HITS / there)
    every = max(1, (count - POINTS) // PAST_BLOCK // SEARCHES) * PAST_BLOCK
    found: list[tuple[int, int, float]] = []  # (end of the window, how much further the other one was, r)
    for end in range(POINTS + PAST_BLOCK, count + 1, every):
        alike = places_alike(SignWindow.of(mine[:end]), words, there)
        shift, r = max(_at_each(mine, theirs, end, [at - end for _, at in alike]), key=_by_r, default=(0, 0.0))
        beside = [shift + by for by in range(-BESIDE, BESIDE + 1) if by]
        _, structure = max(_at_each(mine, theirs, end, beside), key=_by_r, default=(0, 0.0))
        sure = sureness(r, POINTS)
        if sure > least and sure - sureness(structure, POINTS) > DIFFERS:
            found.append((end, shift, r))
    stretches: list[SameStretch] = []
    for shift, group in groupby(found, key=lambda one: one[1]):
        same = list(group)
        if len(same) < CONFIRM_WINDOWS:
            continue
        first = _extended(mine, theirs, same[0][0] - POINTS, shift, -PAST_BLOCK, every)
        last = _extended(mine, theirs, same[-1][0], shift, PAST_BLOCK, every) - 1
        steps = step_of(own, first), step_of(own, last), step_of(other, first + shift)
        stretches.append(SameStretch(*steps, min(r for _, _, r in same)))
    return stretches


def _extended(mine: NDArray[np.uint8], theirs: NDArray[np.uint8], at: int, shift: int, by: int, most: int) -> int:
    """Return the distance from ``at`` up to which the two agree, in steps of ``by`` points, at most ``most`` points."""
    for _ in range(most // PAST_BLOCK):
        end = at + by if by > 0 else at + by + EDGE
        rs = _at_each(mine, theirs, end, [shift], EDGE) if EDGE <= end <= len(mine) else []
        if not rs or sureness(rs[0][1], EDGE) < DIFFERS:
            return at
        at += by
    return at


def _at_each(
    mine: NDArray[np.uint8], theirs: NDArray[np.uint8], end: int, shifts: Sequence[int], points: int = POINTS
) -> list[tuple[int, float]]:
    """Return (shift, r) of the window that ends at ``end`` with the other run at each shift that lies inside."""
    inside = [shift for shift in shifts if points <= end + shift <= len(theirs)]
    if not inside:
        return []
    one = mine[end - points : end].astype(float)
    many = theirs[np.arange(end - points, end) + np.array(inside)[:, None]].astype(float)
    one -= one.mean()
    many -= many.mean(axis=1, keepdims=True)
    scale = np.sqrt((one @ one) * np.einsum("ij,ij->i", many, many))
    both = many @ one
    rs = np.divide(both, scale, out=np.zeros_like(both), where=scale > 0)
    return list(zip(inside, rs.tolist(), strict=True))


def _by_r(found: tuple[int, float]) -> float:
    return found[1]
