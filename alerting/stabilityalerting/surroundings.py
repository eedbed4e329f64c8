"""What a receiver gets from the service beside its notices: for one that does more than take messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from redis.asyncio import Redis

from .actions import Actions
from .outcomes import Outcomes

__all__ = ["BoardChange", "ChangesSince", "IncidentsNow", "Surroundings"]

#: Given a run's id and ids of incidents of it: each as it is now, as JSON, None for one that is gone.
IncidentsNow = Callable[[str, list[str]], Awaitable[list[bytes | None]]]


@dataclass(frozen=True, slots=True)
class BoardChange:
    """Something that somebody changed, for those who look for what came before an incident.

    Args:
        key: the same whenever it is read again.
        time: unix seconds. run_id: "" where it is of no run.
        summary: one sentence. details: name -> text.
    """

    key: str
    time: float
    run_id: str
    summary: str
    details: Mapping[str, str] = field(default_factory=dict)


#: Given how far each stream was read, what changed since, oldest first in each, and how far they are read by that.
ChangesSince = Callable[[Mapping[str, str]], Awaitable[tuple[list[BoardChange], dict[str, str]]]]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The service as a receiver sees it.

    Args:
        redis: where it may keep what has to outlive the process.
        base_url: of the pages.
        clock: unix seconds now.
        may_send: whether this process sends now; another one may.
        outcomes: where it notes what was accepted and refused.
        trouble: why the server is not well, "" while it is; None: nobody knows.
        incidents_now: asks for incidents as they are now; None: nobody can be asked.
        actions: what people can do from within a message; None: nothing but open a page.
        changes_since: reads what people changed; None: nobody can be asked.
    """

    redis: Redis
    base_url: str
    clock: Callable[[], float]
    may_send: Callable[[], bool]
    outcomes: Outcomes
    trouble: Callable[[], str] | None = None
    incidents_now: IncidentsNow | None = None
    actions: Actions | None = None
    changes_since: ChangesSince | None = None
