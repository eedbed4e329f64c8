"""The server itself: health, callers, audit log, storage, errors."""

from __future__ import annotations

from typing import Literal

import msgspec


class ErrorFacts(msgspec.Struct):
    """An error.

    Attributes:
        code: for programs.
        message: given and expected values. hint: remedy, "" where the message has it.
    """

    code: str
    message: str
    hint: str


class ErrorAnswer(msgspec.Struct):
    """Every answer with a status of 400 or more, but for the probes."""

    error: ErrorFacts


class Alive(msgspec.Struct):
    """The process answers."""

    status: Literal["ok"]


class Ready(msgspec.Struct):
    """Whether every live run is judged and stored, with reasons against it.

    Attributes:
        reasons: ``redis_lost`` is none: Redis restarted with less than it had.
    """

    status: Literal["ready", "not ready"]
    reasons: list[ErrorFacts]


class ServerHealth(msgspec.Struct):
    """Whether the server works and its Redis stores.

    Attributes:
        redis: ok, or its fault.
        versions: ok, or the processes left out for a version too far from that of the others.
    """

    status: Literal["ok", "degraded"]
    version: str
    redis: str
    uptime_s: float
    versions: str = "ok"


class ReceiverStatus(msgspec.Struct):
    """Outcome of the newest messages to one receiver, to the watcher of the heartbeat, or of the watchdog.

    Attributes:
        set_up: by an environment variable of the server. All else is of before, where it is no longer set.
        status: of the newest message; late: no accepted heartbeat or watchdog in time.
        accepted, refused: time of the last one, unix seconds, null for never.
        why: reason of the last refusal, with the status code of the answer; "" for none.
    """

    name: str
    set_up: bool
    status: Literal["off", "nothing sent", "accepted", "refused", "late"]
    accepted: float | None = None
    refused: float | None = None
    why: str = ""


class Receivers(msgspec.Struct):
    """Receivers of alerts, and watchers of this server.

    Attributes:
        time: now, unix seconds.
        ready, reasons: as of ``/readyz``, and whether alerts can be sent.
        heartbeat: a regular sign of life to an outside watcher. watchdog: an alert that always fires, for Alertmanager.
    """

    time: float
    ready: bool
    reasons: list[ErrorFacts]
    heartbeat: ReceiverStatus
    watchdog: ReceiverStatus
    receivers: list[ReceiverStatus]


class Me(msgspec.Struct):
    """The caller and its permissions.

    Attributes:
        project: the only visible one, null for all.
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
    """A closed session.

    Attributes:
        go_to: page of the provider that ends the sign-in there too, null for none.
    """

    go_to: str | None = None


class OidcWay(msgspec.Struct):
    """An OpenID provider for sign-in.

    Attributes:
        name: for display. start: address that begins a sign-in; takes ``next`` and ``other``.
        trouble: why it can't be used now, a sentence; "" where it answers.
        refusal: why the named sign-in was refused, a sentence; "" for none.
    """

    name: str
    start: str
    trouble: str
    refusal: str


class SignInWays(msgspec.Struct):
    """Methods of sign-in besides a key.

    Attributes:
        oidc: null without a provider.
    """

    oidc: OidcWay | None


class AuditEntry(msgspec.Struct, frozen=True):
    """One audited action.

    Attributes:
        time: unix seconds.
        who: the key's name, ``local`` without one, ``user@host`` at the command line, or the setting's name for the
            server's own actions.
        key_id: of the key, null without one.
        action: from the general to the special: ``command.order``, ``key.create`` (docs/security.md has all).
        target: run, command, incident, key or view; "" for none.
        detail: free text.
        run: its run, "" for none.
    """

    time: float
    who: str
    key_id: str | None
    action: str
    target: str = ""
    detail: str = ""
    run: str = ""


class Audit(msgspec.Struct):
    """Audit log, newest first."""

    entries: list[AuditEntry]


class HotPoints(msgspec.Struct):
    """Points of a run in Redis and in memory; ``bytes`` with the overhead of an entry in Redis."""

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


class RunStorage(msgspec.Struct):
    """Storage of a run's points.

    Attributes:
        state: behind: the window is twice full and agents wait. failed: see ``problem``, with retries. loading: another
            worker took the run over, and still reads its points.
    """

    hot: HotPoints
    cold: ColdPoints
    state: Literal["ok", "loading", "archiving", "behind", "failed"]
    problem: str | None


class Deleted(msgspec.Struct):
    """A deleted run."""

    deleted: str


class RetainedRun(msgspec.Struct):
    """A run without a report for long. ``problem``: why it could not be deleted."""

    run_id: str
    project: str
    name: str
    status: str
    updated: float
    deleted: bool = False
    problem: str | None = None


class Retained(msgspec.Struct):
    """Deleted runs, oldest first, or candidates (``dry_run``)."""

    days: float
    dry_run: bool
    runs: list[RetainedRun]
