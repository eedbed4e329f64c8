"""What one run offers for a rollback, from what its state knows (``commands/rollback_offer.py`` decides)."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from msgspec.structs import replace

from stabilitybackend.acting.commands.branch_offer import offered_branches
from stabilitybackend.acting.commands.request import JobView
from stabilitybackend.acting.commands.rollback_offer import back_to
from stabilitybackend.base.errors import NotFound
from stabilitybackend.judging.incidents.affecting import damaged_by
from stabilitybackend.judging.liveness.world_size import newest_starts
from stabilitybackend.lineage.checkpoints import LoggedCheckpoint
from stabilitybackend.lineage.fold import LineageFold
from stabilitybackend.lineage.returns import left_by
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.lineage import Checkpoint, Offer, SpoiledBy

if TYPE_CHECKING:
    from stabilitybackend.runs.state import RunState
    from stabilitybackend.runs.step_clock import StepClock

__all__ = ["checkpoints_of", "job_of", "no_rollback", "offer_of", "undo_of"]

#: Lists of runs offer to undo a rollback for so long, seconds: later the lineage still does.
UNDO_LISTED_S = 86_400.0


def checkpoints_of(
    fold: LineageFold, affects_weights: Collection[Incident], world_size: int, paths: Collection[str] | None = None
) -> list[Checkpoint]:
    """Return the checkpoints, newest first.

    Args:
        affects_weights: the open incidents from whose onset on no checkpoint is good.
        world_size: ranks of the job now.
        paths: only those that lie there; None for all.
    """
    return [
        _shown(c, dead, None if dead else damaged_by(c.step, affects_weights), world_size)
        for c in (reversed(fold.checkpoints) if paths is None else fold.checkpoints.at(paths))
        for dead in [fold.tree.is_dead(c.segment, c.step)]
    ]


def _shown(c: LoggedCheckpoint, dead: bool, spoilt: SpoiledBy | None, world_size: int) -> Checkpoint:
    known = Checkpoint(
        c.step, c.path, c.segment, c.time, c.available, dead, spoilt, c.unfit(world_size), took_s=c.took_s,
        unverified=c.unverified and not c.unloadable(world_size),
    )  # fmt: skip
    look = c.look
    if look is None:
        return known
    return replace(
        known,
        kind=look.kind,
        complete=look.complete,
        writing=look.writing,
        size_bytes=look.size_bytes,
        files=look.files,
        world_size=look.world_size,
        loads_with=look.loads_with,
        unchecked=look.problem if look.complete is None else "",
    )


def job_of(state: RunState, clock: StepClock, now: float, *, for_command: bool) -> JobView:
    """Return what a command is decided on.

    Args:
        clock: the pace of the job. now: unix seconds.
        for_command: a new command is decided on it: with checkpoints and the starts of the ranks, which may be many.
    """
    head = state.fold.tree[state.fold.tree.head]
    return JobView(
        *clock.now(),
        world_size=state.launch_sizes.size,
        head=head.id,
        head_key=head.key,
        checkpoints=state.checkpoints() if for_command else [],
        # Who follows a log can't deliver anything.
        agents=sum(1 for agent in state.agents.values() if agent.connected and agent.agent_state.log is None),
        starts=newest_starts(state.agents.values()) if for_command else {},
        affects_weights=state.incidents.affects_weights(),
        handler=state.handlers,
        keepers=state.kept.ranks,
        segment_keys={one.id: one.key for one in state.fold.tree if not one.undone} if for_command else {},
        duplicates=state.liveness.duplicates(now),
        hung=_hung(state, now) if for_command else "",
        logged_step=clock.logged,
    )


def _hung(state: RunState, now: float) -> str:
    """Return how the job hangs, "" where it does not."""
    status, note = state.liveness.status(now)
    return note if status == "stalled" else ""


def offer_of(state: RunState, incident_id: str | None = None) -> Offer:
    """Return the rollback that is suggested now.

    Args:
        incident_id: the incident that somebody opened, None for the run.

    Raises:
        NotFound: there is no such incident.
    """
    incidents = state.incidents.all()[::-1]
    about = next((one for one in incidents if one.incident_id == incident_id), None)
    if about is None and incident_id is not None:
        raise NotFound(f"run {state.run_id} has no incident {incident_id!r}", hint="list them with GET .../incidents")
    checkpoints, fold = state.checkpoints(), state.fold
    offer = back_to(incidents, checkpoints, state.view().last_step, about, state.handlers.cannot())
    branches, size = offered_branches(fold.tree, fold.heads, checkpoints, incidents), state.launch_sizes.size
    return replace(
        offer,
        branches=branches,
        no_rollback=no_rollback(state, state.clock()),
        no_return=state.handlers.no_return(size) if branches else "",
    )


def no_rollback(state: RunState, now: float) -> str:
    """Return why nobody can order the job back to a checkpoint, half a sentence; "" where somebody can.

    The header's button, the dialog, Slack, the command line, an incident's advice and its actions all go by this.

    Args:
        now: unix seconds.
    """
    if state.liveness.ended(now) is not None:
        return "this run has ended: there is no job to roll back. Start it again from a checkpoint"
    if state.step_clock.newest < 0:
        return "the job has not begun a step yet"
    return state.handlers.no_rollback(state.launch_sizes.size)


def undo_of(state: RunState, now: float) -> int | None:
    """Return the discarded segment that undoing the newest rollback goes back to.

    None where the job did not go back last by a command of the last day, or can't go back to what it left.

    Args:
        now: unix seconds.
    """
    fold = state.fold
    head = fold.tree[fold.tree.head]
    if head.cause != "command" or head.returns_to is not None or now - head.created > UNDO_LISTED_S:
        return None
    left = left_by(fold.tree, fold.heads, head.id)
    usable = fold.checkpoints.usable(fold.tree, state.launch_sizes.size)
    returns = not state.handlers.no_return(state.launch_sizes.size)
    return left if left is not None and usable.left_on(left) and returns else None
