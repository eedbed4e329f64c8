"""What happens to one incident event on its way to one receiver: small stages of one shape, each gives its reason.

A stage judges the job and either lets it pass (None) or stops it with a reason that is counted by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .alert import SEVERITIES, Alert, Change
from .notification_log import Record
from .routing.rules import Rules, labels_of
from .sink import Sink

__all__ = ["STAGES", "Job", "Stage", "run_stages"]


@dataclass(slots=True)
class Job:
    """One event on its way to one receiver.

    Args:
        record: what the receiver knows of the incident.
        change: what there is to report, set by the stage ``news``.
        train_known: whether the receiver was sent another one of its train.
        cause: what the receiver knows of the incident that this one follows from; None: it follows from none.
        lead: that incident as it is now; None: not known, or it does not matter.
        rules: routes and mutes. now: unix seconds.
        again: when to look at it again, unix seconds, set by the stage that stopped it; None: at its next change.
        why: why the receiver gets it now, where that is not plain.
    """

    alert: Alert
    sink: Sink
    record: Record
    change: Change | None = None
    train_known: bool = False
    cause: Record | None = None
    lead: Alert | None = None
    rules: Rules = field(default_factory=Rules)
    now: float = 0.0
    again: float | None = None
    why: str = ""


Stage = Callable[[Job], str | None]


def dedupe(job: Job) -> str | None:
    """Stop an event that the receiver got, or that a later sent one has overtaken."""
    return "duplicate" if job.alert.version <= job.record.version else None


def news(job: Job) -> str | None:
    """Find out what there is to report since the last message; stop when it is nothing."""
    alert, record = job.alert, job.record
    if record.told == "with_cause":
        return "unchanged"
    if record.told != "open":
        if not alert.is_open and (record.told or not alert.recurring):
            return "unchanged" if record.told else "never_notified"
        job.change = "opened"
    elif not alert.is_open:
        job.change = "resolved"
    elif alert.severity == "critical" and record.severity != "critical":
        job.change = "escalated"
    elif alert.acknowledged_by and not record.acknowledged and job.sink.acknowledges:
        job.change = "acknowledged"
    else:
        return "unchanged"
    return None


def quiet(job: Job) -> str | None:
    """Stop what is information only: it is shown on the page and wakes nobody. The server says what that is."""
    return None if job.change in _AFTERWARDS or job.alert.alarm else "info_only"


def train(job: Job) -> str | None:
    """Stop what only follows others like it, once one of the train was sent; one that is graver is none of it."""
    follows = job.change == "opened" and job.train_known and not job.alert.recurring
    return "in_train" if follows else None


def patience(job: Job) -> str | None:
    """Stop what may heal by itself; it is looked at again when it has had its time."""
    if job.change != "opened" or not job.alert.is_open or job.now >= job.alert.notify_at:
        return None
    job.again = job.alert.notify_at
    return "may_heal"


def consequence(job: Job) -> str | None:
    """Stop what follows from an incident that the receiver was sent, as grave as this one, and that is not over."""
    cause = job.cause
    if cause is None or job.change != "opened":
        return None
    if job.alert.hands_over:
        return _handed_over(job, cause)
    if cause.told != "open" or (job.lead is not None and not job.lead.is_open):
        return None  # a job that died of its hang is news before that is over
    if cause.severity not in SEVERITIES or SEVERITIES.index(cause.severity) < SEVERITIES.index(job.alert.severity):
        return None
    job.again = job.now + AGAIN_S
    return "follows_cause"


def _handed_over(job: Job, cause: Record) -> str | None:
    """Make it news behind the message about its cause, where somebody may be on the way to that one.

    Whoever was sent the cause and has not answered is told there, not paged a second time. One who took it over before
    may count on what has given up now, or sleep again: it is sent for itself. So is it where the cause was held back.
    A receiver that groups by itself is told nothing new by an alert that it has: there it is always its own.
    """
    lead = job.lead
    if lead is None or not lead.is_open or not job.sink.rate_bound:
        return None
    known = lead.acknowledged_by and lead.acknowledged >= job.alert.opened
    if cause.told != "open":
        return "acknowledged_before" if known else None
    if known or not lead.acknowledged_by:
        job.change = "handed_over"
    return None


def severity(job: Job) -> str | None:
    """Stop what is below the severity that the receiver wants."""
    if job.change in _AFTERWARDS:
        return None
    below = SEVERITIES.index(job.alert.severity) < SEVERITIES.index(job.sink.min_severity)
    return "below_min_severity" if below else None


def mute(job: Job) -> str | None:
    """Stop what somebody muted; what is still open at the end of the mute is looked at again then."""
    if job.change in _AFTERWARDS:
        return None
    found = job.rules.muted(job.alert, job.now)
    if found is None:
        return None
    job.again = found.ends
    return "muted"


def route(job: Job) -> str | None:
    """Stop what no route brings to the receiver, or brings to it later if nobody has acknowledged it by then."""
    table = job.rules.table
    if table is None or job.change in _AFTERWARDS:
        return None
    decision, name = table.decide(labels_of(job.alert)), job.sink.name
    if name in decision.now or job.record.told == "open" or job.change == "handed_over":
        return None
    if name not in decision.later:
        return "no_route"
    if job.alert.acknowledged_by:
        return "acknowledged_before"
    after_min = decision.later[name]
    if job.now < job.alert.opened + 60 * after_min:
        job.again = job.alert.opened + 60 * after_min
        return "not_yet"
    job.why = f"Nobody acknowledged it for {after_min:g} min."
    return None


#: What follows from another incident is looked at again so often, seconds, in case that one is over before it.
AGAIN_S = 60.0
#: Who was told that an incident opened is told of these whatever else holds by then.
_AFTERWARDS = ("acknowledged", "resolved")
#: In the order in which they run. Rate bound, delivery with retry and the entry in the log follow in ``notifier.py``.
STAGES: tuple[Stage, ...] = (dedupe, news, quiet, train, patience, consequence, severity, mute, route)


def run_stages(job: Job) -> str | None:
    """Return the reason of the first stage that stops the job, or None when it is to be sent."""
    for stage in STAGES:
        reason = stage(job)
        if reason is not None:
            return reason
    return None
