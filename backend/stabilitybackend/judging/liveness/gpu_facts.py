"""Ranks on broken GPUs, as text for a verdict. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from stabilitybackend.judging.liveness.rank_watch import RankWatch
from stabilitybackend.schema.gpus import CriticalFault
from stabilitybackend.schema.health import GpuOfRank

#: Prefix of an Xid's text (``gpus/signs.py``); its number is moved behind.
_XID = re.compile(r"(Xid \d+): (.*)", re.DOTALL)

__all__ = ["BrokenGpu", "broken_gpus"]


class BrokenGpu(NamedTuple):
    """Fault of a rank's GPU: a clause for users, and its start, unix seconds of its node."""

    words: str
    since: float


def broken_gpus(ranks: Iterable[RankWatch], faults: Iterable[CriticalFault]) -> dict[int, BrokenGpu]:
    """Return the ranks on a broken GPU. Of several faults of one rank the oldest counts: the others may be effects."""
    faults = list(faults)
    found = {watch.rank: fault for watch in (ranks if faults else ()) for fault in faults if _is_on(watch, fault)}
    return {rank: BrokenGpu(_text(fault), fault.since) for rank, fault in found.items()}


def _is_on(watch: RankWatch, fault: CriticalFault) -> bool:
    """Return whether a rank is on the GPU: by its UUID, else by its place on the node, else by the inventory."""
    gpu = watch.gpu or GpuOfRank()
    if fault.uuid and gpu.uuid:
        return fault.uuid == gpu.uuid
    if watch.node != fault.node:
        return False
    return watch.rank in fault.ranks or (fault.index is not None and fault.index == gpu.index)


def _text(fault: CriticalFault) -> str:
    """Return "its GPU 2 has fallen off the bus: ... (Xid 79)"."""
    who = "its GPU" if fault.index is None else f"its GPU {fault.index}"
    xid = _XID.match(fault.text)
    text = f"{xid[2]} ({xid[1]})" if xid else fault.text
    return f"{who} {text.removeprefix('the GPU ')}" if text.startswith("the GPU ") else f"{who}: {text}"
