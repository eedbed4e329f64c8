"""Reports the events of one run to the memory of the fleet: incidents, causes of the job's end, lost GPU-hours."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from stabilitybackend.fleet.fleet import Fleet
from stabilitybackend.fleet.interruptions import JobStory, interruptions_of
from stabilitybackend.fleet.rollback_sums import remembered
from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.runs.derived.rollback_cost import gpus_of, rollback_costs_of
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.fleet import RunNames
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.kinds import kinds_where

__all__ = ["FleetReporter"]

#: How long a job ran is stored at most this often while nothing else changes, seconds.
STORE_EVERY_S = 60.0

_log = logging.getLogger(__name__)


class FleetReporter:
    """Facts about one run for the fleet."""

    def __init__(self, run_id: str, fleet: Fleet) -> None:
        self._run_id = run_id
        self._fleet = fleet
        self._stopping = kinds_where(lambda kind: kind.stops_job)
        self._reported: Any = None
        self._reported_at = float("-inf")
        self._costs_of: Any = None
        self._costs_at = float("-inf")

    def remember(self, finding: Finding, known: Incident | None) -> Finding:
        """Return a finding about a GPU with the history of that GPU over all runs; ``known``: its incident, if any."""
        return self._fleet.gpu_history.with_history(finding, self._run_id, known)

    async def incidents(self, run: RunNames, incidents: Iterable[Incident]) -> None:
        """Take incidents that were stored just now, or at an earlier start of the server; ``run`` names the run."""
        try:
            await self._fleet.changed(run, list(incidents))
        except Exception:  # the run continues without being remembered
            _log.exception("run %s: its incidents are not listed", self._run_id)

    async def report(self, state: RunState, run: RunNames, now: float) -> None:
        """Take the cause of the job's end and the costs of its rollbacks, where something changed since the last time.

        Args:
            run: as for ``incidents``. now: unix seconds.
        """
        await self._stops(state, run, now)
        await self._costs(state, run, now)

    async def _costs(self, state: RunState, run: RunNames, now: float) -> None:
        """Add up the rollbacks anew where one was added or undone, and each minute while the newest one lasts."""
        tree = state.fold.tree
        newest = tree[tree.head]
        facts = (len(tree), tree.head, sum(one.undone for one in tree), newest.last_step is None, run)
        known = self._run_id in self._fleet.unknown_rollbacks or self._costs_of is not None
        if len(tree) < 2 and not known:
            return
        goes_on = newest.last_step is None and now - self._costs_at >= STORE_EVERY_S
        if self._costs_of == facts and not goes_on:
            return
        self._costs_of, self._costs_at = facts, now
        try:
            stops = self._fleet.stops(self._run_id)
            if not state.stretches.watched:  # an import went back elsewhere, and its times may be invented
                await self._fleet.rolled_back(run, [])
                return
            costs = await asyncio.to_thread(rollback_costs_of(state, now, (stops, stops)))
            await self._fleet.rolled_back(run, remembered(costs.rollbacks))
        except Exception:  # see ``incidents``
            _log.exception("run %s: what its rollbacks cost is not remembered", self._run_id)

    async def _stops(self, state: RunState, run: RunNames, now: float) -> None:
        facts = (
            state.stretches.sources(),
            state.incidents.versions(self._stopping),
            run,
            len(state.gpus.kernel_lines),
            gpus_of(state),
            state.launch_facts.scheduled,
        )
        goes_on = self._reported is not None and self._reported[0] == facts
        if goes_on and 0 <= now - self._reported_at < STORE_EVERY_S:
            return
        stretches = state.stretches.all()
        until = stretches[-1].ended if stretches else None
        if goes_on and self._reported[1] == until:
            return
        self._reported, self._reported_at = (facts, until), now
        try:
            story = JobStory(
                stretches,
                state.incidents.of(self._stopping),
                state.gpus.kernel_lines,
                state.commands.restarts(),
                state.stretches.watched,
                state.launch_facts.scheduled,
            )
            # The end of an import is not seen, and its times may be invented: it would be time without interruptions.
            watched = state.stretches.watched
            found = interruptions_of(story) if watched else []
            ran = [(s.began, s.ended, s.ranks) for s in stretches] if watched else []
            await self._fleet.stopped(run, found, ran, gpus_of(state) or 0)
        except Exception:  # see ``incidents``
            _log.exception("run %s: its interruptions are not remembered", self._run_id)
