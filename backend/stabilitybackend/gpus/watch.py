"""Follows the GPUs of one run from what agents say of them: which there are, and what is wrong with one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stabilitybackend.detectors.contract import Finding

#: Types of events that are for ``GpuWatch.event``.
GPU_EVENTS = frozenset({"gpu", "gpu_inventory", "kernel"})

__all__ = ["GPU_EVENTS", "GpuWatch"]


class GpuWatch:
    """The GPUs of one run, and the faults that are known of them."""

    def __init__(self) -> None:
        self._inventories: dict[str, dict[str, Any]] = {}

    def event(self, event: Mapping[str, Any], now_step: int) -> list[Finding]:
        """Take one event of an agent and return what it says of a GPU.

        Args:
            event: ``{"type", "time", "step", "data", "node"}``, see docs/wire.md.
            now_step: newest step of the run, -1 before the first.
        """
        if event["type"] == "gpu_inventory":
            self._inventories[str(event["node"])] = dict(event["data"])
        return []

    def view(self) -> list[dict[str, Any]]:
        """Return the GPUs of the run by node and index, in the shape of docs/api.md (Gpu)."""
        return []

    def saved(self) -> dict[str, Any]:
        """Return for ``restore`` what was folded."""
        return {"inventories": self._inventories}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take over what ``saved`` returned."""
        self._inventories = dict(saved["inventories"])
