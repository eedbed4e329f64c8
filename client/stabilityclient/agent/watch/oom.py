"""Kills for memory, from the kernel's own counters: that of the control group in which a rank lives, not the agent's.

cgroup v2 counts in ``memory.events.local`` and ``memory.events``, v1 in ``memory.oom_control``; all have a line
``oom_kill <n>`` (docs.kernel.org, admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["OomCounters", "counter_file"]

#: A rank that is killed within so long of a move of its counter was killed for memory, seconds: a process of
#: hundreds of GiB needs a while to give them back.
KILL_WINDOW_S = 10.0
#: Seconds between two checks of which group a rank is in: launchers move processes right after their start.
CGROUP_POLL_S = 10.0
#: Counters read; a node has as many groups as ranks at most.
MAX_COUNTERS = 256

_V2_FILES = ("memory.events.local", "memory.events")
_V1_FILE = "memory.oom_control"


@dataclass(slots=True)
class _KillCounter:
    value: int
    #: (monotonic seconds, kills) that belong to no death yet.
    moves: list[tuple[float, int]]


class OomCounters:
    """The counters of the groups of the ranks on this node.

    Args:
        find: returns the counter's file for a pid, None where there is none.
        now: monotonic seconds.
    """

    def __init__(
        self, find: Callable[[int], str | None] | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._find = find or counter_file
        self._now = now
        self._counters: dict[str, _KillCounter] = {}
        self._files: dict[int, tuple[float, str | None]] = {}

    def follow(self, pid: int) -> None:
        """Know the group of a living process; cheap to call at each poll."""
        now = self._now()
        at, known = self._files.get(pid, (-CGROUP_POLL_S, None))
        if now - at < CGROUP_POLL_S:
            return
        path = self._find(pid) or known
        self._files[pid] = (now, path)
        if path is not None and path not in self._counters and len(self._counters) < MAX_COUNTERS:
            value = _count(path)
            if value is not None:
                self._counters[path] = _KillCounter(value, [])

    def poll(self) -> None:
        """Read all counters."""
        now = self._now()
        for path, counter in self._counters.items():
            value = _count(path)
            if value is not None and value > counter.value:
                counter.moves.append((now, value - counter.value))
            counter.value = counter.value if value is None else value
            counter.moves = [(at, kills) for at, kills in counter.moves if now - at <= KILL_WINDOW_S]

    def kill_of(self, pid: int) -> dict[str, object] | None:
        """Return the kernel's evidence that ``pid`` was killed for memory a moment ago; each kill counts for one death.

        Call it for a process that a SIGKILL ended, or whose end nobody saw.
        """
        path = self._files.get(pid, (0.0, None))[1]
        counter = self._counters.get(path or "")
        if path is None or counter is None or not counter.moves:
            return None
        at, kills = counter.moves.pop(0)
        if kills > 1:
            counter.moves.insert(0, (at, kills - 1))
        return {"source": "cgroup", "counter": path, "kills": kills, "seconds_ago": round(self._now() - at, 2)}

    def forget(self, pid: int) -> None:
        """The process is over and reported."""
        _, path = self._files.pop(pid, (0.0, None))
        if path is not None and all(path != other for _, other in self._files.values()):
            self._counters.pop(path, None)


def counter_file(pid: int, proc: Path = Path("/proc")) -> str | None:
    """Return the file with the kills for memory of the control group of ``pid``, None where none can be read.

    In a container the mount shows a part of the tree only: its root in ``mountinfo`` is taken off the group's path.
    """
    try:
        groups = (proc / str(pid) / "cgroup").read_text()
        mounts = (proc / "self" / "mountinfo").read_text()
    except OSError:
        return None
    for path in _candidates(groups, mounts):
        if _count(path) is not None:
            return path
    return None


def _candidates(groups: str, mounts: str) -> Iterator[str]:
    version_1 = version_2 = None
    for line in groups.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number == "0" and not controllers:
            version_2 = group
        elif "memory" in controllers.split(","):
            version_1 = group
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        root, point = _unescaped(fields[3]), _unescaped(fields[4])
        if kind[0] == "cgroup" and "memory" in kind[2].split(",") and version_1 is not None:
            yield os.path.join(point, _below(version_1, root), _V1_FILE)
        elif kind[0] == "cgroup2" and version_2 is not None:
            for name in _V2_FILES:
                yield os.path.join(point, _below(version_2, root), name)


def _below(group: str, root: str) -> str:
    """Return a group's path relative to where its tree is mounted; the mount itself where it lies outside of it."""
    if root != "/" and (group == root or group.startswith(f"{root}/")):
        group = group[len(root) :]
    elif root != "/" or "/.." in group:
        return ""
    return group.lstrip("/")


def _unescaped(text: str) -> str:
    return text.replace("\\040", " ")


def _count(path: str) -> int | None:
    try:
        with open(path) as file:
            for line in file:
                name, _, value = line.partition(" ")
                if name == "oom_kill" and value.strip().isdigit():
                    return int(value)
    except OSError:
        pass
    return None
