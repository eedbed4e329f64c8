"""Actions from within a message, where the run's owner is another process: they are done there.

A button pressed in Slack reaches the process that holds Slack's socket, or the one of pages that Slack's
request reached. It has checked the person and their permissions. A run's action is asked of its owner, which judges
it on the present run; the same functions do it as in a server of one process (actions.py). Where no worker is alive
reads are answered here; a command and an acknowledgement wait for the next owner (runs/orders).
"""

from __future__ import annotations

from typing import Any

import msgspec

from stabilityalerting import ActionRefused, Actions, CommandNews, Facts, Proposed, RollbackNow, RollbackRequest
from stabilitybackend.access.auth import Principal
from stabilitybackend.alerts.actions import AlertActions
from stabilitybackend.base.errors import BadRequest, StabilityBoardError
from stabilityplugins.scale.relay.calls import Calls

__all__ = ["RelayedActions"]

#: Name of the requests to other processes.
_NAME = "alert-action"
#: Actions that a person waits for, and facts of a message: without a worker the former wait, the latter are read.
_WAITS = frozenset({"acknowledge", "roll_back", "approve", "decline"})
_ASKED = _WAITS | {"facts", "rollback_now", "command"}
#: Actions that change nothing, and lead to no change.
_SHOWN = frozenset({"facts", "command"})


class _Asked(msgspec.Struct, omit_defaults=True):
    """An action by name with its arguments: texts, or a request."""

    action: str
    run_id: str
    texts: list[str] = []
    request: RollbackRequest | None = None


class _Done(msgspec.Struct, omit_defaults=True):
    """Result of an action, by its type; ``refused`` and ``passing`` as ActionRefused has them."""

    facts: Facts | None = None
    text: str | None = None
    now: RollbackNow | None = None
    news: CommandNews | None = None
    proposed: Proposed | None = None
    refused: str | None = None
    passing: bool = False


class RelayedActions(Actions):
    """The ``stabilityalerting.Actions`` of one process of several.

    Args:
        here: the actions of this process, also for other processes.
    """

    def __init__(self, here: AlertActions, calls: Calls) -> None:
        self.offers_mute = here.offers_mute
        self._here = here
        self._calls = calls
        calls.work[_NAME] = self._work

    async def facts(self, run_id: str, incident_id: str) -> Facts:
        """Return the facts that a message shows with the incident."""
        done = await self._ask(_Asked("facts", run_id, [incident_id]))
        assert done.facts is not None
        return done.facts

    async def acknowledge(self, run_id: str, incident_id: str, who: str, detail: str) -> str:
        """Note that a person takes care of the incident; return the name."""
        done = await self._ask(_Asked("acknowledge", run_id, [incident_id, who, detail]))
        return done.text or who

    async def note(self, run_id: str, incident_id: str, action: str, who: str, detail: str) -> None:
        """Note an action taken elsewhere for good."""
        self._check_takes_part()
        await self._here.note(run_id, incident_id, action, who, detail)

    async def mute(self, run_id: str, incident_id: str, minutes: int, who: str, reason: str, person: str) -> float:
        """Mute the run's incidents of this kind; return the end, unix seconds."""
        self._check_takes_part()
        return await self._here.mute(run_id, incident_id, minutes, who, reason, person)

    async def rate(self, run_id: str, incident_id: str, useful: bool, who: str, person: str) -> None:
        """Note whether the message was useful, or noise."""
        self._check_takes_part()
        await self._here.rate(run_id, incident_id, useful, who, person)

    async def rollback_now(self, run_id: str, incident_id: str) -> RollbackNow:
        """Return the rollback that the server would make at this moment."""
        done = await self._ask(_Asked("rollback_now", run_id, [incident_id]))
        assert done.now is not None
        return done.now

    async def roll_back(self, request: RollbackRequest) -> CommandNews | Proposed:
        """Issue a rollback, or propose it, if the facts shown to the person still hold."""
        done = await self._ask(_Asked("roll_back", request.run_id, request=request))
        found = done.news or done.proposed
        assert found is not None
        return found

    async def approve(self, run_id: str, proposal_id: str, who: str, person: str) -> CommandNews:
        """Issue a command proposed by another person."""
        done = await self._ask(_Asked("approve", run_id, [proposal_id, who, person]))
        assert done.news is not None
        return done.news

    async def decline(self, run_id: str, proposal_id: str, who: str, person: str) -> None:
        """Decline a proposal."""
        await self._ask(_Asked("decline", run_id, [proposal_id, who, person]))

    async def command(self, run_id: str, command_id: str) -> CommandNews | None:
        """Return how far a command is."""
        return (await self._ask(_Asked("command", run_id, [command_id]))).news

    def _check_takes_part(self) -> None:
        if (why := self._calls.no_part()) is not None:
            raise _refused(why)

    async def _ask(self, asked: _Asked) -> _Done:
        if asked.action not in _SHOWN:
            self._check_takes_part()
        body, waits = msgspec.msgpack.encode(asked), asked.action in _WAITS  # MessagePack, for a curve may hold NaN
        try:
            answer = await self._calls.ask_owner(
                asked.run_id, _NAME, body, wait=waits, once=asked.action == "acknowledge"
            )
        except StabilityBoardError as error:
            raise _refused(error) from error
        done = await self._do(asked) if answer is None else msgspec.msgpack.decode(answer, type=_Done)
        if done.refused is not None:
            raise ActionRefused(done.refused, passing=done.passing)
        return done

    async def _work(self, body: bytes, person: Principal | None) -> bytes:
        """Carry out another process's request."""
        try:
            asked = msgspec.msgpack.decode(body, type=_Asked)
        except msgspec.MsgspecError as error:
            raise BadRequest(f"this is no action of a version that is known here: {error}") from None
        await self._here.check_follows(asked.run_id)
        return msgspec.msgpack.encode(await self._do(asked))

    async def _do(self, asked: _Asked) -> _Done:
        if asked.action not in _ASKED:
            raise BadRequest(f"action is {asked.action!r}, expected one of {', '.join(sorted(_ASKED))}")
        arguments: list[Any] = [asked.run_id, *asked.texts] if asked.request is None else [asked.request]
        try:
            found = await getattr(self._here, asked.action)(*arguments)
        except ActionRefused as error:
            return _Done(refused=str(error), passing=error.passing)
        match found:
            case Facts():
                return _Done(facts=found)
            case RollbackNow():
                return _Done(now=found)
            case CommandNews():
                return _Done(news=found)
            case Proposed():
                return _Done(proposed=found)
            case str():
                return _Done(text=found)
        return _Done()


def _refused(error: StabilityBoardError) -> ActionRefused:
    words = ". ".join(part for part in (error.message, error.hint) if part)
    return ActionRefused(words, passing=error.status == 503)
