"""Issues and follows commands, and suggests them. Shapes: docs/api.md, docs/restart.md."""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Response
from msgspec import UNSET

from stabilitybackend.acting.commands.boundary_commands import offers
from stabilitybackend.acting.commands.progress import shown
from stabilitybackend.acting.commands.proposals import check_alone, in_words
from stabilitybackend.base.errors import NotFound, Unavailable
from stabilitybackend.schema.commands import AnyCommand, CommandOffers, CommandRequest, Proposal
from stabilitybackend.schema.lineage import Offer
from stabilitybackend.schema.plan import Plan
from stabilitybackend.server.api.access import Commander, Reader, Recorded, StartOptions, Worker
from stabilitybackend.server.api.answers import answer, answers
from stabilitybackend.server.api.people.proposals import SHOWN, Book

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/runs/{run_id}", tags=["commands"])


class Commands(msgspec.Struct):
    """Newest first. ``proposals``: open and decided ones, the newest 50."""

    commands: list[AnyCommand]
    proposals: list[Proposal] = []


@router.post("/commands", status_code=201, responses=answers(AnyCommand, 201, 202))
async def issue(
    body: CommandRequest, commander: Commander, worker: Worker, options: StartOptions, record: Recorded
) -> Response:
    """Issue a command: a rollback, restart, stop, checkpoint, dump of all stacks, look at batches, or a task.

    202: no worker follows the run now; it waits for one (``waits``).
    """
    check_alone(body, two_persons=options.settings.two_persons)
    issued = await worker.issue(body, command_id=f"c-{secrets.token_hex(8)}", issuer=commander.name)
    await record.did(
        commander, "command.order", issued.command_id, ". ".join(filter(None, (in_words(body), body.reason)))
    )
    return answer(shown(issued), 201 if issued.waits is UNSET else 202)


@router.get("/commands", responses=answers(Commands))
async def commands(reader: Reader, worker: Worker, book: Book) -> Response:
    """Commands of the run, newest first, and its proposals."""
    proposals: list[Proposal] = []
    with suppress(Unavailable):  # the commands are in memory
        proposals = (await book.of_run(worker.run_id))[:SHOWN]
    return answer({"commands": [shown(one) for one in worker.commands()], "proposals": proposals})


@router.get("/commands/{command_id}", responses=answers(AnyCommand))
async def command(command_id: str, reader: Reader, worker: Worker) -> Response:
    """One command with its history."""
    found = worker.command(command_id)
    if found is None:
        raise NotFound(f"run {worker.run_id} has no command {command_id!r}", hint="list them with GET .../commands")
    return answer(shown(found))


@router.delete("/commands/{command_id}", responses=answers(AnyCommand))
async def withdraw(command_id: str, commander: Commander, worker: Worker, record: Recorded) -> Response:
    """Take back an order that waits for a worker; one that a worker took can't be taken back."""
    found = await worker.withdraw(command_id, commander.name)
    await record.did(commander, "command.withdraw", command_id)
    return answer(shown(found))


@router.get("/rollback", responses=answers(Offer))
async def rollback(
    reader: Reader,
    worker: Worker,
    incident: Annotated[str | None, Query(description="the incident to roll back for; left out: the run")] = None,
) -> Response:
    """The rollback that is suggested now, and the checkpoints that are offered; all pages show this one."""
    return answer((await worker.ready()).job.offer(incident))


@router.get("/orders", responses=answers(CommandOffers))
async def orders(reader: Reader, worker: Worker) -> Response:
    """Whether the job would obey a stop and a checkpoint command now, with the effect of each."""
    return answer(offers((await worker.ready()).job.view()))


@router.get("/plan", responses=answers(Plan))
async def plan(
    reader: Reader,
    worker: Worker,
    ordered: Annotated[bool, Query(description="as a restart that is ordered now would be carried out")] = False,
) -> Response:
    """Whether to start the job again, from where, and without which nodes."""
    state = await worker.ready()
    request = CommandRequest("restart") if ordered else None
    return answer(state.job.plan(time.time(), request))
