"""Proposals: permissions to propose and approve, and whether an approved one still fits the job. Pure."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from msgspec.structs import replace

from stabilitybackend.acting.commands.commands import CommandBook
from stabilitybackend.acting.commands.request import JobView
from stabilitybackend.base.errors import BadRequest, Conflict, Forbidden
from stabilitybackend.schema.commands import END_STATES, KINDS, CommandFence, CommandRequest, Proposal
from stabilitybackend.schema.plan import Plan

__all__ = ["EXPIRES_S", "Person", "approved", "check_alone", "check_fits", "declined", "in_words", "refusal"]

#: Life of a proposal, seconds: later the job has moved on.
EXPIRES_S = 15 * 60.0
#: Named nodes of a restart.
_NAMED = 8


@dataclass(frozen=True)
class Person:
    """Author of an action. ``key_id``: None without a key. ``local``: no keys in use, so all have the same name."""

    name: str
    key_id: str | None
    local: bool = False


def needs_two(request: CommandRequest) -> bool:
    """Return whether the two persons' rule applies: the command ends or moves training."""
    return KINDS[request.kind].moves


def check_alone(request: CommandRequest, *, two_persons: bool) -> None:
    """Raise Conflict for a command that needs two persons."""
    if two_persons and needs_two(request):
        raise Conflict(
            f"a {request.kind} takes two persons on this server: one proposes it, another one approves it",
            hint="propose it: on the run's page, or with POST .../proposals",
            code="two_persons",
        )


def check_fits(
    book: CommandBook, run_id: str, request: CommandRequest, job: JobView, now: float, plan: Plan | None
) -> None:
    """Raise the errors of issuing this now, without a change."""
    if request.idempotency_key is not None:
        raise BadRequest("idempotency_key given for a proposal, expected none", hint="leave it out")
    trial = CommandBook(run_id)
    trial.load(copy.deepcopy([one for one in book.all() if one.state not in END_STATES]))
    trial.issue(request, job, command_id="trial", issuer="", now=now, plan=plan)


def approved(proposal: Proposal, person: Person, now: float, *, two_persons: bool) -> Proposal:
    """Return a proposal as approved by a person.

    Raises:
        Conflict: decided before, or expired.
        Forbidden: the person proposed it.
    """
    known = proposal.at(now)
    if known.state == "approved" and known.command_id is None and now <= known.expires:
        return known  # it was approved, and the server ended before it was sent
    _check_open(known)
    key = person.key_id
    # A program's own key: it can't approve, so a person has to look.
    if (not person.local and (key, person.name) == (proposal.proposer_key, proposal.proposer)) or (
        key is not None and key == proposal.proposer_key
    ):
        raise Forbidden(
            f"{person.name!r} proposed this and can't approve it",
            hint="another person approves it; give an assistant a key of its own: "
            "stabilityboard keys create assistant --role assistant",
            code="own_proposal",
        )
    if two_persons and needs_two(proposal.request) and _bare(person.name) == _bare(proposal.proposer):
        raise Forbidden(
            f"{proposal.proposer!r} proposed this, and a {proposal.request.kind} takes two persons on this server",
            hint="somebody with another name approves it; make each person a key: stabilityboard keys create NAME",
            code="two_persons",
        )
    return replace(known, state="approved", decided_by=person.name, decided=now, detail="")


def _bare(name: str) -> str:
    """Return a name without its place: one person has a key and a name in Slack."""
    return name.casefold().removeprefix("slack:")


def declined(proposal: Proposal, person: Person, now: float, why: str) -> Proposal:
    """Return a proposal as declined by a person. Raise Conflict for one decided before, or expired."""
    known = proposal.at(now)
    _check_open(known)
    return replace(known, state="declined", decided_by=person.name, decided=now, detail=why)


def _check_open(known: Proposal) -> None:
    if known.state != "proposed":
        by = f" by {known.decided_by}" if known.decided_by else ""
        raise Conflict(
            f"proposal {known.proposal_id} is {known.state}{by}, expected one that waits for a person",
            hint="propose it again" if known.state in ("expired", "refused") else known.detail,
            code=f"proposal_{known.state}",
        )


def refusal(proposal: Proposal, head: CommandFence) -> str:
    """Return why a proposal does not fit the present head, a sentence; "" where it does."""
    if proposal.fence == head:
        return ""
    return (
        f"It was proposed on segment {proposal.fence.segment}, but the job is in segment {head.segment} now: it went "
        "back or was restarted since. Look at the run, then propose what fits."
    )


def in_words(request: CommandRequest) -> str:
    """Return a command as text."""
    step = "" if request.to_step is None else f" to step {request.to_step:,}"
    changes = []
    if request.lr_scale is not None:
        changes.append(f"LR x {request.lr_scale:g}")
    if request.seed is not None:
        changes.append(f"new seed {request.seed}")
    if request.skip_batches:
        changes.append(f"skip {request.skip_batches:,} batches")
    if request.skip_range is not None and len(request.skip_range) == 2:
        changes.append(f"leave out the batches of steps {request.skip_range[0]:,} to {request.skip_range[1]:,}")
    if request.exclude_nodes:
        changes.append(f"without {', '.join(request.exclude_nodes[:_NAMED])}")
    if request.keep_nodes:
        changes.append(f"keep {', '.join(request.keep_nodes[:_NAMED])}")
    what = {
        "rollback": f"Roll back{step}" if request.branch is None else f"Go back{step} of segment {request.branch}",
        "restart": "Restart all ranks" + (f" from step {request.to_step:,}" if request.to_step is not None else ""),
        "stop": "Save a checkpoint, then stop training on all ranks" if request.save else "Stop training on all ranks",
        "checkpoint_now": "Save a checkpoint now",
        "dump_stacks": "Collect the stacks of all ranks",
        "task": f"Run the task {request.task} on every node",
        "show_batches": "Look at the batches that the ranks keep",
    }.get(request.kind, request.kind.replace("_", " ").capitalize() + step)
    return ", ".join([what, *changes])
