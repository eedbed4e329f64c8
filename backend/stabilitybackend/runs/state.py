"""Everything known of one run: lineage, points, incidents, commands, job facts. A fold over stored frames, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from stabilitybackend.acting.commands.abilities import Handlers
from stabilitybackend.acting.commands.commands import CommandBook
from stabilitybackend.acting.commands.request import JobView
from stabilitybackend.base.saving import SavedPart, Unfit, part_of, restore
from stabilitybackend.base.slices import at_once
from stabilitybackend.base.stateful import Stateful
from stabilitybackend.fleet.training_intervals import TrainingIntervals
from stabilitybackend.judging.batches.fold import BatchFold
from stabilitybackend.judging.batches.kept import EVENTS as KEPT_EVENTS
from stabilitybackend.judging.batches.kept import KeptBatches
from stabilitybackend.judging.detection.evidence import Evidence
from stabilitybackend.judging.detection.naming.watched_report import missing_text
from stabilitybackend.judging.detection.run_detection import PRIMARY_METRICS, Found, Judge
from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.gpus.readings import GpuReadings
from stabilitybackend.judging.gpus.watch import GPU_EVENTS, GpuWatch
from stabilitybackend.judging.incidents.incidents import IncidentBook, alert_finding
from stabilitybackend.judging.liveness.monitor import LivenessMonitor
from stabilitybackend.judging.liveness.rank_status import RankStatuses
from stabilitybackend.judging.liveness.world_size import LaunchSizes
from stabilitybackend.judging.resumes.book import ResumeBook
from stabilitybackend.judging.resumes.reported import EVENTS as RESUME_EVENTS
from stabilitybackend.lineage.blocks import in_turn
from stabilitybackend.lineage.changes import Forked, LineageEvent, Placed
from stabilitybackend.lineage.checkpoints import UsableCheckpoints
from stabilitybackend.lineage.fold import LineageFold
from stabilitybackend.runs.agents.health_reports import take_health
from stabilitybackend.runs.changes import Changes
from stabilitybackend.runs.derived.advice_turns import turned
from stabilitybackend.runs.derived.batch_commands import own_commands, with_step
from stabilitybackend.runs.derived.restart_plan import plan_of
from stabilitybackend.runs.derived.rollback_offer import checkpoints_of, job_of, no_rollback, undo_of
from stabilitybackend.runs.derived.stopped import status_fields
from stabilitybackend.runs.gpu_notes import GpuNotes
from stabilitybackend.runs.launch_facts import LaunchFacts
from stabilitybackend.runs.rows.row_taking import take_rows
from stabilitybackend.runs.rows.unrecorded import EVENTS as UNRECORDED_EVENTS
from stabilitybackend.runs.rows.unrecorded import UnrecordedRows
from stabilitybackend.runs.shown_state import stated
from stabilitybackend.runs.step_clock import StepClock
from stabilitybackend.runs.ticking import Ticking
from stabilitybackend.runs.unreadable import Unreadable
from stabilitybackend.schema.commands import Command, CommandRequest
from stabilitybackend.schema.events import CommandReport, GpuNote, read_event
from stabilitybackend.schema.health import AgentHealth
from stabilitybackend.schema.incidents import Incident, RolledBack
from stabilitybackend.schema.lineage import Checkpoint
from stabilitybackend.schema.reading import Misfit
from stabilitybackend.schema.resumes import BY_RESUMES
from stabilitybackend.schema.runs import RunView
from stabilitybackend.storage.points.metric_names import MetricNames
from stabilitybackend.storage.points.store import RunStore
from stabilitybackend.storage.points.summary import RunSummary
from stabilitybackend.storage.points.timestamps import TimesFound
from stabilityclient.wire import EventBlock, Frame, Health, PointsBlock, SourceInfo, started_ns

__all__ = ["RunState"]

_NO_GPU_NOTE = GpuNote(text="no report about GPUs from this node yet")


class RunState:
    """State of one run.

    Args:
        clock: unix seconds now.
        undone: keys of inferred segments that somebody undid.
    """

    def __init__(self, run_id: str, clock: Callable[[], float], undone: Collection[str] = ()) -> None:
        self.run_id = run_id
        self.fold = LineageFold(undone)
        self.incidents = IncidentBook(run_id)
        self.commands = CommandBook(run_id)
        self.liveness = LivenessMonitor(run_id)
        self.gpus = GpuWatch()
        #: Adds to a finding about a GPU, of an incident that is known or not, what is remembered of it from other runs
        #: (``runs/derived/fleet_reporter.py``).
        self.remember: Callable[[Finding, Incident | None], Finding] = lambda finding, known: finding
        #: Returns the run's config, which is stored beside its frames.
        self.config: Callable[[], Mapping[str, Any]] = dict
        self.stretches = TrainingIntervals()
        self.gpu_readings = GpuReadings()
        self.handlers = Handlers()
        self.agents: dict[str, AgentHealth] = {}
        self.launch_sizes = LaunchSizes()
        #: What could not be read or folded.
        self.unreadable = Unreadable(run_id)
        self.unrecorded = UnrecordedRows()
        self.metric_names = MetricNames()
        self.clock = clock
        self.judge = Judge(RunStore(), self.fold)
        self._evidence = Evidence()
        self.batches = BatchFold()
        self.kept = KeptBatches()
        self.resumes = ResumeBook(self.judge, self.batches)
        self.summary = RunSummary()
        self.times = TimesFound(PRIMARY_METRICS)
        self.step_clock = StepClock(clock)
        self._gpu_notes = GpuNotes()
        self.launch_facts = LaunchFacts()
        self._ticking = Ticking()
        #: Whether incidents are judged again from replayed frames (``runs/reconcile_incidents.py``).
        self.reconciling = False

    @property
    def store(self) -> RunStore:
        """The run's points."""
        return self.judge.store

    @store.setter
    def store(self, store: RunStore) -> None:
        # One place: detectors that read other points than people do would lose what a rollback feeds again.
        self.judge.store = store

    # --- frames --------------------------------------------------------------------------------------------------

    def apply(self, frame: Frame, *, replayed: bool) -> Changes:
        """Take the next frame of the run's stream.

        Args:
            replayed: the frame's incidents and commands are stored already (the server was restarted): state is
                rebuilt, nothing is reported twice.
        """
        changes = Changes()
        self.metric_names.bound(frame)
        self.launch_sizes.seen(frame.source)
        self.liveness.newest_start = self.launch_sizes.newest_start
        for block in in_turn(frame.blocks):
            self._block(frame.source, block, changes, replayed)
        return changes

    def _block(
        self, source: SourceInfo, block: list[PointsBlock] | EventBlock, changes: Changes, replayed: bool
    ) -> None:
        """Take an event, or points. One that can't be read or folded is passed over and counted, the others stay."""
        what = block.type if isinstance(block, EventBlock) else "points"
        together: list[Placed] = []
        try:
            if isinstance(block, EventBlock):
                block, left_out = read_event(block)
                for why in left_out:
                    self.unreadable.field(what, why, source.source)
            for change in self.fold.block(source, block):
                if isinstance(change, Placed):
                    together.append(change)
                    if not change.more:
                        take_rows(self, together, changes, replayed=replayed)
                        together.clear()
                elif isinstance(change, Forked):
                    self._forked(change, changes, replayed)
                else:
                    self._event(change, changes, replayed)
        except Misfit as error:
            self.unreadable.whole(what, str(error), source.source)
        except Exception as error:  # a mistake of ours; folded again it gives the same: what it did so far is kept
            self.unreadable.whole(what, f"{type(error).__name__}: {error}", source.source, error)

    def report(self, found: Iterable[Found], changes: Changes, rows: Sequence[Placed] = ()) -> None:
        """Take in what was found; ``rows`` are new ones of the rank that is judged, at which advice may turn."""
        for time, finding in found:
            changes.add_incidents(turned(self.incidents, rows, self.usable(), finding.now_step))
            if not self.incidents.has_similar(finding, BY_RESUMES):
                self.found(finding, time, changes)
        if rows and self.incidents.turns_at() is not None:
            changes.add_incidents(turned(self.incidents, rows, self.usable()))

    def found(self, finding: Finding, time: float, changes: Changes) -> None:
        """Take what a detector or the liveness monitor says into the incident book."""
        if self.batches.knew(finding):
            return
        finding = self._evidence.add(
            finding, time, rank=self.judge.primary, store=self.store, fold=self.fold, incidents=self.incidents,
            names=self.judge.names,
        )  # fmt: skip
        if finding.kind == "sdc_suspect":
            finding = self.liveness.placed(finding, self.incidents.known(finding))
        segment = self.fold.tree.segment_at(self.fold.tree.head, finding.onset_step)
        changed = self.incidents.apply(finding, segment=segment, time=time, checkpoints=self.usable())
        changes.add_incidents(changed)
        changes.add_commands(() if self.reconciling else own_commands(self, changed, time, self.clock()))

    def _forked(self, forked: Forked, changes: Changes, replayed: bool) -> None:
        changes.segments = True
        self.fold.tree.touch(forked.segment.id)  # also where only its cause is another one now
        self.summary.forked()
        if not forked.is_head:
            return
        segment = forked.segment
        self.step_clock.forked(segment.fork_step)
        self._evidence.forked(segment.kept_step)
        self.batches.forked(segment)
        reports = not replayed or self.reconciling
        if reports:
            ends = {s: end for s in self.incidents.segments() if (end := self.fold.tree.dead_after(s)) is not None}
            fork_step, time = segment.fork_step, segment.created
            by = RolledBack(fork_step, segment.id, segment.reason, segment.changes)
            changes.add_incidents(self.incidents.rolled_back(ends, time, by, segment.kept_step))
            changes.add_incidents(self.incidents.refresh_suggestions(self.usable(), time, fork_step))
        if not replayed:
            changes.add_commands(self.commands.head_moved(segment.id, segment.key, segment.created))
        found = self.resumes.forked(segment) + self.judge.forked(segment)
        if reports:
            self.report(found, changes)

    def _event(self, event: LineageEvent, changes: Changes, replayed: bool) -> None:
        rank = event.source.rank
        reports, found = not replayed or self.reconciling, list[Found]()
        if event.type in RESUME_EVENTS:
            found += self.resumes.reports(event)
        self.stretches.watched |= rank is None
        if event.type in ("finish", "preempted", "left", "exception", "process_death"):
            self.stretches.ended(event.time)
        if event.type in ("checkpoint", "checkpoint_gone", "checkpoint_seen"):
            changes.checkpoints.add(event.data["path"])
            if reports:
                now = self.judge.newest_step
                changes.add_incidents(self.incidents.refresh_suggestions(self.usable(), event.time, now))
        elif event.type in ("finish", "left"):
            self.stretches.finished(event.source.source if event.type == "finish" else event.data["source"])
        elif event.type == "alert" and reports:
            self.found(alert_finding(event), event.time, changes)
        elif event.type in ("names", "mixture"):
            found += self.judge.declared(event)
        elif event.type in ("start", "handler", "obeys"):
            self.handlers.event(event.type, rank, event.data)
        elif event.type == "batch":
            self._evidence.batch(rank, event.step, event.data)
            found += self.batches.event(event, self.fold)
        elif event.type in UNRECORDED_EVENTS:
            self.unrecorded.take(event)
        elif event.type in KEPT_EVENTS:
            self.kept.take(event)
        elif event.type == "launch":
            self.launch_facts.take(event)
        elif event.type == "gpu_inventory":
            self.launch_sizes.inventory(event.source.node, event.data)
        elif event.type == "gpu_note":
            self._gpu_notes.of[event.source.node] = msgspec.convert(event.data, GpuNote)
        elif event.type == "command" and not replayed:
            report = msgspec.convert(event.data, CommandReport)
            node, keeps = event.source.node, self.kept.keeps(rank)
            changes.add_commands(self.commands.on_event(rank, event.step, report, event.time, node=node, keeps=keeps))
        changes.segments |= event.type == "command" and event.data.get("applied") is not None
        if event.type in ("process_death", "exception") and not replayed:
            source = event.data.get("source") or event.source.source
            # Also the peers of those that an agent ended: they fail in their collectives before their own agent acts.
            restart = self.commands.command_that_ends(event.source.node, started_ns(source))
            event = replace(event, data={**event.data, "ordered": event.data.get("ordered") or restart})
        if event.type in GPU_EVENTS:
            for finding in self.gpus.event(event, self.step_clock.newest):
                if reports:
                    self.found(self.remember(finding, self.incidents.known(finding)), event.time, changes)
        if reports:
            self.report(found, changes)
        self.liveness.event(event, event.time)

    # --- health and time -----------------------------------------------------------------------------------------

    def on_health(self, health: Health, *, looked_at: bool = True) -> AgentHealth:
        """Take an agent's newest report; return it as people see it, ``looked_at`` as for ``take_health``."""
        return take_health(self, health, self.clock(), self.step_clock, looked_at=looked_at)

    def statuses(self) -> RankStatuses:
        """Return what each rank does, as of the last tick."""
        return self.liveness.statuses(self.incidents.culprits(), self.clock())

    def agent_view(self, agent: AgentHealth) -> AgentHealth:
        """Return what an agent reports with what is known of its node's GPUs now."""
        agent.gpu = self._gpu_notes.of.get(agent.node, _NO_GPU_NOTE)
        agent.gpus = self.gpu_readings.of(agent.node)
        return agent

    def tick(self) -> Changes:
        """Judge silence and expiry in one go; call it about once a second."""
        return at_once(self.ticking())

    def ticking(self) -> Generator[None, None, Changes]:
        """The same in slices: it yields where others may be served, and nothing may change the state meanwhile."""
        changes = yield from self._ticking.of(self, self.clock())
        yield from self.summary.settling(self.store, self.fold)
        return changes

    # --- snapshots ------------------------------------------------------------------------------------------------

    def saved(self) -> list[SavedPart]:
        """Return for ``restore`` what was folded from the frames, but for points, incidents and commands."""
        return [part_of(name, part) for name, part in self._parts().items()] + self.judge.saved()

    def restore(self, saved: Mapping[str, SavedPart]) -> None:
        """Take over what ``saved`` returned, into a state that has seen no frame. Then call ``judge.judge_again``.

        Raises:
            Unfit: a part is of another version, or it was folded with another undone segment.
        """
        undone = self.fold.undone
        for name, part in self._parts().items():
            restore(part, saved.get(name), name)
        changed = sorted(key for key in self.fold.undone ^ undone if self.fold.tree.with_key(key))
        if changed:
            raise Unfit(f"segment {changed[0]!r} has been undone, or no longer is, since it was folded")
        self.fold.undone = undone
        self.judge.restore(saved)
        self.liveness.newest_start = self.launch_sizes.newest_start

    def _parts(self) -> dict[str, Stateful]:
        return {
            "lineage": self.fold,
            "evidence": self._evidence,
            "batches": self.batches,
            "kept": self.kept,
            "resumes": self.resumes,
            "liveness": self.liveness,
            "gpus": self.gpus,
            "gpu_notes": self._gpu_notes,
            "launch_facts": self.launch_facts,
            "stretches": self.stretches,
            "summary": self.summary,
            "world": self.launch_sizes,
            "pace": self.step_clock,
            "unreadable": self.unreadable,
            "unrecorded": self.unrecorded,
            "metric_names": self.metric_names,
            "handlers": self.handlers,
        }

    # --- what people ask -----------------------------------------------------------------------------------------

    def job(self, *, for_command: bool = True) -> JobView:
        """Return what is known of the job now; only a new command needs its checkpoints and its ranks' starts."""
        return job_of(self, self.step_clock, self.clock(), for_command=for_command)

    def issue(self, request: CommandRequest, *, command_id: str, issuer: str) -> Command:
        """Return the new command."""
        now, request = self.clock(), with_step(self, request)
        plan = plan_of(self, now, request) if request.kind == "restart" else None
        return self.commands.issue(request, self.job(), command_id=command_id, issuer=issuer, now=now, plan=plan)

    def checkpoints(self, paths: Collection[str] | None = None) -> list[Checkpoint]:
        """Return the checkpoints, newest first; only those of ``paths`` where given."""
        return checkpoints_of(self.fold, self.incidents.affects_weights(), self.launch_sizes.size, paths)

    def usable(self) -> UsableCheckpoints:
        """Return the checkpoints that can be gone back to."""
        return self.fold.checkpoints.usable(self.fold.tree, self.launch_sizes.size)

    def view(self) -> RunView:
        """Return what the points and the job show of the run now."""
        now = self.clock()
        tree = self.fold.tree
        began, logged = self.stretches.span or (None, None)
        connected = [agent.node for agent in self.agents.values() if agent.connected and agent.agent_state.log is None]
        view = RunView(
            **self.summary.view(self.store, self.fold),
            **self.summary.watched(self.store, self.judge.names.chosen.get("loss"), missing_text(self.judge.names)),
            began=began,
            logged=logged,
            **status_fields(self, now),
            unreadable=self.unreadable.view(),
            unrecorded=self.unrecorded.view(),
            log_notes=[
                note for note in (self.metric_names.note, self.summary.rows_note, self.fold.axis.note()) if note
            ],
            own_steps=self.fold.axis.listed(),
            twins=bool(self.liveness.duplicates(now)),
            head=tree.head,
            world_size=self.launch_sizes.size if self.fold.ranks else max(1, self.liveness.announced_size()),
            world=self.launch_sizes.view(set(connected)),
            ranks=self.fold.ranks,
            open_incidents=self.incidents.open_count(),
            worst_incident=self.incidents.worst(),
            rollbacks=sum(s.went_back for s in tree),
            undo=undo_of(self, now),
            no_rollback=no_rollback(self, now),
            agents=len(connected),
        )
        return stated(view, *self.liveness.phase(now), self.incidents.not_back())
