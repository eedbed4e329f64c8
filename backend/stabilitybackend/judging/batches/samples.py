"""Which samples each step saw: of every data set the same small share of its samples, at every step they come.

Clients send the hashes of samples that begin with some zero bits (``stabilityclient/data/hashing.py``). So what is kept
is complete: all places of some samples, none of the others. How many samples were seen once, twice or never, and how
many two stretches share, is counted on these and holds for all. When there is no more room, one more bit has to be
zero, and half of the samples of the largest data set go: bounded for ever, at a known error.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.lineage.tree import PathRange

__all__ = ["HASH_BITS", "MAX_DATASETS", "MAX_PLACES", "SampleLog", "hashes_of"]

#: Bits of a hash that travel.
HASH_BITS = 48
_HASH_BYTES = HASH_BITS // 8
#: Places of samples that are kept for a run, 18 bytes each: 4.5 MiB. A share of half is then known to 0.1 % to 0.4 %.
MAX_PLACES = 2**18
#: Newest places that are kept one by one, before they are put to the others.
OPEN_PLACES = 4_096
#: Data sets of a run that are told apart; samples of further ones count as those of the last.
MAX_DATASETS = 64

Columns = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.uint32], NDArray[np.uint16]]


def hashes_of(kept: str) -> list[int]:
    """Return the hashes in the text of a ``batch`` event, none where it is none."""
    try:
        data = b64decode(kept, validate=True)
    except ValueError:
        return []
    starts = range(0, len(data) - _HASH_BYTES + 1, _HASH_BYTES)
    return [int.from_bytes(data[at : at + _HASH_BYTES], "big") for at in starts]


class SampleLog(Stateful):
    """The places of the samples that are kept: hash, step, segment, data set."""

    names: list[str] = fresh(list)
    #: Zero bits with which the hashes of each data set begin; what stands for one sample stands for ``2**shift``.
    shifts: list[int] = fresh(list)
    _hashes: NDArray[np.uint64] = fresh(np.empty, 0, np.uint64)
    _steps: NDArray[np.int64] = fresh(np.empty, 0, np.int64)
    _segments: NDArray[np.uint32] = fresh(np.empty, 0, np.uint32)
    _sets: NDArray[np.uint16] = fresh(np.empty, 0, np.uint16)
    _open: list[tuple[int, int, int, int]] = fresh(list)

    def __init__(self) -> None:
        super().__init__()
        self._known: NDArray[np.uint64] | None = None
        self._newest: set[int] = set()
        self._since = 0

    def restored(self) -> None:
        self._known = None

    # --- what comes in -------------------------------------------------------------------------------------------

    def add(self, segment: int, step: int, name: str, shift: int, hashes: Sequence[int]) -> list[int]:
        """Keep samples of a data set that a rank saw at a step; return the hashes of those that are kept."""
        at = self._set(name)
        if shift > self.shifts[at]:
            self._halve(at, shift)
        limit = HASH_BITS - self.shifts[at]
        kept = [one for one in hashes if not one >> limit]
        self._open += [(one, step, segment, at) for one in kept]
        if len(self._open) >= OPEN_PLACES:
            self._close()
        return kept

    def _set(self, name: str) -> int:
        if name not in self.names:
            if len(self.names) == MAX_DATASETS:
                return MAX_DATASETS - 1
            self.names.append(name)
            self.shifts.append(0)
        return self.names.index(name)

    def _close(self) -> None:
        """Put what is open to the others, and make room where it needs some."""
        columns = self._columns()
        self._open = []
        self._hashes, self._steps, self._segments, self._sets = columns
        while len(self._hashes) > MAX_PLACES:
            largest = int(np.bincount(self._sets).argmax())
            self._halve(largest, self.shifts[largest] + 1)

    def _halve(self, at: int, shift: int) -> None:
        self.shifts[at] = shift
        hashes, steps, segments, sets = self._columns()
        keep = (sets != at) | (hashes >> np.uint64(HASH_BITS - shift) == 0)
        self._open, self._known = [], None
        self._hashes, self._steps, self._segments, self._sets = hashes[keep], steps[keep], segments[keep], sets[keep]

    def _columns(self) -> Columns:
        if not self._open:
            return self._hashes, self._steps, self._segments, self._sets
        hashes, steps, segments, sets = zip(*self._open, strict=True)
        return (
            np.concatenate([self._hashes, np.array(hashes, np.uint64)]),
            np.concatenate([self._steps, np.array(steps, np.int64)]),
            np.concatenate([self._segments, np.array(segments, np.uint32)]),
            np.concatenate([self._sets, np.array(sets, np.uint16)]),
        )

    # --- what was seen -------------------------------------------------------------------------------------------

    def forked(self) -> None:
        """The effective path is another one."""
        self._known = None

    def seen(self, path: Sequence[PathRange], step: int, hashes: Sequence[int], since: int) -> set[int]:
        """Return which of a step's samples came at an earlier step of the path, from ``since`` on.

        Ask for the steps in their order: those that were asked for count as seen from then on.
        """
        if self._known is None or since != self._since:
            found = self.on(path, since, step - 1)
            self._known, self._newest, self._since = np.sort(found[0]), set(), since
        known = {one for one in hashes if one in self._newest}
        if len(self._known) and hashes:
            asked = np.array(hashes, np.uint64)
            places = np.minimum(np.searchsorted(self._known, asked), len(self._known) - 1)
            known.update(asked[self._known[places] == asked].tolist())
        self._newest.update(hashes)
        if len(self._newest) > OPEN_PLACES:
            newest = np.fromiter(self._newest, np.uint64, len(self._newest))
            self._known, self._newest = np.sort(np.concatenate([self._known, newest])), set()
        return known

    def late(self, hashes: Iterable[int]) -> None:
        """Take samples of a step that was asked for already."""
        if self._known is not None:
            self._newest.update(hashes)

    def places(self, path: Sequence[PathRange], name: str, first: int, last: int, since: int) -> tuple[int, int]:
        """Return the first and last step from ``since`` on at which samples of a data set in ``first..last`` had come.

        Both are ``first`` where there are none.
        """
        wanted, _, _, sets = self.on(path, first, last)
        wanted = wanted[sets == self._set(name)]
        hashes, steps, _, _ = self.on(path, since, first - 1)
        found = steps[np.isin(hashes, wanted)]
        return (int(found.min()), int(found.max())) if len(found) else (first, first)

    def on(self, path: Sequence[PathRange], first: int = 0, last: int | None = None) -> Columns:
        """Return the places on a path by step, each sample once a step: hashes, steps, segments, sets.

        Args:
            first, last: steps, both included.
        """
        hashes, steps, segments, sets = self._columns()
        keep = np.zeros(len(hashes), bool)
        for part in path:
            low, high = max(first, part.first), part.last if last is None else last
            if part.last is not None and high is not None:
                high = min(high, part.last)
            inside = (segments == part.segment) & (steps >= low)
            keep |= inside if high is None else inside & (steps <= high)
        hashes, steps, segments, sets = hashes[keep], steps[keep], segments[keep], sets[keep]
        order = np.lexsort((hashes, steps))
        hashes, steps = hashes[order], steps[order]
        again = np.zeros(len(order), bool)
        again[1:] = (hashes[1:] == hashes[:-1]) & (steps[1:] == steps[:-1])  # ranks of one data-parallel group
        return hashes[~again], steps[~again], segments[order][~again], sets[order][~again]
