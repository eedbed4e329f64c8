"""Hands one run's commands to the agents that are connected."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import msgspec

from stabilitybackend.schema.commands import Command
from stabilityclient.wire import CommandMessage

__all__ = ["Delivery", "Send"]

#: Sends a command to one agent; raises when its connection is closed.
Send = Callable[[CommandMessage], Awaitable[None]]
_log = logging.getLogger(__name__)


class Delivery:
    """The connected agents of one run.

    Args:
        run_id: the run.

    Attributes:
        agents: agent -> what sends a command to it, and raises when its connection is closed.
    """

    def __init__(self, run_id: str) -> None:
        self.agents: dict[str, Send] = {}
        self._run_id = run_id

    async def hand_out(self, command: Command) -> int:
        """Send a command to every agent and return how many it reached; one that is away gets it when it comes back."""
        message, reached = CommandMessage(msgspec.to_builtins(command)), 0
        for agent, send in list(self.agents.items()):
            try:
                await send(message)
                reached += 1
            except Exception as error:
                _log.warning("run %s: command not delivered to agent %s: %s", self._run_id, agent, error)
        return reached
