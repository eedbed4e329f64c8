"""Memory of the fold for each source (one start of one training process) between two frames."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import repeat

from stabilitybackend.lineage.epochs import EpochCount
from stabilitybackend.lineage.logged_steps import LoggedSteps
from stabilitybackend.lineage.step_axis import OWN_COUNT, Counting
from stabilitybackend.lineage.tree import FoldedSegment, SegmentTree

__all__ = ["CONFIRM_STEPS", "STRIDES_THAT_GO_ON", "SourceState", "Tentative", "joinable"]

#: Distinct further steps that must follow the first low step of a new process before it counts as a restart.
#: Two, because one stray low step must never fork a run, and a third step cannot be an accident of the same kind.
CONFIRM_STEPS = 2
#: The same in a process that runs on: an evaluation may log some rows under the name of the loss, too.
CONFIRM_STEPS_RUNNING = 8
#: A next step at most this many usual strides away continues from the last one.
STRIDES_THAT_GO_ON = 2
#: Low rows further apart are not of one stretch: the first of them was a stray. Rows may come in another order.
NEAR_STRIDES = 16
#: A second writer of the same names is behind the first again and again: after so many low rows that went on from each
#: other, while the others went on from the newest step, there are two.
WRITER_ROWS = 3


@dataclass
class Tentative:
    """Low steps that may be the start of an undeclared rollback: rows are held until that is decided.

    Attributes:
        high: greatest step of the source before.
        fresh: whether the source is a new process, so that even repeating the last step means it went back.
        first_step, last_step: the least and the greatest step of the rows that tell where the run is (``Counting``).
            None while none of those that are held does.
        steps: of those rows.
        led: whether one of them was the loss's, or as good.
        gap: steps from the low row before, which led nowhere, to the first one: the process may log as rarely now.
    """

    high: int
    fresh: bool
    gap: int = 0
    first_step: int | None = None
    last_step: int | None = None
    steps: set[int] = field(default_factory=set)
    led: bool = False

    def goes_on(self, step: int, weight: int, stride: int, *, low: bool) -> bool:
        """Return whether a row continues from here rather than from where the source was before."""
        if not weight:
            return True  # no evidence: it waits with the others
        if self.first_step is None or self.last_step is None:
            return low
        if step < self.last_step:
            return self.last_step - step <= NEAR_STRIDES * stride
        if step <= self.high:
            return step - self.last_step <= max(NEAR_STRIDES * stride, 2 * self.gap)
        # A loop that went back leaves out nothing that it logged; some steps may come out of order.
        strides = CONFIRM_STEPS_RUNNING if self.fresh or self.last_step == self.high else 1
        near = step - self.last_step <= strides * stride
        return near and (self.fresh or len(self.steps) > 1)

    def follow(self, step: int, weight: int, high: int) -> None:
        """Note a row that continues from here; ``high``: the greatest step of its metrics before."""
        if not weight:
            return
        self.steps.add(step)
        self.first_step, self.last_step = min(self.steps), max(self.steps)
        self.high = max(self.high, high)
        self.led = self.led or weight > 1

    def went_through(self, step: int) -> bool:
        """Return whether the low steps reached the source's former place, and begin once more with ``step``."""
        reached = self.last_step is not None and self.last_step >= self.high and len(self.steps) > 1
        return reached and not self.fresh and step == self.first_step

    def is_saved_at(self, step: int) -> bool:
        """Return whether a checkpoint at ``step`` shows that a new process trains there."""
        return self.fresh and self.first_step is not None and step >= self.first_step

    @property
    def is_sure(self) -> bool:
        """Whether the steps went on long enough to be a rollback."""
        if not self.led or self.last_step is None:
            return False
        past = self.fresh or self.last_step > self.high
        return len(self.steps) > (CONFIRM_STEPS if past else CONFIRM_STEPS_RUNNING)


