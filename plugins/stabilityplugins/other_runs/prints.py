"""Fingerprint of a run, to recognise its data in another one: a byte a point of its loss, and some of its batch ids."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.judging.detectors.engine.long_past import PAST_BLOCK, LongPast
from stabilitybackend.judging.detectors.stats.fingerprint import WORD_POINTS, sign_words

__all__ = ["KEPT_OF", "Prints", "prints_of"]

#: Of so many batch ids one is kept, those that it divides: a batch that two runs had is kept of both or of neither.
KEPT_OF = 4


@dataclass(frozen=True, slots=True, eq=False)
class Prints:
    """The data of one run's effective path as it was at one moment. Never changed: threads read it.

    Attributes:
        data: uint8, the news in the loss of each point. first: number of the first one, counted from the run's.
        steps: int64, of each PAST_BLOCK points the first step.
        words: uint64, the signs of ``data``.
        ids: uint64, of batches, ascending. id_steps: int64, of each the step.
    """

    data: NDArray[np.uint8]
    first: int
    steps: NDArray[np.int64]
    words: NDArray[np.uint64]
    ids: NDArray[np.uint64]
    id_steps: NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(each.nbytes for each in (self.data, self.steps, self.words, self.ids, self.id_steps))

    def step_at(self, place: int) -> int:
        """Return the step of a point by its place in ``data``; between the first steps of blocks they are even."""
        block, at = divmod(place, PAST_BLOCK)
        block = min(block, len(self.steps) - 1)
        to = min(block, len(self.steps) - 2)
        apart = (int(self.steps[to + 1]) - int(self.steps[to])) / PAST_BLOCK if to >= 0 else 1.0
        return int(self.steps[block]) + round(at * apart)


def prints_of(past: LongPast, steps: NDArray[np.int64], ids: NDArray[np.uint64]) -> Prints:
    """Return a run's fingerprint; some milliseconds for 100,000 points, in any thread.

    Args:
        past: of its losses, a copy. steps, ids: of its batches, as ``BatchIds.all_on`` returns them.
    """
    data = np.frombuffer(bytes(past.data), np.uint8)
    words = sign_words(data) if len(data) >= WORD_POINTS else np.empty(0, np.uint64)
    kept = ids % np.uint64(KEPT_OF) == 0
    steps, ids = steps[kept], ids[kept]
    order = np.argsort(ids, kind="stable")
    return Prints(data, past.dropped * PAST_BLOCK, np.array(past.steps, np.int64), words, ids[order], steps[order])
