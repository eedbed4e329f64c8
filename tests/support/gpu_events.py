"""Builds the events that an agent sends about its node's GPUs (docs/wire.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stabilitybackend.lineage.changes import LineageEvent
from stabilityclient.wire import EventBlock, Frame, SourceInfo

__all__ = ["Node"]


class Node:
    """One node with GPUs and the agent on it; each call returns one event as ``GpuWatch.event`` takes it.

    Args:
        name: of the node. gpus: how many it has. first_rank: rank on its first GPU, one a GPU. start: of the agent.
        run: begins the UUIDs, so that two nodes have different GPUs.
    """

    def __init__(self, name: str = "gpu-03", gpus: int = 8, first_rank: int = 0, start: int = 1) -> None:
        self.name, self.gpus, self.first_rank, self.start = name, gpus, first_rank, start
        self._seq = 0

    def gpu(self, index: int) -> dict[str, Any]:
        """Return what the inventory says of one GPU."""
        return {
            "index": index,
            "uuid": f"GPU-{self.name}-{index}",
            "name": "NVIDIA H100 80GB HBM3",
            "bus_id": f"00000000:{0x1B + index:02X}:00.0",
            "serial": f"s{index}",
            "memory_mib": 81_559,
            "ranks": [self.first_rank + index],
        }

    def _event(self, kind: str, time: float, data: dict[str, Any]) -> LineageEvent:
        return LineageEvent(SourceInfo(f"a{self.start}", None, node=self.name), 0, kind, time, None, data)

    def inventory(self, time: float, without: Sequence[int] = ()) -> LineageEvent:
        gpus = [self.gpu(index) for index in range(self.gpus) if index not in without]
        return self._event("gpu_inventory", time, {"driver": "550.1", "gpus": gpus, "text": ""})

    def sees(self, index: int, what: str, time: float, state: str = "event", **facts: Any) -> LineageEvent:
        gpu = self.gpu(index)
        named = {name: gpu[name] for name in ("uuid", "index", "bus_id", "name", "ranks")}
        return self._event("gpu", time, {**named, "what": what, "state": state, "facts": facts, "text": ""})

    def xid(self, index: int, number: int, time: float) -> LineageEvent:
        return self.sees(index, "xid", time, xid=number, source="nvml")

    def kernel(self, what: str, time: float, text: str, **facts: Any) -> LineageEvent:
        return self._event("kernel", time, {"what": what, "text": text, **facts})

    def restarted(self) -> Node:
        """Return the same node with a new agent."""
        return Node(self.name, self.gpus, self.first_rank, self.start + 1)

    def frame(self, event: LineageEvent) -> Frame:
        """Return the frame in which the agent sends an event."""
        self._seq += 1
        source = SourceInfo(f"a{self.start}-{self.name}", None, node=self.name, started=1.0)
        return Frame(source, self._seq, self._seq, [EventBlock(event.type, event.time, None, event.data)])
