"""Orders that the agent itself carries out: one at a time, each once, answered with a ``command`` event.

They never reach the ranks' mailbox: a job that stands reads no mailbox.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from stabilityclient.rollback import ENDED_STATES

__all__ = ["AGENT_KINDS", "MAX_REMEMBERED", "Handler", "Orders"]

#: Kinds of commands for agents; all others are for the ranks.
AGENT_KINDS = frozenset({"dump_stacks", "restart"})
#: Orders that are remembered as taken, newest ones: the server repeats those that are open when an agent connects.
MAX_REMEMBERED = 64
#: Orders that wait behind the one that is carried out; more are answered with ``failed``.
MAX_WAITING = 8

#: Carries out one command (docs/api.md); returns the state ``acted`` or ``failed`` and a sentence for people.
Handler = Callable[[dict[str, Any]], Awaitable[tuple[str, str]]]


class Orders:
    """Takes the commands that are for the agent.

    Args:
        handlers: kind to what carries it out.
        say: tells the server: ``say(command, state, detail)``.
        taken: ids of earlier orders (``state()`` of an earlier life).
        remember: called when an order is taken, before it begins: whatever happens, it is not begun twice.
        now: unix seconds.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        say: Callable[[dict[str, Any], str, str], None],
        taken: list[str],
        remember: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._handlers = handlers
        self._say = say
        self._taken = dict.fromkeys(taken[-MAX_REMEMBERED:], "")
        self._remember = remember
        self._now = now
        self._waiting: asyncio.Queue[dict[str, Any]] = asyncio.Queue(MAX_WAITING)

    def take(self, command: dict[str, Any], clock_offset_s: float) -> bool:
        """Take a command if it is for the agent; False when it is for the ranks.

        Args:
            command: as in docs/api.md.
            clock_offset_s: server's time minus ours; the expiry is judged by the server's clock.
        """
        if command.get("kind") not in AGENT_KINDS:
            return False
        command_id = command.get("command_id")
        if not isinstance(command_id, str) or command_id in self._taken or command.get("state") in ENDED_STATES:
            return True
        expires = command.get("expires")
        if isinstance(expires, (int, float)) and self._now() + clock_offset_s > expires:
            return True  # the server says itself that it came too late
        self._taken[command_id] = str(command["kind"])
        while len(self._taken) > MAX_REMEMBERED:
            del self._taken[next(iter(self._taken))]
        self._remember()
        try:
            self._waiting.put_nowait(command)
        except asyncio.QueueFull:
            self._say(command, "failed", f"{MAX_WAITING} orders wait already on this node: try again in a moment")
        return True

    async def run(self) -> None:
        """Carry out what comes, one after the other, until cancelled."""
        while True:
            command = await self._waiting.get()
            handler = self._handlers.get(str(command["kind"]))
            if handler is None:
                self._say(command, "failed", f"this agent does not know the order {command['kind']!r}: update the job")
                continue
            try:
                state, detail = await handler(command)
            except Exception as error:  # an order must not end the agent, which also carries the data
                state, detail = "failed", f"{type(error).__name__}: {error}"[:500]
            self._say(command, state, detail)

    def state(self) -> list[str]:
        """Return what a later agent needs so that nothing is done twice."""
        # A restart is fenced to its processes, and whoever died in its middle has to end the rest: it is begun again.
        return [command_id for command_id, kind in self._taken.items() if kind != "restart"]
