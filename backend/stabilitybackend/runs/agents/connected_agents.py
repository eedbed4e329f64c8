"""Delivery of commands to the agents that are connected for a run."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import msgspec

from stabilitybackend.schema.commands import Command
from stabilityclient.wire import CommandMessage

__all__ = ["Send", "Senders", "hand_out"]

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
