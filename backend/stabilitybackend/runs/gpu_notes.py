"""The newest report of each node about its GPUs, in one line."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import convert

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.lineage.changes import LineageEvent
from stabilitybackend.lineage.consumer import Consumer, Effects
from stabilitybackend.schema.events import GpuNote

__all__ = ["GpuNotes"]


class GpuNotes(Stateful, Consumer):
    """Node -> its newest ``gpu_note`` (docs/wire.md)."""

    events = frozenset({"gpu_note"})

    of: dict[str, GpuNote] = fresh(dict)

    def state(self) -> Mapping[str, Stateful]:
        return {"gpu_notes": self}

    def event(self, event: LineageEvent, effects: Effects) -> None:
        self.of[event.source.node] = convert(event.data, GpuNote)
