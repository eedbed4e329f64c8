"""What the newest reports of the nodes say of their GPUs in one line."""

from __future__ import annotations

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.schema.events import GpuNote

__all__ = ["GpuNotes"]


class GpuNotes(Stateful):
    """What each node's agent can see of its GPUs: node -> the newest ``gpu_note`` (docs/wire.md)."""

    of: dict[str, GpuNote] = fresh(dict)
