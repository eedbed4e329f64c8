"""Makes a rollback's command from what somebody asks for, where it fits the job. Pure."""

from __future__ import annotations

from msgspec import UNSET

from stabilitybackend.commands.request import JobView, NewCommand, check_outside, usable_checkpoint
from stabilitybackend.errors import BadRequest, Conflict
from stabilitybackend.schema.commands import CommandRequest, Rollback

__all__ = ["new_rollback"]


def new_rollback(new: NewCommand) -> Rollback:
    """Return the command, pending and with no history.

    Raises:
        BadRequest: no such checkpoint can be rolled back to, or the job said that it can't change what is asked for.
        Conflict: the job has not begun a step, or the checkpoint is from inside an open incident.
    """
    request, job = new.request, new.job
    if job.running_step is None:
        raise Conflict("the job has not begun a step yet", hint="order it again when the first step is there")
    assert request.to_step is not None
    if request.to_step >= job.running_step:
        raise BadRequest(
            f"to_step is {request.to_step}, but the job is at step {job.running_step}",
            hint="give an earlier step: that of a checkpoint",
        )
    checkpoint = usable_checkpoint(request.to_step, job.checkpoints)
    check_outside(request, job.checkpoints, job.spoiling)
    return Rollback(
        **new.fields(),
        to_step=request.to_step,
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
