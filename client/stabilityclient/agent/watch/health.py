"""What the agent says about the node once a second: its ranks, itself, and what can't be seen from here."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from stabilityclient.agent.sources import Source, Sources
from stabilityclient.agent.watch.probes import Prober
from stabilityclient.rank_state.slot import STATE_NAMES, STATE_RUNNING

__all__ = ["MAX_HEALTH_RANKS", "ClockWatch", "living_ranks", "main_thread_pending", "newest_ranks", "rank_health"]

#: Ranks in one Health message: the newest start of each rank of the node. A node has 8 to 16 GPUs.
MAX_HEALTH_RANKS = 256
#: Smallest jump of the wall clock that is reported, seconds: NTP slews by less.
CLOCK_STEP_S = 1.0


def newest_ranks(sources: Sources) -> list[Source]:
    """Return the newest start of each rank of this node, by rank."""
    newest: dict[int, Source] = {}
    for source in sources.ranks():
        rank = source.info.rank
        assert rank is not None
        if rank not in newest or source.info.started > newest[rank].info.started:
            newest[rank] = source
    return [newest[rank] for rank in sorted(newest)][:MAX_HEALTH_RANKS]


def living_ranks(sources: Sources) -> list[Source]:
    """Return every rank's processes that live, by rank: more than one where two jobs share a run id."""
    living = [source for source in sources.ranks() if source.alive]
    return sorted(living, key=lambda source: (source.info.rank or 0, source.info.started))[:MAX_HEALTH_RANKS]


def rank_health(
    source: Source,
    now: float,
    prober: Prober,
    gpu_of: Callable[[Source], dict[str, Any] | None],
    signal_trouble: Callable[[Source], str],
) -> dict[str, Any]:
    """Return the entry of one rank, as in docs/api.md (AgentHealth). Observe the source before.

    Args:
        now: unix seconds. prober: of the agent.
        gpu_of: returns the GPU of a rank, as ``{"index","uuid"}``.
        signal_trouble: returns why a rank can't be made to write its stacks, empty when it can.
    """
    info, slot = source.info, source.slot
    entry: dict[str, Any] = {
        "rank": info.rank,
        "source": info.source,
        "pid": info.pid,
        "alive": source.alive,
        "time": now,
        "local_rank": info.local_rank,
        "world_size": info.world_size,
        "gpu": gpu_of(source),
        "can_dump": source.alive and not signal_trouble(source),
        "trouble": source.trouble,
    }
    if source.alive and not source.elsewhere:
        proc = prober.read(info.pid, source.ticks, 0 if slot is None else slot.thread)
        if proc is not None:
            entry["proc"] = proc
    if slot is None or (source.trouble and not slot.torn):
        return entry  # an old reading must not pass for one of now
    left = slot.state == STATE_RUNNING and source.ended is not None and source.ended.exit_code == 0
    entry |= {
        "state": "left" if left else STATE_NAMES[slot.state],
        "step": slot.step,
        "step_start": slot.step_start,
        "phase": slot.phase,
        "phase_start": slot.phase_start,
        "expect_s": slot.expect_s,
        "beat": slot.beat,
        "last_seq": slot.last_seq,
        "dropped": slot.dropped,
        "segment_key": slot.segment_key,
        "phases": {name: list(times) for name, times in slot.phases.items()},
    }
    pending = main_thread_pending(source)
    if pending is not None:
        entry["pending"] = pending
    return entry


def main_thread_pending(source: Source) -> int | None:
    """Return how many pending calls the loop's thread has run, None where that is not known.

    The interpreter runs them in the main thread only: where a framework trains in another one (Ray), they say nothing.
    """
    slot = source.slot
    return None if slot is None or slot.thread not in (0, slot.pid) else slot.pending


class ClockWatch:
    """Notices when the wall clock jumps.

    Args:
        now: unix seconds. steady: seconds on a clock that nobody sets and that goes on while the machine sleeps.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.time,
        steady: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._now = now
        self._steady = steady
        self._behind = now() - steady()

    def step_s(self) -> float:
        """Return by how much the wall clock jumped since the last call, seconds; 0 normally."""
        behind = self._now() - self._steady()
        step, self._behind = behind - self._behind, behind
        return round(step, 3) if abs(step) >= CLOCK_STEP_S else 0.0
