"""Alerting as its page shows it: receivers, routes, mutes, and who would get an alert."""

from __future__ import annotations

from typing import Literal

import msgspec

MuteState = Literal["pending", "active", "expired"]


class Receiver(msgspec.Struct):
    """One receiver.

    Attributes:
        channel: slack, pagerduty ...
        min_severity: milder incidents are not sent.
        counts: events by what became of them, since the server started.
    """

    name: str
    channel: str
    min_severity: str
    counts: dict[str, int]


class Routes(msgspec.Struct):
    """Who gets what.

    Attributes:
        text: YAML; "" where nobody wrote any: each receiver gets everything.
        source: ``page``, ``file`` (the page can't change it) or ``none``.
        file: its path, "" where it is none.
        version: grows by one with each change on the page.
        changed_by, changed: who wrote it, and when (unix seconds; null: never).
        problem: why it is not used and each receiver gets everything; "" where it is used.
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
    """Mutes, those that end last first; of ended ones those of the last seven days."""

    mutes: list[MuteShown]


class Alerting(msgspec.Struct):
    """Alerting as it is now.

    Attributes:
        sending: this process sends. False for a second without harm; then another one does, or Redis is away.
        unreadable: events that were no incidents.
        labels: what routes and mutes match by.
    """

    receivers: list[Receiver]
    sending: bool
    unreadable: int
    routes: Routes
    mutes: list[MuteShown]
    labels: list[str]


class ReceiverPreview(msgspec.Struct):
    """What becomes of an alert at one receiver: ``now``, ``later`` after ``after_min``, or ``no``, with the reason."""

    receiver: str
    gets: Literal["now", "later", "no"]
    after_min: float | None
    why: str


class Rating(msgspec.Struct, frozen=True):
    """What somebody said of the alert of an incident.

    Attributes:
        useful: false: noise.
        receivers: names of those that were sent it.
        opened: when the incident opened; rated: when somebody said so, unix seconds. who: their name.
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
    """How useful the alerts of one kind were.

    Attributes:
        incidents: that were an alarm. useful, noise: how many people called so.
        precision: useful of those that people rated, null where nobody did.
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
    """How useful the alerts were that one receiver was sent."""

    name: str
    useful: int
    noise: int
    precision: float | None


class Precision(msgspec.Struct):
    """How useful alerts were in the last days.

    Attributes:
        job_days: days that jobs ran, over all runs. noise_per_job_day: alerts that people called noise.
    """

    days: float
    job_days: float
    noise_per_job_day: float | None
    kinds: list[KindPrecision]
    receivers: list[ReceiverPrecision]


class AlertPreview(msgspec.Struct):
    """Who would get an incident if it opened now.

    Attributes:
        labels: what routes and mutes match it by. routes: which of the routes fit, from 1.
    """

    labels: dict[str, str]
    routes: list[int]
    receivers: list[ReceiverPreview]
