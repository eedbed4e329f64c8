"""What an agent reports of its ranks once a second, into the state of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from stabilitybackend.runs.step_clock import StepClock
from stabilitybackend.schema.health import AgentHealth, RankHealth, read_health
from stabilityclient.wire import Health

if TYPE_CHECKING:
    from stabilitybackend.runs.state import RunState

__all__ = ["MAX_AGENTS", "set_budgets", "take_health"]

#: Agents whose last health is kept; the longest silent ones go first.
MAX_AGENTS = 4_096


def take_health(state: RunState, health: Health, now: float, step_clock: StepClock, *, looked_at: bool) -> AgentHealth:
    """Take an agent's newest report at ``now``, unix seconds; return it as people see it.

    Args:
        looked_at: somebody sees it at once: how long each rank may stay where it is is said, too.
    """
    agent, left_out = read_health(health)
    for why in left_out:
        state.unreadable.field("health", why, health.agent)
    head = state.fold.tree[state.fold.tree.head]
    for rank in agent.ranks:
        if rank.step is None or rank.step <= step_clock.newest:
            continue
        # A rank names the segment it is in; one that was inferred here it does not know, there the fold knows.
        if (rank.segment_key or "") == head.key or (
            head.cause == "restart" and state.fold.segment_of(rank.source) == head.id
        ):
            step_clock.in_step(rank.step)
    state.agents[health.agent] = agent
    while len(state.agents) > MAX_AGENTS:
        del state.agents[next(iter(state.agents))]
    state.liveness.observe(agent, now)
    if looked_at:
        set_budgets(state, agent.ranks)
    return state.agent_view(agent)


def set_budgets(state: RunState, ranks: Iterable[RankHealth]) -> None:
    """Say of ranks how long each may stay where it is."""
    allowance = state.liveness.allowance()
    for rank in ranks:
        if rank.rank is not None:
            rank.budget_s = state.liveness.budget_s(rank.rank, rank.source, allowance)
