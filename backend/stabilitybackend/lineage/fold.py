"""Grows the tree from the stored frames and says to which segment every point belongs.

A pure fold: the same frames in the same order give the same tree, after any restart. Segments come from three
places: an ordered rollback and a rollback that the job declares arrive as ``segment`` events; a process that goes
back without any call is recognised by its steps, once they go on from there (``sources.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from stabilitybackend.lineage.batch import Batch, Placed
from stabilitybackend.lineage.blocks import in_turn, one_by_one, rows_of
from stabilitybackend.lineage.branching import Branching
from stabilitybackend.lineage.changes import Change, Forked, LineageEvent
from stabilitybackend.lineage.epochs import FIRST_ROWS
from stabilitybackend.lineage.launches import Launch, Launches
from stabilitybackend.lineage.returns import taken_up
from stabilitybackend.lineage.sources import SourceState, joinable
from stabilitybackend.lineage.step_axis import OWN_COUNT
from stabilitybackend.schema.lineage import Cause
from stabilityclient.wire import EventBlock, Frame, PointsBlock, SourceInfo

__all__ = ["MAX_HELD_ROWS", "LineageFold"]

#: Rows held while it is open whether a low step is a rollback; more than that are released as strays.
MAX_HELD_ROWS = 1_000
#: A rank that logs rarely and never reported that it went back follows the head after this long, seconds of log time.
FOLLOW_HEAD_AFTER_S = 5.0


class LineageFold(Branching):
    """State of the fold for one run; feed it every frame of the run's stream, in order.

    Args:
        undone: keys of inferred segments that somebody undid. Their steps become strays.
    """

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

    # --- points --------------------------------------------------------------------------------------------------

    def _points(self, state: SourceState, blocks: list[PointsBlock]) -> Iterator[Change]:
        """Place rows, of several sets of metrics where these were logged in turn."""
        rows = [rows_of(state, block) for block in blocks]
        times = [float(one.times[-1]) for one in rows]
        if state.rank is None:
            for one in rows:
                yield from self._split(one, [self.tree.segment_at(self.tree.head, int(step)) for step in one.steps])
            return
        yield from self._in_parts(state, rows, times)

    def _in_parts(self, state: SourceState, rows: list[Placed], times: list[float]) -> Iterator[Change]:
        """Place rows one by one until the rest just goes on where its source is: mostly all do, but the first ones.

        Rows of several sets of metrics are not parted.
        """
        part = FIRST_ROWS
        while (plain := self._plain_rows(state, rows, times)) is None:
            cut = part if len(rows) == 1 else None
            for row in one_by_one([one.at(one.segment, slice(cut)) for one in rows]):
                yield from self._row(state, _later(row, state.epochs.offset))
                state.update_watched()
                yield from self._relaunches.logged(state, [row])
            if cut is None or cut >= len(rows[0].steps):
                return
            rows, part = [rows[0].at(rows[0].segment, slice(cut, None))], 2 * part
        state.pass_steps(sorted({step for one in plain for step in one.steps.tolist()}))
        for at, one in enumerate(plain, 1):
            state.reach(one.names, int(one.steps[-1]))  # none of them is above its first
            placed = self._place(one, state.segment)
            yield replace(placed, more=True) if at < len(plain) else placed
        yield from self._relaunches.logged(state, rows)

    def _plain_rows(self, state: SourceState, rows: list[Placed], times: list[float]) -> list[Placed] | None:
        """Return rows as they are placed if they just go on where their source is; ``times``: of the last of each."""
        if state.fresh or state.tentative is not None or state.epochs.gathers:
            return None
        rows = [_later(one, state.epochs.offset) for one in rows]
        return rows if all(map(self._plain, repeat(state), rows, times)) else None

    def _plain(self, state: SourceState, rows: Placed, time: float) -> bool:
        steps = rows.steps
        rising = len(steps) == 1 or bool((steps[1:] >= steps[:-1]).all())
        return rising and self._goes_on(state, rows.names, int(steps[0]), int(steps[-1]), time)

    def _goes_on(self, state: SourceState, names: list[str], first: int, last: int, time: float) -> bool:
        return (
            first > self.tree[state.segment].fork_step
            and state.high(names) <= first
            and (state.last_step is None or state.last_step <= first)
            and (state.stray_until < first or state.high(names) < first)
            and not self._should_follow_head(state, first, time)
            and not self._relaunches.succeeded(state, last)
        )

    def is_plain(self, info: SourceInfo, names: list[str], first: int, time: float) -> bool:
        """Return whether rows of a rank, whose steps rise, just go on where it is, in the head. Nothing is noted.

        Args:
            first: their first step. time: the earliest log time of them, unix seconds.
        """
        state = self._sources.of.get(info.source)
        if state is None or state.rank is None or state.watched or state.segment != self.tree.head:
            return False
        launches = self._relaunches.launches
        launch = launches.of(info.source)
        if launch is not None and (launch.trained > time or launches.after(launch) is not None):
            return False
        high, newest = state.high(names), state.last_step  # as ``_goes_on``, of which the rest holds in the head
        return (
            high <= first > self.tree[state.segment].fork_step
            and (newest is None or newest <= first)
            and (state.stray_until < first or high < first)
        )

    def take(self, batch: Batch) -> None:
        """Note rows that are plain (``is_plain``)."""
        segment, launches = self.tree[batch.segment], self._relaunches.launches
        for table in batch.tables:
            steps, times = table.steps, table.times
            ends = times[0].tolist() if len(times) == 1 else times.max(0).tolist()
            for at, (source, own, time) in enumerate(zip(table.sources, steps.T.tolist(), ends, strict=True)):
                state, gathered = self._sources.of[source.source], 0
                while state.epochs.gathers and gathered < len(own):
                    self._gather(state, table.names, own[gathered], table.values[:, gathered, at])
                    state.go_on(table.names, own[gathered : gathered + 1])
                    gathered += 1
                if gathered < len(own):
                    state.go_on(table.names, own[gathered:])
                launch = launches.of(source.source)
                if launch is not None and time > launch.newest:
                    launch.newest = time
        segment.saw(batch.low, batch.high, sum(table.values.size for table in batch.tables))
        self.tree.touch(batch.segment)

    def _row(self, state: SourceState, row: Placed) -> Iterator[Change]:
        step, time, names = int(row.steps[0]), float(row.times[0]), row.names
        if state.no_rollbacks and not self._should_follow_head(state, step, time):
            yield self._on_the_line(state, row)
            return
        launch = self._relaunches.of(state, step, time)
        if self.axis.is_aside(state.marks, names, state.stride):
            yield self._aside(state, row)
        elif state.tentative is not None:
            yield from self._waits(state, row)
        elif state.epochs.is_next(step) and self.axis.leads(names):
            yield self._on_the_line(state, _later(row, self._next_epoch(state, state.last_step or 0)))
        elif step <= state.stray_until and step <= state.high(names):
            yield row.at(state.segment, stray=True)
        else:
            yield from self._next_row(state, row, launch)

    def _waits(self, state: SourceState, row: Placed) -> Iterator[Change]:
        """Take a row while others are held: it tells what those are, or is held, too."""
        step, tentative = int(row.steps[0]), state.tentative
        assert tentative is not None
        weight, low = self.axis.weight(state.marks, row.names, state.stride), state.goes_back(row.names, step)
        if weight and low and self._fills(state, step):
            yield self._late(state, row)
            return
        if low and not tentative.led and (lower := self._began_lower(state, row)) is not None:
            yield lower
            yield from self._release(state)
            yield self._late(state, row)
            return
        if weight > 1 and tentative.went_through(step):
            yield from self._decide(state)
            row = _later(row, state.epochs.offset)
        elif tentative.goes_on(step, weight, state.stride, low=low):
            self._hold(state, row)
            if tentative.is_sure:
                yield from self._decide(state)
            elif len(self._held[state.source]) > MAX_HELD_ROWS:
                yield from self._release(state)
            return
        else:
            yield from self._release(state, went_on=not low)
        yield from self._row(state, row)
        if low and state.tentative is not None and tentative.last_step is not None:
            state.tentative.gap = max(step - tentative.last_step, 0)

    def _decide(self, state: SourceState) -> Iterator[Change]:
        """The low steps went on: they are a segment of their own, or the next epoch of a count within each."""
        tentative, held = state.tentative, self._held[state.source]
        assert tentative is not None
        assert tentative.first_step is not None
        rows = [(int(row.steps[0]), dict(zip(row.names, row.values[:, 0].tolist(), strict=True))) for row in held]
        if state.fresh or not state.epochs.starts_again(tentative.first_step, tentative.high, rows):
            yield from self._confirm(state)
            return
        state.tentative, added = None, self._next_epoch(state, tentative.high)
        for row in self._held.pop(state.source):
            yield self._on_the_line(state, _later(row, added))

    def _next_epoch(self, state: SourceState, newest: int) -> int:
        """Let the steps of a source go on after ``newest``; return what is added to them."""
        first, last = state.epochs.first_step or 0, newest - state.epochs.offset
        self.axis.epoch = first, max(last, self.axis.epoch[1] if self.axis.epoch else last)
        return state.epochs.begin(newest, state.stride)

    def _next_row(self, state: SourceState, row: Placed, launch: Launch | None) -> Iterator[Change]:
        step, time = int(row.steps[0]), float(row.times[0])
        opened = None if launch is None or launch.segment is None else self.tree[launch.segment]
        if opened is not None and not opened.undone and step > opened.fork_step:
            self._enter(state, opened)
        elif launch is not None and state.is_late(row.names, step):
            yield self._place(row, self.tree.segment_at(self._relaunches.origin(launch), step))
            return  # of another metric: it says nothing of where the launch begins
        elif opened is not None or state.goes_back(row.names, step) or self._relaunches.unsure(launch, state, step):
            if launch is None and self._is_late(state, row):
                yield self._late(state, row)
                return
            if (lower := self._began_lower(state, row)) is not None:
                yield lower
                yield self._late(state, row)
                return
            if launch is not None or not self._joins(state, row):
                self._ask(state, row)
                return
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
        yield self._on_the_line(state, row)

    def _joins(self, state: SourceState, row: Placed) -> bool:
        """Return whether a low row shows that its rank follows others into a segment; then it is in it."""
        target = joinable(self.tree, state, int(row.steps[0]))
        if target is None or not self.axis.weight(state.marks, row.names, state.stride):
            return False
        self._enter(state, target)
        return True

    def _is_late(self, state: SourceState, row: Placed) -> bool:
        """Return whether a low row of a process that runs on goes back nowhere: nothing was logged at its step so far,
        or it is of a second writer."""
        step, weight = int(row.steps[0]), self.axis.weight(state.marks, row.names, state.stride)
        return self._fills(state, step) or (state.of_other_writer(step) if weight else step in state.logged.late)

    def _fills(self, state: SourceState, step: int) -> bool:
        """Return whether a low row of a process that runs on is at a step that it left out so far."""
        launch = self._relaunches.launches.of(state.source)
        if launch is not None and launch.segment == state.segment:  # another rank may have let it down
            state.logged.floor = min(state.logged.floor, self.tree[state.segment].fork_step)
        return not state.fresh and state.fills(step)

    def _began_lower(self, state: SourceState, row: Placed) -> Forked | None:
        """Return the segment of a new process, let down to a low row among its first ones: those came out of order."""
        launch, step = self._relaunches.launches.of(state.source), int(row.steps[0])
        if launch is None or launch.segment != state.segment or not state.epochs.gathers or state.fresh:
            return None
        fork_step = self.tree[state.segment].fork_step
        near = fork_step - step < FIRST_ROWS * state.logged.finest(state.stride)
        if step > fork_step or not near or self.axis.weight(state.marks, row.names, state.stride) < 2:
            return None
        return self._relaunches.lower(launch, self._fork_step(step, state))

    def _late(self, state: SourceState, row: Placed) -> Placed:
        step = int(row.steps[0])
        if state.of_other_writer(step):
            state.writer = (step, state.writer[1])
            self.axis.writers = True
        if not self.axis.weight(state.marks, row.names, state.stride):
            self._came_behind(state, row)
            return self._aside(state, row)
        self._gather(state, row.names, int(row.steps[0]), row.values[:, 0])
        state.mark_late(row.names, step)
        return self._place(row, self.tree.segment_at(state.segment, step))

    def _came_behind(self, state: SourceState, row: Placed) -> None:
        """Note a row of nothing that tells where the run is, behind the newest step."""
        run, own = self.axis.run_step(state.marks, state.last_step or 0), len(self.axis.own)
        self.axis.came_behind(state.counting, state.marks, row.names, int(row.steps[0]), run)
        if len(self.axis.own) > own:
            state.leave_own_counts(run)

    def _on_the_line(self, state: SourceState, row: Placed) -> Placed:
        """Place a row on the line that its source is in, whatever its step."""
        step = int(row.steps[0])
        behind = not state.fresh and step < (state.last_step or 0)
        if behind and not self.axis.weight(state.marks, row.names, state.stride):
            self._came_behind(state, row)
            if state.high(row.names) == OWN_COUNT:
                return self._aside(state, row)
        if state.fresh:
            self._relaunches.began(state, step)
        self._gather(state, row.names, int(row.steps[0]), row.values[:, 0])
        self.tree[state.segment].entered.setdefault(state.rank or 0, state.source)
        state.mark(row.names, [step])
        return self._place(row, self.tree.segment_at(state.segment, step))

    def _gather(self, state: SourceState, names: list[str], step: int, values: NDArray[np.float64]) -> None:
        """Remember one of the first rows of a process."""
        if state.epochs.gathers:
            metric = self.axis.leading(names) if self.axis.weight(state.marks, names, state.stride) > 1 else None
            named = dict(zip(names, values.tolist(), strict=True))
            state.epochs.gather(step - state.epochs.offset, named, metric, is_loss=self.axis.is_loss(metric or ""))

    def _should_follow_head(self, state: SourceState, step: int, time: float) -> bool:
        if state.segment == self.tree.head or not self._sources.is_newest(state):
            return False
        head = self.tree[self.tree.head]
        # One that runs on may have logged this in the moment in which the others went back: it is given some time.
        since = head.created if state.fresh else head.created + FOLLOW_HEAD_AFTER_S
        return state.rank not in head.entered and step > head.fork_step and time > since

    # --- events --------------------------------------------------------------------------------------------------

    def _event(self, info: SourceInfo, state: SourceState, block: EventBlock) -> Iterator[Change]:
        if block.type == "segment" and state.rank is not None:
            yield from self._settle(state)
            yield from self._declared(state, block)
        elif block.type == "checkpoint" and block.step is not None:
            if state.tentative is not None and state.tentative.is_saved_at(block.step):
                yield from self._confirm(state)  # nobody saves at a stray step
            segment = self.tree.segment_at(state.segment, block.step)
            self.checkpoints.take(block, segment, info.node, trains=self._trains(state))
        elif block.type in ("checkpoint_gone", "checkpoint_seen"):
            self.checkpoints.take(block, state.segment, info.node, trains=self._trains_on(info.node))
        elif block.type == "no_rollbacks":
            yield from self._release(state)
            state.no_rollbacks = True
        elif block.type == "names":
            self.axis.declared = (block.data.get("roles") or {}).get("loss", self.axis.declared)
        elif block.type in ("process_death", "exception", "finish", "left"):
            yield from self._ended(str(block.data.get("source") or info.source), block)
        self.tree.note_applied(block)
        yield LineageEvent(info, state.segment, block.type, block.time, block.step, block.data)

    def _ended(self, source: str, block: EventBlock) -> Iterator[Change]:
        if (state := self.source(source)) is not None:
            yield from self._settle(state)
        if block.type in ("process_death", "exception"):
            self._relaunches.launches.ended(source, block.time)

    def _trains(self, state: SourceState) -> bool:
        """Whether a source logs rows, as ranks of the run do; before the first row of all nobody can tell."""
        return _has_rows(state) or not any(map(_has_rows, self._sources.of.values()))

    def _trains_on(self, node: str) -> bool:
        return any(one.node == node and _has_rows(one) for one in self._sources.of.values())

    def _declared(self, state: SourceState, block: EventBlock) -> Iterator[Change]:
        data = block.data
        assert state.rank is not None
        for known in self.tree.with_key(key := data["key"]):
            if known.undone:
                state.stray_until = state.reached
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
            segment.undone, state.stray_until = True, state.reached
            yield Forked(segment, False)
            return
        if is_head := self._leads(state, state.segment):
            self._lead(segment)
        self._enter(state, segment)
        yield Forked(segment, is_head)
        yield from self._relaunches.rehang(self._relaunches.launches.of(state.source))


def _later(rows: Placed, added: int) -> Placed:
    """Return rows of which so much is added to each step."""
    return replace(rows, steps=rows.steps + added) if added else rows


def _has_rows(state: SourceState) -> bool:
    return state.last_step is not None or state.tentative is not None
