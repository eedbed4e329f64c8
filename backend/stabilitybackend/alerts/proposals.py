"""Proposals of commands of all runs, in Redis with the commands of their runs, each change in the run's audit."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace
from redis.exceptions import WatchError

from stabilitybackend.acting.commands.proposals import (
    EXPIRES_S,
    Person,
    approved,
    check_fits,
    declined,
    in_words,
    refusal,
)
from stabilitybackend.base.errors import Conflict, NotFound, StabilityBoardError, Unavailable
from stabilitybackend.base.keys import PROPOSALS, RunKeys
from stabilitybackend.runs.state import RunState
from stabilitybackend.runs.worker import RunWorker
from stabilitybackend.schema.commands import CommandFence, CommandRequest, Proposal
from stabilitybackend.storage.redis_link import InRedis, redis_errors

__all__ = ["ProposalRegistry"]

#: Proposals of one run that wait, and those that are stored; the oldest decided ones go.
MAX_OPEN = 20
MAX_STORED = 200
#: Code of a proposal whose facts have changed.
_REFUSED = "proposal_refused"
#: Tries of a change while others change proposals of the same run.
_TRIES = 5


class ProposalRegistry(InRedis):
    """All proposals. Only ``approve`` issues a command."""

    async def of_run(self, run_id: str) -> list[Proposal]:
        """Return the proposals of a run, newest first. Raises Unavailable when Redis is away."""
        with redis_errors():
            stored: Any = await self._redis.hvals(RunKeys(run_id).proposals)
        now = self._clock()
        found = [msgspec.json.decode(data, type=Proposal).at(now) for data in stored]
        return sorted(found, key=lambda one: one.proposed, reverse=True)

    async def waiting(self) -> list[Proposal]:
        """Return the open proposals of all runs, oldest first. Raises Unavailable when Redis is away."""
        now = self._clock()
        with redis_errors():
            await self._redis.zremrangebyscore(PROPOSALS, "-inf", now)
            names: Any = await self._redis.zrange(PROPOSALS, 0, -1)
            found = [await self._stored(*_split(name.decode())) for name in names]
        waiting = [one.at(now) for one in found if one is not None]
        return sorted((one for one in waiting if one.state == "proposed"), key=lambda one: one.proposed)

    async def propose(
        self, worker: RunWorker, request: CommandRequest, person: Person, *, by_program: bool
    ) -> Proposal:
        """Store a proposal.

        Raises:
            BadRequest, Conflict: the command would be refused now, or too many proposals wait.
        """
        state = await worker.ready()
        now = self._clock()
        check_fits(
            state.commands, worker.run_id, request, state.job.view(), now,
            state.job.plan(now, request) if request.kind == "restart" else None,
        )  # fmt: skip
        open_ones = [one for one in await self.of_run(worker.run_id) if one.state == "proposed"]
        if len(open_ones) >= MAX_OPEN:
            raise Conflict(
                f"{len(open_ones)} proposals of run {worker.run_id} wait already, expected fewer than {MAX_OPEN}",
                hint="decline some on the run's page",
            )
        proposal = Proposal(
            proposal_id=f"p-{secrets.token_hex(6)}", run_id=worker.run_id, what=in_words(request),
            order=request.given(),
            proposer=person.name, proposer_key=person.key_id, by_program=by_program, proposed=now,
            expires=now + EXPIRES_S, fence=_head(state),
        )  # fmt: skip
        with redis_errors():
            await self._redis.zadd(PROPOSALS, {f"{worker.run_id} {proposal.proposal_id}": proposal.expires})
            await self._save(proposal)
        for one in open_ones:
            same = (one.proposer, one.proposer_key, one.request.kind) == (person.name, person.key_id, request.kind)
            if same:
                await self._change(worker, one.proposal_id, lambda stored: replace(stored.at(now), state="superseded"))
        _publish(worker, proposal)
        return proposal

    async def approve(self, worker: RunWorker, proposal_id: str, person: Person, *, two_persons: bool) -> Proposal:
        """Issue a proposed command once, and return the proposal.

        Raises:
            Forbidden: the person is its proposer.
            Conflict: it was decided, it expired, or the run has moved on.
            StabilityBoardError: the command is refused at this moment; the proposal stays open.
        """
        await worker.ready()
        claimed = await self._change(
            worker, proposal_id, lambda stored: approved(stored, person, self._clock(), two_persons=two_persons)
        )

        def check(state: RunState) -> None:
            if why := refusal(claimed, _head(state)):
                raise Conflict(f"proposal {proposal_id} is refused. {why}", code=_REFUSED, why=why)

        try:
            command = await worker.issue(
                claimed.request, command_id=f"c-{secrets.token_hex(8)}",
                issuer=f"{claimed.decided_by}, proposed by {claimed.proposer}", check=check,
            )  # fmt: skip
        except StabilityBoardError as error:
            back = {"state": "proposed", "decided_by": None, "decided": None, "detail": error.message}
            if error.code == _REFUSED:
                back = {"state": "refused", "detail": error.facts["why"]}
            await self._change(worker, proposal_id, lambda stored: replace(stored, **back))
            raise
        return await self._change(worker, proposal_id, lambda stored: replace(stored, command_id=command.command_id))

    async def decline(self, worker: RunWorker, proposal_id: str, person: Person, why: str) -> Proposal:
        """Decline a proposal. Raises Conflict where it was decided or expired."""
        return await self._change(worker, proposal_id, lambda stored: declined(stored, person, self._clock(), why))

    async def _change(self, worker: RunWorker, proposal_id: str, change: Callable[[Proposal], Proposal]) -> Proposal:
        """Store a change of a proposal, of two concurrent ones the first, and notify the browsers."""
        keys = RunKeys(worker.run_id)
        for _ in range(_TRIES):
            with redis_errors():
                async with self._redis.pipeline(transaction=True) as pipe:
                    await pipe.watch(keys.proposals)
                    stored = await self._stored(worker.run_id, proposal_id)
                    if stored is None:
                        raise NotFound(
                            f"run {worker.run_id} has no proposal {proposal_id[:80]!r}",
                            hint="list them with GET .../proposals",
                        )
                    changed = change(stored)
                    if changed == stored:
                        return stored
                    pipe.multi()  # type: ignore[no-untyped-call]
                    pipe.hset(keys.proposals, proposal_id, msgspec.json.encode(changed))
                    pipe.xadd(keys.command_audit, {"q": msgspec.json.encode(changed)})
                    if changed.state == "proposed":  # before it is: a kill between the two must not hide it
                        await self._redis.zadd(PROPOSALS, {f"{worker.run_id} {proposal_id}": changed.expires})
                    try:
                        await pipe.execute()
                    except WatchError:
                        continue
                if changed.state != "proposed":
                    await self._redis.zrem(PROPOSALS, f"{worker.run_id} {proposal_id}")
            _publish(worker, changed)
            return changed
        raise Unavailable("others decide on proposals of this run at the same moment", hint="try it again")

    async def _save(self, proposal: Proposal) -> None:
        keys = RunKeys(proposal.run_id)
        pipe = self._redis.pipeline(transaction=True)
        pipe.hset(keys.proposals, proposal.proposal_id, msgspec.json.encode(proposal))
        pipe.xadd(keys.command_audit, {"q": msgspec.json.encode(proposal)})
        stored = await self.of_run(proposal.run_id)
        for one in [one for one in stored if one.state != "proposed"][MAX_STORED - MAX_OPEN :]:
            pipe.hdel(keys.proposals, one.proposal_id)
        await pipe.execute()

    async def _stored(self, run_id: str, proposal_id: str) -> Proposal | None:
        data: Any = await self._redis.hget(RunKeys(run_id).proposals, proposal_id)
        return None if data is None else msgspec.json.decode(data, type=Proposal)


def _head(state: RunState) -> CommandFence:
    job = state.job.view(for_command=False)
    return CommandFence(job.head, job.head_key)


def _split(name: str) -> tuple[str, str]:
    run_id, _, proposal_id = name.partition(" ")
    return run_id, proposal_id


def _publish(worker: RunWorker, proposal: Proposal) -> None:
    """Notify the run's browsers; one that was away asks for all proposals when it is back."""
    worker.channel.publish({"type": "proposal", "proposal": proposal})
