"""The alerting service: reads incident events from Redis streams and delivers them to the receivers."""

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

from .alert import Alert
from .errors import BadAlert
from .lease import KEY, Interrupted, Lease, pause
from .notification_log import NotificationLog
from .notifier import STUCK_S, Notifier, RetryPolicy
from .outcomes import Outcomes
from .routing import Rules
from .server import Server, SinkContext
from .sink import Sink, secrets_hidden
from .storms import SUMMARY
from .stream_reader import BLOCK_MS, StreamReader

#: Prefix of a receiver's consumer group on each stream: receivers do not wait for each other.
GROUP = "alerting"
#: After so many seconds without renewal another process takes over.
LEASE_S = 6.0
#: Pause after an internal error, seconds.
FAILED_PAUSE_S = 5.0
#: An event is skipped after so many internal errors, so that those behind it get their turn.
MISTAKES = 3
#: A part counts as failing for so long after its last error, seconds: several retries, and less than two beats of the
#: heart, so that a short failure wakes no one.
FAILING_S = 15.0
#: The same failure is logged at most once in so many seconds.
LOG_EVERY_S = 60.0

__all__ = ["AlertingService"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Failures:
    """The newest internal error of each part, for the heartbeat."""

    def __init__(self) -> None:
        #: Name of a part -> time of its last error, monotonic seconds, and its type.
        self._newest: dict[str, tuple[float, str]] = {}
        self._logged: dict[str, float] = {}

    def note(self, name: str, error: Exception) -> None:
        """Note an error. The log gets the traceback, a watcher outside only the type: the text could hold a secret."""
        now = time.monotonic()
        self._newest[name] = (now, type(error).__name__)
        if now - self._logged.get(name, float("-inf")) >= LOG_EVERY_S:
            self._logged[name] = now
            _log.error("alerting: %s failed and is tried again", name, exc_info=error)

    def now(self) -> list[str]:
        """Return a line for each part that fails now."""
        oldest = time.monotonic() - FAILING_S
        return [f"{name} fails ({kind})" for name, (at, kind) in self._newest.items() if at >= oldest]


class AlertingService:
    """Notifies receivers of incidents that open, become critical, or end.

    Each receiver has a consumer group of its own on each stream. An event is acknowledged when its message has
    arrived or never will, so the next process finishes the work of a killed one, and its log prevents a second
    message (see ``Notifier``). One of several processes sends, under a lease; the others stand by.

    Args:
        sinks: the receivers; without any the service idles.
        lease_s: after so many seconds without renewal another process takes over.

    Attributes:
        sinks: the receivers.
        outcomes: log of accepted and refused messages, by receiver.
        unreadable: events that were no incidents.

    Raises:
        ValueError: two receivers have one name.
    """

    def __init__(
        self,
        redis: Redis,
        server: Server,
        sinks: Sequence[Sink],
        *,
        retry_policy: RetryPolicy | None = None,
        lease_s: float = LEASE_S,
    ) -> None:
        names = [sink.name for sink in sinks]
        if len(set(names)) != len(names):
            raise ValueError(f"sinks are named {names}, expected each name once")
        self.sinks = list(sinks)
        self.outcomes = Outcomes(redis, server.clock)
        self.unreadable = 0
        self._redis = redis
        self._server = server
        self._retry_policy = retry_policy or RetryPolicy()
        owner = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}"
        self._lease = Lease(redis, KEY, owner, lease_s, server.may_send)
        self._context = SinkContext(redis, server, self._lease.held, self.outcomes)
        self._notifiers: list[Notifier] = []
        self._failures = Failures()
        #: Receiver, stream and event -> internal errors.
        self._mistakes: dict[tuple[str, str, str | bytes], int] = {}

    async def notified(self, stream: str, incident_id: str) -> list[str]:
        """Return the names of the receivers that were sent an incident. Raises RedisError when it is away."""
        logs = [(sink.name, NotificationLog(self._redis, sink.name)) for sink in self.sinks]
        return [name for name, log in logs if (await log.read(stream, incident_id)).state]

    def status(self) -> dict[str, Any]:
        """Return the receivers and the outcomes of their events, without secrets."""
        return {
            "sinks": [sink.name for sink in self.sinks],
            "sending": self._lease.held(),
            "unreadable": self.unreadable,
            "counts": {notifier.sink.name: dict(notifier.counts) for notifier in self._notifiers},
        }

    def problem(self) -> str:
        """Return why alerts may reach no receiver, "" while they do.

        One receiver that is away is no reason: the others get theirs, and it is tried again.
        """
        found = [self._lease.problem(), *self._failures.now()]
        since = [notifier.stuck_since for notifier in self._notifiers]
        now = time.monotonic()
        if since and all(at is not None and now - at >= STUCK_S for at in since):
            found.append(f"no receiver takes what is sent, for {STUCK_S / 60:.0f} min and more")
        return "; ".join(filter(None, found))

    def outcome_names(self) -> list[str]:
        """Return the names in ``outcomes``."""
        return [name for sink in self.sinks for name in sink.outcome_names()]

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set; returns after the current attempt to send."""
        await self._restarting("alerting", self._run, stop)

    async def _restarting(
        self, name: str, work: Callable[[asyncio.Event], Awaitable[None]], stop: asyncio.Event
    ) -> None:
        """Run a part until it returns; restart it after an internal error."""
        while True:
            try:
                await work(stop)
                return
            except Exception as error:
                self._failures.note(name, error)
                if await pause(stop, FAILED_PAUSE_S):
                    return

    async def _run(self, stop: asyncio.Event) -> None:
        if not self.sinks:
            _log.info("alerting: no receiver is set up (docs/alerting.md), nothing will be sent")
            await stop.wait()
            return
        _log.info("alerting: notifying %s", ", ".join(sink.name for sink in self.sinks))
        self._notifiers = [Notifier(sink, self._context, self._retry_policy, self._lease, stop) for sink in self.sinks]
        for sink in self.sinks:
            sink.begin(self._context)
        with secrets_hidden(secret for sink in self.sinks for secret in sink.secrets):
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._lease.keep(stop), name="alerting-lease")
                    for sink in self.sinks:
                        serving = self._restarting(sink.name, sink.serve, stop)
                        tasks.create_task(serving, name=f"alerting-{sink.name}-serve")
                    for notifier in self._notifiers:
                        tasks.create_task(self._notify(notifier, stop), name=f"alerting-{notifier.sink.name}")
            finally:
                for sink in self.sinks:
                    await sink.aclose()

    async def _notify(self, notifier: Notifier, stop: asyncio.Event) -> None:
        reader = StreamReader(self._redis, f"{GROUP}:{notifier.sink.name}")
        while not stop.is_set():
            if not self._lease.held():
                notifier.pause()
                reader.forget()
                await pause(stop, 0.05)
                continue
            try:
                streams = await self._server.streams()
                if not streams:
                    await pause(stop, BLOCK_MS / 1000)
                await self._deliver_due(notifier)
                for stream, entry_id, fields in await _unless(stop, reader.read(streams)):
                    work = partial(self._handle, notifier, stream, entry_id, fields)
                    await self._tried(notifier, stream, entry_id, work)
                    await reader.done(stream, entry_id)
            except Interrupted:
                notifier.pause()
                reader.forget()
            except Exception as error:
                # An internal error must end neither the alerts of other receivers nor further ones of this one.
                reader.forget()
                self._failures.note(notifier.sink.name, error)
                await pause(stop, 0.5 if isinstance(error, RedisError | OSError) else FAILED_PAUSE_S)

    async def _tried(
        self, notifier: Notifier, stream: str, event: str | bytes, work: Callable[[], Awaitable[None]]
    ) -> bool:
        """Handle one event. An internal error is raised; at the third the event is skipped, which returns True."""
        key = (notifier.sink.name, stream, event)
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
            _log.error("%s: event %s of %s is skipped after %d internal errors", key[0], event, stream, MISTAKES)
        return self._mistakes.pop(key, 0) == MISTAKES

    async def _handle(
        self, notifier: Notifier, stream: str, entry_id: bytes, fields: dict[bytes, bytes] | None
    ) -> None:
        try:
            alert = Alert.from_json((fields or {})[b"i"])
        except (BadAlert, KeyError) as error:
            self.unreadable += 1
            _log.warning("alerting: an event of %s is skipped: %s", stream, error)
            return
        if self._server.is_news is not None and not await self._server.is_news(stream, entry_id, alert):
            notifier.counts["history"] += 1
            return
        await self._deliver(notifier, stream, alert)

    async def _deliver_due(self, notifier: Notifier) -> None:
        """Deliver incidents that were to wait until now: a mute has ended, or there was no acknowledgement."""
        if self._server.incidents_now is None:
            return
        for stream, run_id, incident_id in await notifier.due.ripe(self._server.clock()):
            work = partial(self._recheck, notifier, stream, run_id, incident_id)
            if await self._tried(notifier, stream, f"{run_id} {incident_id}", work):
                await notifier.due.drop(stream, run_id, incident_id)

    async def _recheck(self, notifier: Notifier, stream: str, run_id: str, incident_id: str) -> None:
        assert self._server.incidents_now is not None
        if stream == SUMMARY:
            await self._report_storm(notifier, run_id)
            return
        (stored,) = await self._server.incidents_now(run_id, [incident_id])
        again = None
        if stored is not None:
            try:
                again = await self._deliver(notifier, stream, Alert.from_json(stored))
            except BadAlert as error:
                self.unreadable += 1
                _log.warning("alerting: incident %s of run %s is skipped: %s", incident_id, run_id, error)
        if again is None:
            await notifier.due.drop(stream, run_id, incident_id)

    async def _report_storm(self, notifier: Notifier, key: str) -> None:
        """Send the summary of a storm, if it has unreported members."""
        storm = await notifier.storms.summary(key)
        if storm is not None and self._server.incidents_now is not None:
            (stored,) = await self._server.incidents_now(storm.run_id, [storm.incident_id])
            first = None if stored is None else Alert.from_json(stored)
            if first is not None and first.is_open:
                await notifier.report(storm, first)
        await notifier.due.drop(SUMMARY, key, "")

    async def _deliver(self, notifier: Notifier, stream: str, alert: Alert) -> float | None:
        """Deliver an incident in its current state; return when to judge it again, None where that has no time."""
        if self._server.project_of is not None and not alert.project:
            alert = replace(alert, project=await self._server.project_of(alert.run_id))
        rules = Rules() if self._server.rules is None else await self._server.rules()
        again = await notifier.deliver(stream, alert, rules, self._server.clock())
        if again is not None:
            await notifier.due.put(stream, alert.run_id, alert.incident_id, again)
        return again


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of ``work``; cancel it when ``stop`` is set.

    Raises:
        Interrupted: ``stop`` was set first.
    """
    task = asyncio.create_task(work)
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Interrupted
        return task.result()
    finally:
        for running in (task, stopped):
            running.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)
