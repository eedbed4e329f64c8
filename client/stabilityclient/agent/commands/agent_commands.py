"""Commands that the agent itself carries out: one at a time, each answered with a ``command`` event.

They never reach the ranks' mailbox: a hung job reads no mailbox.

A command is written down before it is begun, and its begin before the first action. So the agent that
follows a killed one knows the open commands, and answers each in any case: a user at a
page waits. A dump of stacks is safe to repeat. The handler of a restart decides whether it continues.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from stabilityclient.agent.statefile import read_as
from stabilityclient.rollback.decision import ENDED_STATES

__all__ = ["MAX_REMEMBERED", "AgentCommands", "CommandToRun", "Handler", "ProcessFence"]

#: Commands that are remembered as taken, newest ones: the server repeats those that are open when an agent connects.
MAX_REMEMBERED = 64
#: Commands that wait behind the one that is carried out; more are answered with ``failed``.
MAX_WAITING = 8
#: Agents that may begin one command: the cause of two ends in a row may be the command itself.
MAX_BEGINS = 2
#: Their handler reports the facts when it is too late to continue.
_SUPERVISED = frozenset({"restart"})
#: Kinds that another agent does not begin again: their authors may not have expected a repeat.
_ONCE = frozenset({"task"})


class ProcessFence(msgspec.Struct):
    """The processes that a command was decided on. ``starts``: node -> newest start of its ranks, ns in hex."""

    segment_key: str = ""
    starts: dict[str, str] = {}


class CommandToRun(msgspec.Struct, omit_defaults=True):
    """A command for its handler (docs/api.md); the server's notes on it are not written down."""

    command_id: str
    kind: str
    attempt: int = 1
    expires: float | None = None
    plan: dict[str, Any] | None = None
    fence: ProcessFence | None = None
    grace_s: float | None = None
    run_id: str = ""
    task: str = ""
    reason: str = ""


#: Carries out one command; returns the state ``acted`` or ``failed`` and a sentence. Its second argument is
#: whether it is too late to act: then it only reports the facts.
Handler = Callable[[CommandToRun, bool], Awaitable[tuple[str, str]]]


class _Open(msgspec.Struct):
    """A command without an answer. ``begun``: by how many agents."""

    command: CommandToRun
    clock_offset_s: float
    begun: int = 0


class _State(msgspec.Struct):
    """State for a later agent, so that nothing is done twice and everything is answered."""

    taken: list[str] = []
    open: list[_Open] = []


class AgentCommands:
    """Takes the commands that are for the agent.

    Args:
        handlers: function of each kind; all other kinds are for the ranks.
        report: reports to the server: ``report(command, state, detail)``.
        before: ``state()`` of an earlier life, or anything that was in its place.
        remember: writes ``state()`` down; called before something is done that depends on it.
        now: unix seconds.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        report: Callable[[CommandToRun, str, str], None],
        before: object = None,
        remember: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._handlers = handlers
        self._report = report
        self._remember = remember
        self._now = now
        known = read_as(before, _State)
        self._taken = dict.fromkeys(known.taken[-MAX_REMEMBERED:])
        self._open = {each.command.command_id: each for each in known.open[-MAX_WAITING - 1 :]}
        self._waiting: asyncio.Queue[_Open] = asyncio.Queue(MAX_WAITING + 1)
        for each in self._open.values():
            self._taken[each.command.command_id] = None
            self._waiting.put_nowait(each)

    @property
    def busy(self) -> bool:
        """Whether a command has no answer yet: the agent has to stay for it, also when no rank lives any more."""
        return bool(self._open)

    def take(self, command: dict[str, Any], clock_offset_s: float) -> bool:
        """Take a command if it is for the agent; False when it is for the ranks.

        Args:
            command: as in docs/api.md.
            clock_offset_s: server's time minus the local one; the expiry is judged by the server's clock.
        """
        if command.get("kind") not in self._handlers:
            return False
        command_id = command.get("command_id")
        if not isinstance(command_id, str) or command_id in self._taken or command.get("state") in ENDED_STATES:
            return True
        try:
            entry = _Open(msgspec.convert(command, CommandToRun), clock_offset_s)
        except msgspec.ValidationError as error:
            why = f"this agent can't read the command ({error}): update server and job to the same version"
            self._report(CommandToRun(command_id, command["kind"]), "failed", why[:500])
            return True
        if self._is_over(entry):
            return True  # the server reports the delay itself
        self._taken[command_id] = None
        while len(self._taken) > MAX_REMEMBERED:
            del self._taken[next(iter(self._taken))]
        if self._waiting.qsize() >= MAX_WAITING:
            self._remember()
            self._report(
                entry.command, "failed", f"{MAX_WAITING} commands wait already on this node: try again in a moment"
            )
            return True
        self._open[command_id] = entry
        self._remember()
        self._waiting.put_nowait(entry)
        return True

    async def run(self) -> None:
        """Carry out commands in order of arrival, until cancelled."""
        while True:
            entry = await self._waiting.get()
            try:
                state, detail = await self._carry_out(entry)
            except Exception as error:  # a command must not end the agent, which also carries the data
                state, detail = "failed", f"{type(error).__name__}: {error}"[:500]
            self._report(entry.command, state, detail)
            del self._open[entry.command.command_id]
            self._remember()

    async def _carry_out(self, entry: _Open) -> tuple[str, str]:
        kind = entry.command.kind
        handler = self._handlers.get(kind)
        if handler is None:
            return "failed", f"this agent does not know the command {kind!r}: update the job"
        before = entry.begun
        over = before >= MAX_BEGINS or self._is_over(entry)
        if over and not before:
            return "failed", "it expired before an agent could begin it here: nothing was done"
        ended = f"the agent that began it ended in the middle{', and so did the next one' if before > 1 else ''}"
        if (over and kind not in _SUPERVISED) or (before and kind in _ONCE):
            return "failed", f"{ended}; it is not begun again"
        entry.begun += 1
        self._remember()
        state, detail = await handler(entry.command, over)
        return state, f"{ended}; {detail}" if before else detail

    def _is_over(self, entry: _Open) -> bool:
        expires = entry.command.expires
        return expires is not None and self._now() + entry.clock_offset_s > expires

    def state(self) -> object:
        """Return the state for a later agent, as builtins."""
        return msgspec.to_builtins(_State(list(self._taken), list(self._open.values())))
