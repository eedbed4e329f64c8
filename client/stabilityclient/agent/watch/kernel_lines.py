"""Meaning of a record of the kernel's log: out of memory, a GPU's Xid, memory, link, disk, or a task that hangs."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["KernelMessage", "LineReader", "bus_key"]

#: Characters kept of a line.
MAX_TEXT_CHARS = 500
#: Announced kills (``oom-kill:`` lines) whose ``Killed process`` line has not come yet.
MAX_ANNOUNCED = 64
#: Records after ``NVRM: The NVIDIA GPU <bus id>`` in which ``fallen off the bus`` still means that GPU.
_NAMED_FOR_RECORDS = 4


class KernelMessage(NamedTuple):
    """One line that matters.

    Args:
        what: ``oom``, ``xid``, ``mce``, ``edac``, ``link``, ``io`` or ``hung_task``.
        text: the line, at most MAX_TEXT_CHARS characters.
        time: unix seconds.
        pid: process that was killed or hangs, as the first process-id namespace counts. None: not named.
        bus_id: PCI address ``0000:05:00`` (see ``bus_key``). xid: the GPU's error number.
        comm: the process's name, at most 15 characters.
        scope: of an ``oom``: ``cgroup`` (a limit of a control group) or ``global`` (the node has no memory left).
        cgroup: the control group whose limit was hit, where the kernel names it.
    """

    what: str
    text: str
    time: float
    pid: int | None = None
    bus_id: str | None = None
    xid: int | None = None
    comm: str | None = None
    scope: str | None = None
    cgroup: str | None = None


_RECORD = re.compile(r"(\d+),(\d+),(\d+),[^;]*;(.*)", re.DOTALL)
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")
_BUS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-7])?", re.IGNORECASE)
_PCI = r"((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"

# As mm/oom_kill.c prints it; kernels before 5.x say "Kill process".
_OOM = re.compile(
    r"(Memory cgroup out of memory|Out of memory[^:]*): Kill(?:ed)? process (\d+) \((.*?)\)(?=,| total-vm| score|$)"
)
_OOM_ANNOUNCED = re.compile(r"oom-kill:constraint=(\w+),.*?(?:oom_memcg=([^,]*),)?task_memcg=.*pid=(\d+)")
# The second word in the brackets is a MIG instance. Forms as gpud reads them (components/accelerator/nvidia/xid).
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?" + _PCI + r"[^)]*\): (\d+)\b")
_GPU_NAMED = re.compile(r"NVRM: The NVIDIA GPU " + _PCI)
_OFF_BUS = re.compile(r"NVRM: .*fallen off the bus")
_OFF_BUS_GPU = re.compile(r"NVRM: GPU (?:at )?(?:PCI:)?" + _PCI)
_SWITCH = re.compile(r"SXid \((?:PCI:)?" + _PCI + r"\): (\d+)")
_HUNG = re.compile(r"INFO: task (.+):(\d+) blocked for more than \d+ seconds")
_LOCKUP = re.compile(r"BUG: soft lockup - CPU#\d+ stuck for \S+ \[(.+):(\d+)\]")

#: Kinds that need no more than a pattern, in the order in which they are tried.
_PLAIN: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("edac", re.compile(r"^EDAC .*\b(?:CE|UE)\b", re.IGNORECASE)),
    ("mce", re.compile(r"\bmce: |\[Hardware Error\]|Machine check", re.IGNORECASE)),
    (
        "link",
        re.compile(
            r"\blink (?:is )?down\b|PCIe Bus Error: severity=Uncorrect"
            r"|AER: (?:Multiple )?Uncorrect|mlx5_core.*(?:health compromised|Cable (?:error|unplugged)|internal error)",
            re.IGNORECASE,
        ),
    ),
    (
        "io",
        re.compile(
            r"\bI/O error\b|nfs4?: server .* (?:not responding|timed out)|nvme\S* .*(?:timeout, |controller is down)"
            r"|Remounting filesystem read-only|EXT4-fs error|XFS .*(?:metadata I/O error|Corruption|Shutting down)"
            r"|LustreError|Lustre: .*(?:was lost|timed out)|ceph: .*(?:hung|not responding)",
            re.IGNORECASE,
        ),
    ),
)


class LineReader:
    """Parses records; remembers the facts of a line that belong to the next."""

    def __init__(self) -> None:
        self._announced: dict[int, tuple[str, str]] = {}
        self._named: tuple[str, int] | None = None

    def take(self, record: str) -> KernelMessage | None:
        """Return the meaning of a record, None for one without interest and for garbage.

        Args:
            record: as /dev/kmsg gives it, continuation lines included. ``time`` of the answer is in seconds since boot.
        """
        found = _RECORD.match(record)
        if found is None:
            return None
        text = found[4].partition("\n")[0]  # the continuation names the device again, in other words
        text = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text) if "\\x" in text else text
        line = self._meaning(text)
        return None if line is None else line._replace(text=_one_line(text), time=int(found[3]) / 1e6)

    def _meaning(self, text: str) -> KernelMessage | None:
        if "NVRM" in text or "SXid" in text:
            return self._gpu(text)
        if "process" in text or "oom-kill" in text:
            line = self._oom(text)
            if line is not None:
                return line
        hung = _HUNG.search(text) or _LOCKUP.search(text)
        if hung is not None:
            return KernelMessage("hung_task", "", 0.0, pid=int(hung[2]), comm=hung[1])
        for what, pattern in _PLAIN:
            if pattern.search(text):
                device = re.search(r"\b" + _PCI + r"(?=[\s:])", text) if what == "link" else None
                return KernelMessage(what, "", 0.0, bus_id=None if device is None else bus_key(device[1]))
        return None

    def _oom(self, text: str) -> KernelMessage | None:
        announced = _OOM_ANNOUNCED.search(text)
        if announced is not None:
            while len(self._announced) >= MAX_ANNOUNCED:
                del self._announced[next(iter(self._announced))]
            self._announced[int(announced[3])] = (announced[1], announced[2] or "")
            return None
        killed = _OOM.search(text)
        if killed is None:
            return None
        pid = int(killed[2])
        constraint, cgroup = self._announced.pop(pid, ("", ""))
        in_group = killed[1].startswith("Memory cgroup") or constraint == "CONSTRAINT_MEMCG"
        scope = "cgroup" if in_group else "global"
        return KernelMessage("oom", "", 0.0, pid=pid, comm=killed[3], scope=scope, cgroup=cgroup or None)

    def _gpu(self, text: str) -> KernelMessage | None:
        named, self._named = self._named, None
        if named is not None and named[1] > 1:
            self._named = (named[0], named[1] - 1)
        xid = _XID.search(text)
        if xid is not None:
            return KernelMessage("xid", "", 0.0, bus_id=bus_key(xid[1]), xid=int(xid[2]))
        switch = _SWITCH.search(text)
        if switch is not None:
            return KernelMessage("link", "", 0.0, bus_id=bus_key(switch[1]))
        whose = _GPU_NAMED.search(text)
        if whose is not None:
            self._named = (whose[1], _NAMED_FOR_RECORDS)
            named = self._named
        if _OFF_BUS.search(text):
            own = _OFF_BUS_GPU.search(text)
            bus_id = own[1] if own is not None else named[0] if named is not None else None
            self._named = None
            return KernelMessage("xid", "", 0.0, bus_id=None if bus_id is None else bus_key(bus_id), xid=79)
        return None


def bus_key(text: str) -> str | None:
    """Return a PCI address as ``0000:05:00``: without function, domain of at least 4 digits. None: it is none.

    NVML writes ``00000000:05:00.0``, its older form ``0000:05:00.0``, the kernel ``PCI:0000:05:00``.
    """
    found = _BUS.fullmatch(text.strip().removeprefix("PCI:"))
    return None if found is None else f"{int(found[1] or '0', 16):04x}:{found[2]}:{found[3]}".lower()


def _one_line(text: str) -> str:
    return " ".join(text.split())[:MAX_TEXT_CHARS]
