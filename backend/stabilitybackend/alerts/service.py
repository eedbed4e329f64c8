"""The alerting service of this server: its streams, its news, its receivers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from redis.asyncio import Redis

from stabilityalerting import (
    Actions,
    Alert,
    AlertingService,
    AlertingSettingsError,
    Heartbeat,
    Outcomes,
    Server,
    Sink,
    heartbeat_from_env,
    sinks_from_env,
)
from stabilitybackend.alerts.changes import RecordedChanges
from stabilitybackend.alerts.rules import AlertRules
from stabilitybackend.base.errors import SettingsError
from stabilitybackend.base.keys import RUNS_WITH_INCIDENTS, RunKeys
from stabilitybackend.base.settings import Settings
from stabilitybackend.base.streams import stream_order
from stabilitybackend.runs.index import RunIndex
from stabilitybackend.runs.orders.acknowledged import Acknowledgement, read_acknowledged

__all__ = ["IncidentStreams", "alert_rules", "alerting_service", "heartbeat", "receivers"]

#: Runs with a changed incident within this time are read, seconds: a receiver that was away for days catches up.
READ_FOR_S = 7 * 86_400.0
#: The list of streams is cached for so long, seconds, without a new run.
NAMES_S = 1.0
#: The history of a followed log counts as judged after so long at the latest, seconds, where the clock of Redis is
#: ahead: a minute is enough for some ten million points.
JUDGED_AFTER_S = 60.0


@dataclass(frozen=True)
class _Head:
    """The end of the history of a log that is followed ``since`` then.

    Attributes:
        frame: id of the newest frame at ``noticed_at``, monotonic seconds.
        incident: id of the newest change of an incident after that frame was judged; None before.
    """

    since: float
    frame: str
    noticed_at: float
    incident: str | None = None


class _Versioned(msgspec.Struct):
    """The version of a stored incident."""

    version: int = 0


class IncidentStreams:
    """Streams of incidents of the runs that are sent.

    Incidents of an imported run are on its page alone: they happened long ago. Of a run whose log is followed, those of
    its history are sent that are still open at its end.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._index = RunIndex(redis)
        self._imported: dict[str, bool] = {}
        self._projects: dict[str, str] = {}
        self._heads: dict[str, _Head] = {}
        self._newest: Any = None
        self._names: list[str] = []
        self._named_at = float("-inf")

    async def names(self) -> list[str]:
        """Return the streams to read now; the list is read again after a new run, and once a second."""
        newest: Any = await self._redis.zrevrange(RUNS_WITH_INCIDENTS, 0, 0, withscores=True)
        now = time.monotonic()
        if newest != self._newest or now - self._named_at >= NAMES_S:
            self._names = await self._every_name()
            self._newest = newest
            self._named_at = now
        return self._names

    async def _every_name(self) -> list[str]:
        ids = await self._index.with_incidents_since(time.time() - READ_FOR_S)
        for gone in self._imported.keys() - set(ids):
            del self._imported[gone]
            self._projects.pop(gone, None)
        unknown = [run_id for run_id in ids if run_id not in self._imported]
        for run in await self._index.stored_all(unknown):
            self._imported[run.run_id] = "imported_from" in run.config
            self._projects[run.run_id] = run.project
        followed = await self._index.followed()
        for over in self._heads.keys() - followed.keys():
            del self._heads[over]
        return [
            RunKeys(run_id).incident_events
            for run_id in ids
            if not self._imported[run_id] or (run_id in followed and await self._is_live(run_id, followed[run_id]))
        ]

    async def project_of(self, run_id: str) -> str:
        """Return the project of a run, "" where it has none."""
        if run_id not in self._projects:
            return await self._index.project(run_id) or ""
        return self._projects[run_id]

    async def incidents_now(self, run_id: str, incident_ids: list[str]) -> list[bytes | None]:
        """Return current states of incidents of a run as JSON, None for each that is gone.

        An acknowledgement that waits for an owner of the run counts: no further receiver is notified.
        """
        keys = RunKeys(run_id)
        pipe = self._redis.pipeline(transaction=False)
        pipe.hmget(keys.incidents, incident_ids)
        pipe.hgetall(keys.acknowledged)
        found, waiting = await pipe.execute()
        acknowledged = read_acknowledged(waiting)
        return [_with(stored, acknowledged.get(name)) for name, stored in zip(incident_ids, found, strict=True)]

    async def is_news(self, stream: str, entry_id: bytes, alert: Alert) -> bool:
        """Return whether an event is to be sent: of a followed log's history the newest state of each incident."""
        head = self._heads.get(alert.run_id)
        if head is None or head.incident is None or stream_order(entry_id.decode()) > stream_order(head.incident):
            return True
        stored: Any = await self._redis.hget(RunKeys(alert.run_id).incidents, alert.incident_id)
        return stored is not None and alert.version >= msgspec.json.decode(stored, type=_Versioned).version

    async def _is_live(self, run_id: str, since: float) -> bool:
        """Return whether the log up to the start of its follower has been judged."""
        keys = RunKeys(run_id)
        head = self._heads.get(run_id)
        if head is None or head.since != since:
            newest: Any = await self._redis.xrevrange(keys.frames, count=1)
            head = self._heads[run_id] = _Head(since, newest[0][0].decode() if newest else "0-0", time.monotonic())
        if head.incident is None:
            judged: Any = await self._redis.hget(keys.meta, "updated")
            behind = round(1000 * float(judged or 0)) < stream_order(head.frame)[0]
            if behind and time.monotonic() - head.noticed_at < JUDGED_AFTER_S:
                return False
            last: Any = await self._redis.xrevrange(keys.incident_events, count=1)
            self._heads[run_id] = replace(head, incident=last[0][0].decode() if last else "0-0")
        return True


