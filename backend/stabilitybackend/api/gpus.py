"""The GPUs of one run: ``GET /api/v1/runs/{run_id}/gpus``. Shapes: docs/api.md."""

from __future__ import annotations

from fastapi import APIRouter, Response

from stabilitybackend.api.access import Manager, Reader, Worker
from stabilitybackend.api.answers import answer, answers
from stabilitybackend.gpus.view import gpus_view
from stabilitybackend.schema.gpus import Gpus

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])


@router.get("/{run_id}/gpus", responses=answers(Gpus))
async def gpus(reader: Reader, manager: Manager, worker: Worker) -> Response:
    """The GPUs of the run's nodes, by node and index, with their faults in this run and in others."""
    gpu_history = manager.fleet.gpu_history
    found = gpus_view(
        worker.state.gpus,
        worker.state.incidents.of({"gpu_fault"}),
        lambda uuid: gpu_history.offences(uuid, but=worker.run_id, project=reader.project),
        worker.state.gpu_readings.of,
    )
    return answer({"gpus": found})
