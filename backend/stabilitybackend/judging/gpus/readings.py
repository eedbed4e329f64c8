"""The newest reading of every GPU of a run, by node, for a page that opens."""

from __future__ import annotations

import functools
import math
import re

from stabilitybackend.lineage.batch import Batch, Placed
from stabilitybackend.lineage.consumer import Consumer, Effects
from stabilitybackend.schema.json_data import MAX_NODES

__all__ = ["GpuReadings", "gpu_parts"]

#: GPUs of a node, and fields of a GPU; more are left out.
MAX_GPUS = 64
MAX_FIELDS = 64
_NAME = re.compile(r"gpu/(\d{1,4})/(.+)")


class GpuReadings(Consumer):
    """Remembers the last values of ``gpu/<index>/<field>`` points."""

    def __init__(self) -> None:
        self._nodes: dict[str, dict[str, dict[str, float]]] = {}

    def rows(self, batch: Batch, effects: Effects) -> None:
        if batch.tables[0].sources[0].rank is None:  # then all are of an agent
            for placed in batch.each():
                self._take(placed)

    def _take(self, placed: Placed) -> None:
        gpus = self._nodes.pop(placed.node, {})
        for name, value in zip(placed.names, placed.values[:, -1].tolist(), strict=True):
            found = gpu_parts(name)
            if found is None or not math.isfinite(value):
                continue
            index, field = found
            fields = gpus.setdefault(index, {}) if index in gpus or len(gpus) < MAX_GPUS else {}
            if field in fields or len(fields) < MAX_FIELDS:
                fields[field] = value
        if gpus:
            self._nodes[placed.node] = gpus
            if len(self._nodes) > MAX_NODES:
                del self._nodes[next(iter(self._nodes))]

    def of(self, node: str) -> dict[str, dict[str, float]]:
        """Return ``{index: {field: value}}`` of a node, empty for none."""
        return self._nodes.get(node, {})


@functools.lru_cache(maxsize=4_096)
def gpu_parts(name: str) -> tuple[str, str] | None:
    """Return index and field of ``gpu/<index>/<field>``, None for any other name."""
    found = _NAME.fullmatch(name)
    return (found[1], found[2]) if found else None
