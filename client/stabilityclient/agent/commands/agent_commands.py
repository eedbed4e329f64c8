"""Orders that the agent itself carries out: one at a time, each answered with a ``command`` event.

They never reach the ranks' mailbox: a hung job reads no mailbox.

What is taken is written down before anything is done, and that it was begun before it is begun. So the agent that
follows a killed one knows what was in hand, and ends it with an answer whatever the server says to it: somebody looks
at a page and waits. A look at stacks is safe to repeat. Whether an order to end ranks can go on, its handler says.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stabilityclient.rollback.decision import ENDED_STATES

__all__ = ["AGENT_KINDS", "MAX_REMEMBERED", "Handler", "Orders"]

#: Kinds of commands for agents; all others are for the ranks.
AGENT_KINDS = frozenset({"dump_stacks", "restart"})
#: Orders that are remembered as taken, newest ones: the server repeats those that are open when an agent connects.
MAX_REMEMBERED = 64
#: Orders that wait behind the one that is carried out; more are answered with ``failed``.
MAX_WAITING = 8
#: Agents that may begin one order: what ended two in a row may be the order itself.
MAX_BEGINS = 2
#: Of these the handler says what is known when it is too late to go on.
_LOOKED_AFTER = frozenset({"restart"})
#: What a handler needs of a command; the server's notes on it are not written down.
_NEEDED = ("command_id", "kind", "attempt", "expires", "plan", "fence", "grace_s")

#: Carries out one command (docs/api.md); returns the state ``acted`` or ``failed`` and a sentence for people. ``begun``
#: in it says how many agents began it before, ``over`` whether it is too late to act: then it says what is known.
Handler = Callable[[dict[str, Any]], Awaitable[tuple[str, str]]]


@dataclass(slots=True)
class _Open:
    """An order without an answer."""

    command: dict[str, Any]
    clock_offset_s: float
    begun: int = 0


class Orders:
    """Takes the commands that are for the agent.

    Args:
        handlers: kind to what carries it out.
        say: tells the server: ``say(command, state, detail)``.
        before: ``state()`` of an earlier life, or anything that was in its place.
        remember: writes ``state()`` down; called before something is done that depends on it.
        now: unix seconds.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        say: Callable[[dict[str, Any], str, str], None],
        before: object = None,
        remember: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._handlers = handlers
        self._say = say
        self._remember = remember
        self._now = now
        taken, found = _read(before)
        self._taken = dict.fromkeys(taken[-MAX_REMEMBERED:])
        self._open = {str(each.command["command_id"]): each for each in found[-MAX_WAITING - 1 :]}
        self._waiting: asyncio.Queue[_Open] = asyncio.Queue(MAX_WAITING + 1)
        for each in self._open.values():
            self._taken[str(each.command["command_id"])] = None
            self._waiting.put_nowait(each)

    @property
    def busy(self) -> bool:
        """Whether an order has no answer yet: the agent has to stay for it, also when no rank lives any more."""
        return bool(self._open)

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
        if self._is_over(command, clock_offset_s):
            return True  # the server says itself that it came too late
        self._taken[command_id] = None
        while len(self._taken) > MAX_REMEMBERED:
            del self._taken[next(iter(self._taken))]
        if self._waiting.qsize() >= MAX_WAITING:
            self._remember()
            self._say(command, "failed", f"{MAX_WAITING} commands wait already on this node: try again in a moment")
            return True
        kept = {name: command[name] for name in _NEEDED if name in command}
        self._open[command_id] = order = _Open(kept, clock_offset_s)
        self._remember()
        self._waiting.put_nowait(order)
        return True

    async def run(self) -> None:
        """Carry out what comes, one after the other, until cancelled."""
        while True:
            order = await self._waiting.get()
            command = order.command
            try:
                state, detail = await self._carry_out(order)
            except Exception as error:  # an order must not end the agent, which also carries the data
                state, detail = "failed", f"{type(error).__name__}: {error}"[:500]
            self._say(command, state, detail)
            del self._open[str(command["command_id"])]
            self._remember()

    async def _carry_out(self, order: _Open) -> tuple[str, str]:
        kind = str(order.command["kind"])
        handler = self._handlers.get(kind)
        if handler is None:
            return "failed", f"this agent does not know the command {kind!r}: update the job"
        before = order.begun
        over = before >= MAX_BEGINS or self._is_over(order.command, order.clock_offset_s)
        if over and not before:
            return "failed", "it expired before an agent could begin it here: nothing was done"
        told = f"the agent that began it ended in the middle{', and so did the next one' if before > 1 else ''}"
        if over and kind not in _LOOKED_AFTER:
            return "failed", f"{told}; it is not begun again"
        order.begun += 1
        self._remember()
        state, detail = await handler({**order.command, "begun": before, "over": over})
        return state, f"{told}; {detail}" if before else detail

    def _is_over(self, command: Mapping[str, Any], clock_offset_s: float) -> bool:
        expires = command.get("expires")
        return isinstance(expires, int | float) and self._now() + clock_offset_s > expires

    def state(self) -> dict[str, Any]:
        """Return what a later agent needs so that nothing is done twice and everything is answered."""
        waiting = [
            {"command": order.command, "clock_offset_s": order.clock_offset_s, "begun": order.begun}
            for order in self._open.values()
        ]
        return {"taken": list(self._taken), "open": waiting}


def _read(before: object) -> tuple[list[str], list[_Open]]:
    """Return (ids of orders that were taken, those without an answer) of what ``state`` returned once."""
    if isinstance(before, list):  # older agents wrote down the ids alone
        before = {"taken": before}
    if not isinstance(before, dict):
        return [], []
    taken, found = before.get("taken"), before.get("open")
    ids = [each for each in taken if isinstance(each, str)] if isinstance(taken, list) else []
    orders = [_read_open(each) for each in found] if isinstance(found, list) else []
    return ids, [each for each in orders if each is not None]


def _read_open(value: object) -> _Open | None:
    if not isinstance(value, dict):
        return None
    command, offset, begun = value.get("command"), value.get("clock_offset_s"), value.get("begun")
    if not isinstance(command, dict) or not isinstance(command.get("command_id"), str):
        return None
    if command.get("kind") not in AGENT_KINDS or not isinstance(offset, int | float) or not isinstance(begun, int):
        return None
    return _Open(command, float(offset), begun)
