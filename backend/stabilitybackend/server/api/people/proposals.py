"""Orders that wait for a person: propose, approve, decline. Shapes: docs/api.md."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from stabilitybackend.access.auth import Principal
from stabilitybackend.acting.commands.proposals import Person
from stabilitybackend.alerts.proposals import ProposalRegistry
from stabilitybackend.schema.commands import CommandRequest, Proposal, Proposals, RunProposals
from stabilitybackend.server.api.access import (
    AlertingPart,
    Commander,
    Manager,
    Proposer,
    Reader,
    Recorded,
    StartOptions,
    Worker,
)
from stabilitybackend.server.api.answers import answer, answers

__all__ = ["person_of", "router"]

router = APIRouter(prefix="/api/v1", tags=["commands"])
#: Proposals of a run that are shown, newest ones.
SHOWN = 50


class Declined(BaseModel):
    """Why it is not wanted; may be left out."""

    model_config = ConfigDict(extra="forbid")

    reason: str = Field("", max_length=300)


async def _book(alerting: AlertingPart) -> ProposalRegistry:
    return alerting.proposals


async def _two_persons(options: StartOptions) -> bool:
    return options.settings.two_persons


Book = Annotated[ProposalRegistry, Depends(_book)]
TwoPersons = Annotated[bool, Depends(_two_persons)]


def person_of(identity: Principal) -> Person:
    """Return who acts."""
    return Person(identity.name, identity.key_id, identity.by == "local")


@router.get("/proposals", responses=answers(Proposals))
async def waiting(reader: Reader, manager: Manager, book: Book) -> Response:
    """Open proposals of all runs, oldest first."""
    found = await book.waiting()
    seen = [one for one in found if reader.project is None or reader.sees(await manager.project(one.run_id))]
    return answer(Proposals(seen))


@router.get("/runs/{run_id}/proposals", responses=answers(RunProposals))
async def of_run(reader: Reader, worker: Worker, book: Book, two_persons: TwoPersons) -> Response:
    """Proposals of the run with their outcomes, newest first."""
    return answer(RunProposals((await book.of_run(worker.run_id))[:SHOWN], two_persons))


@router.post("/runs/{run_id}/proposals", status_code=201, responses=answers(Proposal, 201))
async def propose(
    body: CommandRequest,
    proposer: Proposer,
    worker: Worker,
    book: Book,
    record: Recorded,
    by_program: Annotated[bool, Query(description="an assistant proposes it, no person")] = False,
) -> Response:
    """Propose an order: nothing is sent until a person approves it; it expires after 15 minutes."""
    made = await book.propose(worker, body, person_of(proposer), by_program=by_program)
    await record.did(proposer, "proposal.made", made.proposal_id, made.what)
    return answer(made, 201)


@router.post("/runs/{run_id}/proposals/{proposal_id}/approve", responses=answers(Proposal))
async def approve(
    proposal_id: str, commander: Commander, worker: Worker, book: Book, two_persons: TwoPersons, record: Recorded
) -> Response:
    """Approve a proposal: its command is issued, unless the run went elsewhere since it was proposed."""
    done = await book.approve(worker, proposal_id, person_of(commander), two_persons=two_persons)
    await record.did(commander, "proposal.approved", proposal_id, f"{done.what}, proposed by {done.proposer}")
    return answer(done)


@router.post("/runs/{run_id}/proposals/{proposal_id}/decline", responses=answers(Proposal))
async def decline(
    proposal_id: str, body: Declined, commander: Commander, worker: Worker, book: Book, record: Recorded
) -> Response:
    """Decline a proposal; nothing is sent."""
    done = await book.decline(worker, proposal_id, person_of(commander), body.reason.strip())
    await record.did(commander, "proposal.declined", proposal_id, f"{done.what}, proposed by {done.proposer}")
    return answer(done)
