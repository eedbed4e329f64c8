"""The points of one run: each row placed in a segment, in order of arrival."""

from __future__ import annotations

from stabilitybackend.lineage.batch import Batch
from stabilitybackend.lineage.consumer import Consumer, Effects
from stabilitybackend.storage.points.store import RunStore

__all__ = ["Points"]


class Points(Consumer):
    """Stores rows. Their truth is the run's frames: no snapshot holds them.

    Attributes:
        store: the run's points; another object once they were read from the archive.
    """

    def __init__(self) -> None:
        self.store = RunStore()

    def rows(self, batch: Batch, effects: Effects) -> None:
        self.store.add(batch)
        effects.batches.append(batch)
