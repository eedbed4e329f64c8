"""Puts a Health message together: each rank, the agent itself, the spool's disk, and the gaps in visibility."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from stabilityclient import __version__
from stabilityclient.agent.agent_events import AgentEvents
from stabilityclient.agent.sources import Source, Sources
from stabilityclient.agent.watch.deaths import DeathWatch
from stabilityclient.agent.watch.dump_signal import SignalCheck
from stabilityclient.agent.watch.kernel_log import KernelLog
from stabilityclient.agent.watch.probes import Prober
from stabilityclient.agent.watch.visibility_gaps import (
    Gap,
    SpoolDisk,
    SpoolState,
    duplicate_ranks,
    number_gaps,
    rank_gaps,
    source_gaps,
    spool_gaps,
)
from stabilityclient.rank_state.slot import STATE_NAMES, STATE_RUNNING
from stabilityclient.wire import Health

__all__ = ["ClockWatch", "NodeHealth"]

#: Smallest jump of the wall clock that is reported, seconds: NTP slews by less.
CLOCK_STEP_S = 1.0
#: A jump of the wall clock is named for so long, seconds.
CLOCK_NAMED_S = 60.0


class NodeHealth:
    """Report of the agent about its node once a second.

    Args:
        folder: run folder. sources: its content. own: the agent's own records.
        deaths: watches the ranks' ends. kernel: the kernel's log. limit_bytes: of the spool.
        gpu_of: returns the GPU of a rank, as ``{"index","uuid"}``, None if unknown.
        more_gaps: each returns further gaps, e.g. those of the GPUs.
    """

    def __init__(
        self,
        folder: Path,
        sources: Sources,
        own: AgentEvents,
        deaths: DeathWatch,
        kernel: KernelLog,
        limit_bytes: int,
        *,
        gpu_of: Callable[[Source], dict[str, Any] | None],
        more_gaps: Iterable[Callable[[], list[Gap]]],
    ) -> None:
        self._sources = sources
        self._own = own
        self._deaths = deaths
        self._kernel = kernel
        self._gpu_of = gpu_of
        self._more_gaps = more_gaps
        self._disk = SpoolDisk(folder, limit_bytes)
        self._signals = SignalCheck()
        self._prober = Prober()
        self._clock = ClockWatch()
        self._jumped_s, self._jumped_at = 0.0, float("-inf")

    def message(self, state: dict[str, Any], file_error: str) -> Health:
        """Return the message of now. Observe all sources before.

        Args:
            state: the agent's own facts, to which others are added here (docs/wire.md).
            file_error: why the agent's own files can't be written, empty when they can.
        """
        now = time.time()
        ranks = self._sources.newest_ranks()
        dropped = self._own.dropped + sum(source.slot.dropped for source in ranks if source.slot is not None)
        spool = self._disk.state(dropped, self._own.error or file_error)
        step_s = self._clock.step_s()
        if step_s:
            self._jumped_s, self._jumped_at = step_s, time.monotonic()
        entries = [self._rank(source, now) for source in ranks]
        state = state | {
            "version": __version__,
            "started": self._own.started,
            "bad_records": sum(source.reader.bad_records for source in self._sources),
            "spool": spool,
            "clock_step_s": step_s,
            "blind": self._gaps(ranks, spool, now),
        }
        return Health(self._own.name, self._own.node, now, entries, state)

    def _rank(self, source: Source, now: float) -> dict[str, Any]:
        """Return the entry of one rank, as in docs/api.md (AgentHealth)."""
        info, slot = source.info, source.slot
        entry: dict[str, Any] = {
            "rank": info.rank,
            "source": info.source,
            "pid": info.pid,
            "alive": source.alive,
            "time": now,
            "local_rank": info.local_rank,
            "world_size": info.world_size,
            "gpu": self._gpu_of(source),
            "can_dump": source.alive and not self._signals.trouble(source),
            "trouble": source.trouble,
        }
        if source.alive and not source.elsewhere:
            proc = self._prober.read(info.pid, source.ticks, 0 if slot is None else slot.thread)
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
        if slot.waits[0]:
            entry["waits"] = list(slot.waits)
        if source.main_thread_pending is not None:
            entry["pending"] = source.main_thread_pending
        return entry

    def _gaps(self, ranks: list[Source], spool: SpoolState, now: float) -> list[Gap]:
        found = rank_gaps(ranks, self._signals.trouble) + spool_gaps(spool)
        found += number_gaps(self._sources) + source_gaps(self._sources.broken)
        found += duplicate_ranks(self._sources.living_ranks(), now)
        if self._kernel.blind:
            found.append(Gap("kernel_log", self._kernel.blind, self._kernel.do))
        if self._deaths.trouble:
            do = "use Linux 5.3 or newer; raise ulimit -n"
            found.append(Gap("exit_status", self._deaths.trouble, do))
        if time.monotonic() - self._jumped_at < CLOCK_NAMED_S:
            why = f"the clock of this node jumped by {self._jumped_s:+.1f} s: times around it are not to be compared"
            found.append(Gap("clock", why, "let chrony or ntpd slew the clock while jobs run"))
        for further in self._more_gaps:
            found += further()
        return found


class ClockWatch:
    """Detects when the wall clock jumps.

    Args:
        now: unix seconds. steady: seconds on a clock that is never set and runs while the machine sleeps.
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
