"""Actions of a person from within a message, which the server carries out for alerting.

Alerting imports no server, which hands in an ``Actions``; without one, messages link to the pages.
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
    "Proposed",
    "RollbackNow",
    "RollbackRequest",
    "fingerprint",
]


def fingerprint(text: str | None) -> str:
    """Return a digest of 32 characters, "" for None: questions in Slack are short."""
    return "" if text is None else hashlib.sha256(text.encode()).hexdigest()[:32]


class ActionRefused(AlertingError):
    """The server refuses an action, with the reason for the person.

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
        steps: strictly rising. values: as logged, NaN and infinities included; as many as steps.
        dead: the run has left this part.
        label: of the fork at its begin, ``R1`` for a rollback, "" for the first.
    """

    steps: Sequence[int]
    values: Sequence[float]
    dead: bool = False
    label: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """A metric around the onset of an incident.

    Args:
        branches: in the order of training.
        onset_step: first step of the incident.
        now: newest step on the effective path and its value, even where the branches end earlier; None for none.
    """

    metric: str
    branches: Sequence[Branch]
    onset_step: int
    now: tuple[int, float] | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """Further facts in a message about an incident.

    Args:
        run_name, project: for display.
        curve: None for an incident without a metric.
        can_roll_back: a rollback is offered now.
        gone: the run or the incident was deleted.
    """

    run_name: str = ""
    project: str = ""
    curve: Curve | None = None
    can_roll_back: bool = False
    gone: bool = False


@dataclass(frozen=True, slots=True)
class RollbackNow:
    """A rollback with the facts of this moment.

    Args:
        head, head_key: current segment of the job: its number and its name among the ranks.
        step: newest step of the job, None before the first one.
        to_step, checkpoint: the suggested checkpoint and its path; None for none.
        saved: time of the checkpoint, unix seconds.
        changes: further changes, for display. cannot: those that the job does not promise.
        text: reason for this checkpoint.
        refused: reason against any rollback now, "" for none.
        warning: facts to consider first, "" for none: the job is stalled, for one.
        two_persons: another person has to approve it.
        ranks: how many have to agree. run_name: for display.
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
class RollbackRequest:
    """A rollback requested by a person.

    Args:
        head, to_step, checkpoint: as shown to the person, the first and the last as fingerprints; it is refused where
            one of them has changed.
        who: issuer of the command. person: unchangeable id of the person in the messenger.
        key: the same for every attempt of this request.
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
    """Progress of a command.

    Args:
        state: pending, delivered, ready, acted, done, rejected, failed or expired.
        line: the same for display. problem: reason of a failure, "" for none.
        passed: its states so far, each with the seconds since the request.
        ended: its state is final. failed: it was not carried out.
    """

    command_id: str
    state: str
    line: str
    problem: str = ""
    ended: bool = False
    failed: bool = False
    passed: Sequence[tuple[str, float]] = ()


@dataclass(frozen=True, slots=True)
class Proposed:
    """A command that waits for the approval of another person.

    Args:
        what: description of the command. expires: end of its life, unix seconds.
    """

    proposal_id: str
    what: str
    expires: float


class Actions(Protocol):
    """Actions of the server on behalf of a person. Each raises ``ActionRefused`` with a text for that person."""

    #: False while the server has no mutes: messages have no button for them.
    offers_mute: bool

    async def facts(self, run_id: str, incident_id: str) -> Facts:
        """Return the facts of a message."""

    async def acknowledge(self, run_id: str, incident_id: str, who: str, detail: str) -> str:
        """Acknowledge an incident; return its holder: the first one stays."""

    async def note(self, run_id: str, incident_id: str, action: str, who: str, detail: str) -> None:
        """Log an action taken elsewhere."""

    async def mute(self, run_id: str, incident_id: str, minutes: int, who: str, reason: str, person: str) -> float:
        """Mute incidents like this one; return the end, unix seconds."""

    async def rate(self, run_id: str, incident_id: str, useful: bool, who: str, person: str) -> None:
        """Rate an alert as useful or noise; the newest rating counts."""

    async def rollback_now(self, run_id: str, incident_id: str) -> RollbackNow:
        """Return the facts of a rollback at this moment."""

    async def roll_back(self, request: RollbackRequest) -> CommandNews | Proposed:
        """Issue a rollback, if its facts still hold; the same key again gives the same command.

        Where two persons have to agree it is proposed.
        """

    async def approve(self, run_id: str, proposal_id: str, who: str, person: str) -> CommandNews:
        """Issue a command proposed by another person."""

    async def decline(self, run_id: str, proposal_id: str, who: str, person: str) -> None:
        """Decline a proposal."""

    async def command(self, run_id: str, command_id: str) -> CommandNews | None:
        """Return the progress of a command, None for none."""
