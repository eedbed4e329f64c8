"""Which agents reach a run: one that comes, and one that goes, in the run's state."""

from __future__ import annotations

from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.health import AgentHealth, AgentState
from stabilityclient.wire import Hello

__all__ = ["agent_connected", "agent_disconnected"]


def agent_connected(state: RunState, hello: Hello, now: float) -> None:
    """Note that an agent's connection opened at ``now``, unix seconds."""
    agent = AgentHealth(agent=hello.agent, node=hello.node, time=now, agent_state=AgentState(), ranks=[])
    state.agents.setdefault(hello.agent, agent).connected = True
    state.liveness.agent_connected(hello.agent, now)


def agent_disconnected(state: RunState, agent: str, now: float) -> AgentHealth | None:
    """Note that an agent's connection ended at ``now``, unix seconds; return its AgentHealth, None if unknown."""
    state.liveness.agent_disconnected(agent, now)
    if (known := state.agents.get(agent)) is None:
        return None
    known.connected = False
    return state.agent_view(known)
