"""Orders given while their run had no owner: stored, shown as waiting, and taken by the next owner.

An order is checked against the stored run before it is stored: an impossible one is refused immediately. A stored
one carries the segment on which it was given. The next owner looks again, at the job then. An order whose
segment is no longer the head, or that does not fit any more, comes to nothing, with the reason; one that fits becomes a
command in the same Lua call in which it stops waiting. Where agents of the job are not back yet it waits on. It expires
as it would have with an owner, and until an owner took it a person can take it back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib import resources
from typing import Any, cast

import msgspec
from redis.asyncio import Redis

from stabilitybackend.acting.commands.commands import CommandBook
from stabilitybackend.base.errors import Conflict, NotFound, StabilityBoardError
from stabilitybackend.base.keys import MAX_REPORTS, RunKeys
from stabilitybackend.runs.orders.acknowledged import Acknowledged, Patiently
from stabilitybackend.runs.ownership.fence import Fence
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.commands import OPEN_STATES, AnyCommand, Command, CommandRequest, PendingCommand, Restart
from stabilitybackend.storage.redis_link import redis_errors

__all__ = ["WAITS", "Orders"]

#: Reason why an order waits, for users.
WAITS = "no worker follows the run"
#: Largest number of waiting orders of one run.
MAX_WAITING = 20
_log = logging.getLogger(__name__)


class Orders:
    """Those of one run.

    Args:
        run_id: must have passed ``check_run_id``. clock: unix seconds now.

    Attributes:
        waiting: as they were stored when ``load`` was called last, oldest first.
    """

    def __init__(self, run_id: str, redis: Redis, clock: Callable[[], float]) -> None:
        self._run_id = run_id
        self._redis = redis
        self._keys = RunKeys(run_id)
        self._clock = clock
        self.waiting: list[PendingCommand] = []
        #: Acknowledgements, which wait likewise.
        self.acknowledged = Acknowledged(run_id, redis)

    async def load(self) -> None:
        """Read which wait. Raises RedisError when Redis is away."""
        await self.acknowledged.load()
        stored: Any = await self._redis.hvals(self._keys.orders)
        self.waiting = sorted(self._read(stored), key=lambda one: one.command.issued)

    def _read(self, stored: list[bytes]) -> Iterator[PendingCommand]:
        for data in stored:
            try:
                yield msgspec.json.decode(data, type=PendingCommand)
            except msgspec.ValidationError as error:  # of a newer server: left unchanged
                _log.warning("run %s: an order that waits is passed over: %s", self._run_id, error)

    def commands(self) -> list[Command]:
        """Return the waiting orders as shown now, newest first."""
        return [one.at(self._clock()) for one in reversed(self.waiting)]

    def get(self, command_id: str) -> Command | None:
        """Return one of them, None where there is none."""
        return next((one for one in self.commands() if one.command_id == command_id), None)

    def find(self, idempotency_key: str | None) -> Command | None:
        """Return the one that was given under this key."""
        if idempotency_key is None:
            return None
        return next((one for one in self.commands() if one.idempotency_key == idempotency_key), None)

    # --- without an owner ----------------------------------------------------------------------------------------

    async def put(self, state: RunState, request: CommandRequest, *, command_id: str, issuer: str) -> Command:
        """Store an order; return its command, or that of the same idempotency key.

        Args:
            state: the stored state of the run.

        Raises:
            BadRequest, Conflict: an owner would refuse it, by the stored state; or too many wait already.
            Unavailable: Redis is away.
        """
        with redis_errors():
            await self.load()
        if (known := self.find(request.idempotency_key)) is not None:
            return known
        if len(self.waiting) >= MAX_WAITING:
            raise Conflict(
                f"{len(self.waiting)} orders of run {self._run_id} wait for a worker, expected fewer than "
                f"{MAX_WAITING}",
                hint="start a worker (stabilityboard up --role worker)",
            )
        command = self._drafted(state, request, command_id, issuer)
        order = PendingCommand(request.given(), cast("AnyCommand", command))
        with redis_errors():
            before: Any = await self._redis.eval(
                _script("put.lua"), 3, self._keys.orders, self._keys.reports, self._keys.command_audit,
                order.name, msgspec.json.encode(order), msgspec.json.encode(command), MAX_REPORTS,
            )  # fmt: skip
            await self.load()
        return command if before is None else msgspec.json.decode(before, type=PendingCommand).command

    def _drafted(self, state: RunState, request: CommandRequest, command_id: str, issuer: str) -> Command:
        """Return the command as an owner would make it whose agents are connected."""
        now, request = self._clock(), state.job.with_step(request)
        book = CommandBook(self._run_id)
        there = [*state.commands.all(), *self.commands()]
        open_ones = [one for one in there if one.state in OPEN_STATES]
        book.load(msgspec.json.decode(msgspec.json.encode(open_ones), type=list[AnyCommand]))
        job = state.job.view()
        # Connections and hangs are unknown without a worker: the next owner checks them.
        job = replace(job, agents=max(1, job.agents), hung="", duplicates="")
        plan = state.job.plan(now, request) if request.kind == "restart" else None
        command = book.issue(request, job, command_id=command_id, issuer=issuer, now=now, plan=plan)
        command.waits, command.apply_at_step = WAITS, None
        command.history.clear()
        command.note("pending", now, f"ordered by {issuer}; {WAITS}: it is looked at again, and sent, when one does")
        return command

    async def withdraw(self, command_id: str, who: str) -> Command:
        """Take a waiting order back; return its command.

        Raises:
            NotFound: no such order waits (any more).
            Unavailable: Redis is away.
        """
        order = next((one for one in self.waiting if one.command.command_id == command_id), None)
        if order is not None:
            command = order.at(self._clock())
            command.note("failed", self._clock(), f"taken back by {who} before a worker took it; nothing was sent")
            with redis_errors():
                gone = await self._redis.eval(
                    _script("withdraw.lua"), 2, self._keys.orders, self._keys.command_audit,
                    order.name, msgspec.json.encode(command),
                )  # fmt: skip
                await self.load()
            if gone:
                return command
        raise NotFound(f"no order {command_id!r} of run {self._run_id} waits", hint="see GET .../commands")

    # --- the owner -----------------------------------------------------------------------------------------------

    async def take(self, state: RunState, fence: Fence, patiently: Patiently) -> dict[str, Command]:
        """Make commands of those that can be decided on now; return them, stored. The others wait on.

        Args:
            patiently: does something again and again while Redis is away.

        Raises:
            NotOwner: the run has another owner; nothing was changed for it.
        """
        taken = dict[str, Command]()
        for order in list(self.waiting):
            name, command_id = order.name, order.command.command_id
            known = state.commands.get(command_id) or state.commands.find(order.command.idempotency_key)
            if known is not None:  # repeated while there was an owner
                await patiently(partial(fence.write, ("HDEL", self._keys.orders, name)))
            elif (command := self._decided(state, order)) is None:
                continue
            else:
                stored = msgspec.json.encode(command)
                if not await patiently(partial(fence.take_order, name, command_id, stored)):
                    command.note("failed", self._clock(), "it was taken back at this moment; nothing was sent")
                state.commands.load([command])
                taken[command_id] = command
            # A concurrent withdrawal reads anew which wait.
            self.waiting = [one for one in self.waiting if one.name != name]
        return taken

    def _decided(self, state: RunState, order: PendingCommand) -> Command | None:
        """Return the command that an order becomes, or one with the reason of its failure; None: it waits on."""
        now, given = self._clock(), order.at(self._clock())
        given.waits = msgspec.UNSET
        if given.state == "expired":
            return given
        job = state.job.view()
        why = ""
        if (job.head, job.head_key) != (given.fence.segment, given.fence.segment_key):
            why = f"ordered on segment {given.fence.segment}, but the job is in segment {job.head} now"
        elif isinstance(given, Restart) and max(job.starts.values(), default=0) > given.issued * 1e9:
            why = "processes of the job started after it was ordered"
        elif job.agents == 0:
            return None
        if not why:
            try:
                command = state.issue(order.request, command_id=given.command_id, issuer=given.issuer)
            except StabilityBoardError as error:
                why = ". ".join(filter(None, (error.message, error.hint)))
            else:
                command.issued, command.expires = given.issued, given.expires
                command.history[:0] = given.history
                return command
        given.note("failed", now, f"when a worker followed the run again it did not fit any more: {why}")
        return given


def _script(name: str) -> str:
    return resources.files("stabilitybackend.runs.orders").joinpath(name).read_text(encoding="utf-8")
