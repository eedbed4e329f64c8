"""Data of the alerting page: receivers, routes, mutes, previews."""

from __future__ import annotations

from typing import Literal

import msgspec

MuteState = Literal["pending", "active", "expired"]


class Receiver(msgspec.Struct):
    """One receiver.

    Attributes:
        channel: slack, pagerduty ...
        min_severity: milder incidents are not sent.
        counts: events by outcome, since the server started.
    """

    name: str
    channel: str
    min_severity: str
    counts: dict[str, int]


class Routes(msgspec.Struct):
    """Routes of alerts to receivers.

    Attributes:
        text: YAML; "" for none: each receiver gets everything.
        source: ``page``, ``file`` (the page can't change it) or ``none``.
        file: its path, "" for none.
        version: grows by one with each change on the page.
        changed_by, changed: author and time (unix seconds) of the last change; null: none.
        problem: why each receiver gets everything instead; "" for no problem.
    """

    text: str
    source: Literal["page", "file", "none"]
    file: str = ""
    version: int = 0
    changed_by: str = ""
    changed: float | None = None
    problem: str = ""


class MuteShown(msgspec.Struct):
    """One mute.

    Attributes:
        match: label -> patterns. starts, ends: unix seconds.
        state: ``pending``, ``active`` or ``expired``.
    """

    mute_id: str
    match: dict[str, str | int | list[str | int]]
    owner: str
    reason: str
    starts: float
    ends: float
    state: MuteState


class Mutes(msgspec.Struct):
    """Mutes, the next to end first; of ended ones those of the last seven days."""

    mutes: list[MuteShown]


class AlertingStatus(msgspec.Struct):
    """State of alerting.

    Attributes:
        sending: this process sends. False for a second without harm; then another one does, or Redis is away.
        unreadable: events that were no incidents.
        labels: for routes and mutes to match.
    """

    receivers: list[Receiver]
    sending: bool
    unreadable: int
    routes: Routes
    mutes: list[MuteShown]
    labels: list[str]


class ReceiverPreview(msgspec.Struct):
    """Outcome of an alert at one receiver: ``now``, ``later`` after ``after_min``, or ``no``, with the reason."""

    receiver: str
    gets: Literal["now", "later", "no"]
    after_min: float | None
    why: str


class Rating(msgspec.Struct, frozen=True):
    """A person's rating of the alert of an incident.

    Attributes:
        useful: false: noise.
        receivers: names of those that got it.
        opened: of the incident; rated: unix seconds. who: name of the person.
    """

    incident_id: str
    run_id: str
    project: str
    kind: str
    label: str
    useful: bool
    receivers: list[str]
    opened: float
    rated: float
    who: str


class RatingAnswer(msgspec.Struct):
    """The rating of an incident, null for none."""

    rating: Rating | None


class KindPrecision(msgspec.Struct):
    """Precision of the alerts of one kind.

    Attributes:
        incidents: alarms. useful, noise: ratings.
        precision: useful of the rated ones, null for none.
        noise_per_job_day: null where no job ran.
    """

    kind: str
    label: str
    incidents: int
    useful: int
    noise: int
    precision: float | None
    noise_per_job_day: float | None


class ReceiverPrecision(msgspec.Struct):
    """Precision of the alerts to one receiver."""

    name: str
    useful: int
    noise: int
    precision: float | None


class Precision(msgspec.Struct):
    """Precision of alerts in the last days.

    Attributes:
        job_days: days that jobs ran, over all runs. noise_per_job_day: alerts rated as noise.
    """

    days: float
    job_days: float
    noise_per_job_day: float | None
    kinds: list[KindPrecision]
    receivers: list[ReceiverPrecision]


class AlertPreview(msgspec.Struct):
    """Receivers of an incident if it opened now.

    Attributes:
        labels: for routes and mutes. routes: matching ones, from 1.
    """

    labels: dict[str, str]
    routes: list[int]
    receivers: list[ReceiverPreview]
