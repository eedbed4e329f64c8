"""Delivery to one receiver: the rate bound, the mark before and after a message, and the only retry loop."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from msgspec.structs import replace
from redis.exceptions import RedisError

from .alert import Alert, Notice, idempotency_key, incident_url, plan_url
from .due import DueLater
from .errors import BadAlert, SendError
from .lease import Interrupted, Lease, pause
from .notification_log import NotificationLog, Record
from .routing import Rules
from .server import SinkContext
from .sink import Sink
from .stages import Job, Stopped, run_stages
from .storms import AGAIN_S, SUMMARY, Storm, Storms

#: The same problem with a receiver is logged at most once in so many seconds.
LOG_EVERY_S = 60.0
#: A receiver without a success for so long, seconds, counts as away.
STUCK_S = 120.0

__all__ = ["STUCK_S", "Interrupted", "Notifier", "RetryPolicy"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retries and the rate bound.

    Args:
        first_s: pause after the first failure, doubled after each further one, seconds.
        longest_s: longest pause, seconds; also the limit of a receiver's ``Retry-After``.
        give_up_s: a notice is given up and counted after so many seconds, to let others pass.
        per_second: messages a second to one receiver in the long run. Slack takes about one.
        burst: messages without a pause.
    """

    first_s: float = 1.0
    longest_s: float = 60.0
    give_up_s: float = 3_600.0
    per_second: float = 1.0
    burst: int = 10


