"""The server that alerting works for, and the context of a receiver."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from redis.asyncio import Redis

from .actions import Actions
from .alert import Alert
from .outcomes import Outcomes
from .routing import Rules

__all__ = ["BoardChange", "ChangesSince", "IncidentsNow", "Server", "SinkContext"]

#: From a run's id and ids of its incidents to their current states as JSON, None for each that is gone.
IncidentsNow = Callable[[str, list[str]], Awaitable[list[bytes | None]]]


@dataclass(frozen=True, slots=True)
class BoardChange:
    """A change made by a person, as context before an incident.

    Args:
        key: the same at every reading.
        time: unix seconds. run_id: "" for none.
        summary: one sentence. details: name -> text.
    """

    key: str
    time: float
    run_id: str
    summary: str
    details: Mapping[str, str] = field(default_factory=dict)


#: From the positions in the streams to the changes since, oldest first in each, and the new positions.
ChangesSince = Callable[[Mapping[str, str]], Awaitable[tuple[list[BoardChange], dict[str, str]]]]


@dataclass(frozen=True, slots=True)
class Server:
    """The server as alerting sees it; a function that is None is not offered.

    Args:
        streams: names of the streams of incidents, asked for at every read, some four times a second.
        base_url: of the pages, for links.
        clock: unix seconds now.
        is_news: from a stream, the id of an entry and its alert to whether to send it; None: always.
        rules: current routes and mutes; None: every receiver gets everything.
        project_of: project of a run.
        incidents_now: current states of incidents; without it nothing is sent later.
        problem: reason why the server is not healthy, "" while it is.
        actions: available from within a message; None: messages only link to the pages.
        changes_since: reader of changes made by users.
        may_send: whether this process may be the sender.
    """

    streams: Callable[[], Awaitable[list[str]]]
    base_url: str
    clock: Callable[[], float]
    is_news: Callable[[str, bytes, Alert], Awaitable[bool]] | None = None
    rules: Callable[[], Awaitable[Rules]] | None = None
    project_of: Callable[[str], Awaitable[str]] | None = None
    incidents_now: IncidentsNow | None = None
    problem: Callable[[], str] | None = None
    actions: Actions | None = None
    changes_since: ChangesSince | None = None
    may_send: Callable[[], bool] = lambda: True


@dataclass(frozen=True, slots=True)
class SinkContext:
    """The service as a receiver sees it.

    Args:
        redis: for state that has to outlive the process.
        may_send: whether this process sends now; another one may.
        outcomes: log of accepted and refused messages.
    """

    redis: Redis
    server: Server
    may_send: Callable[[], bool]
    outcomes: Outcomes
