"""The job of one run as commands are decided on it: its pace, checkpoints, agents, and the rollback that is offered."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from msgspec import structs

from stabilitybackend.acting.commands.branch_offer import offered_branches
from stabilitybackend.acting.commands.request import JobView
from stabilitybackend.acting.commands.restart_plan import MAX_FRUITLESS, RestartFacts, make_plan
from stabilitybackend.acting.commands.rollback_offer import advised_rollback, back_to
from stabilitybackend.base.errors import NotFound
from stabilitybackend.judging.batches.kept import KeptBatches
from stabilitybackend.judging.incidents.affecting import damaged_by
from stabilitybackend.judging.liveness.world_size import LaunchSizes, newest_starts
from stabilitybackend.lineage.checkpoints import LoggedCheckpoint
from stabilitybackend.lineage.consumer import Consumer
from stabilitybackend.lineage.lineage import Given, Lineage
from stabilitybackend.lineage.returns import left_by
from stabilitybackend.runs.consumers.agents import Agents
from stabilitybackend.runs.consumers.commands import Commands
from stabilitybackend.runs.consumers.incidents import Incidents
from stabilitybackend.runs.consumers.liveness import Liveness
from stabilitybackend.runs.step_clock import StepClock
from stabilitybackend.runs.unreadable import Unreadable
from stabilitybackend.runs.unrecorded import UnrecordedRows
from stabilitybackend.schema.commands import CommandRequest, Stop
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.kinds import kind_of
from stabilitybackend.schema.lineage import Checkpoint, Offer, SpoiledBy
from stabilitybackend.schema.plan import Plan
from stabilitybackend.schema.runs import RunStatus, StoppedBy
from stabilitybackend.storage.points.summary import RunSummary

__all__ = ["Job", "first_step"]

#: Lists of runs offer to undo a rollback for so long, seconds: later the lineage still does.
UNDO_LISTED_S = 86_400.0


def first_step(incident: Incident) -> int | None:
    """Return the first step of an incident whose batches are asked for, None where it is about a machine."""
    return None if kind_of(incident.kind).of_machine else incident.onset_step


class Job(Consumer):
    """Facts of other consumers about the job; it has no state of its own."""

    reads = (
        Given, Lineage, RunSummary, LaunchSizes, KeptBatches, Commands, StepClock, Liveness, Agents, Incidents,
        UnrecordedRows, Unreadable,
    )  # fmt: skip

    def __init__(
        self, given: Given, lineage: Lineage, summary: RunSummary, sizes: LaunchSizes, kept: KeptBatches,
        commands: Commands, step_clock: StepClock, liveness: Liveness, agents: Agents, incidents: Incidents,
        unrecorded: UnrecordedRows, unreadable: Unreadable,
    ) -> None:  # fmt: skip
        self._given, self._fold, self._summary, self._sizes, self._kept = given, lineage.fold, summary, sizes, kept
        self._commands, self._step_clock, self._liveness, self._agents = commands, step_clock, liveness, agents
        self._incidents, self._unrecorded, self._unreadable = incidents, unrecorded, unreadable

    def view(self, *, for_command: bool = True) -> JobView:
        """Return the facts on which a command is decided.

        Args:
            for_command: a new command is decided on it: with checkpoints and the starts of the ranks, which may be
                many.
        """
        now, tree = self._given.clock(), self._fold.tree
        head = tree[tree.head]
        return JobView(
            *self._step_clock.now(),
            world_size=self._sizes.size,
            head=head.id,
            head_key=head.key,
            checkpoints=self.checkpoints() if for_command else [],
            agents=len(self._agents.connected),
            starts=newest_starts(self._agents.all.values()) if for_command else {},
            affects_weights=self._incidents.book.affects_weights(),
            handler=self._commands.handlers,
            keepers=self._kept.ranks,
            segment_keys={one.id: one.key for one in tree if not one.undone} if for_command else {},
            duplicates=self._liveness.monitor.duplicates(now),
            hung=self._hung(now) if for_command else "",
            logged_step=self._step_clock.logged,
        )

    def _hung(self, now: float) -> str:
        """Return how the job hangs, "" where it does not."""
        status, note = self._liveness.monitor.status(now)
        return note if status == "stalled" else ""

    # --- checkpoints and rollbacks -------------------------------------------------------------------------------

    def checkpoints(self, paths: Collection[str] | None = None) -> list[Checkpoint]:
        """Return the checkpoints, newest first; only those of ``paths`` where given."""
        damaged, size, fold = self._incidents.book.affects_weights(), self._sizes.size, self._fold
        return [
            _shown(c, dead, None if dead else damaged_by(c.step, damaged), size)
            for c in (reversed(fold.checkpoints) if paths is None else fold.checkpoints.at(paths))
            for dead in [fold.tree.is_dead(c.segment, c.step)]
        ]

    def offer(self, incident_id: str | None = None) -> Offer:
        """Return the rollback that is suggested now.

        Args:
            incident_id: the incident that is looked at, None for the run.

        Raises:
            NotFound: there is no such incident.
        """
        incidents = self._incidents.book.all()[::-1]
        about = next((one for one in incidents if one.incident_id == incident_id), None)
        if about is None and incident_id is not None:
            raise self._no_incident(incident_id)
        checkpoints, fold, handlers = self.checkpoints(), self._fold, self._commands.handlers
        offer = back_to(incidents, checkpoints, self._last_step(), about, handlers.cannot())
        branches = offered_branches(fold.tree, fold.heads, checkpoints, incidents)
        return structs.replace(
            offer,
            branches=branches,
            no_rollback=self.no_rollback(),
            no_return=handlers.no_return(self._sizes.size) if branches else "",
        )

    def no_rollback(self) -> str:
        """Return why the job can't be ordered back to a checkpoint, half a sentence; "" where it can.

        The header's button, the dialog, Slack, the command line, an incident's advice and its actions all go by this.
        """
        if self._liveness.monitor.ended(self._given.clock()) is not None:
            return "this run has ended: there is no job to roll back. Start it again from a checkpoint"
        if self._step_clock.newest < 0:
            return "the job has not begun a step yet"
        return self._commands.handlers.no_rollback(self._sizes.size)

    def undo(self) -> int | None:
        """Return the discarded segment that undoing the newest rollback goes back to.

        None where the job's last event is no rollback of the last day, or its former branch can't be resumed.
        """
        fold = self._fold
        head = fold.tree[fold.tree.head]
        if head.cause != "command" or head.returns_to is not None:
            return None
        if self._given.clock() - head.created > UNDO_LISTED_S:
            return None
        left = left_by(fold.tree, fold.heads, head.id)
        returns = not self._commands.handlers.no_return(self._sizes.size)
        return left if left is not None and self._incidents.usable().left_on(left) and returns else None

    # --- requests ------------------------------------------------------------------------------------------------

    def with_step(self, request: CommandRequest) -> CommandRequest:
        """Return the request with the step of its incident, where it names one and no step.

        Raises:
            NotFound: there is no such incident.
        """
        if request.incident_id is None:
            return request
        incident = self._incidents.book.get(request.incident_id)
        if incident is None:
            raise self._no_incident(request.incident_id)
        return request if request.step is not None else replace(request, step=first_step(incident))

    def plan(self, now: float, request: CommandRequest | None = None) -> Plan:
        """Return the plan of docs/restart.md; while a restart waits for its job, the one that was ordered.

        Bounded: a job that restarted so often since and never logged a row is judged like any other.

        Args:
            now: unix seconds. request: for a restart.

        Raises:
            BadRequest: the request names a checkpoint that can't be used.
            Conflict: it names one from inside an open incident, and does not accept that.
        """
        ordered = self._commands.book.restart_under_way()
        if request is None and ordered is not None:
            tries = sum(launch.started > ordered.issued for launch in self._sizes.launches())
            if tries < MAX_FRUITLESS:
                return ordered.plan
        status, note, stopped = self.status(now)
        checkpoints, incidents = self.checkpoints(), self._incidents.book.all()
        nodes = {agent.node for agent in self._agents.all.values() if agent.ranks}
        fruitless, settled = self._sizes.fruitless(checkpoints), self._liveness.monitor.is_settled(now)
        # A new process has no rollback handler yet: the limits of the old one do not apply.
        offer = advised_rollback(incidents[::-1], checkpoints, self._last_step())
        job = RestartFacts(status, note, incidents, checkpoints, nodes, fruitless, settled, offer, stopped is not None)
        return make_plan(self._given.run_id, job, now, request)

    # --- its status ----------------------------------------------------------------------------------------------

    def stop(self) -> Stop | None:
        """Return the stop that all ranks carried out and behind which the job was not started again, None for none."""
        stop = self._commands.book.stop
        return stop if stop is not None and stop.issued > self._sizes.newest_start.started else None

    def status(self, now: float) -> tuple[RunStatus, str, StoppedBy | None]:
        """Return the run's status, a note, and who stopped it; a job that ends on command has not crashed."""
        status, note = self._liveness.monitor.status(now)
        stop = self.stop()
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
        if status in ("finished", "crashed", "preempted", "stopped"):  # the end of its processes is named nevertheless
            return "finished", f"{words} {note}".rstrip(), by
        if status == "running":
            return status, f"{words} Its script is coming to its end.", by
        return status, f"{words} {note}".rstrip(), by

    def status_fields(self) -> dict[str, Any]:
        """Return those fields of the run's view that tell how its job is."""
        status, note, stopped = self.status(self._given.clock())
        stopper = "crashed" if status in ("preempted", "stopped") else status  # all by processes that are gone
        notes = (note, self._unrecorded.view().text, self._unreadable.note)
        return {
            "status": status,
            "note": " ".join(part for part in notes if part),
            "note_incident": None if status in ("running", "finished") else self._incidents.book.stopper(stopper),
            "stopped": stopped,
        }

    def _last_step(self) -> int | None:
        last: int | None = self._summary.view()["last_step"]
        return last

    def _no_incident(self, incident_id: str) -> NotFound:
        run = self._given.run_id
        return NotFound(f"run {run} has no incident {incident_id!r}", hint="list them with GET .../incidents")


def _shown(c: LoggedCheckpoint, dead: bool, spoilt: SpoiledBy | None, world_size: int) -> Checkpoint:
    known = Checkpoint(
        c.step, c.path, c.segment, c.time, c.available, dead, spoilt, c.unfit(world_size), took_s=c.took_s,
        unverified=c.unverified and not c.unloadable(world_size),
    )  # fmt: skip
    look = c.look
    if look is None:
        return known
    return structs.replace(
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
