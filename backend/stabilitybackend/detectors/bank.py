"""All detectors of one run on its effective path, able to go back to a fork step."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .contract import Detector, Finding, Point

#: Snapshots kept. A detector set pickles to a few KiB, so that this is well below 1 MiB a run.
MAX_SNAPSHOTS = 64
#: Steps with points between two snapshots: near the head a rollback feeds about so many again, in a millisecond.
SNAPSHOT_EVERY_STEPS = 32
#: So many points in a row behind the newest step mean that the order began anew, not that they are late.
LATE_POINTS_ACCEPTED_AFTER = 32
#: Metric names whose receivers are remembered; beyond that they are looked up each time.
MAX_REMEMBERED_METRICS = 10_000
#: The step of the empty state: every step of a run comes after it.
BEFORE_FIRST_STEP = -1

__all__ = ["BEFORE_FIRST_STEP", "DetectorBank"]

_log = logging.getLogger(__name__)


class DetectorBank:
    """Feeds points to detectors and rewinds them when the run does.

    Points come in the order of their steps, of the primary rank, on the effective path. After a rollback ``rewind``
    restores the newest saved state at or before the fork step; the caller then feeds the effective points after the
    step that it returns. The state is then that of a bank that never saw the dead points. Findings of points fed
    again have the keys that they had.

    A detector that raises is replaced by a fresh one and counted in ``failures``: one bad plug-in never stops the
    others.

    Args:
        factories: name -> maker of a fresh detector, called again on a rewind to before the first snapshot.
        snapshot_every_steps: steps with points between two snapshots, >= 1.
    """

    def __init__(
        self, factories: Mapping[str, Callable[[], Detector]], snapshot_every_steps: int = SNAPSHOT_EVERY_STEPS
    ) -> None:
        if snapshot_every_steps < 1:
            raise ValueError(f"snapshot_every_steps is {snapshot_every_steps}, expected at least 1")
        self._factories = dict(factories)
        self._every = snapshot_every_steps
        self._detectors = {name: make() for name, make in self._factories.items()}
        self._receivers: dict[str, tuple[str, ...]] = {}
        self._snapshots: list[tuple[int, bytes]] = []
        self._steps_since_snapshot = 0
        self._late_in_a_row = 0
        #: Newest step fed, BEFORE_FIRST_STEP when none was.
        self.last_step = BEFORE_FIRST_STEP
        #: Points refused because a later step had been fed already.
        self.late_points = 0
        #: Exceptions by detector name.
        self.failures: dict[str, int] = {}

    def feed(self, point: Point) -> list[Finding]:
        """Give one point to the detectors that want it and return what changed."""
        if point.step < self.last_step and not self._order_began_anew(point.step):
            return []
        self._late_in_a_row = 0
        receivers = self._receivers_of(point.metric)
        return self._give(point, receivers) if receivers else []

    def wants(self, metric: str) -> bool:
        """Return whether points of ``metric`` go to any detector."""
        return bool(self._receivers_of(metric))

    def feed_rows(
        self,
        names: Sequence[str],
        steps: Sequence[int],
        times: Sequence[float],
        columns: Mapping[str, Sequence[float]],
    ) -> list[tuple[float, Finding]]:
        """Give whole rows and return what changed, each with the log time of its point.

        The same as ``feed`` for each point, row after row in the order of ``names``, but what nobody wants costs
        nothing.

        Args:
            names: the metrics of the rows.
            steps, times: one for each row.
            columns: the values of those of ``names`` that ``wants`` says yes to, and of no other.
        """
        found: list[tuple[float, Finding]] = []
        wanted = [(name, columns[name], self._receivers_of(name)) for name in names if name in columns]
        for row, step in enumerate(steps):
            time = times[row]
            if step < self.last_step:
                for name in names:
                    if step < self.last_step and not self._order_began_anew(step):
                        continue
                    self._late_in_a_row = 0
                    if name in columns:
                        point = Point(step, name, columns[name][row], time)
                        found += [(time, finding) for finding in self._give(point, self._receivers_of(name))]
                continue
            self._late_in_a_row = 0
            for name, values, receivers in wanted:
                news = self._give(Point(step, name, values[row], time), receivers)
                if news:
                    found += [(time, finding) for finding in news]
        return found

    def _give(self, point: Point, receivers: tuple[str, ...]) -> list[Finding]:
        if point.step > self.last_step:
            self._enter_step(point.step)
        found: list[Finding] = []
        for name in receivers:
            try:
                found += self._detectors[name].update(point)
            except Exception as error:
                self._failed(name, error)
        return found

    def rewind(self, fork_step: int) -> int:
        """Forget what came after ``fork_step`` and return the step after which points have to be fed again.

        Args:
            fork_step: the step whose state the new segment starts from; below 0 for the very beginning.

        Returns:
            The step of the restored state, ``BEFORE_FIRST_STEP`` for the empty one. Never above ``fork_step`` unless
            that is negative.
        """
        self._late_in_a_row = 0
        if BEFORE_FIRST_STEP < self.last_step <= fork_step:
            return self.last_step
        while self._snapshots and self._snapshots[-1][0] > fork_step:
            self._snapshots.pop()
        self._steps_since_snapshot = 0
        if not self._snapshots:
            self._detectors = {name: make() for name, make in self._factories.items()}
            self.last_step = BEFORE_FIRST_STEP
        else:
            self.last_step, state = self._snapshots[-1]
            self._detectors = pickle.loads(state)  # made by this object, or read with care in restore()
        return self.last_step

    def saved(self) -> dict[str, Any]:
        """Return the whole state for ``restore``: detectors, plain containers, and pickled detectors as bytes."""
        return {
            "detectors": self._detectors,
            "snapshots": self._snapshots,
            "steps_since_snapshot": self._steps_since_snapshot,
            "late_in_a_row": self._late_in_a_row,
            "last_step": self.last_step,
            "late_points": self.late_points,
            "failures": self.failures,
        }

    def restore(self, saved: Mapping[str, Any], loads: Callable[[bytes], Any]) -> None:
        """Take over what ``saved`` returned.

        Args:
            loads: reads pickled detectors without trusting them: the bytes may come from a disk.

        Raises:
            ValueError: it holds other detectors than this bank.
        """
        for step, detectors in [(-1, saved["detectors"]), *((at, loads(state)) for at, state in saved["snapshots"])]:
            kinds = {name: type(detector) for name, detector in detectors.items()}
            expected = {name: type(detector) for name, detector in self._detectors.items()}
            if kinds != expected:
                raise ValueError(f"detectors {sorted(kinds)} saved at step {step}, expected {sorted(expected)}")
        self._detectors = dict(saved["detectors"])
        self._snapshots = list(saved["snapshots"])
        self._steps_since_snapshot = int(saved["steps_since_snapshot"])
        self._late_in_a_row = int(saved["late_in_a_row"])
        self.last_step = int(saved["last_step"])
        self.late_points = int(saved["late_points"])
        self.failures = dict(saved["failures"])

    def snapshot_steps(self) -> list[int]:
        """Return the steps to which a rewind needs no points again, ascending."""
        return [step for step, _ in self._snapshots]

    def state(self) -> bytes:
        """Return the pickled state of the detectors, for comparison and for size checks."""
        return pickle.dumps(self._detectors, protocol=pickle.HIGHEST_PROTOCOL)

    def _enter_step(self, step: int) -> None:
        """Save the state of the steps so far when one is due, before the first point of ``step``."""
        if self.last_step != BEFORE_FIRST_STEP:
            self._steps_since_snapshot += 1
            if self._steps_since_snapshot >= self._every:
                self._snapshots.append((self.last_step, self.state()))
                self._steps_since_snapshot = 0
                if len(self._snapshots) > MAX_SNAPSHOTS:
                    self._thin(step)
        self.last_step = step

    def _thin(self, head: int) -> None:
        """Drop the snapshot whose loss hurts least: small gap, far from the head. The newest one stays."""
        steps = self.snapshot_steps()

        def cost(i: int) -> float:
            before = steps[i - 1] if i else BEFORE_FIRST_STEP
            return (steps[i + 1] - before) / (head - steps[i])

        del self._snapshots[min(range(len(steps) - 1), key=cost)]

    def _receivers_of(self, metric: str) -> tuple[str, ...]:
        receivers = self._receivers.get(metric)
        if receivers is None:
            receivers = tuple(name for name, detector in self._detectors.items() if detector.wants(metric))
            if len(self._receivers) < MAX_REMEMBERED_METRICS:
                self._receivers[metric] = receivers
        return receivers

    def _order_began_anew(self, step: int) -> bool:
        """Count a late point; after many in a row follow them, or one stray huge step would make the bank deaf."""
        self.late_points += 1
        self._late_in_a_row += 1
        if self._late_in_a_row < LATE_POINTS_ACCEPTED_AFTER:
            return False
        self._snapshots = [snapshot for snapshot in self._snapshots if snapshot[0] < step]
        self.last_step = step
        return True

    def _failed(self, name: str, error: Exception) -> None:
        self.failures[name] = self.failures.get(name, 0) + 1
        if self.failures[name] == 1:
            _log.exception("detector %s failed and starts afresh: %s", name, error)
        self._detectors[name] = self._factories[name]()
