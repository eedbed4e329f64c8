"""Puts a Health message together: each rank, the agent itself, the spool's disk, and what can't be seen here."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stabilityclient import __version__
from stabilityclient.agent.agent_events import AgentEvents
from stabilityclient.agent.sources import Source, Sources
from stabilityclient.agent.watch.deaths import DeathWatch
from stabilityclient.agent.watch.dump_signal import SignalCheck
from stabilityclient.agent.watch.health import ClockWatch, living_ranks, newest_ranks, rank_health
from stabilityclient.agent.watch.kernel_log import KernelLog
from stabilityclient.agent.watch.probes import Prober
from stabilityclient.agent.watch.visibility_gaps import (
    SpoolDisk,
    VisibilityGap,
    duplicate_ranks,
    exit_gaps,
    number_gaps,
    signal_gaps,
    slot_gaps,
    source_gaps,
    spool_gaps,
)
from stabilityclient.wire import Health

__all__ = ["NodeHealth"]

#: A jump of the wall clock is named for so long, seconds.
CLOCK_NAMED_S = 60.0


class NodeHealth:
    """The agent's word about its node.

    Args:
        folder: run folder. sources: what lies in it. own: the agent's own records.
        deaths: watches the ranks' ends. kernel: the kernel's log. node: the node's name.
        limit_bytes: of the spool.
        now: unix seconds. monotonic: monotonic seconds.

    Attributes:
        gpu_of: returns the GPU of a rank, None where that is not known.
        more_gaps: each returns further blind spots, e.g. those of the GPUs.
    """

    def __init__(
        self,
        folder: Path,
        sources: Sources,
        own: AgentEvents,
        deaths: DeathWatch,
        kernel: KernelLog,
        node: str,
        limit_bytes: int,
        *,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources = sources
        self._own = own
        self._deaths = deaths
        self._kernel = kernel
        self._node = node
        self._now = now
        self._monotonic = monotonic
        self._disk = SpoolDisk(folder, limit_bytes)
        self._signals = SignalCheck(deaths.descriptor)
        self._prober = Prober()
        self._clock = ClockWatch(now)
        self._jumped_s, self._jumped_at = 0.0, float("-inf")
        self.gpu_of: Callable[[Source], dict[str, Any] | None] = lambda source: None
        self.more_gaps: list[Callable[[], list[VisibilityGap]]] = []

    def message(self, state: dict[str, Any], file_error: str) -> Health:
        """Return the message of now. Observe all sources before.

        Args:
            state: what the agent says of itself beside what is added here (docs/wire.md).
            file_error: why the agent's own files can't be written, empty when they can.
        """
        now = self._now()
        ranks = newest_ranks(self._sources)
        dropped = self._own.dropped + sum(source.slot.dropped for source in ranks if source.slot is not None)
        spool = self._disk.facts(dropped, self._own.error or file_error)
        step_s = self._clock.step_s()
        if step_s:
            self._jumped_s, self._jumped_at = step_s, self._monotonic()
        entries = [rank_health(source, now, self._prober, self.gpu_of, self._signals.trouble) for source in ranks]
        state = state | {
            "version": __version__,
            "started": self._own.started,
            "bad_records": sum(source.reader.bad_records for source in self._sources),
            "spool": spool,
            "clock_step_s": step_s,
            "blind": self._gaps(ranks, spool, now),
        }
        return Health(self._own.name, self._node, now, entries, state)

    def _gaps(self, ranks: list[Source], spool: dict[str, Any], now: float) -> list[VisibilityGap]:
        found = slot_gaps(ranks) + signal_gaps(ranks, self._signals.trouble) + spool_gaps(spool)
        found += exit_gaps(ranks) + number_gaps(self._sources)
        found += source_gaps(self._sources.broken)
        found += duplicate_ranks(living_ranks(self._sources), now)
        if self._kernel.blind:
            found.append({"what": "kernel_log", "why": self._kernel.blind, "do": self._kernel.do})
        if self._deaths.trouble:
            found.append(
                {"what": "exit_status", "why": self._deaths.trouble, "do": "use Linux 5.3 or newer; raise ulimit -n"}
            )
        if self._monotonic() - self._jumped_at < CLOCK_NAMED_S:
            why = f"the clock of this node jumped by {self._jumped_s:+.1f} s: times around it are not to be compared"
            found.append({"what": "clock", "why": why, "do": "let chrony or ntpd slew the clock while jobs run"})
        for further in self.more_gaps:
            found += further()
        return found
