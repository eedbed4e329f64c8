"""What the agent says about the node once a second: the slots of its ranks, and whether their processes live."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from stabilityclient.agent.sources import Source, Sources
from stabilityclient.slot import STATE_EXCEPTION, STATE_NAMES, STATE_RUNNING

__all__ = ["MAX_HEALTH_RANKS", "OomCounter", "death_of", "ranks_health"]

#: Ranks in one Health message: the newest start of each rank of the node. A node has 8 to 16 GPUs.
MAX_HEALTH_RANKS = 256

_STATES = dict(enumerate(STATE_NAMES))


def ranks_health(sources: Sources, now: float) -> list[dict[str, Any]]:
    """Return one entry for the newest process of each rank of this node, as in docs/api.md (AgentHealth)."""
    newest: dict[int, Source] = {}
    for source in sources.ranks():
        rank = source.info.rank
        assert rank is not None
        if rank not in newest or source.info.started > newest[rank].info.started:
            newest[rank] = source
    entries = []
    for rank in sorted(newest)[:MAX_HEALTH_RANKS]:
        source = newest[rank]
        slot = source.slot
        entry: dict[str, Any] = {
            "rank": rank,
            "source": source.info.source,
            "pid": source.info.pid,
            "alive": source.alive,
            "time": now,
        }
        if slot is not None:
            entry |= {
                "state": _STATES.get(slot.state, "running"),
                "step": slot.step,
                "step_start": slot.step_start,
                "phase": slot.phase,
                "phase_start": slot.phase_start,
                "expect_s": slot.expect_s,
                "beat": slot.beat,
                "last_seq": slot.last_seq,
                "dropped": slot.dropped,
                "segment_key": slot.segment_key,
            }
        entries.append(entry)
    return entries


def death_of(source: Source, oom_kills: int) -> dict[str, Any] | None:
    """Return the data of a ``process_death`` event, None when the process lives or left in order.

    Args:
        source: a rank whose slot was just read.
        oom_kills: kills by the kernel for memory in this container since the agent started.
    """
    slot = source.slot
    if source.alive or slot is None or slot.state not in (STATE_RUNNING, STATE_EXCEPTION):
        return None
    evidence: dict[str, Any] = {"state": _STATES[slot.state], "beat": slot.beat, "oom_kills": oom_kills}
    if slot.state == STATE_EXCEPTION:
        evidence["exception"] = slot.exception
        text = f"ended by an uncaught exception: {slot.exception}"
    elif oom_kills:
        text = f"gone without a word, and the kernel killed {oom_kills} for memory here: likely out of memory"
    else:
        text = "gone without a word: killed from outside (kill -9, scheduler) or crashed in native code"
    evidence["text"] = f"rank {source.info.rank} (pid {source.info.pid}) is {text}"
    return {
        "source": source.info.source,
        "rank": source.info.rank,
        "pid": source.info.pid,
        "last_phase": slot.phase,
        "evidence": evidence,
    }


class OomCounter:
    """How many processes the kernel killed for memory in our control group since the start (cgroup v2; else always 0).

    Args:
        read: returns the text of ``memory.events``.
    """

    def __init__(self, read: Callable[[], str] | None = None) -> None:
        self._read = read or _memory_events
        self._before = self._count()

    def since_start(self) -> int:
        """Return the kills since this object was made."""
        return max(0, self._count() - self._before)

    def _count(self) -> int:
        for line in self._read().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.strip().isdigit():
                return int(value)
        return 0


def _memory_events() -> str:
    try:
        with open("/proc/self/cgroup") as file:
            group = next((line.strip().split("::", 1)[1] for line in file if line.startswith("0::")), "/")
        with open(os.path.join("/sys/fs/cgroup", group.lstrip("/"), "memory.events")) as file:
            return file.read()
    except OSError:
        return ""
