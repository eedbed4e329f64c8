"""A proposal: an order that waits for a person. Its JSON in Redis, in answers and in the live feed."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal

import msgspec
from msgspec import Struct

from stabilitybackend.schema.commands import CommandRequest, Fence

__all__ = ["Proposal", "Proposals", "RunProposals"]

ProposalState = Literal["proposed", "approved", "declined", "refused", "superseded", "expired"]


class Proposal(Struct, frozen=True, kw_only=True):
    """What somebody, or a program, wants of a job. Nothing is sent before a person approves it.

    Attributes:
        what: the order in words. order: as ``POST .../commands`` takes it.
        proposer: whose key proposed it. proposer_key: that key's id, null without one.
        by_program: an assistant proposed it.
        proposed, expires: unix seconds. Nobody can approve it later.
        fence: the head of the run on which it was proposed; it does not hold for another.
        state: approved: ``command_id`` says what became of it, null until it is sent. refused: by the server, as the
            run went elsewhere. superseded: the same proposer proposed anew.
        decided_by, decided: who approved or declined it, and when, unix seconds.
        detail: why it was declined or refused, or why it could not be sent yet; "" where there is nothing to say.
    """

    proposal_id: str
    run_id: str
    what: str
    order: dict[str, Any]
    proposer: str
    proposer_key: str | None = None
    by_program: bool = False
    proposed: float
    expires: float
    fence: Fence
    state: ProposalState = "proposed"
    decided_by: str | None = None
    decided: float | None = None
    detail: str = ""
    command_id: str | None = None

    @property
    def request(self) -> CommandRequest:
        """The order as it is issued; fields that this server does not know are left out."""
        known = {one.name for one in fields(CommandRequest)}
        given = {name: value for name, value in self.order.items() if name in known}
        return msgspec.convert({**given, "idempotency_key": self.proposal_id}, CommandRequest)

    def at(self, now: float) -> Proposal:
        """Return it as it is at this time: one that nobody decided on expires."""
        late = self.state == "proposed" and now > self.expires
        return msgspec.structs.replace(self, state="expired") if late else self


class RunProposals(Struct):
    """The newest proposals of a run, newest first. ``two_persons``: rollbacks, restarts, stops are to be proposed."""

    proposals: list[Proposal]
    two_persons: bool


class Proposals(Struct):
    """What waits for a person in all runs, oldest first."""

    proposals: list[Proposal]