def _with(stored: bytes | None, acknowledged: Acknowledgement | None) -> bytes | None:
    if stored is None or acknowledged is None:
        return stored
    incident = msgspec.json.decode(stored)
    if incident.get("acknowledged_by") is None:
        incident |= {"acknowledged_by": acknowledged.who, "acknowledged": acknowledged.at}
    return msgspec.json.encode(incident)


def alert_rules(redis: Redis, settings: Settings, sinks: Sequence[Sink], clock: Callable[[], float]) -> AlertRules:
    """Return the routes and mutes of this server; ``clock`` returns unix seconds.

    Raises:
        SettingsError: the file of routes is wrong.
    """
    return AlertRules(redis, [sink.name for sink in sinks], settings.alert_routes, clock=clock)


def alerting_service(
    redis: Redis,
    settings: Settings,
    sinks: Sequence[Sink],
    rules: AlertRules,
    problem: Callable[[], str],
    actions: Actions | None = None,
    *,
    clock: Callable[[], float],
    may_send: Callable[[], bool] = lambda: True,
) -> AlertingService:
    """Return the service that turns incident events into messages; idle where there is no receiver.

    Args:
        clock: unix seconds now.
        problem: reason why the server is not healthy, "" while it is.
        actions: available from within a message.
        may_send: whether this process may be the one that sends.
    """
    streams = IncidentStreams(redis)
    server = Server(
        streams.names,
        base_url=settings.pages_url or f"http://{settings.host}:{settings.port}",
        clock=clock,
        is_news=streams.is_news,
        rules=rules.now,
        project_of=streams.project_of,
        incidents_now=streams.incidents_now,
        problem=problem,
        actions=actions,
        changes_since=RecordedChanges(redis).since,
        may_send=may_send,
    )
    return AlertingService(redis, server, sinks)


def receivers(added: Sequence[type[Sink]]) -> list[Sink]:
    """Return the receivers in the environment.

    Args:
        added: channels of plug-ins.

    Raises:
        SettingsError: a value has the wrong form, or needs a package that is not installed.
    """
    with _settings():
        return sinks_from_env(os.environ, added)


def heartbeat(outcomes: Outcomes, problem: Callable[[], str]) -> Heartbeat | None:
    """Return the heartbeat for a watcher outside, None where none is set up. Raises: as ``receivers``."""
    with _settings():
        return heartbeat_from_env(os.environ, outcomes, problem)


@contextmanager
def _settings() -> Iterator[None]:
    """Turn a wrong variable of alerting into a setting error of the server, which stops its start."""
    try:
        yield
    except AlertingSettingsError as error:
        raise SettingsError(
            str(error), hint="set it as docs/alerting.md has it, or unset the variables of this receiver"
        ) from error
