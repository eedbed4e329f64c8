"""Notes of users at steps of a run: kept in Redis, sent to its browsers, gone when the run is deleted.

Nothing follows from an annotation, so the fold never reads one: they are read on request.
"""

from __future__ import annotations

import re
import secrets
from typing import Any

import msgspec
from msgspec import structs
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from stabilitybackend.base.errors import BadRequest, Conflict, NotFound
from stabilitybackend.base.keys import RunKeys
from stabilitybackend.lineage.tree import SegmentTree
from stabilitybackend.schema.lineage import MAX_ANNOTATION_CHARS, Annotation, AnnotationRequest, ChangedAnnotation
from stabilitybackend.storage.redis_link import redis_errors
from stabilityclient.wire import MAX_NAME_CHARS, MAX_STEP

__all__ = ["MAX_ANNOTATIONS", "AnnotationBook"]

#: Annotations of one run; more would be lost on a chart.
MAX_ANNOTATIONS = 1_000
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class AnnotationBook:
    """The annotations of one run.

    Args:
        tree: of the run now; decides the segment of a step, and whether it is dead.
    """

    def __init__(self, run_id: str, redis: Redis, tree: SegmentTree) -> None:
        self._run_id = run_id
        self._redis = redis
        self._keys = RunKeys(run_id)
        self._tree = tree

    async def all(self) -> list[Annotation]:
        """Return them by first step, as they stand in the lineage of now. Raises Unavailable when Redis is away."""
        with redis_errors():
            stored: Any = await self._redis.hvals(self._keys.annotations)
        found = [self._shown(msgspec.json.decode(data, type=Annotation)) for data in stored]
        return sorted(found, key=lambda one: (one.first_step, one.last_step, one.created))

    async def add(self, request: AnnotationRequest, who: str, now: float) -> ChangedAnnotation:
        """Store a new one. Raises BadRequest where a field is out of range, Conflict where there are too many."""
        return await self._new(f"a-{secrets.token_hex(8)}", request, who, now)

    async def put(self, annotation_id: str, request: AnnotationRequest, who: str, now: float) -> ChangedAnnotation:
        """Change one; one that is not there is made under that id, so that an import may be repeated.

        Raises:
            BadRequest: a field is out of range, or the id can't be one.
            Conflict: there are too many.
        """
        if not _ID.fullmatch(annotation_id):
            raise BadRequest(
                f"annotation id {annotation_id[:80]!r} can't be used: expected 1 to 64 letters, digits, '.', '_' or '-'"
            )
        known = await self._stored(annotation_id)
        if known is None:
            return await self._new(annotation_id, request, who, now)
        text = _text(request.text)
        steps = _steps(request) if _names_steps(request) else (known.first_step, known.last_step)
        updated = structs.replace(
            known, first_step=steps[0], last_step=steps[1], text=text, metric=_metric(request.metric),
            segment=self._segment(request, steps[0], known),
        )  # fmt: skip
        if updated == known:  # sent again, as its answer got lost: nothing was edited
            return ChangedAnnotation(annotation_id, self._shown(known))
        if request.author is None:  # the same import again edits nothing here
            updated = structs.replace(updated, edited_by=who, edited=now)
        return await self._store(updated, "changed", who, now)

    async def delete(self, annotation_id: str, who: str, now: float) -> ChangedAnnotation:
        """Delete one; the run's record of changes keeps its text. Raises NotFound where there is none."""
        known = await self._stored(annotation_id)
        if known is None:
            raise NotFound(
                f"run {self._run_id} has no annotation {annotation_id[:80]!r}",
                hint="list them with GET .../annotations",
            )
        with redis_errors():
            pipe: Pipeline = self._redis.pipeline(transaction=True)
            pipe.hdel(self._keys.annotations, annotation_id)
            pipe.xadd(self._keys.command_audit, {"a": _audit("deleted", known, who, now)})
            await pipe.execute()
        return ChangedAnnotation(annotation_id, None)

    async def _new(self, annotation_id: str, request: AnnotationRequest, who: str, now: float) -> ChangedAnnotation:
        text = _text(request.text)
        first, last = _steps(request)
        with redis_errors():
            count = int(await self._redis.hlen(self._keys.annotations))
        if count >= MAX_ANNOTATIONS:
            raise Conflict(
                f"run {self._run_id} has {count} annotations, expected fewer than {MAX_ANNOTATIONS}",
                hint="delete some that nobody needs",
            )
        imported = request.author is not None
        made = Annotation(
            annotation_id, first, last, text, _metric(request.metric), self._segment(request, first, None),
            author=request.author if request.author is not None else who,
            created=request.created if imported and request.created is not None else now,
            imported_by=who if imported else None,
        )  # fmt: skip
        return await self._store(made, "made", who, now)

    async def _store(self, annotation: Annotation, what: str, who: str, now: float) -> ChangedAnnotation:
        with redis_errors():
            pipe: Pipeline = self._redis.pipeline(transaction=True)
            pipe.hset(self._keys.annotations, annotation.annotation_id, msgspec.json.encode(annotation))
            pipe.xadd(self._keys.command_audit, {"a": _audit(what, annotation, who, now)})
            await pipe.execute()
        return ChangedAnnotation(annotation.annotation_id, self._shown(annotation))

    async def _stored(self, annotation_id: str) -> Annotation | None:
        with redis_errors():
            data: Any = await self._redis.hget(self._keys.annotations, annotation_id)
        return None if data is None else msgspec.json.decode(data, type=Annotation)

    def _segment(self, request: AnnotationRequest, first_step: int, known: Annotation | None) -> int:
        if request.segment is not None:
            if not 0 <= request.segment < len(self._tree):
                raise BadRequest(
                    f"segment is {request.segment}, expected 0 to {len(self._tree) - 1}",
                    hint="list them with GET .../segments, or leave it out",
                )
            return request.segment
        if known is not None and known.first_step == first_step:
            return known.segment
        return self._tree.segment_at(self._tree.head, first_step)

    def _shown(self, stored: Annotation) -> Annotation:
        """Return one with its place in the lineage; a segment that is not there (any more) is taken for the first."""
        known = 0 <= stored.segment < len(self._tree)
        return structs.replace(stored, dead=known and self._tree.is_dead(stored.segment, stored.first_step))


