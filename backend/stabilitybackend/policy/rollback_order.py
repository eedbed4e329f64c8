"""Makes a rollback's command from what somebody asks for, where it fits the job. Pure."""

from __future__ import annotations

from typing import Any

from stabilitybackend.errors import BadRequest, Conflict
from stabilitybackend.policy.orders import JobView, Order, check_outside, usable_checkpoint

__all__ = ["rollback_order"]

#: A command that no rank acted on expires after this long, seconds: long enough for a few slow steps, short enough
#: that nobody is surprised by a rollback ordered before lunch.
DEFAULT_EXPIRES_S = 600.0


def rollback_order(
    order: Order, command_id: str, run_id: str, job: JobView, *, issuer: str, now: float
) -> dict[str, Any]:
    """Return the Command of docs/api.md, pending and with no history.

    Raises:
        BadRequest: no such checkpoint can be rolled back to, or the job said that it can't change what is asked for.
        Conflict: the job has not begun a step, or the checkpoint is from inside an open incident.
    """
    if job.running_step is None:
        raise Conflict("the job has not begun a step yet", hint="order it again when the first step is there")
    assert order.to_step is not None
    if order.to_step >= job.running_step:
        raise BadRequest(
            f"to_step is {order.to_step}, but the job is at step {job.running_step}",
            hint="give an earlier step: that of a checkpoint",
        )
    checkpoint = usable_checkpoint(order.to_step, job.checkpoints)
    check_outside(order, job.checkpoints, job.spoiling)
    return {
        "command_id": command_id,
        "run_id": run_id,
        "kind": order.kind,
        "to_step": order.to_step,
        "lr_scale": order.lr_scale,
        "seed": order.seed,
        "skip_batches": order.skip_batches,
        "unpromised": _unpromised(order, job),
        "reason": order.reason,
        "issuer": issuer,
        "issued": now,
        "expires": now + (DEFAULT_EXPIRES_S if order.expires_s is None else order.expires_s),
        "fence": {"segment": job.head, "segment_key": job.head_key},
        "state": "pending",
        "attempt": 1,
        "apply_at_step": job.boundary(1),
        "world_size": job.world_size,
        "ranks": {},
        "history": [],
        "checkpoint": checkpoint,
        "segment": None,
        "first_step": None,
        "idempotency_key": order.idempotency_key,
    }


def _unpromised(order: Order, job: JobView) -> list[str]:
    """Return what is asked for and not promised by the job. Raise BadRequest where the job said that it can't do it."""
    handler = job.handler
    asked = {"lr_scale": order.lr_scale not in (None, 1), "seed": order.seed is not None}
    asked["skip_batches"] = bool(order.skip_batches)
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
