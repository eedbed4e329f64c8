"""Places the launches of the job in the tree: the segment from which each continues, and since which step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.lineage.batch import Placed
from stabilitybackend.lineage.changes import Forked
from stabilitybackend.lineage.launches import Launch, Launches
from stabilitybackend.lineage.sources import STRIDES_THAT_GO_ON, SourceState
from stabilitybackend.lineage.tree import FoldedSegment, SegmentTree
from stabilityclient.wire import SourceInfo

__all__ = ["WENT_BACK", "WENT_ON", "Relaunches"]

#: Why a segment is there that a launch opened without any call.
WENT_BACK = "the job was started again and went on from an earlier step"
WENT_ON = "the job was started again and went on"


class Relaunches(Stateful):
    """The launches of a run in its tree.

    A launch of several ranks gets a segment even where it continues at the next step (cause ``resume``): rows
    of the launch before beyond it, or a rank that began lower, often show only later. Then the segment's
    fork moves and no row has to.

    Args:
        tree: of the run. sources: id -> where each source is.
    """

    launches: Launches = fresh(Launches)
    _world: int = 1

    def __init__(self, tree: SegmentTree, sources: Mapping[str, SourceState]) -> None:
        super().__init__()
        self._tree = tree
        self._sources = sources

    def saw(self, info: SourceInfo) -> None:
        """Note the start of a process."""
        self.launches.saw(info)
        self._world = max(self._world, info.world_size)

    def of(self, state: SourceState, step: int, time: float) -> Launch | None:
        """Return the launch of a process that has no row yet, None where the job never logged before it.

        Args:
            state: of the process; it takes over the marks of its rank. step, time: of its first row.
        """
        if not state.fresh or state.rank is None:
            return None
        launch = self.launches.settle(state.source, time)
        before = self.launches.before(launch)
        if before is None:  # nor is it a relaunch where the job died before its first row, and begins again
            return launch if step > STRIDES_THAT_GO_ON and self.launches.again(state.source) else None
        old = self._sources.get(before.members.get(state.rank, ""))
        if old is not None:  # its predecessor's facts may have arrived later than its own first message
            state.follow(old)
        return launch

    def place_of(self, source: str, step: int) -> int | None:
        """Return the segment that a source is in when it does something at ``step`` (``SegmentTree.segment_at``).

        None while that is open: it has logged nothing yet, or low steps may be an undeclared rollback. A rank
        that never logs is where its launch is.
        """
        state = self._sources.get(source)
        if state is None or state.tentative is not None:
            return None
        if not state.fresh:
            return None if state.last_step is not None and step < state.last_step else state.segment
        launch = self.launches.of(source)
        if launch is None or launch.at is not None:
            return None if launch is None else launch.at
        return 0 if self.launches.before(launch) is None and not self.launches.again(source) else None

    def parts(self, launch: Launch, state: SourceState, step: int) -> bool:
        """Return whether a launch that does not go back gets a segment nevertheless: its fork may still move down.

        A job of one rank that continues at its next step needs none.
        """
        return self._world > 1 or not state.near(step) or self.launches.undecided(launch)

    def unsure(self, launch: Launch | None, state: SourceState, step: int) -> bool:
        """Return whether a rank that never logged begins below the job's marks: it is held until it continues."""
        if launch is None or launch.at is not None or state.marks:
            return False
        return self._tree.reaches_past(self.origin(launch), step - 1)

    def origin(self, launch: Launch) -> int:
        """Return the segment that the job was in before ``launch``."""
        before = self.launches.before(launch)
        return 0 if before is None or before.at is None else before.at

    def began(self, state: SourceState, step: int) -> None:
        """Note the first row of a process; its place is decided."""
        launch = self.launches.of(state.source)
        if launch is not None:
            self.launches.firm(state.source)
            launch.at = state.segment if launch.at is None else launch.at
            launch.first_step = step if launch.first_step is None else min(step, launch.first_step)

    def entered(self, state: SourceState, segment: FoldedSegment) -> None:
        """Note that a process is in ``segment`` from now on."""
        launch = self.launches.of(state.source)
        if launch is not None and (launch.at is None or self._tree[launch.at].created <= segment.created):
            launch.at = segment.id

    def succeeded(self, state: SourceState, step: int) -> bool:
        """Return whether a later launch continued in this segment from ``step`` or before: this row is too late."""
        launch = self.launches.of(state.source)
        later = None if launch is None else self.launches.after(launch)
        if later is None or later.segment is not None or later.first_step is None:
            return False
        return self._tree.is_ancestor(later.at or 0, state.segment) and step >= later.first_step

    def logged(self, state: SourceState, rows: Sequence[Placed]) -> Iterator[Forked]:
        """Note rows.

        Late rows may show that the next launch did not continue from there, but went back.
        """
        launch = self.launches.of(state.source)
        if launch is None:
            return
        launch.newest = max(launch.newest, *(float(one.times.max()) for one in rows))
        later = self.launches.after(launch)
        if later is None and launch.trained <= min(float(one.times.min()) for one in rows):
            return  # as nearly always
        step = max(int(one.steps.max()) for one in rows)
        if launch.first_step is not None and launch.first_step < step:
            beyond = [one.times[one.steps > launch.first_step] for one in rows]
            launch.trained = min(launch.trained, *(float(times.min()) for times in beyond if len(times)))
        if later is None or later.segment is None:
            return
        segment = self._tree[later.segment]
        if segment.cause == "resume" and step > segment.fork_step and state.segment == segment.parent:
            segment.cause, segment.reason = "restart", WENT_BACK
            self._tree.touch(segment.id)
            yield Forked(segment, False)

    def lower(self, launch: Launch, fork_step: int) -> Forked:
        """Let the segment of ``launch`` start from ``fork_step``: one of its ranks shows that it began earlier."""
        assert launch.segment is not None
        segment, origin = self._tree[launch.segment], self.origin(launch)
        self._tree.rehang(segment, origin, fork_step)
        if segment.cause == "resume" and self._tree.reaches_past(origin, fork_step):
            segment.cause, segment.reason = "restart", WENT_BACK
        self._tree.touch(segment.id)
        return Forked(segment, segment.id == self._tree.head)

    def rehang(self, launch: Launch | None) -> Iterator[Forked]:
        """``launch`` is placed later than the launch after it, which continues from there."""
        later = None if launch is None else self.launches.after(launch)
        if later is None or later.segment is None:
            return
        segment = self._tree[later.segment]
        if self._tree.rehang(segment, self.origin(later), segment.fork_step):
            yield Forked(segment, segment.id == self._tree.head)
