"""Which agents reach a run: one that comes, and one that goes, in the run's state."""

from __future__ import annotations

from typing import Any

from stabilitybackend.runs.state import RunState
from stabilityclient.wire import Hello

__all__ = ["came", "went"]


def came(state: RunState, hello: Hello, now: float) -> None:
    """Note that an agent's connection opened at ``now``, unix seconds."""
    agent: dict[str, Any] = {"agent": hello.agent, "node": hello.node, "time": now, "ranks": [], "agent_state": {}}
    state.agents.setdefault(hello.agent, agent)["connected"] = True
    state.liveness.agent_connected(hello.agent, now)


def went(state: RunState, agent: str, now: float) -> dict[str, Any] | None:
    """Note that an agent's connection ended at ``now``, unix seconds; return its AgentHealth, None if unknown."""
    state.liveness.agent_disconnected(agent, now)
    if (known := state.agents.get(agent)) is None:
        return None
    known["connected"] = False
    return state.agent_view(known)
