"""Reports to the memory of the fleet what happened to one run: faults of its GPUs, and what stopped its job."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from stabilitybackend.fleet.fleet import Fleet
from stabilitybackend.fleet.interruptions import JobStory, interruptions_of
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.fleet import RunNames
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.kinds import kinds_where

__all__ = ["FleetReporter"]

#: How long a job ran is stored at most this often while nothing else changes, seconds.
STORE_EVERY_S = 60.0

_log = logging.getLogger(__name__)


class FleetReporter:
    """What the fleet knows of one run."""

    def __init__(self, run_id: str, fleet: Fleet) -> None:
        self._run_id = run_id
        self._fleet = fleet
        self._reported: Any = None
        self._reported_at = float("-inf")

    def begin(self, state: RunState) -> None:
        """Let findings about GPUs say what is remembered of them; call it for each new state of the run."""
        state.remember = lambda finding: self._fleet.gpu_history.with_history(finding, self._run_id)

    async def incidents(self, run: RunNames, incidents: Iterable[Incident]) -> None:
        """Take incidents that were stored just now, or at an earlier start of the server; ``run`` names the run."""
        try:
            await self._fleet.faults(run, incidents)
        except Exception:  # the run goes on without being remembered
            _log.exception("run %s: its GPU faults are not remembered", self._run_id)

    async def report(self, state: RunState, run: RunNames, now: float) -> None:
        """Take what stopped the job, where something changed since the last time.

        Args:
            run: as for ``incidents``. now: unix seconds.
        """
        stretches = state.stretches.all()
        stopping = kinds_where(lambda kind: kind.stops_job)
        facts = (
            [(s.source, s.finished) for s in stretches],
            state.incidents.versions(stopping),
            run,
            len(state.gpus.kernel_lines),
        )
        until = stretches[-1].ended if stretches else None
        if self._reported is not None and self._reported[0] == facts:
            waits = 0 <= now - self._reported_at < STORE_EVERY_S
            if self._reported[1] == until or waits:
                return
        self._reported, self._reported_at = (facts, until), now
        try:
            story = JobStory(
                stretches,
                state.incidents.of(stopping),
                state.gpus.kernel_lines,
                state.commands.restarts(),
                state.stretches.watched,
            )
            found = interruptions_of(story)
            if found or stretches:
                await self._fleet.stopped(run, found, [(s.began, s.ended, s.ranks) for s in stretches])
        except Exception:  # see above
            _log.exception("run %s: its interruptions are not remembered", self._run_id)
