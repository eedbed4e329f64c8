"""Annotations at steps of a run: ``/api/v1/runs/{run_id}/annotations``. Shapes: docs/annotations.md."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Depends, Response
from msgspec.structs import asdict

from stabilitybackend.runs.annotations import AnnotationBook
from stabilitybackend.schema.lineage import Annotation, AnnotationRequest, Annotations, ChangedAnnotation
from stabilitybackend.server.api.access import Commander, Reader, Recorded, RedisClients, Worker
from stabilitybackend.server.api.answers import answer, answers

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/runs/{run_id}/annotations", tags=["annotations"])


async def _book(clients: RedisClients, worker: Worker) -> AnnotationBook:
    state = await worker.ready()  # the lineage decides the segment of a step
    return AnnotationBook(worker.run_id, clients.redis, state.fold.tree)


Book = Annotated[AnnotationBook, Depends(_book)]


def _publish(worker: Worker, changed: ChangedAnnotation) -> None:
    """Let the run's browsers know; one that was away asks for all of them when it comes back."""
    worker.channel.publish({"type": "annotation", **asdict(changed)})


@router.get("", responses=answers(Annotations))
async def every(reader: Reader, book: Book) -> Response:
    """The annotations of the run, by step."""
    return answer(Annotations(await book.all()))


@router.post("", status_code=201, responses=answers(Annotation, 201))
async def annotate(
    body: AnnotationRequest, commander: Commander, worker: Worker, book: Book, record: Recorded
) -> Response:
    """Annotate a step or a range of steps; the author is that of the key."""
    request = AnnotationRequest(body.text, body.step, body.first_step, body.last_step, body.metric, body.segment)
    changed = await book.add(request, commander.name, time.time())
    await record.did(commander, "annotation.made", changed.annotation_id)
    _publish(worker, changed)
    return answer(changed.annotation, 201)


@router.put("/{annotation_id}", responses=answers(Annotation))
async def change(
    annotation_id: str,
    body: AnnotationRequest,
    commander: Commander,
    worker: Worker,
    book: Book,
    record: Recorded,
) -> Response:
    """Change an annotation of any author, or create it, so that an import may be repeated."""
    changed = await book.put(annotation_id, body, commander.name, time.time())
    await record.did(commander, "annotation.changed", annotation_id)
    _publish(worker, changed)
    return answer(changed.annotation)


@router.delete("/{annotation_id}", responses=answers(ChangedAnnotation))
async def delete(annotation_id: str, commander: Commander, worker: Worker, book: Book, record: Recorded) -> Response:
    """Delete an annotation of any author."""
    changed = await book.delete(annotation_id, commander.name, time.time())
    await record.did(commander, "annotation.deleted", annotation_id)
    _publish(worker, changed)
    return answer(changed)
