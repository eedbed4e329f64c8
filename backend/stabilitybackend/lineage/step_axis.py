"""Which metrics of a process tell where the run is, and which count their own steps.

A metric that goes back takes only itself along: the batches of a validation are counted from 0 in each epoch, a table
of an evaluation has the epoch as its step. The run goes back with its loss, or with most metrics of each step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.schema.metric_roles import LOSS, is_of_evaluation, role_of

__all__ = ["OWN_COUNT", "Counting", "StepAxis"]

#: In the place of the greatest step of a metric that counts its own: each of its rows is looked at.
OWN_COUNT = 2**62
#: Rows of a metric that went back while the run went on, after which it counts its own steps.
ROWS_BACK = 2
#: Rows in which a metric advanced by less than half of the run's steps, after which it counts its own steps.
ROWS_BEHIND = 3
#: Strides behind the newest step within which a metric is logged at each of the run's steps.
NEAR_STRIDES = 2
#: Metrics with their own steps that are named; more are counted.
MAX_NAMED = 3
#: Those that are remembered by name.
MAX_OWN = 1_024
#: Those that a run's answer lists, to be drawn on an axis of their own.
MAX_LISTED = 64


@dataclass
class Counting:
    """State of the metrics of a process that do not show the run's progress.

    Attributes:
        back: metric -> its rows that went back while the run went on.
        behind: metric -> (rows that advanced more slowly than the run, step of its newest row, the run's step then).
    """

    back: dict[str, int] = field(default_factory=dict)
    behind: dict[str, tuple[int, int, int]] = field(default_factory=dict)


class StepAxis(Stateful):
    """Facts about the metrics of one run.

    Attributes:
        declared: the job's name for its loss.
        own: metrics that count their own steps.
        writers: two write the same metrics, one behind the other.
        epoch: first and last step of an epoch, where the steps of a process count within one.
    """

    writers: bool = False
    epoch: tuple[int, int] | None = None
    declared: str | None = None
    own: dict[str, None] = fresh(dict)

    def is_loss(self, metric: str) -> bool:
        """Return whether a metric is the training's loss."""
        return metric == self.declared or role_of(metric) == LOSS

    def leads(self, names: Iterable[str]) -> bool:
        """Return whether there is anything but an evaluation's among ``names``."""
        return self.leading(names) is not None

    def is_aside(self, marks: dict[str, int], names: Sequence[str], stride: int) -> bool:
        """Return whether a row is of metrics that count their own steps; one with the loss makes an end of that."""
        if not any(marks.get(name) == OWN_COUNT for name in names):
            return False
        if not self.weight(marks, names, stride):
            return True
        for name in names:
            if marks.get(name) == OWN_COUNT:
                del marks[name]
                self.own.pop(name, None)
        return False

    def leading(self, names: Iterable[str]) -> str | None:
        """Return the loss among ``names``, else the first of them that is not of an evaluation."""
        found = None
        for name in names:
            if self.is_loss(name):
                return name
            if found is None and not is_of_evaluation(name):
                found = name
        return found

    def weight(self, marks: dict[str, int], names: Sequence[str], stride: int) -> int:
        """Return the weight of a row for the run's progress: 2 the loss's, 1 of most metrics with a loss, 0 nothing.

        Where no loss is logged, a row of most metrics that are logged at each step is as good as the loss's.

        Args:
            marks: metric -> greatest step of the process. names: of the row. stride: between its rows.
        """
        if any(map(self.is_loss, names)):
            return 2
        candidates = {name: step for name, step in marks.items() if step != OWN_COUNT and not is_of_evaluation(name)}
        if not candidates:
            return 0 if any(marks.get(name) == OWN_COUNT for name in names) else 2
        newest = max(candidates.values())
        recent = {name for name, step in candidates.items() if newest - step <= NEAR_STRIDES * stride}
        if 2 * len(recent.intersection(names)) <= len(recent):
            return 0
        return 1 if any(map(self.is_loss, candidates)) else 2

    def run_step(self, marks: dict[str, int], newest: int) -> int:
        """Return the greatest step of the loss, ``newest`` where none is logged."""
        return max((step for name, step in marks.items() if self.is_loss(name) and step != OWN_COUNT), default=newest)

    def went_back(
        self, counting: Counting, marks: dict[str, int], names: Sequence[str], step: int, run: int, stride: int
    ) -> None:
        """Note a row below the marks of its metrics, which the run, at step ``run``, did not follow.

        A metric that is logged at the run's steps, too, keeps those: a row of an evaluation may share it.
        """
        for name in names:
            mark = marks.get(name, -1)
            if step < mark < OWN_COUNT and abs(run - mark) > NEAR_STRIDES * stride:
                counting.back[name] = counting.back.get(name, 0) + 1
                if counting.back[name] >= ROWS_BACK:
                    self._counts_own(counting, marks, name)

    def came_behind(self, counting: Counting, marks: dict[str, int], names: Sequence[str], step: int, run: int) -> None:
        """Note a row at a step that nothing was logged at, while the run is at ``run``."""
        for name in names:
            mark = marks.get(name, -1)
            if mark > step:
                continue
            rows, before, run_before = counting.behind.get(name, (0, step, run))
            slower = 0 < 2 * (step - before) <= run - run_before
            counting.behind[name] = (rows + 1 if slower else 0, step, run)
            if rows + slower >= ROWS_BEHIND:
                self._counts_own(counting, marks, name)

    def _counts_own(self, counting: Counting, marks: dict[str, int], name: str) -> None:
        marks[name] = OWN_COUNT
        counting.back.pop(name, None)
        counting.behind.pop(name, None)
        if len(self.own) < MAX_OWN:
            self.own[name] = None

    def listed(self) -> list[str]:
        """Return the metrics that count their own steps, at most MAX_LISTED."""
        return [*self.own][:MAX_LISTED]

    def note(self) -> str:
        """Return a note for users on the run's steps, "" for none."""
        told = [self._own_note()] if self.own else []
        if self.epoch is not None:
            first, last = self.epoch
            told.append(
                f"Its steps count within an epoch, from {first:,} to {last:,}: the epochs are drawn one after another."
            )
        if self.writers:
            told.append("Two writers log the same metrics, one behind the other: the rows of both are drawn.")
        return " ".join(told)

    def _own_note(self) -> str:
        names, more = [*self.own][:MAX_NAMED], len(self.own) - MAX_NAMED
        if more > 0:
            names.append(f"{more} more metric{'s' if more > 1 else ''}")
        if len(names) == 1:
            return f"{names[0]} counts its own steps, not the run's: its chart has an axis of its own."
        return (
            f"{', '.join(names[:-1])} and {names[-1]} count their own steps, not the run's: "
            "their charts have axes of their own."
        )
