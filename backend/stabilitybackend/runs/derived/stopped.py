"""Whether a run was stopped on order, and what that makes of its status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stabilitybackend.schema.commands import Stop
from stabilitybackend.schema.runs import RunStatus, StoppedBy

if TYPE_CHECKING:
    from stabilitybackend.runs.state import RunState

__all__ = ["status_fields", "status_of", "stop_that_holds"]


def stop_that_holds(state: RunState) -> Stop | None:
    """Return the stop that all ranks carried out and behind which nobody started the job again, None for none."""
    stop = state.commands.stop
    return stop if stop is not None and stop.issued > state.launch_sizes.newest_start.started else None


def status_of(state: RunState, now: float) -> tuple[RunStatus, str, StoppedBy | None]:
    """Return the run's status, a note, and who stopped it; a job that ends on order has not crashed.

    Args:
        now: unix seconds.
    """
    status, note = state.liveness.status(now)
    stop = stop_that_holds(state)
    if stop is None:
        return status, note, None
    by = StoppedBy(
        by=stop.issuer,
        reason=stop.reason,
        before_step=stop.apply_at_step,
        time=stop.history[-1].time,
        saved=stop.save,
        command_id=stop.command_id,
    )
    words = by.text()
    if status in ("finished", "crashed", "preempted", "stopped"):  # how its processes ended is still said
        return "finished", f"{words} {note}".rstrip(), by
    if status == "running":
        return status, f"{words} Its script is coming to its end.", by
    return status, f"{words} {note}".rstrip(), by


def status_fields(state: RunState, now: float) -> dict[str, Any]:
    """Return those fields of the run's view that say how its job is; ``now``: unix seconds."""
    status, note, stopped = status_of(state, now)
    stopper = "crashed" if status in ("preempted", "stopped") else status  # all by processes that are gone
    return {
        "status": status,
        "note": " ".join(part for part in (note, state.unrecorded.view().text, state.unreadable.note) if part),
        "note_incident": None if status in ("running", "finished") else state.incidents.stopper(stopper),
        "stopped": stopped,
    }
