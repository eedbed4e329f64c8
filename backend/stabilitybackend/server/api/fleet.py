"""GPUs, of one run and over all, interruptions and costs of rollbacks over all runs. Shapes: docs/api.md."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from msgspec import structs
from pydantic import BaseModel, ConfigDict, Field

from stabilitybackend.access.auth import Principal
from stabilitybackend.base.errors import NotFound
from stabilitybackend.judging.gpus.readings import GpuReadings
from stabilitybackend.judging.gpus.view import gpus_view
from stabilitybackend.schema.fleet import FleetRollbacks, Interruption, Interruptions
from stabilitybackend.schema.gpus import FleetGpus, Gpus
from stabilitybackend.server.api.access import Commander, Manager, Reader, Recorded, Worker
from stabilitybackend.server.api.answers import answer, answers

__all__ = ["CategoryBody", "router"]

router = APIRouter(prefix="/api/v1", tags=["fleet"])


class CategoryBody(BaseModel):
    """The category of an interruption, corrected by a user."""

    model_config = ConfigDict(extra="forbid", strict=True)

    category: str | None = Field(description="a category of the table; null undoes an earlier correction")


@router.get("/gpus", responses=answers(FleetGpus))
async def gpus(manager: Manager, reader: Reader) -> Response:
    """GPUs with a fault, newest fault first."""
    return answer(manager.fleet.gpus(reader.project))


@router.get("/runs/{run_id}/gpus", responses=answers(Gpus))
async def gpus_of_run(reader: Reader, manager: Manager, worker: Worker) -> Response:
    """The GPUs of the run's nodes, by node and index, with their faults in this run and in others."""
    gpu_history = manager.fleet.gpu_history
    found = gpus_view(
        worker.state.gpus,
        worker.state.incidents.of({"gpu_fault"}),
        lambda uuid: gpu_history.offences(uuid, but=worker.run_id, project=reader.project),
        worker.state[GpuReadings].of,
    )
    return answer({"gpus": found})


@router.get("/interruptions", responses=answers(Interruptions))
async def interruptions(
    manager: Manager,
    reader: Reader,
    days: Annotated[float | None, Query(description="only of the last so many days, > 0")] = None,
    project: Annotated[str | None, Query(description="only of the runs of this project")] = None,
) -> Response:
    """Interruptions of the jobs of this server, one by one and summed."""
    found = manager.fleet.interruptions(days, _seen(reader, project))
    if reader.project is not None:
        found = structs.replace(found, projects=[name for name in found.projects if reader.sees(name)])
    return answer(found)


@router.get("/rollback_costs", responses=answers(FleetRollbacks))
async def rollback_costs(
    manager: Manager,
    reader: Reader,
    days: Annotated[float | None, Query(description="only of the last so many days, > 0")] = None,
    project: Annotated[str | None, Query(description="only of the runs of this project")] = None,
) -> Response:
    """Costs of the rollbacks of all runs, in these days, in this month, and by run."""
    return answer(manager.fleet.rollbacks(days, _seen(reader, project)))


@router.put("/runs/{run_id}/incidents/{incident_id}/category", responses=answers(Interruption))
async def correct(
    incident_id: str,
    body: CategoryBody,
    commander: Commander,
    manager: Manager,
    worker: Worker,
    record: Recorded,
) -> Response:
    """Correct the category of an interruption; your name is kept with it."""
    await worker.report_to_fleet()
    found = await manager.fleet.correct(worker.run_id, incident_id, body.category, commander.name)
    await record.did(commander, "interruption.category", found.id, body.category or "")
    return answer(found)


def _seen(reader: Principal, project: str | None) -> str | None:
    """Return the project to which an answer is limited, None for all. Raises NotFound for one of another key."""
    if project is not None and not reader.sees(project):
        raise NotFound(f"no run of project {project!r} is any business of this key", hint="leave the project out")
    return project if reader.project is None else reader.project
