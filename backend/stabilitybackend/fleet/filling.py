"""Reads once, when the server starts, what runs have stored that is held over all of them: their names, incidents.

In the background and in slices, so that the server serves meanwhile; what a run reports in between is newer and stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from redis.asyncio import Redis

from stabilitybackend.base.keys import RUNS, RUNS_WITH_INCIDENTS, RunKeys
from stabilitybackend.fleet.catalog import Catalog
from stabilitybackend.fleet.incident_list import IncidentList
from stabilitybackend.schema.fleet import FoundRun

__all__ = ["fill"]

#: Runs read in one call to Redis.
_BATCH = 50


class _Counted(msgspec.Struct):
    """What of a run's stored view is read here."""

    rollbacks: int = 0


async def fill(redis: Redis, catalog: Catalog, incidents: IncidentList, went_back: Callable[[str, bool], None]) -> None:
    """Read all runs, those with the newest incidents first.

    Args:
        went_back: told of each run whether it has rollbacks.

    Raises:
        RedisError: Redis is away; what was read stays, and may be read again.
    """
    found: Any = await redis.zrevrange(RUNS, 0, -1, withscores=True)
    created = {run_id.decode(): score for run_id, score in found}
    ill: Any = await redis.zrevrange(RUNS_WITH_INCIDENTS, 0, -1)
    first = [run_id.decode() for run_id in ill if run_id.decode() in created]
    have_incidents = set(first)
    order = [*first, *(run_id for run_id in created if run_id not in have_incidents)]
    for at in range(0, len(order), _BATCH):
        some = order[at : at + _BATCH]
        pipe = redis.pipeline(transaction=False)
        for run_id in some:
            pipe.hmget(RunKeys(run_id).meta, "name", "project", "view")
            if run_id in have_incidents:
                pipe.hvals(RunKeys(run_id).incidents)
        answers = iter(await pipe.execute())
        for run_id in some:
            name, project, view = next(answers)
            catalog.put(FoundRun(run_id, (name or b"").decode(), (project or b"").decode(), created[run_id]))
            went_back(run_id, _rollbacks(view) > 0)
            if run_id in have_incidents:
                incidents.stored(run_id, next(answers))
            await asyncio.sleep(0)
    incidents.complete = True


def _rollbacks(view: bytes | None) -> int:
    try:
        return msgspec.json.decode(view or b"{}", type=_Counted).rollbacks
    except msgspec.MsgspecError:
        return 0
