"""The list of runs and the facts stored about each, without its frames."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson
from msgspec import structs
from redis.asyncio import Redis

from stabilitybackend.base.errors import BadRequest
from stabilitybackend.base.keys import RUNS, RUNS_ACTIVE, RUNS_FOLLOWED, RUNS_LIVE, RUNS_WITH_INCIDENTS, RunKeys
from stabilitybackend.runs.shown_state import stated
from stabilitybackend.schema.incidents import Incident, decoded
from stabilitybackend.schema.job.about import MAX_NOTES_CHARS, MAX_TAG_CHARS, MAX_TAGS, AboutEdit
from stabilitybackend.schema.pages.run_table import RunDigest
from stabilitybackend.schema.reading import Misfit
from stabilitybackend.schema.runs import Followed, Run, RunView
from stabilityclient.wire import Hello

__all__ = ["BATCH", "IndexPage", "RunIndex", "announced", "changed"]

#: Runs looked at in one call to Redis.
BATCH = 200


def announced(hello: Hello) -> dict[str, Any]:
    """Return an agent's report of its run, project, name and config, as ``RunIndex.stored`` has it afterwards."""
    config = orjson.loads(orjson.dumps(hello.config, option=orjson.OPT_NON_STR_KEYS))
    tags = [tag[:MAX_TAG_CHARS] for tag in hello.tags[:MAX_TAGS]]
    facts = {"project": hello.project, "name": hello.name, "config": config, "tags": tags}
    return {name: value for name, value in facts.items() if value}


@dataclass(frozen=True, slots=True)
class IndexPage:
    """Some of the runs, newest first.

    Attributes:
        ids: of the runs on this page.
        total: of all runs, on whatever page.
        next: cursor of the page after it, None on the last one.
    """

    ids: list[str]
    total: int
    next: str | None


