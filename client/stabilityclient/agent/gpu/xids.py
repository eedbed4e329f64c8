"""Xids from two sources, reported once: NVML's event set, and the lines of the kernel's log."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from stabilityclient.agent.watch.kernel_lines import KernelMessage

__all__ = ["ReportedXid", "XidFold"]

#: The same Xid of the same GPU within so long is one, whichever source it comes from; repeats are counted, seconds.
SAME_S = 5.0
#: An Xid of NVML waits so long for its line in the kernel's log, which says more (process, sub-code), seconds.
LINE_WAIT_S = 0.5
#: Pairs of GPU and Xid remembered.
MAX_REMEMBERED = 512

_PROCESS = re.compile(r"\bpid=(\d+)(?:, name=([^,]{1,64}))?")


class ReportedXid(NamedTuple):
    """An Xid to report. ``gpu``: key of the GPU; ``facts``: ``xid``, ``source``, what the line says; ``line``: it."""

    gpu: str
    facts: dict[str, Any]
    line: str


class XidFold:
    """Takes Xids as they come, gives them away once.

    Args:
        with_lines: whether the kernel's log is read too, so that waiting for a line makes sense; may change.
    """

    def __init__(self, with_lines: bool = True) -> None:
        self.with_lines = with_lines
        #: (gpu, xid) to (when it was reported, repeats since).
        self._seen: dict[tuple[str, int], tuple[float, int]] = {}
        self._waiting: dict[tuple[str, int], tuple[float, ReportedXid]] = {}

    def nvml(self, gpu: str, xid: int, now: float) -> None:
        """Take an event of NVML's."""
        self._take(gpu, xid, {"source": "nvml"}, "", now, now + (LINE_WAIT_S if self.with_lines else 0.0))

    def kernel(self, gpu: str, line: KernelMessage, now: float) -> None:
        """Take a line about a GPU that is known."""
        if line.xid is None:
            return
        found = _PROCESS.search(line.text)
        process: dict[str, Any] = {} if found is None else {"pid": int(found[1])}
        if found is not None and found[2]:
            process["process"] = found[2]
        waiting = self._waiting.get((gpu, line.xid))
        if waiting is not None:  # the same one, and NVML was first
            self._waiting[gpu, line.xid] = (now, ReportedXid(gpu, waiting[1].facts | process, line.text))
        else:
            self._take(gpu, line.xid, {"source": "kernel"} | process, line.text, now, now)

    def due(self, now: float) -> list[ReportedXid]:
        """Return those that are to be reported now, in the order in which they came."""
        ready = [key for key, (at, _) in self._waiting.items() if at <= now]
        return [self._waiting.pop(key)[1] for key in ready]

    def _take(self, gpu: str, xid: int, facts: dict[str, Any], line: str, now: float, due: float) -> None:
        """Report it at ``due``, and how often it came since the last report; repeats of a moment ago are counted."""
        at, repeats = self._seen.get((gpu, xid), (-SAME_S, 0))
        if now - at < SAME_S:
            self._seen[gpu, xid] = (at, repeats + 1)
            return
        while len(self._seen) >= MAX_REMEMBERED:
            del self._seen[next(iter(self._seen))]
        self._seen.pop((gpu, xid), None)
        self._seen[gpu, xid] = (now, 0)
        facts = {"xid": xid} | facts | ({"repeats": repeats} if repeats else {})
        self._waiting[gpu, xid] = (due, ReportedXid(gpu, facts, line))
