"""Grows the tree from the stored frames and says to which segment every point belongs.

A pure fold: the same frames in the same order give the same tree, after any restart. Segments come from three
places: an ordered rollback and a rollback that the job declares arrive as ``segment`` events; a process that goes
back without any call is recognised by its steps, once they go on from there (``sources.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import groupby, repeat

from msgspec.structs import replace

from stabilitybackend.lineage.blocks import in_turn, one_by_one, rows_of
from stabilitybackend.lineage.changes import Change, Forked, LineageEvent, Placed
from stabilitybackend.lineage.checkpoints import CheckpointBook
from stabilitybackend.lineage.launches import Launch, Launches
from stabilitybackend.lineage.relaunches import WENT_BACK, WENT_ON, Relaunches
from stabilitybackend.lineage.returns import taken_up
from stabilitybackend.lineage.source_book import SourceBook
from stabilitybackend.lineage.sources import SourceState, Tentative, joinable
from stabilitybackend.lineage.tree import FoldedSegment, SegmentTree
from stabilitybackend.schema.lineage import Cause
from stabilitybackend.stateful import Stateful, fresh
from stabilityclient.wire import EventBlock, Frame, PointsBlock, SourceInfo

__all__ = ["MAX_HELD_ROWS", "LineageFold"]

#: Rows held while it is open whether a low step is a rollback; more than that are released as strays.
MAX_HELD_ROWS = 1_000
#: A rank that logs rarely and never reported that it went back follows the head after this long, seconds of log time.
FOLLOW_HEAD_AFTER_S = 5.0


class LineageFold(Stateful):
    """State of the fold for one run; feed it every frame of the run's stream, in order.

    Args:
        undone: keys of inferred segments that somebody undid. Their steps become strays.
    """

    undone: frozenset[str] = frozenset()
    tree: SegmentTree = fresh(SegmentTree)
    checkpoints: CheckpointBook = fresh(CheckpointBook)
    _sources: SourceBook = fresh(SourceBook)
    _held: dict[str, list[Placed]] = fresh(dict)
    #: (when it was created, id) of each segment that became the head, in order; the root is not among them.
    heads: list[tuple[float, int]] = fresh(list)
    _relaunches: Relaunches = fresh(lambda: Relaunches(SegmentTree(), {}))

    def __init__(self, undone: Collection[str] = ()) -> None:
        super().__init__()
        self.undone = frozenset(undone)
        self._relaunches = Relaunches(self.tree, self._sources.of)

    @property
    def ranks(self) -> list[int]:
        """Ranks seen so far, in order."""
        return sorted(self._sources.newest)

    @property
    def starts(self) -> list[float]:
        """When the processes started that say it, unix seconds."""
        return [state.started for state in self._sources.of.values() if state.started > 0]

    def source(self, source: str) -> SourceState | None:
        """Return where a source is, None for one that is not known."""
        return self._sources.of.get(source)

    def segment_of(self, source: str) -> int | None:
        """Return the segment that a source is in, None for one that is not known."""
        return None if (state := self._sources.of.get(source)) is None else state.segment

    @property
    def launches(self) -> Launches:
        """The starts of the job."""
        return self._relaunches.launches

    def place_of(self, source: str, step: int) -> int | None:
        """Return the segment that a source is in at ``step``; None while it is open, or may be about to go back."""
        return self._relaunches.place_of(source, step)

    def pending(self) -> list[Placed]:
        """Return the rows about which nothing is decided yet, as strays of the segment their source was in."""
        return [placed for rows in self._held.values() for placed in rows]

    def apply(self, frame: Frame) -> list[Change]:
        """Return what the frame changed, in order."""
        return [change for block in in_turn(frame.blocks) for change in self.block(frame.source, block)]

    def block(self, source: SourceInfo, block: list[PointsBlock] | EventBlock) -> Iterator[Change]:
        """Yield what an event, or points of one stretch (``in_turn``), of a source change.

        Meanwhile the tree is as it was then. The data of an event is as its type says (``schema.events.read_event``).
        """
        state = self._source(source)
        if isinstance(block, EventBlock):
            yield from self._event(source, state, block)
        else:
            yield from self._points(state, block)

    # --- sources -------------------------------------------------------------------------------------------------

    def _source(self, info: SourceInfo) -> SourceState:
        if (known := self.source(info.source)) is not None:
            return known
        state = self._sources.add(info, self._head_at(info.started))
        self._relaunches.saw(info)
        if (forgotten := self._sources.forgotten()) is not None:
            self._relaunches.launches.forget(forgotten)
            self._held.pop(forgotten, None)
        return state

    def _head_at(self, time: float) -> int:
        """Return what the head was at ``time``: a process whose first message is late began where the job was then."""
        return next((segment for created, segment in reversed(self.heads) if created <= time), 0)

    def _lead(self, segment: FoldedSegment) -> None:
        self.tree.head = segment.id
        self.heads.append((segment.created, segment.id))

    # --- points --------------------------------------------------------------------------------------------------

    def _points(self, state: SourceState, blocks: list[PointsBlock]) -> Iterator[Change]:
        """Place rows, of several sets of metrics where these were logged in turn."""
        rows = [rows_of(state, block) for block in blocks]
        times = [float(one.times[-1]) for one in rows]
        if state.rank is None:
            for one in rows:
                yield from self._split(one, [self.tree.segment_at(self.tree.head, int(step)) for step in one.steps])
        elif all(map(self._plain, repeat(state), rows, times)):
            for at, one in enumerate(rows, 1):
                state.mark(one.names, int(one.steps[-1]), int(one.steps[-2]) if len(one.steps) > 1 else None)
                placed = self._place(one, state.segment)
                yield replace(placed, more=True) if at < len(rows) else placed
        else:
            for row in one_by_one(rows):
                yield from self._row(state, row)
        if state.rank is not None:
            yield from self._relaunches.logged(state, rows, max(times))

    def _plain(self, state: SourceState, rows: Placed, time: float) -> bool:
        """Return whether ``rows``, the last of them of ``time``, just go on where their source is."""
        steps = rows.steps
        rising = len(steps) == 1 or bool((steps[1:] >= steps[:-1]).all())
        return rising and self._goes_on(state, rows.names, int(steps[0]), int(steps[-1]), time)

    def _goes_on(self, state: SourceState, names: list[str], first: int, last: int, time: float) -> bool:
        return (
            not (state.fresh or state.tentative)
            and first > self.tree[state.segment].fork_step
            and not state.goes_back(names, first)
            and not self._should_follow_head(state, first, time)
            and not self._relaunches.succeeded(state, last)
        )

    def are_usual(self, state: SourceState, names: list[str], first: int, last: int, time: float) -> bool:
        """Return whether ``block`` would only take note of rows from step ``first`` to ``last``, that of ``time``."""
        return self._goes_on(state, names, first, last, time) and self._relaunches.quiet(state, time)

    def _row(self, state: SourceState, row: Placed) -> Iterator[Change]:
        step, time = int(row.steps[0]), float(row.times[0])
        if state.no_rollbacks and not self._should_follow_head(state, step, time):
            yield self._on_the_line(state, row, step)
            return
        if state.tentative is not None:
            if state.tentative.goes_on(step, state.stride):
                self._hold(state, row)
                if state.tentative.follow(step):
                    yield from self._confirm(state)
                elif len(self._held[state.source]) > MAX_HELD_ROWS:
                    yield from self._release(state)
                return
            yield from self._release(state)
        if step <= state.stray_until and state.goes_back(row.names, step):
            yield row.at(state.segment, stray=True)
            return
        launch = self._relaunches.of(state, step, time)
        opened = None if launch is None or launch.segment is None else self.tree[launch.segment]
        if opened is not None and not opened.undone and step > opened.fork_step:
            self._enter(state, opened)
        elif launch is not None and state.is_late(row.names, step):
            yield self._place(row, self.tree.segment_at(self._relaunches.origin(launch), step))
            return  # of another metric: it says nothing of where the launch begins
        elif opened is not None or state.goes_back(row.names, step) or self._relaunches.unsure(launch, state, step):
            target = joinable(self.tree, state, step) if launch is None else None
            if target is None:
                high = max(state.high(row.names), step)
                state.tentative = Tentative(step, step, high, state.fresh)
                self._relaunches.launches.firm(state.source)
                self._hold(state, row)
                return
            self._enter(state, target)
        elif launch is not None and launch.at is None and self._relaunches.parts(launch, state, step):
            yield from self._open(state, launch, step, time)
        elif self._should_follow_head(state, step, time):
            self._enter(state, self.tree[self.tree.head])
        elif launch is not None and launch.at is None:
            state.segment = self._relaunches.origin(launch)
        if self._relaunches.succeeded(state, step):
            yield row.at(state.segment, stray=True)
            return
        if launch is not None:
            self._relaunches.began(state, step)
        yield self._on_the_line(state, row, step)

    def _on_the_line(self, state: SourceState, row: Placed, step: int) -> Placed:
        """Place a row on the line that its source is in, whatever its step."""
        if state.fresh:
            self._relaunches.began(state, step)
        self.tree[state.segment].entered.setdefault(state.rank or 0, state.source)
        state.mark(row.names, step)
        return self._place(row, self.tree.segment_at(state.segment, step))

    def _should_follow_head(self, state: SourceState, step: int, time: float) -> bool:
        if state.segment == self.tree.head or not self._sources.is_newest(state):
            return False
        head = self.tree[self.tree.head]
        # One that runs on may have logged this in the moment in which the others went back: it is given some time.
        since = head.created if state.fresh else head.created + FOLLOW_HEAD_AFTER_S
        return state.rank not in head.entered and step > head.fork_step and time > since

    # --- launches ------------------------------------------------------------------------------------------------

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
            if tentative is not None and tentative.first_step <= target.fork_step:
                continue
            self._enter(other, target)
            if tentative is not None:
                yield from self._place_held(other)
            else:
                other.fresh = True
        yield from self._relaunches.rehang(launch)

    def _confirm(self, state: SourceState) -> Iterator[Change]:
        """The low steps went on: they are a segment of their own."""
        tentative, created = state.tentative, float(self._held[state.source][0].times[0])
        assert tentative is not None
        first_step = tentative.first_step
        if (launch := self._relaunches.of(state, first_step, created)) is not None:
            if launch.segment is None:
                yield from self._open(state, launch, first_step, created)
            target = self.tree[launch.segment or 0]
            if not target.undone and first_step <= target.fork_step:
                # Whoever opened it logs more rarely: its first step only bounds the one from which the job went on.
                yield self._relaunches.lower(launch, self._fork_step(first_step, state))
        else:
            joined = joinable(self.tree, state, first_step)
            target = joined or self._regress(state, first_step, created)
            if joined is None:
                yield Forked(target, target.id == self.tree.head)
        if target.undone:
            state.tentative, state.fresh, state.stray_until = None, False, tentative.high
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
        target.undone = key in self.undone
        if not target.undone and self._leads(state, origin):
            self._lead(target)
        return target

    def _place_held(self, state: SourceState) -> Iterator[Change]:
        """The rows that were held have found their segment, the one that ``state`` is in."""
        for row in self._held.pop(state.source):
            step = int(row.steps[0])
            self._relaunches.began(state, step)
            state.mark(row.names, step)
            yield self._place(row, self.tree.segment_at(state.segment, step))

    def _fork_step(self, first_step: int, state: SourceState) -> int:
        """Return the step a silent restart came from: its checkpoint where one fits, else the step before."""
        found = self.checkpoints.newest_step(first_step - max(state.stride, 1), first_step)
        return first_step - 1 if found is None else found

    def _leads(self, state: SourceState, origin: int) -> bool:
        """Return whether what this source does moves the head (late data of a dead process does not)."""
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

    def _hold(self, state: SourceState, row: Placed) -> None:
        self._held.setdefault(state.source, []).append(row.at(state.segment, stray=True))

    def _release(self, state: SourceState) -> Iterator[Change]:
        """The low steps led nowhere: they stay where they were logged, as strays."""
        state.tentative = None
        yield from self._held.pop(state.source, [])

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

    # --- events --------------------------------------------------------------------------------------------------

    def _event(self, info: SourceInfo, state: SourceState, block: EventBlock) -> Iterator[Change]:
        if block.type == "segment" and state.rank is not None:
            yield from self._release(state)
            yield from self._declared(state, block)
        elif block.type == "checkpoint" and block.step is not None:
            if state.tentative is not None and state.tentative.fresh and block.step >= state.tentative.first_step:
                yield from self._confirm(state)  # nobody saves at a stray step
            self.checkpoints.take(block, self.tree.segment_at(state.segment, block.step), info.node)
        elif block.type in ("checkpoint_gone", "checkpoint_seen"):
            self.checkpoints.take(block, state.segment, info.node)
        elif block.type == "no_rollbacks":
            yield from self._release(state)
            state.no_rollbacks = True
        elif block.type in ("process_death", "exception"):
            self._relaunches.launches.ended(str(block.data.get("source") or info.source), block.time)
        self.tree.note_applied(block)
        yield LineageEvent(info, state.segment, block.type, block.time, block.step, block.data)

    def _declared(self, state: SourceState, block: EventBlock) -> Iterator[Change]:
        data = block.data
        assert state.rank is not None
        for known in self.tree.with_key(key := data["key"]):
            if known.undone:
                state.stray_until = max(state.marks.values(), default=-1)
                return
            if known.entered.get(state.rank, state.source) == state.source:
                self._enter(state, known)
                return
        origin, returns = taken_up(self.tree, state.segment, data)
        cause: Cause = "command" if data.get("command_id") else "declared"
        if cause == "declared" and data.get("cause") in ("restart", "resume"):
            cause = data["cause"]  # an export names what was inferred live
        segment = self.tree.fork(
            origin, data["to_step"], key=key, cause=cause, created=block.time,
            reason=data.get("reason") or "", command_id=data.get("command_id"), issuer=data.get("issuer"),
            changes=data.get("changes") or {}, applied=data.get("applied"), **returns,
        )  # fmt: skip
        if key in self.undone and segment.cause == "restart":
            segment.undone, state.stray_until = True, max(state.marks.values(), default=-1)
            yield Forked(segment, False)
            return
        if is_head := self._leads(state, state.segment):
            self._lead(segment)
        self._enter(state, segment)
        yield Forked(segment, is_head)
        yield from self._relaunches.rehang(self._relaunches.launches.of(state.source))
