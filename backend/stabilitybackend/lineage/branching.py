"""Opens undeclared segments, holds rows whose place is undecided, and places those."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import groupby

from msgspec.structs import replace

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.lineage.batch import Placed
from stabilitybackend.lineage.changes import Change, Forked
from stabilitybackend.lineage.checkpoints import CheckpointBook
from stabilitybackend.lineage.launches import Launch
from stabilitybackend.lineage.relaunches import WENT_BACK, WENT_ON, Relaunches
from stabilitybackend.lineage.source_book import SourceBook
from stabilitybackend.lineage.sources import CONFIRM_STEPS, SourceState, Tentative, joinable
from stabilitybackend.lineage.step_axis import StepAxis
from stabilitybackend.lineage.tree import FoldedSegment, SegmentTree
from stabilitybackend.schema.lineage import Cause

__all__ = ["UNDONE_STEPS", "Branching"]

#: Among the undone keys: no steps of a process that runs on are a rollback, of whichever source and whenever they come.
UNDONE_STEPS = "u-*"


class Branching(Stateful):
    """The tree of one run, its sources, and the rows that wait.

    Args:
        undone: keys of inferred segments that a user undid, or UNDONE_STEPS. Their steps become strays.
    """

    undone: frozenset[str] = frozenset()
    tree: SegmentTree = fresh(SegmentTree)
    checkpoints: CheckpointBook = fresh(CheckpointBook)
    _sources: SourceBook = fresh(SourceBook)
    _held: dict[str, list[Placed]] = fresh(dict)
    #: (when it was created, id) of each segment that became the head, in order; the root is not among them.
    heads: list[tuple[float, int]] = fresh(list)
    axis: StepAxis = fresh(StepAxis)
    _relaunches: Relaunches = fresh(lambda: Relaunches(SegmentTree(), {}))

    def __init__(self, undone: Collection[str] = ()) -> None:
        super().__init__()
        self.undone = frozenset(undone)
        self._relaunches = Relaunches(self.tree, self._sources.of)

    def _lead(self, segment: FoldedSegment) -> None:
        self.tree.head = segment.id
        self.heads.append((segment.created, segment.id))

    def _open(self, state: SourceState, launch: Launch, first_step: int, time: float) -> Iterator[Change]:
        """A launch begins a segment of its own at ``first_step``; its other ranks come along."""
        origin, fork_step = self._relaunches.origin(launch), self._fork_step(first_step, state)
        back = self.tree.reaches_past(origin, fork_step)
        cause: Cause = "restart" if back else "resume"
        key, why = self.tree.new_key(f"u-{state.source}-{first_step}"), WENT_BACK if back else WENT_ON
        target = self.tree.fork(origin, fork_step, key=key, cause=cause, created=time, reason=why, inferred="start")
        launch.segment, target.undone = target.id, key in self.undone
        if target.undone:
            yield Forked(target, False)
            return
        if is_head := self._relaunches.launches.after(launch) is None:
            self._lead(target)
        self._enter(state, target)
        yield Forked(target, is_head)
        for rank, source in launch.members.items():
            other = self._sources.of[source]
            if rank == state.rank or not other.fresh:
                continue
            tentative = other.tentative
            if tentative is not None and (tentative.first_step is None or tentative.first_step <= target.fork_step):
                continue
            self._enter(other, target)
            if tentative is not None:
                yield from self._place_held(other)
            else:
                other.fresh = other.watched = True
        yield from self._relaunches.rehang(launch)

    def _confirm(self, state: SourceState) -> Iterator[Change]:
        """The low steps went on: they are a segment of their own."""
        tentative, created = state.tentative, float(self._held[state.source][0].times[0])
        assert tentative is not None
        first_step = tentative.first_step
        assert first_step is not None
        if (launch := self._relaunches.of(state, first_step, created)) is not None:
            if launch.segment is None:
                yield from self._open(state, launch, first_step, created)
            target = self.tree[launch.segment or 0]
            if not target.undone and first_step <= target.fork_step:
                # Its opener logs more rarely: its first step only bounds the one from which the job continued.
                yield self._relaunches.lower(launch, self._fork_step(first_step, state))
        else:
            joined = joinable(self.tree, state, first_step, undone=UNDONE_STEPS in self.undone)
            target = joined or self._regress(state, first_step, created)
            if joined is None:
                yield Forked(target, target.id == self.tree.head)
        if target.undone:
            target.entered.setdefault(state.rank or 0, state.source)
            state.tentative, state.fresh, state.stray_until = None, False, tentative.high
            state.update_watched()
            yield from self._held.pop(state.source)
            return
        self._enter(state, target)
        yield from self._place_held(state)

    def _regress(self, state: SourceState, first_step: int, created: float) -> FoldedSegment:
        """Return the segment of a running loop whose steps went back without any call."""
        origin = state.segment
        key, fork_step = self.tree.new_key(f"u-{state.source}-{first_step}"), self._fork_step(first_step, state)
        why = "the steps went back and went on from there"
        target = self.tree.fork(
            origin, fork_step, key=key, cause="restart", created=created, reason=why, inferred="steps"
        )
        target.undone = not self.undone.isdisjoint((key, UNDONE_STEPS))
        if not target.undone and self._leads(state, origin):
            self._lead(target)
        return target

    def _place_held(self, state: SourceState) -> Iterator[Change]:
        """The rows that were held have found their segment, the one that ``state`` is in."""
        for row in self._held.pop(state.source):
            step = int(row.steps[0])
            self._relaunches.began(state, step)
            if not self.axis.weight(state.marks, row.names, state.stride) and state.goes_back(row.names, step):
                yield self._aside(state, row)
                continue
            if state.goes_back(row.names, step):
                state.mark_late(row.names, step)
            else:
                state.mark(row.names, [step])
            yield self._place(row, self.tree.segment_at(state.segment, step))
        state.update_watched()

    def _fork_step(self, first_step: int, state: SourceState) -> int:
        """Return the origin of a silent restart: its checkpoint where one fits, else the step before."""
        found = self.checkpoints.newest_step(first_step - max(state.stride, 1), first_step)
        return first_step - 1 if found is None else found

    def _leads(self, state: SourceState, origin: int) -> bool:
        """Return whether this source may move the head (late data of a dead process does not)."""
        launches = self._relaunches.launches
        if (launch := launches.of(state.source)) is None or launches.after(launch) is not None:
            return False
        return self._sources.is_newest(state) and (
            origin == self.tree.head or self.tree.is_ancestor(origin, self.tree.head) or state.fresh
        )

    def _enter(self, state: SourceState, segment: FoldedSegment) -> None:
        state.enter(segment.id, segment.fork_step)
        self.tree.touch(segment.id)
        if state.rank is not None:
            segment.entered[state.rank] = state.source
        self._relaunches.entered(state, segment)

    def _ask(self, state: SourceState, row: Placed) -> None:
        """Hold a row, until the next ones decide its place."""
        state.tentative = Tentative(-1, state.fresh)
        self._relaunches.launches.firm(state.source)
        self._hold(state, row)

    def _hold(self, state: SourceState, row: Placed) -> None:
        step, tentative = int(row.steps[0]), state.tentative
        assert tentative is not None
        weight = self.axis.weight(state.marks, row.names, state.stride)
        tentative.follow(step, weight, max(state.high(row.names), step if tentative.first_step is None else -1))
        self._held.setdefault(state.source, []).append(row.at(state.segment, stray=True))
        state.update_watched()

    def _release(self, state: SourceState, *, went_on: bool = False) -> Iterator[Change]:
        """The low steps led nowhere: those of the loss are strays, other metrics have gone back by themselves.

        Args:
            went_on: the run went on from where it was, or ended there.
        """
        tentative, state.tentative = state.tentative, None
        if tentative is None:
            return
        if tentative.first_step is not None and tentative.last_step is not None and tentative.led and went_on:
            state.fell_behind(tentative.first_step, tentative.last_step)
        run, own = self.axis.run_step(state.marks, state.last_step or 0), len(self.axis.own)
        for row in self._held.pop(state.source, []):
            step = int(row.steps[0])
            if self.axis.weight(state.marks, row.names, state.stride) > 1:
                yield row
                continue
            if went_on:
                self.axis.went_back(state.counting, state.marks, row.names, step, run, state.stride)
            yield self._aside(state, row)
        if len(self.axis.own) > own:
            state.leave_own_counts(run)
        state.update_watched()

    def _aside(self, state: SourceState, row: Placed) -> Placed:
        """Place a row of metrics that do not tell where the run is at the step that it was logged with."""
        step = int(row.steps[0])
        state.mark_names(row.names, step)
        return replace(self._place(row, self.tree.segment_at(state.segment, step)), aside=True)

    def _settle(self, state: SourceState) -> Iterator[Change]:
        """No further row of the source comes, or its next ones are declared: decide by those that are held."""
        tentative = state.tentative
        if tentative is not None and tentative.led and len(tentative.steps) > CONFIRM_STEPS:
            yield from self._confirm(state)
        else:
            yield from self._release(state, went_on=True)

    def _place(self, rows: Placed, segment: int) -> Placed:
        self.tree[segment].saw(rows.low, rows.high, rows.values.size)
        self.tree.touch(segment)
        return rows if rows.segment == segment and not rows.stray else rows.at(segment)

    def _split(self, rows: Placed, segments: list[int]) -> Iterator[Change]:
        """Place rows whose segments differ, in runs of equal segment."""
        start = 0
        for segment, some in groupby(segments):
            end = start + len(list(some))
            yield self._place(rows.at(segment, slice(start, end)), segment)
            start = end
