"""What people can do about an incident from within a message: what alerting asks of the server for it.

Alerting knows no server. Whoever runs it hands in an ``Actions``; without one, messages have no buttons but a link.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .errors import AlertingError

__all__ = [
    "ActionRefused",
    "Actions",
    "Branch",
    "CommandNews",
    "Curve",
    "Facts",
    "Order",
    "Proposed",
    "RollbackNow",
    "fingerprint",
]


def fingerprint(text: str | None) -> str:
    """Return 32 characters that stand for a name of any length, "" for none: a question in Slack has room for few."""
    return "" if text is None else hashlib.sha256(text.encode()).hexdigest()[:32]


class ActionRefused(AlertingError):
    """The server does not do what a person asked for; the text says why, for that person.

    Attributes:
        passing: the same again can help: a part of the server is away for a moment.
    """

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


@dataclass(frozen=True, slots=True)
class Branch:
    """Points of one unbroken line of a curve.

    Args:
        steps: strictly rising. values: as logged, NaN and infinities too; as many as steps.
        dead: the run has left this part.
        label: of the fork that it began with, ``R1`` for a rollback, "" for the first.
    """

    steps: Sequence[int]
    values: Sequence[float]
    dead: bool = False
    label: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """A metric around the onset of an incident.

    Args:
        branches: in the order in which they were run.
        onset_step: where the incident began.
        now: newest step that counts and its value, also where the branches end earlier; None for none.
    """

    metric: str
    branches: Sequence[Branch]
    onset_step: int
    now: tuple[int, float] | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What a message says beside the incident itself.

    Args:
        run_name, project: for people.
        curve: None where the incident is about no metric.
        can_roll_back: a rollback can be offered for it now.
        gone: there is no such run or incident any more.
    """

    run_name: str = ""
    project: str = ""
    curve: Curve | None = None
    can_roll_back: bool = False
    gone: bool = False


@dataclass(frozen=True, slots=True)
class RollbackNow:
    """A rollback as it would be ordered at this moment.

    Args:
        head, head_key: the segment that the job is in: its number and what the ranks call it.
        step: newest step of the job, None before the first one.
        to_step, checkpoint: the suggested checkpoint and its path; None where none is suggested.
        saved: when it was saved, unix seconds.
        changes: what else would be changed, in words.
        cannot: what the job does not promise to change, in words.
        text: why this checkpoint.
        refused: why nothing can be ordered now, "" where it can.
        warning: what is to be known first, "" for nothing: the job stands still, for one.
        two_persons: it is proposed, and another person approves it.
        ranks: how many have to agree. run_name: for people.
    """

    head: int
    head_key: str
    step: int | None
    to_step: int | None
    checkpoint: str | None
    saved: float | None = None
    changes: Sequence[str] = ()
    cannot: Sequence[str] = ()
    text: str = ""
    refused: str = ""
    warning: str = ""
    two_persons: bool = False
    ranks: int = 1
    run_name: str = ""


@dataclass(frozen=True, slots=True)
class Order:
    """A rollback that a person orders.

    Args:
        head, to_step, checkpoint: what the person was shown, the first and the last as their fingerprints; it is
            refused where one of them is another one now.
        who: as the command's issuer. person: id of the person where the message is shown; it can't be changed.
        key: the same for every attempt to send this order.
    """

    run_id: str
    incident_id: str
    head: str
    to_step: int
    checkpoint: str
    who: str
    person: str
    reason: str
    key: str


@dataclass(frozen=True, slots=True)
class CommandNews:
    """How far a command is.

    Args:
        state: pending, delivered, ready, acted, done, rejected, failed or expired.
        line: the same for people. trouble: why it came to nothing, "" where it did not.
        passed: the states that it went through, each with the seconds since it was ordered.
        ended: it stays as it is. failed: it was not carried out.
    """

    command_id: str
    state: str
    line: str
    trouble: str = ""
    ended: bool = False
    failed: bool = False
    passed: Sequence[tuple[str, float]] = ()


@dataclass(frozen=True, slots=True)
class Proposed:
    """An order that waits for another person.

    Args:
        what: the order in words. expires: nobody can approve it later, unix seconds.
    """

    proposal_id: str
    what: str
    expires: float


class Actions(Protocol):
    """What the server does for whoever presses a button. Each raises ``ActionRefused`` with words for that person."""

    #: False while the server has no mutes: no button is shown for them.
    offers_mute: bool

    async def facts(self, run_id: str, incident_id: str) -> Facts:
        """Return what a message says beside the incident."""

    async def acknowledge(self, run_id: str, incident_id: str, who: str, detail: str) -> str:
        """Note that somebody takes care of it; return who does: the first one stays."""

    async def note(self, run_id: str, incident_id: str, action: str, who: str, detail: str) -> None:
        """Note for good what somebody did about it elsewhere."""

    async def mute(self, run_id: str, incident_id: str, minutes: int, who: str, reason: str, person: str) -> float:
        """Keep everybody from hearing of incidents like this one; return until when, unix seconds."""

    async def rate(self, run_id: str, incident_id: str, useful: bool, who: str, person: str) -> None:
        """Note whether hearing of it was useful, or noise; the newest rating counts."""

    async def rollback_now(self, run_id: str, incident_id: str) -> RollbackNow:
        """Return what a rollback would be at this moment."""

    async def roll_back(self, order: Order) -> CommandNews | Proposed:
        """Order a rollback, if what the person was shown still holds; the same key again gives the same command.

        Where an order takes two persons it is proposed.
        """

    async def approve(self, run_id: str, proposal_id: str, who: str, person: str) -> CommandNews:
        """Order what another person proposed."""

    async def decline(self, run_id: str, proposal_id: str, who: str, person: str) -> None:
        """Say that what was proposed is not wanted."""

    async def command(self, run_id: str, command_id: str) -> CommandNews | None:
        """Return how far a command is, None where there is no such command."""
