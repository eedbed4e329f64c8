"""Ids of the batches of every step of every segment, by step and by id. Exact; 12 bytes a batch in memory.

An id has 64 bits, and those of all ranks (and of all parts of a batch) of one step are added up, modulo 2**64: any
order of arrival gives the same sum, and a late one is added to its step. Two different batches of a run of n steps have
one id with a probability of about n**2 / 2**65: 3e-8 for a million steps.

The newest steps of a segment are in a dictionary, the older ones in arrays by step (8 bytes an id, nothing for steps at
equal distances), with an order by id that is rebuilt on demand (4 bytes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.lineage.tree import PathRange

__all__ = ["BatchIds"]

ID_BITS = 64
_MASK = 2**ID_BITS - 1
#: Newest batches of a segment that are kept one by one: late ranks change these most of all. The older half of twice as
#: many becomes an array.
OPEN_BATCHES = 2_048
#: Arrays of equal length are merged, up to this many batches: sorting that many takes 5 ms, a lookup 3 us.
MAX_CHUNK = 65_536
#: Batches of a run, 48 MiB. Beyond it the oldest array is dropped, and counted.
MAX_BATCHES = 2**22


@dataclass
class _Chunk:
    """Older batches by step.

    Attributes:
        first: step of the first one. stride: distance of two of them.
        offsets: steps since ``first``, empty for a ``stride``.
        ids: of the batches.
    """

    first: int
    stride: int
    offsets: NDArray[np.uint64]
    ids: NDArray[np.uint64]

    def __post_init__(self) -> None:
        #: Indices by id, equal ones by step; made on demand.
        self.order: NDArray[np.uint32] | None = None

    def add(self, place: int, batch: int) -> int:
        """Add to an id and return the sum."""
        if not self.ids.flags.writeable:  # as it was read from a snapshot
            self.ids = self.ids.copy()
        whole: int = (int(self.ids[place]) + batch) & _MASK
        self.ids[place] = whole
        self.order = None
        return whole

    def newest(self, batch: int, first: int, last: int) -> list[int]:
        """Return the newest step of ``first..last`` with this id, in a list."""
        if self.order is None:
            self.order = np.argsort(self.ids, kind="stable").astype(np.uint32)
        low = int(np.searchsorted(self.ids, np.uint64(batch), sorter=self.order))
        if low == len(self.order) or int(self.ids[self.order[low]]) != batch:
            return []
        high = int(np.searchsorted(self.ids, np.uint64(batch), side="right", sorter=self.order))
        places = self.order[low:high]
        found = [self.step(int(places[-1]))]
        if found[0] > last:
            steps = self.steps()[places]
            found = steps[: int(np.searchsorted(steps, last, side="right"))][-1:].tolist()
        return [step for step in found if step >= first]

    def steps(self) -> NDArray[np.int64]:
        if len(self.offsets):
            return self.first + self.offsets.astype(np.int64)
        return self.first + self.stride * np.arange(len(self.ids), dtype=np.int64)

    def at(self, step: int) -> int | None:
        """Return the index of ``step``."""
        if step < self.first:
            return None
        if len(self.offsets):
            place = int(np.searchsorted(self.offsets, np.uint64(step - self.first)))
            return place if place < len(self.ids) and int(self.offsets[place]) == step - self.first else None
        place, odd = divmod(step - self.first, self.stride)
        return place if not odd and place < len(self.ids) else None

    def step(self, place: int) -> int:
        return self.first + (int(self.offsets[place]) if len(self.offsets) else self.stride * place)


def _chunk(steps: NDArray[np.int64], ids: NDArray[np.uint64]) -> _Chunk:
    order = np.argsort(steps, kind="stable")
    steps, ids = steps[order], ids[order]
    first = int(steps[0])
    stride = int(steps[1]) - first if len(steps) > 1 else 1
    regular = bool((np.diff(steps) == stride).all())
    offsets = np.empty(0, np.uint64) if regular else (steps - first).astype(np.uint64)
    return _Chunk(first, stride, offsets, ids)


@dataclass
class _Segment:
    """The batches of one segment."""

    open: dict[int, int] = field(default_factory=dict)
    chunks: list[_Chunk] = field(default_factory=list)


class BatchIds(Stateful):
    """The ids of the batches of a run, by segment and step."""

    _segments: dict[int, _Segment] = fresh(dict)
    #: Batches held, and batches dropped.
    count: int = 0
    dropped: int = 0

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[int, dict[int, list[int]]] = {}

    def restored(self) -> None:
        self._found = {}
        for number, segment in self._segments.items():
            for step, batch in segment.open.items():
                self._open(number).setdefault(batch, []).append(step)

    def _open(self, segment: int) -> dict[int, list[int]]:
        return self._found.setdefault(segment, {})

    # --- input ---------------------------------------------------------------------------------------------------

    def add(self, segment: int, step: int, batch: int) -> int:
        """Add a rank's id of a step; return the sum so far."""
        known = self._segments.setdefault(segment, _Segment())
        before = known.open.get(step)
        if before is None and (late := self._place(known, step)) is not None:
            return late[0].add(late[1], batch)
        whole: int = ((before or 0) + batch) & _MASK
        known.open[step] = whole
        of_id = self._open(segment)
        if before is not None:
            of_id[before].remove(step)
            if not of_id[before]:
                del of_id[before]
        else:
            self.count += 1
        of_id.setdefault(whole, []).append(step)
        if len(known.open) >= 2 * OPEN_BATCHES:
            self._close(segment, known)
        return whole

    def _close(self, number: int, segment: _Segment) -> None:
        """Move the older half of the newest batches into an array."""
        steps = sorted(segment.open)[:OPEN_BATCHES]
        ids = [segment.open.pop(step) for step in steps]
        of_id = self._open(number)
        for step, batch in zip(steps, ids, strict=True):
            of_id[batch].remove(step)
            if not of_id[batch]:
                del of_id[batch]
        chunks = segment.chunks
        chunks.append(_chunk(np.array(steps, np.int64), np.array(ids, np.uint64)))
        while len(chunks) > 1 and len(chunks[-2].ids) == len(chunks[-1].ids) <= MAX_CHUNK // 2:
            pair = (chunks.pop(-2), chunks.pop())
            steps_of, ids_of = np.concatenate([c.steps() for c in pair]), np.concatenate([c.ids for c in pair])
            chunks.append(_chunk(steps_of, ids_of))
        while self.count > MAX_BATCHES:
            oldest = next(one for one in self._segments.values() if one.chunks).chunks.pop(0)
            self.count -= len(oldest.ids)
            self.dropped += len(oldest.ids)

    # --- requests ------------------------------------------------------------------------------------------------

    def get(self, segment: int, step: int) -> int | None:
        """Return the id of a step of a segment, None for none."""
        known = self._segments.get(segment)
        if known is None:
            return None
        batch = known.open.get(step)
        if batch is not None:
            return batch
        found = self._place(known, step)
        return None if found is None else int(found[0].ids[found[1]])

    def on(self, path: Sequence[PathRange], step: int) -> int | None:
        """Return the id of ``step`` on a path from the root, None for none.

        Two steps with one id had the same data on all ranks together. It is final once all ranks have reported.
        """
        for part in reversed(path):
            if part.first <= step and (part.last is None or step <= part.last):
                return self.get(part.segment, step)
        return None

    def first_on(self, path: Sequence[PathRange]) -> int | None:
        """Return the first step on a path that has an id."""
        for part in path:
            known = self._segments.get(part.segment)
            if known is None:
                continue
            steps = [step for step in known.open if step >= part.first]
            for chunk in known.chunks:
                own = chunk.steps()
                at = int(np.searchsorted(own, part.first))
                steps += own[at : at + 1].tolist()
            steps = [step for step in steps if part.last is None or step <= part.last]
            if steps:
                return min(steps)
        return None

    def all_on(self, path: Sequence[PathRange]) -> Callable[[], tuple[NDArray[np.int64], NDArray[np.uint64]]]:
        """Return a reader of all steps with an id on a path, and the ids, in no order; 30 ms for a million batches.

        Call it in any thread, once: it reads the present state. A part added to an older id meanwhile may be missing.
        """
        parts = [
            (part, known.chunks.copy(), list(known.open), list(known.open.values()))
            for part in path
            if (known := self._segments.get(part.segment)) is not None
        ]

        def read() -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
            steps, ids = [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
            for part, chunks, open_steps, open_ids in parts:
                arrays = [(chunk.steps(), chunk.ids) for chunk in chunks]
                arrays.append((np.array(open_steps, np.int64), np.array(open_ids, np.uint64)))
                for of_chunk, ids_of in arrays:
                    inside = of_chunk >= part.first
                    if part.last is not None:
                        inside &= of_chunk <= part.last
                    steps.append(of_chunk[inside])
                    ids.append(ids_of[inside])
            return np.concatenate(steps), np.concatenate(ids)

        return read

    def newest(self, path: Sequence[PathRange], batch: int, before: int) -> int | None:
        """Return the newest step before ``before`` of a path with this id, None for none."""
        for part in reversed(path):
            last = before - 1 if part.last is None else min(part.last, before - 1)
            known = self._segments.get(part.segment)
            if last < part.first or known is None:
                continue
            steps = [step for step in self._open(part.segment).get(batch, ()) if part.first <= step <= last]
            for chunk in known.chunks:
                steps += chunk.newest(batch, part.first, last)
            if steps:
                return max(steps)
        return None

    @staticmethod
    def _place(segment: _Segment, step: int) -> tuple[_Chunk, int] | None:
        for chunk in reversed(segment.chunks):
            at = chunk.at(step)
            if at is not None:
                return chunk, at
        return None

    def nbytes(self) -> int:
        """Return the bytes of the arrays made so far."""
        chunks = [chunk for segment in self._segments.values() for chunk in segment.chunks]
        orders = sum(chunk.order.nbytes for chunk in chunks if chunk.order is not None)
        return orders + sum(chunk.ids.nbytes + chunk.offsets.nbytes for chunk in chunks)
