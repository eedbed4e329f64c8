"""Acknowledgements made while the run had no owner: shown, given to alerting, written down by the next owner.

A person who acknowledges at three in the morning goes back to bed: a lost one pages the next person. Only an owner
writes incidents (decision 28), so it waits separately, the first person's for each incident.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from importlib import resources
from typing import Any

import msgspec
from redis.asyncio import Redis

from stabilitybackend.base.keys import MAX_REPORTS, RunKeys
from stabilitybackend.runs.ownership.fence import Fence
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.storage.redis_link import redis_errors

__all__ = ["Acknowledged", "Acknowledgement", "Patiently", "read_acknowledged"]

#: Repeats a call while Redis is away, and returns its result.
Patiently = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
_log = logging.getLogger(__name__)


class Acknowledgement(msgspec.Struct, frozen=True):
    """Who takes care of an incident, since ``at``, unix seconds."""

    who: str
    at: float


def read_acknowledged(stored: Mapping[bytes, bytes]) -> dict[str, Acknowledgement]:
    """Return the acknowledgements in a run's hash, by incident."""
    found = dict[str, Acknowledgement]()
    for incident_id, data in stored.items():
        try:
            found[incident_id.decode()] = msgspec.json.decode(data, type=Acknowledgement)
        except msgspec.MsgspecError as error:  # of a newer server: left unchanged
            _log.warning("an acknowledgement of %s is passed over: %s", incident_id.decode(), error)
    return found


class Acknowledged:
    """Those of one run.

    Args:
        run_id: must have passed ``check_run_id``.

    Attributes:
        waiting: as they were stored when ``load`` was called last, by incident.
    """

    def __init__(self, run_id: str, redis: Redis) -> None:
        self._run_id = run_id
        self._redis = redis
        self._keys = RunKeys(run_id)
        self.waiting: dict[str, Acknowledgement] = {}

    async def load(self) -> None:
        """Read which wait. Raises RedisError when Redis is away."""
        stored: Any = await self._redis.hgetall(self._keys.acknowledged)
        self.waiting = read_acknowledged(stored)

    async def put(self, incident_id: str, who: str, now: float) -> None:
        """Store one, unless there is an earlier one. Raises Unavailable when Redis is away."""
        data = msgspec.json.encode(Acknowledgement(who, now))
        with redis_errors():
            await self._redis.eval(_PUT, 2, self._keys.acknowledged, self._keys.reports, incident_id, data, MAX_REPORTS)
            await self.load()

    def given(self, state: RunState, now: float) -> dict[str, Incident]:
        """Acknowledge the incidents for which one waits; return those that this changed."""
        changed = dict[str, Incident]()
        for incident_id, one in self.waiting.items():
            before = state.incidents.get(incident_id)
            after = state.incidents.acknowledge(incident_id, one.who, now, one.at)
            if after is not None and after is not before:
                changed[incident_id] = after
        return changed

    async def taken(self, names: Collection[str], fence: Fence, patiently: Patiently) -> None:
        """Forget those of some incidents, which are stored now. Raises NotOwner: the run has another owner."""
        await patiently(partial(fence.write, ("HDEL", self._keys.acknowledged, *names)))
        for name in names:
            self.waiting.pop(name, None)


_PUT = resources.files("stabilitybackend.runs.orders").joinpath("acknowledge.lua").read_text(encoding="utf-8")
