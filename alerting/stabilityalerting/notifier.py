"""Delivers one notice to one receiver: rate bound, the mark before and after, and the only place that tries again."""

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
from redis.asyncio import Redis
from redis.exceptions import RedisError

from .alert import Alert, Notice, idempotency_key, incident_url, plan_url
from .errors import BadAlert, SendError
from .lease import Interrupted, Lease, pause
from .notification_log import NotificationLog, Record
from .outcomes import Outcomes
from .routing.due import DueLater
from .routing.rules import Rules
from .sink import Sink
from .stages import Job, run_stages
from .storms import AGAIN_S, SUMMARY, Storm, Storms
from .surroundings import IncidentsNow

#: The same trouble with a receiver is logged at most once in so many seconds.
LOG_EVERY_S = 60.0
#: A receiver that took nothing for so long, seconds, is away for good as far as somebody at night is concerned.
STUCK_S = 120.0

__all__ = ["STUCK_S", "Interrupted", "Notifier", "RetryPolicy"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long is tried, and how many messages may leave.

    Args:
        first_s: pause after the first failure, doubled after each further one, seconds.
        longest_s: longest pause, seconds; also the longest that a receiver's ``Retry-After`` is followed.
        give_up_s: after so many seconds a notice is given up and counted, so that others get their turn.
        per_second: messages a second to one receiver in the long run. Slack takes about one.
        burst: messages that may leave at once.
    """

    first_s: float = 1.0
    longest_s: float = 60.0
    give_up_s: float = 3_600.0
    per_second: float = 1.0
    burst: int = 10


class Notifier:
    """Brings events to one receiver, in order, each change once.

    The promise over a crash at any moment: right before a message it is marked that it is on its way; after the answer,
    that it arrived. A crash in between leaves the fate open. An idempotent receiver then gets the same message
    again, which it knows by its key. Any other is taken to have got it, since the answer takes far longer than the
    request: no repeat, and a loss only if the crash falls into the millisecond between mark and message.
    A failure that we live to see is always tried again, also when no answer came in time, so a receiver that takes
    longer than the time-out can get a message twice.

    Args:
        redis: what the receiver knows, what it is to hear later, and storms are kept there.
        base_url: of the pages, for links.
        lease: asked before each attempt; where it is not held the delivery is broken off.
        incidents_now: see ``Surroundings``.
        stop: set when the service ends.
        outcomes: where it is noted what was accepted and refused.
    """

    def __init__(
        self,
        sink: Sink,
        redis: Redis,
        base_url: str,
        retry_policy: RetryPolicy,
        lease: Lease,
        stop: asyncio.Event,
        outcomes: Outcomes,
        incidents_now: IncidentsNow | None = None,
    ) -> None:
        self.sink = sink
        #: What became of the events: by the reason of the stage that stopped them, ``sent``, ``known`` (the receiver
        #: knows it by itself), ``refused``, ``given_up``, ``unsure`` (fate open after a crash, not sent again),
        #: ``found`` and ``lost`` (the same, where the receiver could be asked; what was lost is sent), and
        #: ``retries``.
        self.counts: Counter[str] = Counter()
        self._notifications = NotificationLog(redis, sink.name, lease)
        self.due = DueLater(redis, sink.name)
        self.storms = Storms(redis, sink.name, self._notifications)
        self._base_url = base_url
        self._retry_policy = retry_policy
        self._lease = lease
        self._stop = stop
        self._outcomes = outcomes
        self._incidents_now = incidents_now
        self._tokens = float(retry_policy.burst)
        self._tokens_at = time.monotonic()
        self._logged_at = float("-inf")
        #: Since when what is to be sent is tried in vain, monotonic seconds; None: nothing is.
        self.stuck_since: float | None = None

    async def deliver(self, stream: str, alert: Alert, rules: Rules, now: float) -> float | None:
        """Take one event to its end; what became of it is counted.

        Args:
            rules: routes and mutes. now: unix seconds.

        Returns:
            When to look at the incident again, unix seconds; None: at its next change.

        Raises:
            Interrupted: the service stops, or another process may send now.
        """
        record = await self._patiently(lambda: self._notifications.read(stream, alert.incident_id))
        if record.sending is not None and not self.sink.idempotent:
            record, _ = await self._after_crash(stream, alert, record)
        job = Job(alert, self.sink, record, rules=rules, now=now)
        if alert.follows:
            first = await self._patiently(lambda: self._notifications.read(stream, alert.train))
            job.train_known = first.told != ""
        if alert.caused_by:
            job.cause = await self._patiently(lambda: self._notifications.read(stream, alert.caused_by))
            job.lead = await self._patiently(lambda: self._lead(alert)) if alert.is_open else None
        outcome = run_stages(job)
        if outcome == "unchanged":
            self.sink.follow(stream, alert)
        # One that groups by itself gets them all; what nobody acknowledged is not held back a second time.
        alone = job.change != "opened" or not self.sink.rate_bound or bool(job.why)
        if outcome is None and not alone:
            outcome = await self._patiently(lambda: self._held_back(stream, job))
        if outcome is None:
            if job.change == "resolved":
                # Once it is over nothing more is said behind it: those that were counted since the last summary first.
                for storm in await self._patiently(lambda: self.storms.unreported(alert)):
                    await self.report(storm, alert)
                job.record = await self._patiently(lambda: self._notifications.read(stream, alert.incident_id))
            outcome = await self._send(stream, job)
            if outcome == "sent" and job.change == "opened" and not alert.is_open:
                await self._close_at_once(stream, job)
            if outcome == "sent" and not alone:
                await self._patiently(lambda: self.storms.sent(stream, alert, now))
            if alert.follows and not job.train_known:  # the first one came and went before it could be sent
                await self._patiently(lambda: self._notifications.write(stream, alert.train, Record(told="over")))
        self.counts[outcome] += 1
        return job.again

    async def _close_at_once(self, stream: str, job: Job) -> None:
        """What was over when it was sent is closed where alerts stay open; a message says that it is over by itself."""
        if self.sink.idempotent:
            record = await self._patiently(lambda: self._notifications.read(stream, job.alert.incident_id))
            await self._send(stream, dataclasses.replace(job, record=record, change="resolved"))
            return
        over = Record("over", job.alert.severity, job.alert.version)
        await self._patiently(lambda: self._notifications.write(stream, job.alert.incident_id, over))

    async def _held_back(self, stream: str, job: Job) -> str | None:
        storm = await self.storms.join(stream, job.alert, job.now)
        if storm is None:
            return None
        if len(storm.members) > storm.reported:  # not at each later look at one that was counted
            await self.due.put(SUMMARY, storm.key, "", job.now + storm.summary_s, sooner=True)
        job.again = job.now + AGAIN_S
        return "grouped"

    async def report(self, storm: Storm, alert: Alert) -> str:
        """Send the summary of a storm behind its first incident, as that is now; returns what became of it.

        Raises:
            Interrupted: the service stops, or another process may send now.
        """
        record = await self._patiently(lambda: self._notifications.read(storm.stream, storm.incident_id))
        serial, arrived = len(storm.members), False
        if record.sending is not None and not self.sink.idempotent:
            same = (record.sending, record.sending_serial) == ("grouped", serial)
            record, found = await self._after_crash(storm.stream, alert, record)
            arrived = same and found
        outcome = "known"
        if not arrived:
            # As the receiver knows it: what changed since is a message of its own.
            told = replace(alert, version=record.version, severity=storm.severity)
            job = Job(told, self.sink, record, change="grouped", why=storm.words())
            outcome = await self._send(storm.stream, job, serial)
        self.counts["summaries" if outcome == "sent" else outcome] += 1
        await self._patiently(lambda: self.storms.reported(storm))
        return outcome

    async def _lead(self, alert: Alert) -> Alert | None:
        """Return the incident that another one is about, as it is now; None where it is not known."""
        if self._incidents_now is None:
            return None
        (stored,) = await self._incidents_now(alert.run_id, [alert.caused_by])
        try:
            return None if stored is None else replace(Alert.from_json(stored), project=alert.project)
        except BadAlert as error:
            _log.warning("alerting: incident %s is passed over: %s", alert.caused_by, error)
            return None

    async def _after_crash(self, stream: str, alert: Alert, record: Record) -> tuple[Record, bool]:
        """Find out what became of the message that was on its way, and return what the receiver knows, and whether it
        has arrived; where nobody can say, it has."""
        assert record.sending is not None
        incident_id = alert.incident_id
        key = idempotency_key(incident_id, record.sending_version, record.sending, record.sending_serial)
        where = alert.caused_by if record.sending == "handed_over" else incident_id
        arrived = await self.sink.arrived(stream, where, key)
        if arrived is None:
            return await self._take_as_sent(stream, incident_id, record), True
        record = record.after_sending() if arrived else record.without_sending()
        self.counts["found" if arrived else "lost"] += 1
        await self._patiently(lambda: self._notifications.write(stream, incident_id, record))
        return record, arrived

    async def _take_as_sent(self, stream: str, incident_id: str, record: Record) -> Record:
        record = record.after_sending()
        self.counts["unsure"] += 1
        _log.warning(
            "%s: a message about incident %s was on its way when the last process died; it is not sent again",
            self.sink.name,
            incident_id,
        )
        await self._patiently(lambda: self._notifications.write(stream, incident_id, record))
        return record

    async def _send(self, stream: str, job: Job, serial: int = 0) -> str:
        assert job.change is not None
        shown, why, by = job.alert, job.why, None
        if job.change == "handed_over" and job.lead is not None:
            shown, why, by = job.lead, job.alert.text, job.alert
        url = incident_url(self._base_url, shown.run_id, shown.incident_id)
        plan = plan_url(self._base_url, shown.run_id)
        # The incident may have changed since a kill: the receiver is to know the message again, not that state of it.
        cut_off = job.record if (job.record.sending, job.record.sending_serial) == (job.change, serial) else Record()
        notice = Notice(shown, job.change, url, plan, why, stream, serial, by, cut_off.sending_version)
        incident_id, known = job.alert.incident_id, job.record.without_sending()
        on_its_way = known.with_sending(notice)
        if await self._patiently(lambda: self.sink.knows(notice)):
            await self._patiently(lambda: self._notifications.write(stream, incident_id, on_its_way.after_sending()))
            return "known"
        began, pause_s = time.monotonic(), self._retry_policy.first_s
        while True:
            await self._wait_for_turn()
            if not self._lease.held():
                raise Interrupted
            try:
                await self.sink.send(notice, partial(self._notifications.write, stream, incident_id, on_its_way))
            except SendError as error:
                await self._patiently(lambda: self._notifications.write(stream, incident_id, known))
                await self._outcomes.refused(self.sink.name, error)
                waited_s = time.monotonic() - began
                if not error.recoverable:
                    self.stuck_since = None  # it answers
                    _log.error("alert refused, not tried again: %s (incident %s)", error, incident_id)
                    return "refused"
                if waited_s >= self._retry_policy.give_up_s:
                    _log.error("alert given up after %.0f s: %s (incident %s)", waited_s, error, incident_id)
                    return "given_up"
                self._in_vain(error)
                self.counts["retries"] += 1
                await self._sleep(min(max(pause_s, error.retry_after_s or 0.0), self._retry_policy.longest_s))
                pause_s = min(2 * pause_s, self._retry_policy.longest_s)
            except (RedisError, OSError) as error:
                self._in_vain(error)  # the mark could not be written: nothing has left yet
                await self._sleep(self._retry_policy.first_s)
            else:
                self.stuck_since = None
                await self._patiently(
                    lambda: self._notifications.write(stream, incident_id, on_its_way.after_sending())
                )
                if self.sink.rate_bound:  # the others note by themselves when their receiver took it
                    await self._outcomes.accepted(self.sink.name)
                return "sent"

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

    async def _patiently(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """Do something with Redis until it works or the service stops."""
        before = self.stuck_since
        while True:
            try:
                done = await work()
            except (RedisError, OSError) as error:
                self._in_vain(error)
                await self._sleep(self._retry_policy.first_s)
            else:
                self.stuck_since = before
                return done

    async def _sleep(self, seconds: float) -> None:
        if await pause(self._stop, seconds):
            raise Interrupted

    def _in_vain(self, error: Exception) -> None:
        now = time.monotonic()
        if self.stuck_since is None:
            self.stuck_since = now
        if now - self._logged_at >= LOG_EVERY_S:
            self._logged_at = now
            _log.warning("alerts to %s wait, trying again: %s", self.sink.name, error)