class RunIndex:
    """Reads and writes the index of runs in Redis."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def register(self, hello: Hello, now: float) -> None:
        """Note a run that an agent announces. Name, project and config are the newest that were sent."""
        keys = RunKeys(hello.run_id)
        pipe = self._redis.pipeline(transaction=True)
        pipe.hsetnx(keys.meta, "created", repr(now))
        facts = announced(hello)
        for name in facts.keys() & {"config", "tags"}:
            facts[name] = orjson.dumps(facts[name]).decode()
        if hello.notes:
            facts["notes"] = hello.notes[:MAX_NOTES_CHARS]
        if facts:
            pipe.hset(keys.meta, mapping=facts)  # type: ignore[arg-type]
        await pipe.execute()
        await self._redis.zadd(RUNS, {hello.run_id: now}, nx=True)
        await self._redis.zadd(RUNS_ACTIVE, {hello.run_id: now})
        if "imported_from" in hello.config:
            since = Followed.of(hello.config).since
            if since is None:
                await self._redis.zrem(RUNS_FOLLOWED, hello.run_id)
            else:
                await self._redis.zadd(RUNS_FOLLOWED, {hello.run_id: since})

    async def note_live(self, run_id: str, now: float) -> None:
        """Note that a worker has to follow a run, from ``now`` (unix seconds) on."""
        await self._redis.zadd(RUNS_LIVE, {run_id: now}, nx=True)

    async def note_ended(self, run_id: str) -> None:
        """Note that a run needs no follower any more."""
        await self._redis.zrem(RUNS_LIVE, run_id)

    async def live(self) -> list[str]:
        """Return the runs that workers have to follow, those longest live first."""
        found: Any = await self._redis.zrange(RUNS_LIVE, 0, -1)
        return [run_id.decode() for run_id in found]

    async def exists(self, run_id: str) -> bool:
        """Return whether there is such a run."""
        return await self._redis.zscore(RUNS, run_id) is not None

    async def existing(self, run_ids: Sequence[str]) -> list[str]:
        """Return those of some runs that are there, in their order."""
        scores: Any = await self._redis.zmscore(RUNS, list(run_ids)) if run_ids else []
        return [run_id for run_id, score in zip(run_ids, scores, strict=True) if score is not None]

    async def project(self, run_id: str) -> str | None:
        """Return the project of a run, "" where it has none, None where there is no such run."""
        pipe = self._redis.pipeline(transaction=False)
        pipe.zscore(RUNS, run_id)
        pipe.hget(RunKeys(run_id).meta, "project")
        score, project = await pipe.execute()
        return None if score is None else (project or b"").decode()

    async def incident(self, run_id: str, incident_id: str) -> Incident | None:
        """Return an incident as its run's owner stored it last, None where there is none that can be read."""
        stored: Any = await self._redis.hget(RunKeys(run_id).incidents, incident_id)
        try:
            return None if stored is None else decoded(stored)
        except Misfit:
            return None

    async def ids(self) -> list[str]:
        """Return the ids of all runs, newest first."""
        found: Any = await self._redis.zrevrange(RUNS, 0, -1)
        return [run_id.decode() for run_id in found]

    async def page(self, limit: int, cursor: str | None = None, project: str | None = None) -> IndexPage:
        """Return ``limit`` ids, newest first: the first ones, or those after ``cursor``.

        Runs made or deleted since the last page was requested neither repeat nor hide any other. With a project only
        its runs are there, for the count too.

        Raises:
            BadRequest: the cursor is none that a page gave.
        """
        start = 0 if cursor is None else await self._after(cursor)
        if project is not None:
            return await self._page_of(project, limit, start)
        found: Any = await self._redis.zrevrange(RUNS, start, start + limit - 1, withscores=True)
        total = int(await self._redis.zcard(RUNS))
        more = bool(found) and start + len(found) < total
        return IndexPage(
            [run_id.decode() for run_id, _ in found],
            total,
            f"{found[-1][1]!r}:{found[-1][0].decode()}" if more else None,
        )

    async def _page_of(self, project: str, limit: int, start: int) -> IndexPage:
        every: Any = await self._redis.zrevrange(RUNS, 0, -1, withscores=True)
        pipe = self._redis.pipeline(transaction=False)
        for run_id, _ in every:
            pipe.hget(RunKeys(run_id.decode()).meta, "project")
        projects: Any = await pipe.execute()
        ours = [at for at, found in enumerate(projects) if (found or b"").decode() == project]
        rest = [every[at] for at in ours if at >= start]
        last = rest[limit - 1] if len(rest) > limit else None
        return IndexPage(
            [run_id.decode() for run_id, _ in rest[:limit]],
            len(ours),
            None if last is None else f"{last[1]!r}:{last[0].decode()}",
        )

    async def _after(self, cursor: str) -> int:
        """Return the place after the run that a cursor names, or where it was if it is gone."""
        created, _, run_id = cursor.partition(":")
        try:
            score = float(created)
        except ValueError:
            score = float("nan")
        if score != score or not run_id:
            raise BadRequest(f"cursor is {cursor[:80]!r}, expected the value of 'next' in the page before")
        newer = int(await self._redis.zcount(RUNS, f"({score!r}", "+inf"))
        same: Any = await self._redis.zrangebyscore(RUNS, repr(score), repr(score))  # in the order of their ids
        return newer + sum(1 for other in same if other >= run_id.encode())

    async def active_since(self, time: float) -> list[str]:
        """Return the ids of the runs that reported since ``time`` (unix seconds), newest first."""
        return await self._since(RUNS_ACTIVE, time)

    async def with_incidents_since(self, time: float) -> list[str]:
        """Return the ids of the runs of which an incident changed since ``time``, newest change first."""
        return await self._since(RUNS_WITH_INCIDENTS, time)

    async def followed(self) -> dict[str, float]:
        """Return the runs whose logs are followed -> start of their news, unix seconds."""
        found: Any = await self._redis.zrange(RUNS_FOLLOWED, 0, -1, withscores=True)
        return {run_id.decode(): since for run_id, since in found}

    async def _since(self, key: str, time: float) -> list[str]:
        found: Any = await self._redis.zrevrangebyscore(key, "+inf", repr(time))
        return [run_id.decode() for run_id in found]

    async def complete(self) -> None:
        """Note when runs last reported, and their incidents changed, that an older version stored without it."""
        known = set(await self.active_since(float("-inf")))
        missing = [run_id for run_id in await self.ids() if run_id not in known]
        for run in await self.stored_all(missing):
            last: Any = await self._redis.xrevrange(RunKeys(run.run_id).incident_events, count=1)
            if last:
                changed = int(last[0][0].partition(b"-")[0]) / 1000
                await self._redis.zadd(RUNS_WITH_INCIDENTS, {run.run_id: changed}, nx=True)
            await self._redis.zadd(RUNS_ACTIVE, {run.run_id: run.updated}, nx=True)

    async def created_before(self, time: float, offset: int, count: int) -> list[str]:
        """Return ``count`` ids of the runs created before ``time`` (unix seconds), oldest first, from ``offset`` on."""
        found: Any = await self._redis.zrangebyscore(RUNS, "-inf", f"({time!r}", start=offset, num=count)
        return [run_id.decode() for run_id in found]

    async def stored(self, run_id: str) -> Run:
        """Return a run as it was stored last."""
        return (await self.stored_all([run_id]))[0]

    async def stored_all(self, run_ids: Sequence[str]) -> list[Run]:
        """Return several of them, in one call for BATCH."""
        runs: list[Run] = []
        for at in range(0, len(run_ids), BATCH):
            some = run_ids[at : at + BATCH]
            pipe = self._redis.pipeline(transaction=False)
            for run_id in some:
                pipe.hgetall(RunKeys(run_id).meta)
            runs += map(_run, some, await pipe.execute())
        return runs

    async def count(self) -> int:
        """Return how many runs there are."""
        return int(await self._redis.zcard(RUNS))

    async def digests(self, run_ids: Sequence[str]) -> dict[str, RunDigest]:
        """Return the derived results of some runs, where stored and readable."""
        pipe = self._redis.pipeline(transaction=False)
        for run_id in run_ids:
            pipe.hget(RunKeys(run_id).meta, "digest")
        found = dict[str, RunDigest]()
        for run_id, stored in zip(run_ids, await pipe.execute(), strict=True):
            with contextlib.suppress(msgspec.MsgspecError):
                if stored is not None:
                    found[run_id] = msgspec.json.decode(stored, type=RunDigest)
        return found

    async def about(self, run_id: str) -> tuple[str, AboutEdit | None]:
        """Return the job's notes, and the edits of users."""
        found: Any = await self._redis.hmget(RunKeys(run_id).meta, ["notes", "about"])
        notes, edit = found
        return (notes or b"").decode(), _edit(edit)

    async def edit(self, run_id: str, edit: AboutEdit) -> None:
        """Store the edits of users, and note their author."""
        data = msgspec.json.encode(edit)
        pipe = self._redis.pipeline(transaction=True)
        pipe.hset(RunKeys(run_id).meta, "about", data)
        pipe.xadd(RunKeys(run_id).command_audit, {"n": data})
        await pipe.execute()

    async def has_frames(self, run_id: str) -> bool:
        """Return whether the stream of a run holds anything."""
        return bool(await self._redis.xlen(RunKeys(run_id).frames))

    async def forget(self, run_id: str) -> bool:
        """Remove every key of a run, and it from the lists; return False where another process was faster."""
        await self._redis.unlink(*RunKeys(run_id).all())
        for key in (RUNS_ACTIVE, RUNS_FOLLOWED, RUNS_LIVE, RUNS_WITH_INCIDENTS):
            await self._redis.zrem(key, run_id)
        return bool(await self._redis.zrem(RUNS, run_id))

    async def note_reported(self, run_id: str, updated: float) -> None:
        """Note when a run last reported, unix seconds; not of one that is being deleted."""
        await self._redis.zadd(RUNS_ACTIVE, {run_id: updated}, xx=True)


