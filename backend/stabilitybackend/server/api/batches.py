"""Data that the job reported of its batches, and the batches that it keeps: ``GET .../batches``, ``.../batch_samples``.

Shapes: docs/api.md.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Response

from stabilitybackend.base.errors import BadRequest, NotFound
from stabilitybackend.judging.batches.view import Stretch, shared_data, view_of
from stabilitybackend.schema.batches import BatchAnswers, Batches, BatchSamples
from stabilitybackend.server.api.access import Commander, Reader, Recorded, Worker
from stabilitybackend.server.api.answers import answer, answers

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/runs/{run_id}", tags=["runs"])


@router.get("/batches", responses=answers(Batches))
async def batches(
    reader: Reader,
    worker: Worker,
    stretch: Annotated[list[str] | None, Query(description="two, each FIRST-LAST: their common samples")] = None,
    size: Annotated[list[str] | None, Query(description="NAME:SAMPLES of a data set: unseen ones are counted")] = None,
) -> Response:
    """Repeated data, how often samples were used, and the reports missing for that."""
    stretches = [_stretch(text) for text in stretch or ()]
    if len(stretches) not in (0, 2):
        raise BadRequest(f"{len(stretches)} stretches were given, expected two", hint="stretch=0-99&stretch=100-199")
    pair = (stretches[0], stretches[1]) if stretches else None
    state = await worker.ready()
    others = shared_data(state.incidents.all())
    make = view_of(state.batches, state.fold.tree.path(), dict(map(_size, size or ())), pair, others)
    return await asyncio.to_thread(lambda: answer(make()))


@router.get("/batch_samples", responses=answers(BatchAnswers))
async def batch_answers(reader: Reader, worker: Worker) -> Response:
    """Ranks that keep their newest batches, and their answers to the newest commands, newest first."""
    return answer((await worker.ready()).kept.view())


@router.get("/batch_samples/{request}", responses=answers(BatchSamples))
async def batch_samples(request: str, commander: Commander, worker: Worker, record: Recorded) -> Response:
    """The worst samples of the batches that the ranks kept, as one order was answered: for who may order it."""
    found = (await worker.ready()).kept.get(request)
    if found is None:
        raise NotFound(
            f"run {worker.run_id} has no samples of {request!r}",
            hint="list them with GET .../batch_samples; the newest 8 are kept",
        )
    await record.saw(commander, "see.samples")
    return answer(found)


def _stretch(text: str) -> Stretch:
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) < 2**53):
        raise BadRequest(f"stretch is {text[:80]!r}, expected FIRST-LAST, two steps", hint="stretch=0-99")
    return int(first), int(last)


def _size(text: str) -> tuple[str, int]:
    name, _, samples = text.rpartition(":")
    if not samples.isdecimal() or len(samples) > 15:
        raise BadRequest(f"size is {text[:80]!r}, expected NAME:SAMPLES", hint="size=web:1000000, or size=:1000000")
    return name, int(samples)
