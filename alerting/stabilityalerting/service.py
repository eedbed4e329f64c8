"""Reads incident events from Redis streams and brings them to the receivers."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace
from redis.asyncio import Redis
from redis.exceptions import RedisError

from .actions import Actions
from .alert import Alert
from .errors import BadAlert
from .failures import Failures
from .lease import KEY, Interrupted, Lease, pause
from .notification_log import NotificationLog
from .notifier import STUCK_S, Notifier, RetryPolicy
from .outcomes import Outcomes
from .routing.rules import Rules
from .sink import Sink, secrets_hidden
from .storms import SUMMARY
from .stream_reader import BLOCK_MS, StreamReader
from .surroundings import ChangesSince, IncidentsNow, Surroundings

#: Consumer group of a receiver on each stream is ``alerting:<sink>``: receivers do not wait for each other.
GROUP = "alerting"
#: After so many seconds without renewal another process takes over.
LEASE_S = 6.0
#: Pause after a mistake of ours, seconds: somebody may have mended it, a restart of Redis for example.
FAILED_PAUSE_S = 5.0
#: An event on which we fail so often is passed over: those behind it must not wait for ever.
MISTAKES = 3

__all__ = ["AlertingService"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class AlertingService:
    """Notifies the receivers of what opens, gets critical and ends.

    Each receiver has a consumer group of its own on each stream. An event is acknowledged when its message has
    arrived or never will, so what a killed process left is done by the next one; its log keeps it from being sent
    twice (see ``Notifier``). One process at a time sends, under a lease; others wait. Several processes may run, for
    the next one to take over.

    Args:
        list_streams: gives the names of the streams, asked again with each read, some four times a second.
        sinks: the receivers; none: the service idles and says so.
        base_url: of the pages, for links. clock: unix seconds now.
        lease_s: after so many seconds without renewal another process takes over.
        is_news: says of a stream, an entry's id and its alert whether anybody is to hear of it; None: of all.
        rules: gives routes and mutes as they are now; None: each receiver gets everything.
        project_of: the project of a run; None: nobody knows.
        incidents_now, trouble, actions, changes_since: see ``Surroundings``.
        may_send: whether this process may be the one that sends.
    """

    def __init__(
        self,
        redis: Redis,
        list_streams: Callable[[], Awaitable[list[str]]],
        sinks: Sequence[Sink],
        base_url: str,
        clock: Callable[[], float],
        *,
        retry_policy: RetryPolicy | None = None,
        lease_s: float = LEASE_S,
        is_news: Callable[[str, bytes, Alert], Awaitable[bool]] | None = None,
        rules: Callable[[], Awaitable[Rules]] | None = None,
        project_of: Callable[[str], Awaitable[str]] | None = None,
        incidents_now: IncidentsNow | None = None,
        trouble: Callable[[], str] | None = None,
        actions: Actions | None = None,
        changes_since: ChangesSince | None = None,
        may_send: Callable[[], bool] = lambda: True,
    ) -> None:
        names = [sink.name for sink in sinks]
        if len(set(names)) != len(names):
            raise ValueError(f"sinks are named {names}, expected each name once")
        self._redis = redis
        self._list_streams = list_streams
        self._is_news = is_news
        self._rules = rules
        self._project_of = project_of
        self._sinks = list(sinks)
        self._base_url = base_url
        self._clock = clock
        self._retry_policy = retry_policy or RetryPolicy()
        owner = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}"
        self._lease = Lease(redis, KEY, owner, lease_s, may_send)
        #: What was accepted and refused last, by receiver.
        self.outcomes = Outcomes(redis, clock)
        held = self._lease.held
        self._surroundings = Surroundings(
            redis, base_url, clock, held, self.outcomes, trouble, incidents_now, actions, changes_since
        )
        self._notifiers: list[Notifier] = []
        self._failures = Failures()
        #: Receiver and event -> how often we failed on it.
        self._mistakes: dict[tuple[str, str, str | bytes], int] = {}
        #: Events that were no incidents.
        self.unreadable = 0

    @property
    def sinks(self) -> list[Sink]:
        """The receivers."""
        return self._sinks

    async def notified(self, stream: str, incident_id: str) -> list[str]:
        """Return the names of the receivers that were sent an incident. Raises RedisError when it is away."""
        logs = [(sink.name, NotificationLog(self._redis, sink.name)) for sink in self._sinks]
        return [name for name, log in logs if (await log.read(stream, incident_id)).told]

    def status(self) -> dict[str, Any]:
        """Return what is set up and what became of the events, by receiver; no secret is in it."""
        return {
            "sinks": [sink.name for sink in self._sinks],
            "sending": self._lease.held(),
            "unreadable": self.unreadable,
            "counts": {notifier.sink.name: dict(notifier.counts) for notifier in self._notifiers},
        }

    def trouble(self) -> str:
        """Return why alerts may reach nobody, "" while they do.

        One receiver that is away is no reason: the others are told, and it is tried again.
        """
        found = [self._lease.trouble(), *self._failures.now()]
        since = [notifier.stuck_since for notifier in self._notifiers]
        now = time.monotonic()
        if since and all(at is not None and now - at >= STUCK_S for at in since):
            found.append(f"no receiver takes what is sent, for {STUCK_S / 60:.0f} min and more")
        return "; ".join(filter(None, found))

    def outcome_names(self) -> list[str]:
        """Return the names under which ``outcomes`` has what receivers accepted and refused."""
        return [name for sink in self._sinks for name in sink.outcome_names()]

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set; returns after the attempt to send that is under way."""
        await self._go_on("alerting", self._run, stop)

    async def _go_on(self, name: str, work: Callable[[asyncio.Event], Awaitable[None]], stop: asyncio.Event) -> None:
        """Do what ends when ``stop`` is set; after a mistake of ours in it, again."""
        while True:
            try:
                await work(stop)
                return
            except Exception as error:
                self._failures.note(name, error)
                if await pause(stop, FAILED_PAUSE_S):
                    return

    async def _run(self, stop: asyncio.Event) -> None:
        if not self._sinks:
            _log.info("alerting: no receiver is set up (docs/alerting.md), nothing will be sent")
            await stop.wait()
            return
        _log.info("alerting: notifying %s", ", ".join(sink.name for sink in self._sinks))
        self._notifiers = [
            Notifier(
                sink,
                self._redis,
                self._base_url,
                self._retry_policy,
                self._lease,
                stop,
                self.outcomes,
                self._surroundings.incidents_now,
            )
            for sink in self._sinks
        ]
        for sink in self._sinks:
            sink.begin(self._surroundings)
        with secrets_hidden(secret for sink in self._sinks for secret in sink.secrets):
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._lease.keep(stop), name="alerting-lease")
                    for sink in self._sinks:
                        tasks.create_task(self._go_on(sink.name, sink.serve, stop), name=f"alerting-{sink.name}-serve")
                    for notifier in self._notifiers:
                        tasks.create_task(self._serve(notifier, stop), name=f"alerting-{notifier.sink.name}")
            finally:
                for sink in self._sinks:
                    await sink.aclose()

    async def _serve(self, notifier: Notifier, stop: asyncio.Event) -> None:
        reader = StreamReader(self._redis, f"{GROUP}:{notifier.sink.name}")
        while not stop.is_set():
            if not self._lease.held():
                notifier.stuck_since = None
                reader.forget()
                await pause(stop, 0.05)
                continue
            try:
                streams = await self._list_streams()
                if not streams:
                    await pause(stop, BLOCK_MS / 1000)
                await self._deliver_due(notifier)
                for stream, entry_id, fields in await _unless(stop, reader.read(streams)):
                    work = partial(self._handle, notifier, stream, entry_id, fields)
                    await self._tried(notifier, stream, entry_id, work)
                    await reader.done(stream, entry_id)
            except Interrupted:
                notifier.stuck_since = None  # another process may send now
                reader.forget()
            except Exception as error:
                # A fault of ours must not end the alerts of the other receivers, nor all further ones of this one.
                reader.forget()
                self._failures.note(notifier.sink.name, error)
                await pause(stop, 0.5 if isinstance(error, RedisError | OSError) else FAILED_PAUSE_S)

    async def _tried(
        self, notifier: Notifier, stream: str, which: str | bytes, work: Callable[[], Awaitable[None]]
    ) -> bool:
        """Do what one event asks for. A mistake of ours on it is raised; at the third it is passed over, and True."""
        key = (notifier.sink.name, stream, which)
        try:
            await work()
        except (Interrupted, RedisError, OSError):
            raise
        except Exception as error:
            self._mistakes[key] = self._mistakes.get(key, 0) + 1
            if self._mistakes[key] < MISTAKES:
                raise
            self._failures.note(notifier.sink.name, error)
            notifier.counts["mistakes"] += 1
            _log.error("%s: event %s of %s is passed over, we failed on it %d times", key[0], which, stream, MISTAKES)
        return self._mistakes.pop(key, 0) == MISTAKES

    async def _handle(
        self, notifier: Notifier, stream: str, entry_id: bytes, fields: dict[bytes, bytes] | None
    ) -> None:
        try:
            alert = Alert.from_json((fields or {})[b"i"])
        except (BadAlert, KeyError) as error:
            self.unreadable += 1
            _log.warning("alerting: an event of %s is passed over: %s", stream, error)
            return
        if self._is_news is not None and not await self._is_news(stream, entry_id, alert):
            notifier.counts["history"] += 1
            return
        await self._deliver(notifier, stream, alert)

    async def _deliver_due(self, notifier: Notifier) -> None:
        """Deliver what was to wait until now: a mute is over, or nobody has acknowledged it."""
        if self._surroundings.incidents_now is None:
            return
        for stream, run_id, incident_id in await notifier.due.ripe(self._clock()):
            work = partial(self._recheck, notifier, stream, run_id, incident_id)
            if await self._tried(notifier, stream, f"{run_id} {incident_id}", work):
                await notifier.due.drop(stream, run_id, incident_id)

    async def _recheck(self, notifier: Notifier, stream: str, run_id: str, incident_id: str) -> None:
        assert self._surroundings.incidents_now is not None
        if stream == SUMMARY:
            await self._report_storm(notifier, run_id)
            return
        (stored,) = await self._surroundings.incidents_now(run_id, [incident_id])
        again = None
        if stored is not None:
            try:
                again = await self._deliver(notifier, stream, Alert.from_json(stored))
            except BadAlert as error:
                self.unreadable += 1
                _log.warning("alerting: incident %s of run %s is passed over: %s", incident_id, run_id, error)
        if again is None:
            await notifier.due.drop(stream, run_id, incident_id)

    async def _report_storm(self, notifier: Notifier, key: str) -> None:
        """Send the summary of a storm, if there is more to say."""
        storm = await notifier.storms.summary(key)
        if storm is not None and self._surroundings.incidents_now is not None:
            (stored,) = await self._surroundings.incidents_now(storm.run_id, [storm.incident_id])
            first = None if stored is None else Alert.from_json(stored)
            if first is not None and first.is_open:
                await notifier.report(storm, first)
        await notifier.due.drop(SUMMARY, key, "")

    async def _deliver(self, notifier: Notifier, stream: str, alert: Alert) -> float | None:
        """Deliver an incident as it is; returns when it is looked at again, None where that has no time."""
        if self._project_of is not None and not alert.project:
            alert = replace(alert, project=await self._project_of(alert.run_id))
        rules = Rules() if self._rules is None else await self._rules()
        again = await notifier.deliver(stream, alert, rules, self._clock())
        if again is not None:
            await notifier.due.put(stream, alert.run_id, alert.incident_id, again)
        return again


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of ``work``; break it off when ``stop`` is set.

    Raises:
        Interrupted: ``stop`` was set first.
    """
    task, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Interrupted
        return task.result()
    finally:
        for running in (task, stopped):
            running.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)
