"""The server itself: whether it works, who calls, what was done; where points are stored; and how an error looks."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class ErrorFacts(msgspec.Struct):
    """What went wrong.

    Attributes:
        code: for programs.
        message: what was given and what was expected. hint: what to do, "" where the message says it all.
    """

    code: str
    message: str
    hint: str


class ErrorAnswer(msgspec.Struct):
    """Every answer with a status of 400 or more, but for the probes."""

    error: ErrorFacts


class SlackAnswer(msgspec.Struct, omit_defaults=True):
    """What Slack is to do with the question that was answered; no body at all where there is nothing to do.

    Attributes:
        response_action: ``clear`` closes it, ``update`` shows ``view`` in its place, as Slack's Block Kit has it.
    """

    response_action: Literal["clear", "update"]
    view: dict[str, Any] | None = None


class PagerDutyAnswer(msgspec.Struct):
    """What became of a webhook of PagerDuty.

    Attributes:
        outcome: ``acknowledged``; ``noted``: it is in the audit log; ``ignored``: nothing of use here; ``repeated``: it
            came before; ``unknown``: none of the incidents that were sent to PagerDuty is in it.
        text: the same for people.
    """

    outcome: Literal["acknowledged", "noted", "ignored", "repeated", "unknown"]
    text: str


class Alive(msgspec.Struct):
    """The process answers."""

    status: Literal["ok"]


class Ready(msgspec.Struct):
    """Whether every live run is judged and stored, and else why not.

    Attributes:
        reasons: ``redis_lost`` is none against being ready: Redis came up with less than it had.
    """

    status: Literal["ready", "not ready"]
    reasons: list[ErrorFacts]


class ServerHealth(msgspec.Struct):
    """Whether the server works and its Redis stores what comes.

    Attributes:
        redis: ok, or what is wrong with it.
        versions: ok, or which processes take no part, as their version is too far from that of the others.
    """

    status: Literal["ok", "degraded"]
    version: str
    redis: str
    uptime_s: float
    versions: str = "ok"


class ReceiverStatus(msgspec.Struct):
    """What became of the newest messages to one receiver, to the watcher of the heartbeat, or of the watchdog.

    Attributes:
        set_up: by an environment variable of the server. All else is as it was, where it is not any more.
        status: of the newest message; late: the heartbeat or the watchdog should have been accepted since.
        accepted, refused: when the last one was, unix seconds, null for never.
        why: the last one was refused, with the status code of the answer; "" for never.
    """

    name: str
    set_up: bool
    status: Literal["off", "nothing sent", "accepted", "refused", "late"]
    accepted: float | None = None
    refused: float | None = None
    why: str = ""


class Receivers(msgspec.Struct):
    """Who is notified of incidents, and who notices that this server is away.

    Attributes:
        time: now, unix seconds.
        ready, reasons: as ``/readyz`` says, and whether alerts can be sent.
        heartbeat: says that all is well to a watcher outside. watchdog: an alert that always fires, for Alertmanager.
    """

    time: float
    ready: bool
    reasons: list[ErrorFacts]
    heartbeat: ReceiverStatus
    watchdog: ReceiverStatus
    receivers: list[ReceiverStatus]


class Me(msgspec.Struct):
    """Who makes the call, and what that may do.

    Attributes:
        project: the only one that it may see, null for all.
        role: viewer, operator, admin, agent or assistant; "" for scopes without a name.
        two_persons: rollbacks and restarts are proposed, and another person approves them.
    """

    name: str
    scopes: list[str]
    project: str | None
    by: Literal["session", "key", "local", "proxy"]
    role: str = ""
    two_persons: bool = False


class LoggedOut(msgspec.Struct):
    """The session is over.

    Attributes:
        go_to: page of the provider that ends the sign-in there too, null where there is none.
    """

    go_to: str | None = None


class OidcWay(msgspec.Struct):
    """An OpenID provider where people sign in.

    Attributes:
        name: what people call it. start: address that begins a sign-in; takes ``next`` and ``other``.
        trouble: why nobody can sign in there now, a sentence; "" where it answers.
        refusal: why the sign-in that was asked about was refused, a sentence; "" where none was.
    """

    name: str
    start: str
    trouble: str
    refusal: str


class SignInWays(msgspec.Struct):
    """How people sign in besides with a key.

    Attributes:
        oidc: null where no provider is set up.
    """

    oidc: OidcWay | None


class AuditEntry(msgspec.Struct, frozen=True):
    """One thing that was done.

    Attributes:
        time: unix seconds.
        who: the key's name, ``local`` where none is needed, ``user@host`` of a person at the command line, or
            the setting's name for what the server does by itself.
        key_id: of the key, null without one.
        action: what, from the general to the special: ``command.order``, ``key.create`` (docs/security.md has all).
        target: the run, command, incident, key or view that it was done to; "" where there is none.
        detail: more in words.
        run: the run that it is about, "" for none.
    """

    time: float
    who: str
    key_id: str | None
    action: str
    target: str = ""
    detail: str = ""
    run: str = ""


class Audit(msgspec.Struct):
    """What was done and seen by whom, newest first."""

    entries: list[AuditEntry]


class HotPoints(msgspec.Struct):
    """Points of a run in Redis and in memory; ``bytes`` with what an entry costs in Redis."""

    bytes: int
    limit_bytes: int
    frames: int
    values: int


class ColdPoints(msgspec.Struct):
    """Points of a run in files."""

    parts: int
    rows: int
    bytes: int
    location: str


class Storage(msgspec.Struct):
    """Where a run's points are.

    Attributes:
        state: behind: the window is twice full and agents wait. failed: ``problem`` says why, it is tried again.
            loading: another worker took the run over, and has not read all of its points yet.
    """

    hot: HotPoints
    cold: ColdPoints
    state: Literal["ok", "loading", "archiving", "behind", "failed"]
    problem: str | None


class Deleted(msgspec.Struct):
    """The run that is gone."""

    deleted: str


class RetainedRun(msgspec.Struct):
    """A run that has not reported for long. ``problem``: why it is still there, where it should have gone."""

    run_id: str
    project: str
    name: str
    status: str
    updated: float
    deleted: bool = False
    problem: str | None = None


class Retained(msgspec.Struct):
    """What was deleted, oldest first, or would be (``dry_run``)."""

    days: float
    dry_run: bool
    runs: list[RetainedRun]
