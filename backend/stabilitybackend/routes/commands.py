"""Ordering and following commands: ``/api/v1/runs/{run_id}/commands``. Shapes: docs/api.md."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec
from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from stabilitybackend.errors import NotFound
from stabilitybackend.policy.orders import Order
from stabilitybackend.routes.access import Commander, Reader, Worker
from stabilitybackend.routes.answers import answer, answers

__all__ = ["OrderBody", "router"]

router = APIRouter(prefix="/api/v1/runs/{run_id}/commands", tags=["commands"])


class Commands(msgspec.Struct):
    """Newest first."""

    commands: list[dict[str, Any]]


class OrderBody(BaseModel):
    """What is asked of the job. Ranges are checked in ``stabilitybackend.policy.orders``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: str = Field(description="'rollback', 'restart' or 'dump_stacks'")
    to_step: int | None = Field(None, description="step of a checkpoint: training goes on from the step after it")
    lr_scale: float | None = Field(None, description="factor on the learning rate, (0, 10]")
    seed: int | None = Field(None, description="new seed of the data order")
    skip_batches: int | None = Field(None, description="global batches to skip after the checkpoint")
    exclude_nodes: list[str] | None = Field(None, description="restart: nodes that the job shall come up without")
    keep_nodes: list[str] | None = Field(None, description="restart: nodes that the plan would leave out and shall not")
    grace_s: float | None = Field(None, description="restart: seconds from SIGTERM to SIGKILL, 10 if left out")
    accept_inside_incident: bool = Field(
        False, description="rollback, restart: go to a checkpoint that was saved inside an open incident all the same"
    )
    reason: str = Field("", description="why, for the record")
    expires_s: float | None = Field(
        None, description="seconds after which nobody may begin with it; 600, restart 60, dump_stacks 15 if left out"
    )
    idempotency_key: str | None = Field(None, max_length=200, description="the same key gives the same command again")


@router.post("", status_code=201, responses=answers(dict[str, Any], 201))
async def order(body: OrderBody, commander: Commander, worker: Worker) -> Response:
    """Order a rollback, a restart, or a look at every rank's stacks."""
    command = await worker.order(
        Order(**body.model_dump()), command_id=f"c-{secrets.token_hex(8)}", issuer=commander.name
    )
    return answer(command, 201)


@router.get("", responses=answers(Commands))
async def commands(reader: Reader, worker: Worker) -> Response:
    """Commands of the run, newest first."""
    return answer({"commands": worker.state.commands.all()})


@router.get("/{command_id}", responses=answers(dict[str, Any]))
async def command(command_id: str, reader: Reader, worker: Worker) -> Response:
    """One command with its history."""
    found = worker.state.commands.get(command_id)
    if found is None:
        raise NotFound(f"run {worker.run_id} has no command {command_id!r}", hint="list them with GET .../commands")
    return answer(found)