def _text(text: str) -> str:
    shortened = text.strip()
    if not 1 <= len(shortened) <= MAX_ANNOTATION_CHARS:
        raise BadRequest(
            f"text has {len(shortened)} characters, expected 1 to {MAX_ANNOTATION_CHARS}",
            hint="say what is to be seen there" if not shortened else "shorten it, or link to where the rest is",
        )
    return shortened


def _metric(metric: str | None) -> str | None:
    if metric is not None and not 1 <= len(metric) <= MAX_NAME_CHARS:
        raise BadRequest(
            f"metric has {len(metric)} characters, expected 1 to {MAX_NAME_CHARS}", hint="name one, or none"
        )
    return metric


def _names_steps(request: AnnotationRequest) -> bool:
    return any(at is not None for at in (request.step, request.first_step, request.last_step))


def _steps(request: AnnotationRequest) -> tuple[int, int]:
    given = request.first_step, request.last_step
    if (request.step is None) == (given == (None, None)) or (request.step is None and None in given):
        raise BadRequest(
            f"step is {request.step}, first_step {given[0]}, last_step {given[1]}: "
            "expected step, or both of the others",
            hint="give step=120, or first_step=120 and last_step=160",
        )
    first, last = (request.step, request.step) if request.step is not None else given
    assert first is not None
    assert last is not None
    if not 0 <= first <= last <= MAX_STEP:
        raise BadRequest(
            f"first_step is {first}, last_step {last}: expected 0 <= first_step <= last_step <= {MAX_STEP}",
            hint="give the smaller one first",
        )
    return first, last


def _audit(what: str, annotation: Annotation, who: str, now: float) -> bytes:
    return msgspec.json.encode({"what": what, "who": who, "time": now, "annotation": annotation})