def _run(run_id: str, found: Mapping[bytes, bytes]) -> Run:
    """Return the run that a hash of meta facts describes."""
    meta: dict[str, bytes] = {k.decode(): v for k, v in found.items()}
    created = float(meta.get("created", 0))
    tags: list[str] = orjson.loads(meta.get("tags", b"[]"))
    return Run(
        run_id=run_id,
        project=meta.get("project", b"").decode(),
        config=orjson.loads(meta.get("config", b"{}")),
        **{"name": meta.get("name", b"").decode() or run_id, "tags": tags} | changed(_edit(meta.get("about"))),
        created=created,
        updated=float(meta.get("updated", created)),
        **structs.asdict(_view(meta.get("view", b"{}"))),
    )


def changed(edit: AboutEdit | None) -> dict[str, Any]:
    """Return the user-edited fields of a Run."""
    if edit is None:
        return {}
    return {name: value for name in ("name", "tags") if (value := getattr(edit, name)) is not None}


def _edit(stored: bytes | None) -> AboutEdit | None:
    try:
        return None if stored is None else msgspec.json.decode(stored, type=AboutEdit)
    except msgspec.MsgspecError:  # of a newer version
        return None


def _view(stored: bytes) -> RunView:
    """Return the stored view of a run; one of an unreadable version is as one without points."""
    try:
        view = msgspec.json.decode(stored, type=RunView)
    except msgspec.MsgspecError:
        view = RunView()
    return stated(view)  # older versions stored none
