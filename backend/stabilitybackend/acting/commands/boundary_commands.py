"""Commands to stop and to save a checkpoint, and whether the job would accept them. Pure."""

from __future__ import annotations

from stabilitybackend.acting.commands.request import JobView, NewCommand
from stabilitybackend.base.errors import BadRequest, Conflict
from stabilitybackend.schema.commands import CheckpointNow, CommandOffer, CommandOffers, Kind, Stop

__all__ = ["new_checkpoint", "new_stop", "offers"]

_NO_STEP = "the job has not begun a step yet"
#: How a job becomes able to save on command.
_REGISTER = "register a function that saves: @run.on_checkpoint (the integrations do it by themselves)"


def new_stop(new: NewCommand) -> Stop:
    """Return the command, pending and with no history.

    Raises:
        BadRequest: the job reported that it can't stop, or can't save first. Conflict: no step began yet, or it hangs.
    """
    _check("stop", new.job)
    if new.request.save:
        _check("checkpoint_now", new.job, "save is true, but ")
    return Stop(
        **new.fields(), save=bool(new.request.save), apply_at_step=new.job.boundary(1), world_size=new.job.world_size
    )


def new_checkpoint(new: NewCommand) -> CheckpointNow:
    """Return the command; see ``new_stop``."""
    _check("checkpoint_now", new.job)
    return CheckpointNow(**new.fields(), apply_at_step=new.job.boundary(1), world_size=new.job.world_size)


def offers(job: JobView) -> CommandOffers:
    """Return whether the job would accept each."""
    reached = max((one.step for one in job.checkpoints if one.usable), default=None)
    boundary = job.boundary(1)
    lost = None if boundary is None or not job.agents else max(0, boundary - 1 - (reached or 0))
    return CommandOffers(
        stop=_offer("stop", job),
        checkpoint_now=_offer("checkpoint_now", job),
        ranks=job.world_size,
        last_checkpoint=reached,
        steps_lost=lost,
        seconds_lost=None if lost is None or job.step_time_s is None else lost * job.step_time_s,
    )


def _offer(kind: Kind, job: JobView) -> CommandOffer:
    why = _why_not(kind, job)
    hangs = bool(job.hung)
    return CommandOffer(possible=not why, why=why, works=["dump_stacks", "restart"] if hangs and job.agents else [])


def _check(kind: Kind, job: JobView, begin: str = "") -> None:
    why = _why_not(kind, job)
    if not why:
        return
    text = f"{begin}{why}"
    if job.hung:
        hint = "collect the stacks of all ranks, or restart the job: agents do both"
        raise Conflict(text, hint=hint, code="job_hangs")
    if job.running_step is None:
        raise Conflict(text, hint="order it again when the first step is there")
    raise BadRequest(text, hint=_REGISTER if kind == "checkpoint_now" else "see docs/commands.md", code="job_cannot")


def _why_not(kind: Kind, job: JobView) -> str:
    """Return why this job would not obey, half a sentence; "" for no reason."""
    if job.agents == 0:
        return "no agent of this run is connected, so nobody can deliver a command"
    if job.hung:
        return f"the job hangs, and a rank that hangs does not come to the end of its step. {job.hung}".rstrip()
    if job.running_step is None:
        return _NO_STEP
    return job.handler.not_obeyed(kind, job.world_size)
