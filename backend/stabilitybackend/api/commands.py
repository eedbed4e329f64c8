"""Ordering and following commands: ``/api/v1/runs/{run_id}/commands``. Shapes: docs/api.md."""

from __future__ import annotations

import secrets

import msgspec
from fastapi import APIRouter, Response

from stabilitybackend.api.access import Commander, Reader, Worker
from stabilitybackend.api.answers import answer, answers
from stabilitybackend.commands.progress import shown
from stabilitybackend.errors import NotFound
from stabilitybackend.schema.commands import AnyCommand, CommandRequest

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/runs/{run_id}/commands", tags=["commands"])


class Commands(msgspec.Struct):
    """Newest first."""

    commands: list[AnyCommand]


@router.post("", status_code=201, responses=answers(AnyCommand, 201))
async def issue(body: CommandRequest, commander: Commander, worker: Worker) -> Response:
    """Issue a rollback, a restart, a dump of every rank's stacks, or a task of your own."""
    issued = await worker.issue(body, command_id=f"c-{secrets.token_hex(8)}", issuer=commander.name)
    return answer(shown(issued), 201)


@router.get("", responses=answers(Commands))
async def commands(reader: Reader, worker: Worker) -> Response:
    """Commands of the run, newest first."""
    return answer({"commands": [shown(one) for one in worker.state.commands.all()]})


@router.get("/{command_id}", responses=answers(AnyCommand))
async def command(command_id: str, reader: Reader, worker: Worker) -> Response:
    """One command with its history."""
    found = worker.state.commands.get(command_id)
    if found is None:
        raise NotFound(f"run {worker.run_id} has no command {command_id!r}", hint="list them with GET .../commands")
    return answer(shown(found))
