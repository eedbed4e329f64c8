"""The plan of one run, from what its state knows (``commands/restart_plan.py`` decides)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stabilitybackend.acting.commands.restart_plan import MAX_FRUITLESS, RestartFacts, make_plan
from stabilitybackend.acting.commands.rollback_offer import advised_rollback
from stabilitybackend.runs.derived.stopped import status_of
from stabilitybackend.schema.commands import CommandRequest
from stabilitybackend.schema.plan import Plan

if TYPE_CHECKING:
    from stabilitybackend.runs.state import RunState

__all__ = ["plan_of"]


def plan_of(state: RunState, now: float, request: CommandRequest | None = None) -> Plan:
    """Return the plan of docs/restart.md; while a restart waits for its job, the one that was ordered.

    Not without end: a job that came up so often since and never logged a row is judged like any other.

    Args:
        now: unix seconds.
        request: of people who want a restart.

    Raises:
        BadRequest: the request names a checkpoint that can't be used.
        Conflict: it names one from inside an open incident, and does not accept that.
    """
    ordered = state.commands.restart_under_way()
    if request is None and ordered is not None:
        tries = sum(launch.started > ordered.issued for launch in state.launch_sizes.launches())
        if tries < MAX_FRUITLESS:
            return ordered.plan
    status, note, stopped = status_of(state, now)
    checkpoints = state.checkpoints()
    nodes = {agent.node for agent in state.agents.values() if agent.ranks}
    incidents = state.incidents.all()
    fruitless, settled = state.launch_sizes.fruitless(checkpoints), state.liveness.is_settled(now)
    # What a rollback's handler can't change is none of a new process's business: it has none yet.
    offer = advised_rollback(incidents[::-1], checkpoints, state.view().last_step)
    job = RestartFacts(status, note, incidents, checkpoints, nodes, fruitless, settled, offer, stopped is not None)
    return make_plan(state.run_id, job, now, request)
