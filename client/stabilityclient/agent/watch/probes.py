"""Facts of the kernel about a rank's process, without its help: state, CPU time, where it waits, its children.

A process may end between any two lines here: every reader returns None or an empty value then, and never raises.
"""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

__all__ = [
    "MAX_CHILDREN", "Prober", "ProcStat", "children_of", "read_stat", "signal_is_caught", "tree_cpu_s", "wchan_of",
]  # fmt: skip

#: Children named of one process, the oldest ones: data loader workers are tens, not hundreds.
MAX_CHILDREN = 32
#: Threads whose children are read: data loaders fork in the main thread, and a CUDA process has hundreds.
MAX_THREADS_ASKED = 64
#: Processes whose CPU time is added up for one rank; of a larger tree it is unknown.
MAX_TREE = 256
#: Shortest time between two samples that gives a share of the CPU, seconds: the kernel counts in ticks of 10 ms.
SHORTEST_SHARE_S = 0.2
#: Processes whose last sample is remembered; the oldest is forgotten first.
MAX_REMEMBERED = 512

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ProcStat(NamedTuple):
    """One reading of ``/proc/<pid>/task/<thread>/stat`` (``man 5 proc_pid_stat``).

    Args:
        state: ``R`` runs, ``S`` sleeps, ``D`` waits for a device, ``T`` is stopped, ``Z`` is dead and not buried.
        start_ticks: when it started, clock ticks since boot. cpu_s: CPU seconds of this thread.
        threads: of the process. exit_code: as ``waitpid`` gives it; 0 where it lives or we may not see it.
    """

    state: str
    start_ticks: int
    cpu_s: float
    threads: int
    exit_code: int


def read_stat(pid: int, thread: int = 0) -> ProcStat | None:
    """Return the entry of a thread (0: the main one) of a process, None without one."""
    try:
        with open(f"/proc/{pid}/task/{thread or pid}/stat", "rb") as file:
            fields = file.read(4096).rpartition(b")")[2].split()
        cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
        exit_code = int(fields[49]) if len(fields) > 49 else 0
        return ProcStat(fields[0].decode("ascii", "replace"), int(fields[19]), cpu_s, int(fields[17]), exit_code)
    except (OSError, IndexError, ValueError):
        return None


def wchan_of(pid: int, thread: int = 0) -> str:
    """Return the kernel function in which a thread (0: the main one) waits; ``0`` while it runs, empty where hidden."""
    try:
        with open(f"/proc/{pid}/task/{thread or pid}/wchan", "rb") as file:
            return file.read(64).decode("ascii", "replace").strip()
    except OSError:
        return ""


def signal_is_caught(pid: int, number: int) -> bool | None:
    """Whether the process has a handler for a signal (``SigCgt`` of its status); None where that can't be read."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except (OSError, IndexError, ValueError):
        pass
    return None


def children_of(pid: int) -> list[dict[str, Any]]:
    """Return the children of a process but for us, as ``{"pid","name","state","wchan"}``, at most MAX_CHILDREN."""
    children = []
    for child in _children(pid)[:MAX_CHILDREN]:
        stat = read_stat(child)
        if stat is not None:
            children.append({"pid": child, "name": _name(child), "state": stat.state, "wchan": wchan_of(child)})
    return children


def tree_cpu_s(pid: int) -> float | None:
    """Return the CPU seconds of a process with all its threads and of its living descendants but for us, in all.

    None where the kernel gives none, or where they are more than MAX_TREE: a part of them would pass for idle.
    """
    total, waiting, seen = 0.0, [pid], {pid}
    while waiting:
        process = waiting.pop()
        try:
            with open(f"/proc/{process}/stat", "rb") as file:
                fields = file.read(4096).rpartition(b")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
            # Else no process would be found.
            os.stat(f"/proc/{process}/task/{process}/children")
        except (OSError, IndexError, ValueError):
            if process == pid:
                return None
            continue  # it ended
        more = [child for child in _children(process) if child not in seen]
        seen.update(more)
        waiting += more
        if len(seen) > MAX_TREE:
            return None
    return total


def _children(pid: int) -> list[int]:
    """Return the children of a process but for us, the oldest first."""
    found: list[int] = []
    try:
        threads = sorted(os.listdir(f"/proc/{pid}/task"), key=lambda name: (name != str(pid), int(name)))
    except (OSError, ValueError):
        return []
    for thread in threads[:MAX_THREADS_ASKED]:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += [int(word) for word in file.read(8192).split()]
        except (OSError, ValueError):
            continue  # the thread ended, or the kernel was built without this file
    return sorted(set(found) - {os.getpid()})


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read(64).decode("utf-8", "replace").strip()
    except OSError:
        return ""


class Prober:
    """Samples processes repeatedly, and returns the share of a core that the loop's thread used in between."""

    def __init__(self) -> None:
        self._before: dict[tuple[int, int, int], tuple[float, float, float | None]] = {}

    def read(self, pid: int, ticks: int, thread: int = 0) -> dict[str, Any] | None:
        """Return ``{"state","wchan","threads"}`` and from the second sample on ``cpu``; None when the process is gone.

        Args:
            pid: of the process. ticks: its start (0: do not compare), so that a later process of the same pid is none.
            thread: native id of the thread that matters, 0 for the main one; when it has ended, the main one is
            reported.
        """
        stat = read_stat(pid)
        if stat is None or ticks not in (0, stat.start_ticks):
            return None
        if thread not in (0, pid):
            of_thread = read_stat(pid, thread)
            thread, stat = (0, stat) if of_thread is None else (thread, of_thread)
        now = time.monotonic()
        key = (pid, ticks, thread)
        at, cpu_s, share = self._before.get(key, (now, stat.cpu_s, None))
        if now - at >= SHORTEST_SHARE_S:
            share = round(max(0.0, stat.cpu_s - cpu_s) / (now - at), 3)
            at, cpu_s = now, stat.cpu_s
        self._before.pop(key, None)
        self._before[key] = (at, cpu_s, share)
        while len(self._before) > MAX_REMEMBERED:
            del self._before[next(iter(self._before))]
        found: dict[str, Any] = {"state": stat.state, "wchan": wchan_of(pid, thread), "threads": stat.threads}
        if share is not None:
            found["cpu"] = share
        return found
