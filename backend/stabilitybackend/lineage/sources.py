"""What the fold remembers of each source (one start of one training process) between two frames."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import repeat

from stabilitybackend.lineage.tree import FoldedSegment, SegmentTree

__all__ = ["CONFIRM_STEPS", "STRIDES_THAT_GO_ON", "SourceState", "Tentative", "joinable"]

#: Distinct further steps that must follow a low step before it counts as a rollback nobody declared.
#: Two, because one stray low step must never fork a run, and a third step cannot be an accident of the same kind.
CONFIRM_STEPS = 2
#: A next step at most this many usual strides away "goes on" from the last one.
STRIDES_THAT_GO_ON = 2


@dataclass
class Tentative:
    """Low steps that may be the start of an undeclared rollback.

    Attributes:
        first_step: where they started.
        last_step: the newest of them.
        followed: distinct further steps that went on from first_step.
        high: greatest step of the source before.
        fresh: whether the source is a new process, so that even repeating the last step means it went back.
    """

    first_step: int
    last_step: int
    high: int
    fresh: bool
    followed: int = 0

    def goes_on(self, step: int, stride: int) -> bool:
        """Return whether ``step`` continues from here rather than from where the source was before."""
        if step < self.last_step:
            return False
        if step <= self.high:
            return True
        near = step - self.last_step <= STRIDES_THAT_GO_ON * stride
        return near and (self.followed > 0 or self.fresh)

    def follow(self, step: int) -> bool:
        """Note ``step``; return whether that confirms the rollback."""
        if step > self.last_step:
            self.followed += 1
            self.last_step = step
        return self.followed >= CONFIRM_STEPS


@dataclass
class SourceState:
    """Where a source is.

    Attributes:
        rank: global rank; None for an agent.
        segment: the segment its points belong to now.
        marks: metric -> greatest step logged in the present stretch.
        stride: usual distance between two steps of the source.
        last_step: the newest step, None before the first.
        fresh: True until its first points are placed.
        tentative: low steps that are not placed yet.
        stray_until: steps up to this one that lie before the marks are strays: somebody undid their segment.
        number: counts the sources of the run in the order in which they first appeared.
        started: when its process started, unix seconds.
        no_rollbacks: its steps that go back are no rollback and no restart: the event ``no_rollbacks`` came.
    """

    source: str
    rank: int | None
    node: str
    segment: int
    marks: dict[str, int] = field(default_factory=dict)
    stride: int = 1
    last_step: int | None = None
    fresh: bool = True
    tentative: Tentative | None = None
    stray_until: int = -1
    number: int = 0
    started: float = 0.0
    no_rollbacks: bool = False

    def high(self, names: list[str]) -> int:
        """Return the greatest step at which any of ``names`` was logged in this stretch, -1 for none."""
        return max(map(self.marks.get, names, repeat(-1)), default=-1)

    def goes_back(self, names: list[str], step: int) -> bool:
        """Return whether a row of ``names`` at ``step`` lies before what the same metrics reached."""
        high = self.high(names)
        return step < high or (self.fresh and step == high)

    def near(self, step: int) -> bool:
        """Return whether ``step`` goes on from the newest one as this rank's steps usually do."""
        return self.last_step is None or step - self.last_step <= STRIDES_THAT_GO_ON * self.stride

    def is_late(self, names: list[str], step: int) -> bool:
        """Return whether a row lies before what the rank reached, but not before what these metrics did."""
        return step <= max(self.marks.values(), default=-1) and not self.goes_back(names, step)

    def mark(self, names: list[str], step: int, before: int | None = None) -> None:
        """Note a row at ``step``; ``before`` is the step of the row before it, where several came together."""
        marks = self.marks
        if self.high(names) <= step:  # as nearly always
            marks.update(dict.fromkeys(names, step))
        else:
            marks.update({name: step for name in names if marks.get(name, -1) < step})
        self._passed(step, before)

    def go_on(self, names: list[str], step: int, before: int | None = None) -> None:
        """Do what ``mark`` does for a row that does not go back."""
        self.marks.update(dict.fromkeys(names, step))
        self._passed(step, before)

    def go_on_to(self, marks: dict[str, int], step: int) -> None:
        """Do the same with ``marks``, which are ``step`` for each of the names."""
        self.marks.update(marks)
        self._passed(step, None)

    def _passed(self, step: int, before: int | None) -> None:
        for one in (step,) if before is None else (before, step):
            if self.last_step is not None and one > self.last_step:
                self.stride = one - self.last_step
            self.last_step = one
        self.fresh = False

    def enter(self, segment: int, fork_step: int) -> None:
        """Move into ``segment``: steps after ``fork_step`` are new again."""
        self.segment = segment
        self.marks = {name: min(step, fork_step) for name, step in self.marks.items()}
        self.last_step = None
        self.tentative = None
        self.stray_until = -1
        self.fresh = False


def joinable(tree: SegmentTree, state: SourceState, step: int) -> FoldedSegment | None:
    """Return the segment that other ranks opened and this one now reaches, if there is one."""
    for segment in tree:
        if segment.id <= state.segment or (state.fresh and segment.id != tree.head):
            continue
        if state.rank not in segment.entered and step > segment.fork_step and not segment.undone:
            return segment
    return None
