"""The agents that reach one run: they get its commands, and their coming and going is noted in its state."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import msgspec

from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.commands import Command
from stabilitybackend.schema.health import AgentHealth, AgentState
from stabilityclient.wire import CommandMessage, Hello

__all__ = ["Send", "Senders", "agent_connected", "agent_disconnected", "hand_out"]

#: Sends a command to one agent; raises when its connection is closed.
Send = Callable[[CommandMessage], Awaitable[None]]
#: Of each agent that is connected.
Senders = dict[str, Send]
_log = logging.getLogger(__name__)


async def hand_out(senders: Senders, command: Command, run_id: str) -> int:
    """Send a command to every agent and return how many it reached; one that is away gets it when it comes back."""
    message, reached = CommandMessage(msgspec.to_builtins(command)), 0
    for agent, send in list(senders.items()):
        try:
            await send(message)
            reached += 1
        except Exception as error:
            _log.warning("run %s: command not delivered to agent %s: %s", run_id, agent, error)
    return reached


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
