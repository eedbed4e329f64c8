"""The state of one run: a list of consumers, and the one path by which they are handed its stream. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any, TypeVar

from stabilitybackend.base.saving import SavedPart, Unfit
from stabilitybackend.base.slices import at_once
from stabilitybackend.fleet.training_intervals import TrainingIntervals
from stabilitybackend.judging.batches.fold import BatchFold
from stabilitybackend.judging.batches.kept import KeptBatches
from stabilitybackend.judging.detection.naming.watched_report import missing_text
from stabilitybackend.judging.detection.run_detection import PRIMARY_METRICS, Judge
from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.liveness.rank_status import RankStatuses
from stabilitybackend.judging.liveness.world_size import LaunchSizes
from stabilitybackend.judging.resumes.book import ResumeBook
from stabilitybackend.lineage.batch import Batch, Placed
from stabilitybackend.lineage.changes import Forked
from stabilitybackend.lineage.consumer import Consumer, Effects, in_order
from stabilitybackend.lineage.joining import Piece, Turn, joined, pieces_of
from stabilitybackend.lineage.lineage import Given, Lineage
from stabilitybackend.runs.consumers import CONSUMERS
from stabilitybackend.runs.consumers.agents import Agents
from stabilitybackend.runs.consumers.commands import Commands
from stabilitybackend.runs.consumers.findings import Findings
from stabilitybackend.runs.consumers.gpus import Gpus
from stabilitybackend.runs.consumers.incidents import Incidents
from stabilitybackend.runs.consumers.job import Job
from stabilitybackend.runs.consumers.liveness import Liveness
from stabilitybackend.runs.launch_facts import LaunchFacts
from stabilitybackend.runs.shown_state import stated
from stabilitybackend.runs.step_clock import StepClock
from stabilitybackend.runs.unreadable import Unreadable
from stabilitybackend.runs.unrecorded import UnrecordedRows
from stabilitybackend.schema.commands import Command, CommandRequest
from stabilitybackend.schema.events import read_event
from stabilitybackend.schema.reading import Misfit
from stabilitybackend.schema.runs import RunView
from stabilitybackend.storage.points.metric_names import MetricNames
from stabilitybackend.storage.points.points import Points
from stabilitybackend.storage.points.store import RunStore
from stabilitybackend.storage.points.summary import RunSummary
from stabilitybackend.storage.points.timestamps import TimesFound
from stabilityclient.wire import EventBlock, Frame, NodeFrame, SourceInfo

__all__ = ["RunState"]

C = TypeVar("C", bound=Consumer)


class RunState:
    """State of one run.

    Args:
        clock: returns unix seconds.
        undone: keys of inferred segments that were undone.
        given: other facts from outside; ``run_id`` and ``clock`` are its own then.

    Attributes:
        reconciling: incidents are judged again from replayed frames (``runs/reconcile_incidents.py``).
    """

    def __init__(
        self, run_id: str, clock: Callable[[], float], undone: Collection[str] = (), given: Given | None = None
    ) -> None:
        self.run_id, self.clock = run_id, clock
        made: dict[type[Consumer], Consumer] = {Given: given or Given(run_id, clock), Lineage: Lineage(undone)}
        kinds = in_order(CONSUMERS)
        for kind in kinds:
            if kind not in made:
                made[kind] = kind(*(made[one] for one in kind.reads))
        self._consumers = {kind: made[kind] for kind in kinds}
        every = list(self._consumers.values())
        self._of_rows = [one for one in every if _has_own(one, "rows")]
        self._of_forks = [one for one in every if _has_own(one, "forked")]
        self._of_ticks = [one for one in every if _has_own(one, "tick")]
        self._of_sources = [one for one in every if _has_own(one, "sent")]
        self._of_events = [one for one in every if _has_own(one, "event")]
        self._apart = [one for one in every if _has_own(one, "needs_rows_apart")]
        self.reconciling = False
        # Names for those that routes and workers read.
        self.points = self[Points]
        self.fold = self[Lineage].fold
        self.summary = self[RunSummary]
        self.launch_sizes = self[LaunchSizes]
        self.stretches = self[TrainingIntervals]
        self.kept = self[KeptBatches]
        self.commands, self.handlers = self[Commands].book, self[Commands].handlers
        self.judge = self[Judge]
        self.step_clock = self[StepClock]
        self.batches = self[BatchFold]
        self.resumes = self[ResumeBook]
        self.gpus = self[Gpus].watch
        self.liveness = self[Liveness].monitor
        self.incidents = self[Incidents].book
        self.metric_names = self[MetricNames]
        self.unreadable = self[Unreadable]
        self.unrecorded = self[UnrecordedRows]
        self.launch_facts = self[LaunchFacts]
        self.agents = self[Agents]
        self.job = self[Job]
        self.times = TimesFound(PRIMARY_METRICS)

    def __getitem__(self, kind: type[C]) -> C:
        """Return a consumer."""
        found = self._consumers[kind]
        assert isinstance(found, kind)
        return found

    @property
    def store(self) -> RunStore:
        """The run's points."""
        return self.points.store

    # --- the stream ----------------------------------------------------------------------------------------------

    def apply(
        self, *messages: Frame | NodeFrame, replayed: bool = False, begin: Callable[[int, int], None] | None = None
    ) -> Effects:
        """Take the next messages of the run's stream. However they are cut into calls, the state is the same.

        Args:
            replayed: the messages' incidents and commands are stored already (a restart): the state is built again,
                nothing is reported twice.
            begin: called with the number of each message, before its first row is stored, and how many rows of the
                batch lie before that.
        """
        effects = Effects(replayed=replayed, reports=not replayed or self.reconciling)
        pieces = deque[Turn | Piece]()
        for number, message in enumerate(messages):
            try:
                self.metric_names.bound(message)
                pieces += [*pieces_of(number, message)]
            except Exception as error:
                who = message.source if isinstance(message, Frame) else message.parts[0].source
                self.unreadable.whole("message", f"{type(error).__name__}: {error}", who.source, error)
        begun = -1
        while pieces:
            found = joined(self.fold, pieces)
            taken: list[Turn | Piece] = [pieces[0]] if found is None else list(found[1])
            ahead = 0
            for piece in taken:
                pieces.popleft()
                for number in range(begun + 1, piece.message + 1) if begin else ():
                    begin(number, ahead)  # type: ignore[misc]
                begun = piece.message
                ahead += piece.rows if isinstance(piece, Turn) else 0
            if found is None:
                self._piece(taken[0], effects)
            else:
                self._sent([info for turn in found[1] for info in turn.infos] if len(taken) > 1 else found[1][0].infos)
                self._rows(found[0], effects, plain=True)
        for number in range(begun + 1, len(messages)) if begin else ():
            begin(number, 0)  # type: ignore[misc]
        return effects

    def _piece(self, piece: Turn | Piece, effects: Effects) -> None:
        """Take rows that do not just go on, or an event. One that can't be read is passed over and counted."""
        if isinstance(piece, Piece):
            self._sent([piece.info])
            self._block(piece.info, piece.block, effects)
            return
        for at, info in enumerate(piece.infos):
            self._sent([info])
            self._block(info, piece.rows_of(at), effects)

    def _block(self, info: SourceInfo, block: Any, effects: Effects) -> None:
        what = block.type if isinstance(block, EventBlock) else "points"
        rows: list[Placed] = []
        try:
            if isinstance(block, EventBlock):
                block, left_out = read_event(block)
                for why in left_out:
                    self.unreadable.field(what, why, info.source)
            for change in self.fold.block(info, block):
                if isinstance(change, Placed):
                    rows.append(change)
                    if not change.more:
                        self._rows(Batch.of(rows), effects)
                        rows = []
                elif isinstance(change, Forked):
                    for one in self._of_forks:
                        self._guarded(one.forked, change, effects, "fork", info.source)
                    self._conclude(effects, info.source)
                else:
                    for one in self._of_events:
                        if change.type in one.events:
                            self._guarded(one.event, change, effects, what, info.source)
                    self._conclude(effects, info.source)
        except Misfit as error:
            self.unreadable.whole(what, str(error), info.source)
        except Exception as error:  # a mistake of this program; folded again it gives the same
            self.unreadable.whole(what, f"{type(error).__name__}: {error}", info.source, error)

    def _rows(self, batch: Batch, effects: Effects, *, plain: bool = False) -> None:
        """Hand rows round, in parts where a consumer needs it; ``plain``: the lineage has not noted them yet."""
        rest = [batch]
        while rest:
            first = rest.pop(0)
            if first.count > 1 and any(one.needs_rows_apart(first) for one in self._apart):
                (first,), after = first.split(1)
                rest = after + rest
            for part in self.judge.parts(first):
                if plain:
                    self.fold.take(part)
                for one in self._of_rows:
                    self._guarded(one.rows, part, effects, "points", part.tables[0].sources[0].source)

    def _guarded(self, take: Callable[[Any, Effects], None], item: Any, effects: Effects, what: str, who: str) -> None:
        """Let a consumer take an item. A mistake in one must not take it from the others."""
        try:
            take(item, effects)
        except Misfit as error:
            self.unreadable.whole(what, str(error), who)
        except Exception as error:
            self.unreadable.whole(what, f"{type(error).__name__}: {error}", who, error)

    def _conclude(self, effects: Effects, who: str) -> None:
        if effects.found:
            self._guarded(lambda _, effects: self[Findings].conclude(effects), None, effects, "finding", who)

    def _sent(self, infos: list[SourceInfo]) -> None:
        for one in self._of_sources:
            one.sent(infos)

    # --- time ----------------------------------------------------------------------------------------------------

    def tick(self) -> Effects:
        """Judge silence and expiry in one go; call it about once a second."""
        return at_once(self.ticking())

    def ticking(self) -> Generator[None, None, Effects]:
        """The same in slices: it yields where others may be served, and nothing may change the state meanwhile."""
        effects, now = Effects(), self.clock()
        for one in self._of_ticks:
            yield from one.tick(now, effects)
        return effects

    def statuses(self) -> RankStatuses:
        """Return what each rank does, as of the last tick."""
        return self.liveness.statuses(self.incidents.culprits(), self.clock())

    # --- snapshots ------------------------------------------------------------------------------------------------

    def saved(self) -> list[SavedPart]:
        """Return for ``restore`` what was folded from the frames, but for points, incidents and commands."""
        return [part for one in self._consumers.values() for part in one.saved()]

    def restore(self, saved: Mapping[str, SavedPart]) -> None:
        """Take over what ``saved`` returned, into a state that has seen no frame. Then call ``judge.judge_again``.

        Raises:
            Unfit: a part is of another version, or it was folded with another undone segment.
        """
        undone = self.fold.undone
        for one in self._consumers.values():
            one.restore(saved)
        changed = sorted(key for key in self.fold.undone ^ undone if self.fold.tree.with_key(key))
        if changed:
            raise Unfit(f"segment {changed[0]!r} has been undone, or no longer is, since it was folded")
        self.fold.undone = undone

    # --- requests ------------------------------------------------------------------------------------------------

    def issue(self, request: CommandRequest, *, command_id: str, issuer: str) -> Command:
        """Return the new command."""
        now, request = self.clock(), self.job.with_step(request)
        plan = self.job.plan(now, request) if request.kind == "restart" else None
        return self.commands.issue(request, self.job.view(), command_id=command_id, issuer=issuer, now=now, plan=plan)

    def found(self, finding: Finding, time: float, effects: Effects) -> None:
        """Take a finding from outside the run's own stream."""
        self[Findings].take(finding, time, effects)

    def view(self) -> RunView:
        """Return what the points and the job show of the run now."""
        now = self.clock()
        tree, sizes = self.fold.tree, self.launch_sizes
        began, logged = self.stretches.span or (None, None)
        connected = [agent.node for agent in self.agents.connected]
        view = RunView(
            **self.summary.view(),
            **self.summary.watched(self.judge.names.chosen.get("loss"), missing_text(self.judge.names)),
            began=began,
            logged=logged,
            **self.job.status_fields(),
            unreadable=self.unreadable.view(),
            unrecorded=self.unrecorded.view(),
            log_notes=[
                note for note in (self.metric_names.note, self.summary.rows_note, self.fold.axis.note()) if note
            ],
            own_steps=self.fold.axis.listed(),
            twins=bool(self.liveness.duplicates(now)),
            head=tree.head,
            world_size=sizes.size if self.fold.ranks else max(1, self.liveness.announced_size()),
            world=sizes.view(set(connected)),
            ranks=self.fold.ranks,
            open_incidents=self.incidents.open_count(),
            worst_incident=self.incidents.worst(),
            rollbacks=sum(s.went_back for s in tree),
            undo=self.job.undo(),
            no_rollback=self.job.no_rollback(),
            agents=len(connected),
        )
        return stated(view, *self.liveness.phase(now), self.incidents.not_back())


def _has_own(one: Consumer, method: str) -> bool:
    return getattr(type(one), method) is not getattr(Consumer, method)