class Notifier:
    """Delivers events to one receiver, in order, each change once.

    The promise over a crash at any moment: a mark is written right before a message, and another one after the answer.
    A crash in between leaves the fate open. An idempotent receiver then gets the same message again, with the same
    key. At any other the message counts as arrived, since the answer takes far longer than the request: no repeat,
    and a loss only if the crash falls into the millisecond between mark and message. A failure without a crash is
    always retried, even without an answer in time, so a receiver slower than the time-out can get a message twice.

    Args:
        lease: asked before each attempt; without it the delivery is broken off.
        stop: set when the service ends.

    Attributes:
        counts: events by outcome: the reason of the stage that stopped them, ``sent``, ``known`` (the receiver has it
            from elsewhere), ``refused``, ``given_up``, ``unsure`` (fate open after a crash, not repeated), ``found``
            and ``lost`` (the same, where the receiver could be asked; a lost one is sent), and ``retries``.
        stuck_since: first failure since the last success, monotonic seconds; None without one.
    """

    def __init__(
        self, sink: Sink, context: SinkContext, retry_policy: RetryPolicy, lease: Lease, stop: asyncio.Event
    ) -> None:
        self.sink = sink
        self.counts: Counter[str] = Counter()
        self.due = DueLater(context.redis, sink.name)
        self._notifications = NotificationLog(context.redis, sink.name, lease)
        self.storms = Storms(context.redis, sink.name, self._notifications)
        self._server = context.server
        self._outcomes = context.outcomes
        self._retry_policy = retry_policy
        self._lease = lease
        self._stop = stop
        self._tokens = float(retry_policy.burst)
        self._tokens_at = time.monotonic()
        self._logged_at = float("-inf")
        self.stuck_since: float | None = None

    def pause(self) -> None:
        """Forget failures: another process sends now."""
        self.stuck_since = None

    async def deliver(self, stream: str, alert: Alert, rules: Rules, now: float) -> float | None:
        """Deliver or stop one event, and count its outcome.

        Args:
            rules: routes and mutes. now: unix seconds.

        Returns:
            When to judge the incident again, unix seconds; None: at its next change.

        Raises:
            Interrupted: the service stops, or another process may send now.
        """
        record = await self._read(stream, alert.incident_id)
        if record.sending is not None and not self.sink.idempotent:
            record, _ = await self._after_crash(stream, alert, record)
        found = run_stages(await self._job(stream, Job(alert, self.sink, record, rules=rules, now=now)))
        if isinstance(found, Job):
            found = await self._sent(stream, found)
        elif found.reason == "unchanged":
            self.sink.follow(stream, alert)
        self.counts[found.reason] += 1
        return found.again

    async def _job(self, stream: str, job: Job) -> Job:
        """Return a job with the records of its train and its cause."""
        alert = job.alert
        if alert.follows:
            job = dataclasses.replace(job, train_sent=(await self._read(stream, alert.train)).state != "")
        if alert.caused_by:
            lead = await self._patiently(lambda: self._lead(alert)) if alert.is_open else None
            job = dataclasses.replace(job, cause=await self._read(stream, alert.caused_by), lead=lead)
        return job

    async def _sent(self, stream: str, job: Job) -> Stopped:
        """Send a job, or count it in a storm."""
        alert = job.alert
        # A receiver that groups by itself gets every incident; an escalation is not held back a second time.
        alone = job.change != "opened" or not self.sink.rate_bound or bool(job.why)
        if not alone and await self._patiently(lambda: self._held_back(stream, alert, job.now)):
            return Stopped("grouped", job.now + AGAIN_S)
        if job.change == "resolved":
            # The members since the last summary first: no message follows the end of an incident.
            for storm in await self._patiently(lambda: self.storms.unreported(alert)):
                await self.report(storm, alert)
            job = dataclasses.replace(job, record=await self._read(stream, alert.incident_id))
        outcome = await self._send(stream, job)
        if outcome == "sent" and job.change == "opened" and not alert.is_open:
            await self._close(stream, job)
        if outcome == "sent" and not alone:
            await self._patiently(lambda: self.storms.sent(stream, alert, job.now))
        if alert.follows and not job.train_sent:  # the first one ended before it could be sent
            await self._write(stream, alert.train, Record("over"))
        return Stopped(outcome)

    async def _close(self, stream: str, job: Job) -> None:
        """Close an incident that had ended when its opening was sent, where alerts stay open."""
        if self.sink.idempotent:
            record = await self._read(stream, job.alert.incident_id)
            await self._send(stream, dataclasses.replace(job, record=record, change="resolved"))
        else:
            await self._write(stream, job.alert.incident_id, Record("over", job.alert.severity, job.alert.version))

    async def _held_back(self, stream: str, alert: Alert, now: float) -> bool:
        storm = await self.storms.join(stream, alert, now)
        if storm is not None and len(storm.members) > storm.reported:  # not at each later look at a counted one
            await self.due.put(SUMMARY, storm.key, "", now + storm.summary_s, sooner=True)
        return storm is not None

    async def report(self, storm: Storm, alert: Alert) -> None:
        """Send the summary of a storm behind its first incident, ``alert`` in its current state.

        Raises:
            Interrupted: the service stops, or another process may send now.
        """
        record = await self._read(storm.stream, storm.incident_id)
        serial = len(storm.members)
        arrived = False
        if record.sending is not None and not self.sink.idempotent:
            same = (record.sending, record.sending_serial) == ("grouped", serial)
            record, found = await self._after_crash(storm.stream, alert, record)
            arrived = same and found
        outcome = "known"
        if not arrived:
            # In the state of the last message: changes since are messages of their own.
            shown = replace(alert, version=record.version, severity=storm.severity)
            job = Job(shown, self.sink, record, change="grouped", why=storm.text())
            outcome = await self._send(storm.stream, job, serial)
        self.counts["summaries" if outcome == "sent" else outcome] += 1
        await self._patiently(lambda: self.storms.reported(storm))

    async def _lead(self, alert: Alert) -> Alert | None:
        """Return the current state of the incident that ``alert`` follows from; None where it is gone."""
        if self._server.incidents_now is None:
            return None
        (stored,) = await self._server.incidents_now(alert.run_id, [alert.caused_by])
        try:
            return None if stored is None else replace(Alert.from_json(stored), project=alert.project)
        except BadAlert as error:
            _log.warning("alerting: incident %s is skipped: %s", alert.caused_by, error)
            return None

    async def _after_crash(self, stream: str, alert: Alert, record: Record) -> tuple[Record, bool]:
        """Find the fate of the message in flight; return the record after it, and whether it has arrived.

        Where the receiver can't be asked, it counts as arrived.
        """
        assert record.sending is not None
        incident_id = alert.incident_id
        key = idempotency_key(incident_id, record.sending_version, record.sending, record.sending_serial)
        location = alert.caused_by if record.sending == "handed_over" else incident_id
        arrived = await self.sink.arrived(stream, location, key)
        record = record.without_sending() if arrived is False else record.after_sending()
        self.counts["unsure" if arrived is None else "found" if arrived else "lost"] += 1
        if arrived is None:
            _log.warning(
                "%s: a message about incident %s was in flight when the last process died; it is not sent again",
                self.sink.name,
                incident_id,
            )
        await self._write(stream, incident_id, record)
        return record, arrived is not False

    async def _send(self, stream: str, job: Job, serial: int = 0) -> str:
        """Send the notice of a job until it arrives or has to be given up; return the outcome."""
        notice = self._notice(stream, job, serial)
        incident_id = job.alert.incident_id
        before = job.record.without_sending()
        in_flight = before.with_sending(notice)
        if await self._patiently(lambda: self.sink.knows(notice)):
            await self._write(stream, incident_id, in_flight.after_sending())
            return "known"
        mark = partial(self._notifications.write, stream, incident_id, in_flight)
        began = time.monotonic()
        pause_s = self._retry_policy.first_s
        while True:
            await self._wait_for_turn()
            if not self._lease.held():
                raise Interrupted
            try:
                await self.sink.send(notice, mark)
            except SendError as error:
                await self._write(stream, incident_id, before)
                if (outcome := await self._failed(error, incident_id, time.monotonic() - began)) is not None:
                    return outcome
                await self._sleep(min(max(pause_s, error.retry_after_s or 0.0), self._retry_policy.longest_s))
                pause_s = min(2 * pause_s, self._retry_policy.longest_s)
            except (RedisError, OSError) as error:
                self._note(error)  # the mark could not be written: nothing has left yet
                await self._sleep(self._retry_policy.first_s)
            else:
                self.stuck_since = None
                await self._write(stream, incident_id, in_flight.after_sending())
                if self.sink.rate_bound:  # the others log the answer of their receiver themselves
                    await self._outcomes.accepted(self.sink.name)
                return "sent"

    def _notice(self, stream: str, job: Job, serial: int) -> Notice:
        assert job.change is not None
        shown = job.alert
        why = job.why
        by = None
        if job.change == "handed_over" and job.lead is not None:
            shown = job.lead
            why = job.alert.text
            by = job.alert
        record = job.record
        # The incident may have changed since a crash: the receiver has to recognize the message, not its new state.
        same = (record.sending, record.sending_serial) == (job.change, serial)
        return Notice(
            shown,
            job.change,
            incident_url(self._server.base_url, shown.run_id, shown.incident_id),
            plan_url(self._server.base_url, shown.run_id),
            why,
            stream,
            serial,
            by,
            record.sending_version if same else 0,
        )

    async def _failed(self, error: SendError, incident_id: str, waited_s: float) -> str | None:
        """Note a failed attempt; return the outcome of a message that is not tried again."""
        await self._outcomes.refused(self.sink.name, error)
        if not error.recoverable:
            self.stuck_since = None  # it answers
            _log.error("alert refused, not tried again: %s (incident %s)", error, incident_id)
            return "refused"
        if waited_s >= self._retry_policy.give_up_s:
            _log.error("alert given up after %.0f s: %s (incident %s)", waited_s, error, incident_id)
            return "given_up"
        self._note(error)
        self.counts["retries"] += 1
        return None

    async def _wait_for_turn(self) -> None:
        """Wait until the rate bound allows one more message."""
        while self.sink.rate_bound:
            now = time.monotonic()
            refill = (now - self._tokens_at) * self._retry_policy.per_second
            self._tokens = min(float(self._retry_policy.burst), self._tokens + refill)
            self._tokens_at = now
            if self._tokens >= 1.0:
                self._tokens -= 1.0
                return
            self.counts["rate_waits"] += 1
            await self._sleep((1.0 - self._tokens) / self._retry_policy.per_second)

    async def _read(self, stream: str, incident_id: str) -> Record:
        return await self._patiently(lambda: self._notifications.read(stream, incident_id))

    async def _write(self, stream: str, incident_id: str, record: Record) -> None:
        await self._patiently(lambda: self._notifications.write(stream, incident_id, record))

    async def _patiently(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """Repeat work with Redis until it succeeds or the service stops."""
        before = self.stuck_since
        while True:
            try:
                done = await work()
            except (RedisError, OSError) as error:
                self._note(error)
                await self._sleep(self._retry_policy.first_s)
            else:
                self.stuck_since = before
                return done

    async def _sleep(self, seconds: float) -> None:
        if await pause(self._stop, seconds):
            raise Interrupted

    def _note(self, error: Exception) -> None:
        now = time.monotonic()
        if self.stuck_since is None:
            self.stuck_since = now
        if now - self._logged_at >= LOG_EVERY_S:
            self._logged_at = now
            _log.warning("alerts to %s wait, trying again: %s", self.sink.name, error)
