"""Makes a rollback's command from what somebody asks for, where it fits the job. Pure."""

from __future__ import annotations

from msgspec import UNSET

from stabilitybackend.acting.commands.request import (
    JobView,
    NewCommand,
    check_outside,
    unverified_refused,
    usable_checkpoint,
)
from stabilitybackend.base.errors import BadRequest, Conflict
from stabilitybackend.schema.commands import CommandRequest, Rollback
from stabilitybackend.schema.lineage import Branch, why_lost

__all__ = ["NO_ROLLBACK_HINT", "new_rollback"]

#: What is left where a job can't go back on order.
NO_ROLLBACK_HINT = "start the job again from the checkpoint, or give it a handler (docs/orders.md)"


def new_rollback(new: NewCommand) -> Rollback:
    """Return the command, pending and with no history.

    Raises:
        BadRequest: no such checkpoint can be rolled back to, or the job said that it can't change what is asked for.
        Conflict: the job has not begun a step, hangs, or the checkpoint is from inside an open incident.
    """
    request, job = new.request, new.job
    if job.hung:
        raise Conflict(
            f"the job hangs, and a rank that hangs does not come to the end of its step. {job.hung}",
            hint="restart the job from that checkpoint instead: agents do that, not the ranks",
            code="job_hangs",
        )
    if job.running_step is None:
        raise Conflict("the job has not begun a step yet", hint="order it again when the first step is there")
    assert request.to_step is not None
    if (why := job.handler.no_rollback(job.world_size)) and request.branch is None:
        raise BadRequest(why, hint=NO_ROLLBACK_HINT, code="job_cannot")
    if request.branch is not None:
        return _return(new, request.branch, request.to_step)
    if request.to_step >= job.running_step:
        raise BadRequest(
            f"to_step is {request.to_step}, but the job is at step {job.running_step}",
            hint="give an earlier step: that of a checkpoint",
        )
    checkpoint = usable_checkpoint(request.to_step, job.checkpoints, accept_unverified=request.accept_unverified)
    check_outside(request, job.checkpoints, job.spoiling)
    return _command(new, request.to_step, checkpoint)


def _return(new: NewCommand, branch: int, to_step: int) -> Rollback:
    """Return the command to go back to a branch that was left: a rollback is undone."""
    request, job = new.request, new.job
    if why := job.handler.no_return(job.world_size):
        old = job.handler.is_old
        hint = "start the job again with the newer one" if old else NO_ROLLBACK_HINT
        raise BadRequest(f"branch is given, but {why}", hint=hint, code="job_too_old" if old else "job_cannot")
    if request.skip_batches or request.skip_range is not None:
        raise BadRequest(
            "skip_batches or skip_range given with branch: a branch goes on with the batches that it had",
            hint="leave them out; roll back on the branch to skip batches of it",
        )
    if branch not in job.segment_keys:
        raise BadRequest(f"branch is {branch}, and there is no such segment", hint="list them with GET .../segments")
    mine = [c for c in job.checkpoints if c.segment == branch]
    if any(c.step == to_step and not c.dead for c in mine):
        raise BadRequest(
            f"the checkpoint of step {to_step} of segment {branch} is on the effective timeline, and not discarded",
            hint="leave branch out",
        )
    accepted = request.accept_unverified
    there = [c for c in mine if c.dead and c.available and (not c.unfit or (accepted and c.unverified))]
    checkpoint = next((c.path for c in there if c.step == to_step), None)
    if checkpoint is None:
        lost = next((c for c in mine if c.dead and c.step == to_step), None)
        if lost is not None and lost.available and lost.unverified:
            raise unverified_refused(lost)
        why = "" if lost is None else f": it {why_lost(lost.available, lost.unfit)}"
        known = ", ".join(str(c.step) for c in there[:12]) or "none"
        raise BadRequest(
            f"the discarded part of segment {branch} has no usable checkpoint of step {to_step}{why}",
            hint=f"usable there: {known}",
        )
    command = _command(new, to_step, checkpoint)
    command.branch = Branch(branch, job.segment_keys[branch])
    return command


def _command(new: NewCommand, to_step: int, checkpoint: str | None) -> Rollback:
    request, job = new.request, new.job
    return Rollback(
        **new.fields(),
        to_step=to_step,
        lr_scale=request.lr_scale,
        seed=request.seed,
        skip_batches=request.skip_batches,
        skip_range=UNSET if request.skip_range is None else (request.skip_range[0], request.skip_range[1]),
        unpromised=_unpromised(request, job),
        apply_at_step=job.boundary(1),
        world_size=job.world_size,
        checkpoint=checkpoint,
    )


def _unpromised(request: CommandRequest, job: JobView) -> list[str]:
    """Return what is asked for and not promised by the job. Raise BadRequest where the job said that it can't do it."""
    handler = job.handler
    asked = {"lr_scale": request.lr_scale not in (None, 1), "seed": request.seed is not None}
    asked |= {"skip_batches": bool(request.skip_batches), "skip_range": request.skip_range is not None}
    cannot = handler.cannot()
    missing = [name for name, wanted in asked.items() if wanted and name in cannot]
    if missing and handler.declares():
        raise BadRequest(
            f"{', '.join(missing)} given, but the job's rollback handler does not change that: it can "
            f"{', '.join(handler.can()) or 'only go back to the step'}",
            hint=f"leave it out, or let the handler do it and say so: @run.on_rollback(can=({missing[0]!r}, ...))",
            code="job_cannot",
        )
    return missing