@dataclass
class SourceState:
    """Where a source is.

    Attributes:
        rank: global rank; None for an agent.
        segment: the segment its points belong to now.
        stride: newest distance between two steps of the source.
        last_step: the greatest step of the present stretch, None before the first.
        fresh: True until its first points are placed.
        tentative: low steps that are not placed yet.
        stray_until: steps up to this one that lie before the marks are strays: a user undid their segment.
        number: counts the sources of the run in the order in which they first appeared.
        started: when its process started, unix seconds.
        no_rollbacks: its backward steps are no rollback and no restart: the event ``no_rollbacks`` was received.
        logged: the steps of the present stretch.
        counting: which of its metrics tell where the run is.
        writer: newest step of low rows that went on from each other while others went on from the newest step, and how
            many there were.
        epochs: whether its steps count within an epoch.
        watched: each of its rows has to be looked at, see ``update_watched``.
    """

    source: str
    rank: int | None
    node: str
    segment: int
    _marks: dict[str, int] = field(default_factory=dict)
    stride: int = 1
    last_step: int | None = None
    fresh: bool = True
    tentative: Tentative | None = None
    stray_until: int = -1
    number: int = 0
    started: float = 0.0
    no_rollbacks: bool = False
    logged: LoggedSteps = field(default_factory=LoggedSteps)
    counting: Counting = field(default_factory=Counting)
    writer: tuple[int, int] = (-1, 0)
    epochs: EpochCount = field(default_factory=EpochCount)
    watched: bool = True

    def __post_init__(self) -> None:
        #: Metrics that go on together, row after row, and their step, which is not in ``_marks`` yet.
        self._together: tuple[list[str], int] | None = None

    @property
    def marks(self) -> dict[str, int]:
        """Metric -> greatest step logged in the present stretch; OWN_COUNT for one that counts its own steps."""
        self.settle()
        return self._marks

    def settle(self) -> None:
        """Put missing metrics into ``_marks``."""
        if self._together is not None:
            names, step = self._together
            self._marks.update(dict.fromkeys(names, step))
            self._together = None

    @property
    def reached(self) -> int:
        """The greatest step that one of its metrics reached, -1 for none."""
        return max((step for step in self.marks.values() if step != OWN_COUNT), default=-1)

    def update_watched(self) -> None:
        """Find out whether each of its rows has to be looked at; call it after anything but rows that just go on."""
        self.watched = self.fresh or self.tentative is not None or self.epochs.offset > 0

    def follow(self, old: SourceState) -> None:
        """Take over the marks of the process before of the same rank."""
        self._marks, self.stride, self.last_step = dict(old.marks), old.stride, old.last_step
        self.logged = LoggedSteps(first=old.last_step, floor=old.reached)
        self.counting = Counting(dict(old.counting.back), dict(old.counting.behind))

    def high(self, names: list[str]) -> int:
        """Return the greatest step at which any of ``names`` was logged in this stretch, -1 for none."""
        if self._together is not None and self._together[0] is names:
            return self._together[1]
        return max(map(self.marks.get, names, repeat(-1)), default=-1)

    def goes_back(self, names: list[str], step: int) -> bool:
        """Return whether a row of ``names`` at ``step`` lies before the marks of the same metrics."""
        high = self.high(names)
        return step < high or (self.fresh and step == high)

    def near(self, step: int) -> bool:
        """Return whether ``step`` continues from the newest one by this rank's usual stride."""
        return self.last_step is None or step - self.last_step <= STRIDES_THAT_GO_ON * self.stride

    def is_late(self, names: list[str], step: int) -> bool:
        """Return whether a row lies before the rank's marks, but not before those of these metrics."""
        return step <= self.reached and not self.goes_back(names, step)

    def fills(self, step: int) -> bool:
        """Return whether a row below the newest step was left out so far: it is late and no rollback."""
        return self.last_step is not None and self.logged.left_out(step, self.last_step, self.stride)

    def of_other_writer(self, step: int) -> bool:
        """Return whether a low row continues those of a second writer of the same names, who is behind the first."""
        newest, rows = self.writer
        return rows >= WRITER_ROWS and newest < step <= newest + STRIDES_THAT_GO_ON * self.stride

    def fell_behind(self, first: int, last: int) -> None:
        """Note that low rows from ``first`` to ``last`` led nowhere, since others went on from the newest step."""
        newest, rows = self.writer
        goes_on = newest < first <= newest + STRIDES_THAT_GO_ON * self.stride
        self.writer = (last, min(rows, WRITER_ROWS) + 1 if goes_on else 1)

    def mark(self, names: list[str], steps: list[int]) -> None:
        """Note rows at ``steps``, which never go back."""
        self.mark_names(names, steps[-1])
        self.pass_steps(steps)
        self.fresh = False

    def mark_names(self, names: list[str], step: int) -> None:
        """Note the metrics of a row at ``step``."""
        if self.high(names) <= step:  # as nearly always
            self.reach(names, step)
        else:
            marks = self.marks
            marks.update({name: step for name in names if marks.get(name, -1) < step})

    def mark_late(self, names: list[str], step: int) -> None:
        """Note a late row: the source stays in its place."""
        self.mark_names(names, step)
        self.logged.came_late(step)

    def reach(self, names: list[str], step: int) -> None:
        """Note the metrics of rows that go on, up to ``step``."""
        if self._together is not None and self._together[0] is not names:
            self.settle()
        self._together = (names, step) if names else None

    def go_on(self, names: list[str], steps: list[int]) -> None:
        """Do the same as ``mark`` for rows that do not go back."""
        self.reach(names, steps[-1])
        self.pass_steps(steps)

    def pass_steps(self, steps: list[int]) -> None:
        """Note the steps of rows that never go back."""
        self._to(steps[0])
        if len(steps) == 1:
            return
        self._to(steps[1])
        first, distance = steps[0], steps[1] - steps[0]
        even = distance == self.stride and steps[1] == self.last_step
        if even and steps == list(range(first, steps[-1] + 1, distance)):
            self.last_step = steps[-1]
        else:
            for step in steps[2:]:
                self._to(step)

    def _to(self, step: int) -> None:
        last = self.last_step
        if last is None:
            self.last_step = self.logged.first = step
        elif step > last:
            distance = step - last
            if distance != self.stride:
                self.logged.break_off(last, self.stride)
                self.stride = distance
                if self.logged.first is None:
                    self.logged.first = step
            self.last_step = step

    def enter(self, segment: int, fork_step: int) -> None:
        """Move into ``segment``: steps after ``fork_step`` are new again."""
        self.segment = segment
        self.logged.go_back(fork_step, self.last_step, self.stride)
        self._marks = {name: step if step == OWN_COUNT else min(step, fork_step) for name, step in self.marks.items()}
        self.last_step = None
        self.tentative = None
        self.stray_until = -1
        self.writer = (-1, 0)
        self.fresh = False
        self.update_watched()

    def leave_own_counts(self, run: int) -> None:
        """Forget steps beyond ``run``, where the run is: those were of metrics that count their own."""
        if self.last_step is not None and self.last_step > run:
            self.last_step = run
            self.logged = LoggedSteps(first=run, floor=run)


def joinable(tree: SegmentTree, state: SourceState, step: int, *, undone: bool = False) -> FoldedSegment | None:
    """Return the segment that other ranks opened and this one now reaches, if there is one.

    Args:
        undone: look for one that a user undid.
    """
    for segment in tree:
        if segment.id <= state.segment or (state.fresh and segment.id != tree.head):
            continue
        if state.rank not in segment.entered and step > segment.fork_step and segment.undone == undone:
            return segment
    return None
