"""Reads which GPUs an agent reports."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stabilitybackend.judging.gpus.faults import NodeGpu
from stabilitybackend.schema.json_data import NAME_CHARS

__all__ = ["MAX_GPUS_A_NODE", "bus_key", "devices_of", "place"]

#: GPUs of one node; no machine has more.
MAX_GPUS_A_NODE = 128
#: Ranks that share one GPU, with MIG or for tests.
MAX_RANKS_A_GPU = 64
_BUS = re.compile(r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})")


def devices_of(node: str, data: Mapping[str, Any]) -> list[NodeGpu]:
    """Return the GPUs of a ``gpu_inventory`` event."""
    return [replace(place(node, gpu), missing=gpu.get("missing") is True) for gpu in data["gpus"][:MAX_GPUS_A_NODE]]


def place(node: str, data: Mapping[str, Any]) -> NodeGpu:
    """Return the GPU that an event's data names, as far as it does."""
    memory = data.get("memory_mib")
    return NodeGpu(
        node=node,
        uuid=_text(data.get("uuid")),
        index=data.get("index"),
        name=_text(data.get("name")),
        bus_id=_text(data.get("bus_id")),
        serial=_text(data.get("serial")),
        memory_mib=None if memory is None else float(memory),
        ranks=sorted(set(data.get("ranks") or ()))[:MAX_RANKS_A_GPU],
    )


def bus_key(bus_id: str) -> tuple[int, int, int] | None:
    """Return domain, bus and device of a PCI address: NVML writes 00000000:1B:00.0, the kernel 0000:1b:00."""
    found = _BUS.match(bus_id)
    return None if found is None else (int(found[1] or "0", 16), int(found[2], 16), int(found[3], 16))


def _text(value: str | int | None) -> str:
    return "" if value is None else str(value)[:NAME_CHARS]
