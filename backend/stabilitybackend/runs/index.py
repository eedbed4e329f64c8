"""The list of runs and what is stored about each beside its frames."""

from __future__ import annotations

from typing import Any

import orjson
from redis.asyncio import Redis

from stabilitybackend.keys import RUNS, RunKeys
from stabilityclient.wire import Hello

__all__ = ["RunIndex", "announced"]

#: Runs listed at once; older ones are found by their id.
MAX_LISTED = 500
_EMPTY_VIEW: dict[str, Any] = {
    "latest": {}, "last_step": None, "effective_points": 0, "dead_points": 0, "status": "unreachable",
    "note": "no points yet", "head": 0, "world_size": 1,
    "world": {"now": 1, "before": None, "since_step": None, "gpus": None},
    "ranks": [], "metrics": [], "open_incidents": 0, "rollbacks": 0, "agents": 0,
    "twins": False, "unreadable": {"passed_over": 0, "defects": 0, "fields": 0, "named": []},
}  # fmt: skip


def announced(hello: Hello) -> dict[str, Any]:
    """Return what an agent says of its run, project, name and config, as ``RunIndex.stored`` has it afterwards."""
    said = {"project": hello.project, "name": hello.name, "config": orjson.loads(_config(hello))}
    return {name: value for name, value in said.items() if value}


def _config(hello: Hello) -> bytes:
    return orjson.dumps(hello.config, option=orjson.OPT_NON_STR_KEYS)


class RunIndex:
    """Reads and writes the index of runs in Redis."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def register(self, hello: Hello, now: float) -> None:
        """Note a run that an agent announces. Name, project and config are the newest that were sent."""
        keys = RunKeys(hello.run_id)
        pipe = self._redis.pipeline(transaction=True)
        pipe.hsetnx(keys.meta, "created", repr(now))
        facts = {name: value for name, value in (("project", hello.project), ("name", hello.name)) if value}
        if hello.config:
            facts["config"] = _config(hello).decode()
        if facts:
            pipe.hset(keys.meta, mapping=facts)  # type: ignore[arg-type]
        await pipe.execute()
        await self._redis.zadd(RUNS, {hello.run_id: now}, nx=True)

    async def exists(self, run_id: str) -> bool:
        """Return whether there is such a run."""
        return await self._redis.zscore(RUNS, run_id) is not None

    async def ids(self) -> list[str]:
        """Return the newest MAX_LISTED run ids, newest first."""
        found: Any = await self._redis.zrevrange(RUNS, 0, MAX_LISTED - 1)
        return [run_id.decode() for run_id in found]

    async def created_before(self, time: float, offset: int, count: int) -> list[str]:
        """Return ``count`` ids of the runs created before ``time`` (unix seconds), oldest first, from ``offset`` on."""
        found: Any = await self._redis.zrangebyscore(RUNS, "-inf", f"({time!r}", start=offset, num=count)
        return [run_id.decode() for run_id in found]

    async def stored(self, run_id: str) -> dict[str, Any]:
        """Return the Run of docs/api.md as it was stored last."""
        found: Any = await self._redis.hgetall(RunKeys(run_id).meta)
        meta: dict[str, bytes] = {k.decode(): v for k, v in found.items()}
        view = orjson.loads(meta["view"]) if "view" in meta else {}
        created = float(meta.get("created", 0))
        return {
            "run_id": run_id,
            "project": meta.get("project", b"").decode(),
            "name": meta.get("name", b"").decode() or run_id,
            "config": orjson.loads(meta.get("config", b"{}")),
            "created": created,
            "updated": float(meta.get("updated", created)),
            **_EMPTY_VIEW,
            **view,
        }

    async def has_frames(self, run_id: str) -> bool:
        """Return whether the stream of a run holds anything."""
        return bool(await self._redis.xlen(RunKeys(run_id).frames))

    async def forget(self, run_id: str) -> None:
        """Remove every key of a run, and it from the list."""
        await self._redis.unlink(*RunKeys(run_id).all())
        await self._redis.zrem(RUNS, run_id)

    async def save_view(self, run_id: str, view: dict[str, Any], updated: float) -> None:
        """Store what the worker knows, for the time when no worker runs."""
        fields: Any = {"view": orjson.dumps(view), "updated": repr(updated)}
        await self._redis.hset(RunKeys(run_id).meta, mapping=fields)
