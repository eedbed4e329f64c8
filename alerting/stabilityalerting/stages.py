"""What happens to one incident event on its way to one receiver: small stages of one shape, each gives its reason.

A stage judges the job and either lets it pass (None) or stops it with a reason that is counted by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .alert import SEVERITIES, Alert, Change
from .notification_log import Record
from .sink import Sink

__all__ = ["STAGES", "Job", "Stage", "run_stages"]


@dataclass(slots=True)
class Job:
    """One event on its way to one receiver.

    Args:
        record: what the receiver knows of the incident.
        change: what there is to report, set by the stage ``news``.
        train_known: whether the receiver was sent another one of its train.
    """

    alert: Alert
    sink: Sink
    record: Record
    change: Change | None = None
    train_known: bool = False


Stage = Callable[[Job], str | None]


def dedupe(job: Job) -> str | None:
    """Stop an event that the receiver got, or that a later sent one has overtaken."""
    return "duplicate" if job.alert.version <= job.record.version else None


def news(job: Job) -> str | None:
    """Find out what there is to report since the last message; stop when it is nothing."""
    alert, record = job.alert, job.record
    if record.told != "open":
        if not alert.is_open:
            return "never_notified" if record.told == "" else "unchanged"
        job.change = "opened"
    elif not alert.is_open:
        job.change = "resolved"
    elif alert.severity == "critical" and record.severity != "critical":
        job.change = "escalated"
    else:
        return "unchanged"
    return None


def quiet(job: Job) -> str | None:
    """Stop what is information only: it is shown on the page and wakes nobody. The server says what that is."""
    return None if job.change == "resolved" or job.alert.alarm else "info_only"


def train(job: Job) -> str | None:
    """Stop what only follows others like it, once one of the train was sent; one that is graver is none of it."""
    return "in_train" if job.change == "opened" and job.train_known else None


def route(job: Job) -> str | None:
    """Stop what is below the severity that the receiver wants. Who got the opening always gets the resolution."""
    if job.change == "resolved":
        return None
    below = SEVERITIES.index(job.alert.severity) < SEVERITIES.index(job.sink.min_severity)
    return "below_min_severity" if below else None


#: In the order in which they run. Rate bound, delivery with retry and the entry in the log follow in ``notifier.py``.
STAGES: tuple[Stage, ...] = (dedupe, news, quiet, train, route)


def run_stages(job: Job) -> str | None:
    """Return the reason of the first stage that stops the job, or None when it is to be sent."""
    for stage in STAGES:
        reason = stage(job)
        if reason is not None:
            return reason
    return None
