"""Stages of an incident event on its way to a receiver, each with its reason to stop it. Pure.

A stage returns the job to go on with, or why it stops here; reasons are counted by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from dataclasses import replace as replace_job
from typing import Literal

from msgspec.structs import replace

from .alert import SEVERITIES, Alert, Change
from .notification_log import Record
from .routing import Rules, labels_of
from .sink import Sink

__all__ = ["AGAIN_S", "STAGES", "Job", "Preview", "Stage", "Stopped", "run_stages", "who_gets"]

#: An incident held back behind its cause is judged again so often, seconds: the cause may end first.
AGAIN_S = 60.0
#: Changes that a receiver gets of every incident whose opening it was sent.
_AFTERWARDS = ("acknowledged", "resolved")


@dataclass(frozen=True, slots=True)
class Job:
    """One event on its way to one receiver.

    Args:
        record: the incident as the receiver knows it.
        change: the change to report, set by the stage ``news``.
        train_sent: the receiver was sent another incident of its train.
        cause: record of the incident that this one follows from; None for none.
        lead: current state of that incident; None where it is gone or irrelevant.
        rules: routes and mutes. now: unix seconds.
        why: reason for a message now, where the change alone does not explain it.
    """

    alert: Alert
    sink: Sink
    record: Record
    change: Change | None = None
    train_sent: bool = False
    cause: Record | None = None
    lead: Alert | None = None
    rules: Rules = field(default_factory=Rules)
    now: float = 0.0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Stopped:
    """An event that is not sent.

    Args:
        reason: the name under which it is counted.
        again: when to judge the incident again, unix seconds; None: at its next change.
    """

    reason: str
    again: float | None = None


Stage = Callable[[Job], Job | Stopped]


def dedupe(job: Job) -> Job | Stopped:
    """Stop an event that was sent before, or that a later one has overtaken."""
    return Stopped("duplicate") if job.alert.version <= job.record.version else job


def news(job: Job) -> Job | Stopped:
    """Find the change since the last message; stop where there is none."""
    alert = job.alert
    state = job.record.state
    if state == "with_cause":
        return Stopped("unchanged")
    if state != "open":
        if alert.is_open or (not state and alert.recurring):
            return replace_job(job, change="opened")
        return Stopped("unchanged" if state else "never_notified")
    if not alert.is_open:
        return replace_job(job, change="resolved")
    if alert.severity == "critical" and job.record.severity != "critical":
        return replace_job(job, change="escalated")
    if alert.acknowledged_by and not job.record.acknowledged and job.sink.acknowledges:
        return replace_job(job, change="acknowledged")
    return Stopped("unchanged")


def quiet(job: Job) -> Job | Stopped:
    """Stop information only: it is on the page and wakes no one."""
    return job if job.change in _AFTERWARDS or job.alert.alarm else Stopped("info_only")


def train(job: Job) -> Job | Stopped:
    """Stop a later incident of a train of which one was sent. A graver one begins a train of its own."""
    follows = job.change == "opened" and job.train_sent and not job.alert.recurring
    return Stopped("in_train") if follows else job


def patience(job: Job) -> Job | Stopped:
    """Stop an incident that may heal by itself until its time is up."""
    if job.change != "opened" or not job.alert.is_open or job.now >= job.alert.notify_at:
        return job
    return Stopped("may_heal", job.alert.notify_at)


def consequence(job: Job) -> Job | Stopped:
    """Stop an incident whose cause was sent, is at least as grave, and lasts."""
    cause = job.cause
    if cause is None or job.change != "opened":
        return job
    if job.alert.hands_over:
        return _handed_over(job, cause)
    if cause.state != "open" or (job.lead is not None and not job.lead.is_open):
        return job  # a job that died of its hang is news even before the hang is resolved
    if cause.severity not in SEVERITIES or SEVERITIES.index(cause.severity) < SEVERITIES.index(job.alert.severity):
        return job
    return Stopped("follows_cause", job.now + AGAIN_S)


def _handed_over(job: Job, cause: Record) -> Job | Stopped:
    """Report it behind the message about its cause, where that has an open page.

    A receiver that was sent the cause and has not answered is notified there, not paged a second time. A person who
    acknowledged the cause before may rely on the server, or sleep again: it is sent for itself. So is it where the
    cause was held back, and at a receiver that groups by itself, for which an alert that it has is no news.
    """
    lead = job.lead
    if lead is None or not lead.is_open or not job.sink.rate_bound:
        return job
    aware = lead.acknowledged_by and lead.acknowledged >= job.alert.opened
    if cause.state != "open":
        return Stopped("acknowledged_before") if aware else job
    if aware or not lead.acknowledged_by:
        return replace_job(job, change="handed_over")
    return job


def severity(job: Job) -> Job | Stopped:
    """Stop an incident below the severity of the receiver."""
    below = SEVERITIES.index(job.alert.severity) < SEVERITIES.index(job.sink.min_severity)
    return Stopped("below_min_severity") if below and job.change not in _AFTERWARDS else job


def mute(job: Job) -> Job | Stopped:
    """Stop a muted incident until the end of the mute."""
    found = None if job.change in _AFTERWARDS else job.rules.muted(job.alert, job.now)
    return job if found is None else Stopped("muted", found.ends)


def route(job: Job) -> Job | Stopped:
    """Stop an incident without a route to the receiver, or until its escalation there."""
    table = job.rules.table
    if table is None or job.change in _AFTERWARDS:
        return job
    decision = table.decide(labels_of(job.alert))
    if job.sink.name in decision.now or job.record.state == "open" or job.change == "handed_over":
        return job
    after_min = decision.later.get(job.sink.name)
    if after_min is None:
        return Stopped("no_route")
    if job.alert.acknowledged_by:
        return Stopped("acknowledged_before")
    if job.now < job.alert.opened + 60 * after_min:
        return Stopped("not_yet", job.alert.opened + 60 * after_min)
    return replace_job(job, why=f"Nobody acknowledged it for {after_min:g} min.")


#: In their order. The rate bound, retries and the entry in the log follow in ``notifier.py``.
STAGES: tuple[Stage, ...] = (dedupe, news, quiet, train, patience, consequence, severity, mute, route)


def run_stages(job: Job) -> Job | Stopped:
    """Return the job to send, or the answer of the first stage that stops it."""
    for stage in STAGES:
        found = stage(job)
        if isinstance(found, Stopped):
            return found
        job = found
    return job


@dataclass(frozen=True, slots=True)
class Preview:
    """One alert at one receiver.

    Args:
        receiver: its name.
        gets: ``now``, ``later`` (without acknowledgement) or ``no``.
        after_min: minutes of the escalation.
        why: reason for display.
    """

    receiver: str
    gets: Literal["now", "later", "no"]
    after_min: float | None
    why: str


def who_gets(alert: Alert, sinks: Iterable[Sink], rules: Rules, now: float) -> list[Preview]:
    """Return the outcome of this incident at each receiver if it opened now, unacknowledged."""
    opened = replace(alert, state="open", opened=now, acknowledged_by="", train="", nth=1, notify_at=0.0)
    return [_preview(opened, sink, rules, now) for sink in sinks]


def _preview(alert: Alert, sink: Sink, rules: Rules, now: float) -> Preview:
    found = run_stages(Job(alert, sink, Record(), rules=rules, now=now))
    if isinstance(found, Job):
        return Preview(sink.name, "now", None, "")
    if found.reason == "not_yet" and found.again is not None:
        after_min = round((found.again - now) / 60, 3)
        return Preview(sink.name, "later", after_min, f"after {after_min:g} min if nobody has acknowledged it")
    muted = rules.muted(alert, now)
    why = {
        "muted": "" if muted is None else f"muted by {muted.owner}: {muted.reason}",
        "below_min_severity": f"{alert.severity} is below its least severity, {sink.min_severity}",
        "no_route": "no route leads to it",
        "info_only": "information only: it is on the page and is never sent",
    }
    return Preview(sink.name, "no", None, why.get(found.reason, found.reason))
