"""Costs of the rollbacks of one run, made from its lineage and the times of its rows."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from stabilitybackend.fleet.rollback_cost import CostFacts, rollback_costs, save_interval
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.fleet import InterruptionNumbers
from stabilitybackend.schema.rollback_cost import RollbackCosts
from stabilitybackend.schema.runs import STATUSES

__all__ = ["gpus_of", "rollback_costs_of"]

_GPU = re.compile(r"gpu/(\d+)/")


def rollback_costs_of(
    state: RunState, now: float, stops: tuple[InterruptionNumbers, InterruptionNumbers], *, untimed: bool = False
) -> Callable[[], RollbackCosts]:
    """Return the calculation of a run's present costs. Call this on the event loop, and the answer in a thread.

    Args:
        now: unix seconds.
        stops: interruptions of this run, and of all runs.
        untimed: the times of its points are made up (``UNTIMED_KEY``): no cost has a duration.
    """
    segments = [replace(segment) for segment in state.fold.tree]
    found = state.times
    keys = found.keys(state.store, segments)
    view = state.store.view_of(keys.values())
    job = CostFacts(
        world_size=state.launch_sizes.size,
        gpus=gpus_of(state),
        started=min(state.fold.starts, default=None),
        until=_until(state, now),
    )
    heads = [segment for _, segment in state.fold.heads]
    incidents = state.incidents.all()
    grades = state.resumes.grades()
    saves = [(one.segment, one.step, one.time, one.took_s) for one in state.fold.checkpoints]

    def times(segment: int, step: int | None) -> float | None:
        key, facts = keys.get(segment), segments[segment]
        return None if untimed or key is None or not facts.points else found.time(view, key, facts, step)

    def costs() -> RollbackCosts:
        rollbacks, totals = rollback_costs(segments, heads, times, incidents, job)
        for one in rollbacks:
            one.resume = grades.get(one.segment)
        saving = save_interval(saves, *stops, job.world_size)
        return RollbackCosts(rollbacks, totals, view.problems, saving)

    return costs


def gpus_of(state: RunState) -> int | None:
    """Return how many ranks have a GPU: of the GPUs that agents report at most one a rank; None without an agent."""
    seen = {
        (key.node, match[1])
        for metric in state.store.metrics()
        if (match := _GPU.match(metric))
        for key in state.store.keys(metric)
    }
    return min(len(seen), state.launch_sizes.size) if seen or state.stretches.watched else None


def _until(state: RunState, now: float) -> float | None:
    """Return the end of a job's costs: now while it is under way and seen, else its end as far as reported."""
    under_way = STATUSES[state.liveness.status(now)[0]].under_way
    # A server that has just started calls a run "running" until it has waited for agents: that is not the job's time.
    if under_way and any(agent.connected for agent in state.agents.all.values()):
        return now
    if not state.stretches.watched:
        return None
    left = [state.liveness.left_at(agent) for agent in state.agents.all] if under_way else []
    return max([state.stretches.over_at, *(time for time in left if time is not None)]) or None
