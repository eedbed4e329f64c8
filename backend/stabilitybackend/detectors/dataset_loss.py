"""Finds one data set whose loss jumps to another level or climbs while the whole loss hardly shows it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from stabilitybackend.stateful import Stateful

from .divergence import DivergenceDetector
from .engine.base import SENSITIVITY, Detector, Finding, Mark, Parameter, Point, Row, fresh
from .engine.metric_roles import LOSS, RATIO, dataset_of, role_of
from .engine.row_blocks import QuietRows
from .engine.synthetic import noisy
from .level_shift import LevelShiftDetector
from .stats.blocks import BLOCK_POINTS
from .stats.levels import LARGEST, SMALLEST_SIGMA, change, percent
from .stats.robust import median
from .stats.together import MEAN_ERRORS, Moved, moved_alone

#: Data sets that are watched, the first ones seen. Each takes some 5 KB, and that 32 times in snapshots.
MAX_DATASETS = 32
#: What moves the whole loss by less than this fraction (the rise times the data set's share) is a note and no warning:
#: a loss logged from bf16 moves in steps of that size.
SHOWN_IN_THE_WHOLE = 0.005
#: Kinds of claims that explain a data set's loss: another share of it is another mixture of what it learns.
_EXPLAINING = frozenset({"data_mix_drift", "mixture"})

__all__ = ["DatasetLossDetector"]


class _Dataset(Stateful):
    """One data set's curve with the two that judge it.

    Attributes:
        steps, values: the points since the last block.
        held: whether an event waits for the next block. reported: onset of the one that was, or -1.
        warned: whether that was a warning.
        whole: of what was reported as an event of all data sets: the whole loss before, its largest since, and the
            standard error of their difference; empty for one of this data set alone.
    """

    steps: list[int] = fresh(list)
    values: list[float] = fresh(list)

    shift: LevelShiftDetector = fresh(LevelShiftDetector)
    climb: DivergenceDetector = fresh(DivergenceDetector)
    held: bool = False
    reported: int = -1
    warned: bool = False
    whole: list[float] = fresh(list)

    def newest(self, step: int) -> Finding | None:
        """Return what is known at ``step`` of the event that is open, None where none is."""
        return self.shift.open_finding(step) or self.climb.open_finding(step)

    def moved(self, step: int) -> Moved | None:
        """Return how far its newest points are from its level before a step, None where too little is known."""
        return self.climb.moved(step, self.shift.since(step))


class DatasetLossDetector(Detector):
    """Judges the loss of each data set by itself, and reports what the whole loss does not.

    Idea: each ``loss/<data set>`` has a level-shift and a divergence detector of its own, with a larger least rise.
    What they find waits for one block of points. It is dropped where the whole loss has an event that covers its
    onset, and where the mixture changed; it is closed when the whole loss shows it later. The least noisy data set
    shows first what all of them do: where the others moved as well over the same steps, each in its own noise, or may
    have, it is one event of the whole loss, and nobody is named. A warning where the rise times the data set's share of
    the data (declared, or ``ratio/<data set>``, or equal ones) is half a percent of the whole loss, else a note; never
    critical, and of one alone no reason to go back: the advice is about the data set. Drops and what learning rate,
    batch size or a fork explain are silent.

    Args:
        sensitivity: divides the thresholds.
        min_rise: smallest rise of one data set, fraction of its level.

    Source: the two detectors that it is made of.
    """

    name: ClassVar[str] = "dataset_loss"
    kinds: ClassVar[tuple[str, ...]] = ("level_shift", "divergence")
    title: ClassVar[str] = "Loss of one data set"
    parameters: ClassVar[dict[str, Parameter]] = {
        "sensitivity": SENSITIVITY,
        "min_rise": Parameter(
            0.03, 0.001, 1.0, "fraction", "Smallest rise of one data set's loss that is reported; higher is quieter."
        ),
    }

    _sets: dict[str, _Dataset] = fresh(dict)
    #: Metric of a share -> its newest value; of the declared mixture alone where there is one.
    _shares: dict[str, float] = fresh(dict)
    _declared: bool = False
    #: The metric of the whole loss, the first of its role.
    _loss: str = ""

    def configured(self) -> None:
        for one in self._sets.values():
            self._set_up(one)

    def _set_up(self, one: _Dataset) -> None:
        """Give the two judges of a data set this detector's context and settings."""
        by = self.settings["sensitivity"]
        one.shift.context = one.climb.context = self.context
        one.shift.configure({"sensitivity": by, "min_shift": self.settings["min_rise"]})
        one.climb.configure({"sensitivity": by, "min_rise": self.settings["min_rise"]})

    def wants(self, metric: str) -> bool:
        return dataset_of(metric) is not None or role_of(metric) == LOSS or metric.startswith(f"{RATIO}/")

    def update(self, point: Point) -> list[Finding]:
        step, metric, value, _, _ = point
        one = self._sets.get(metric)
        if one is None:
            one = self._first(metric, value)
        # Not finite is what a data set that is not in the batch is logged as; what is broken the loss shows as well.
        if one is None or not -LARGEST < value < LARGEST:
            return []
        one.steps.append(step)
        one.values.append(value)
        return self._block(metric, one, step) if len(one.values) == BLOCK_POINTS else []

    def take_quiet(self, rows: QuietRows, start: int, stop: int) -> int:
        sets, shares = [], []
        for metric in rows.columns:
            one = self._sets.get(metric)
            if one is not None and metric in rows.ranges:
                stop = min(stop, start + BLOCK_POINTS - 1 - len(one.values))
                sets.append((one, rows.columns[metric]))
            elif metric in self._shares and not self._declared:
                low, high = rows.ranges.get(metric, (-1.0, 0.0))
                if not 0 <= low <= high <= 1:
                    return start
                shares.append(metric)
            elif self.wants(metric) and not self._passes_over(metric):
                return start
        if stop <= start:
            return start
        for one, values in sets:
            one.steps += rows.steps[start:stop]
            one.values += values[start:stop]
        for metric in shares:
            self._shares[metric] = rows.columns[metric][stop - 1]
        return stop

    def _passes_over(self, metric: str) -> bool:
        """Say whether points of a metric that is no data set's with a curve here change nothing."""
        if metric in self._sets:
            return False
        if role_of(metric) == LOSS:
            return bool(self._loss)
        return (
            (self._declared or len(self._shares) >= MAX_DATASETS)
            if metric.startswith(RATIO)
            else (len(self._sets) >= MAX_DATASETS)
        )

    def note(self, mark: Mark) -> list[Finding]:
        if mark.kind == "mixture":
            shares = list(mark.data["shares"].items())[:MAX_DATASETS]
            self._shares, self._declared = {f"{RATIO}/{name}": share for name, share in shares}, True
        return []

    @classmethod
    def story(cls) -> Sequence[Row | Mark]:
        sets = [noisy(700, seed=24 + i, sigma=0.02) for i in range(3)]
        sets[0] = [loss * (1.2 if i >= 400 else 1.0) for i, loss in enumerate(sets[0])]
        names = ("loss/web", "loss/code", "loss/books")
        return [Row(i, 1e9 + i, dict(zip(names, row, strict=True))) for i, row in enumerate(zip(*sets, strict=True))]

    def _first(self, metric: str, value: float) -> _Dataset | None:
        """Take a share or the name of the whole loss, or begin with a data set."""
        if role_of(metric) == LOSS:
            self._loss = self._loss or metric
            return None
        if self._declared and metric.startswith(RATIO):
            return None
        if metric in self._shares or dataset_of(metric) is None:
            if 0 <= value <= 1 and (metric in self._shares or len(self._shares) < MAX_DATASETS):
                self._shares[metric] = value
            return None
        if len(self._sets) >= MAX_DATASETS:
            return None
        one = self._sets[metric] = _Dataset()
        one.shift.watch(metric)
        one.climb.watch(metric)
        self._set_up(one)
        return one

    def _block(self, metric: str, one: _Dataset, step: int) -> list[Finding]:
        """Let the two judge a block of points: they share its median."""
        middle, steps, values = median(one.values), one.steps, one.values
        one.steps, one.values = [], []
        found = [*one.shift.take_block(steps, values, middle), *one.climb.take_block(steps, values, middle)]
        if one.held:
            one.held = False
            return self._release(metric, one, step)
        if one.reported >= 0 and self._of_the_whole(one.reported):
            return self._hand_over(metric, one, found, step)
        news = [finding for finding in found if finding.severity != "info"]
        if not news:
            return []
        if news[-1].onset_step != one.reported:
            one.held = news[-1].state == "open"
            return []
        if news[-1].state != "open":
            one.reported = -1
        return [self._dressed(metric, one, news[-1])]

    # --- one alone ------------------------------------------------------------------------------------------------

    def _release(self, metric: str, one: _Dataset, step: int) -> list[Finding]:
        """Report the event that waited, unless it is over: of this data set where it is alone, else of all."""
        finding = one.newest(step)
        other = self.context.open_claims().get(metric)
        followed = other is not None and other.detector not in (one.shift.name, one.climb.name)
        if finding is None or followed or self._of_the_whole(finding.onset_step):
            self._let_go(metric, one)
            return []
        every = {of: moved for of, each in self._sets.items() if (moved := each.moved(finding.onset_step)) is not None}
        mine = every.get(metric)
        alone = mine is not None and moved_alone(mine, [moved for of, moved in every.items() if of != metric])
        known = any(each.whole and each.reported >= 0 for each in self._sets.values())
        whole = self._summed(every)
        if not alone:
            self._let_go(metric, one)
            if known or len(every) < 2 or whole.errors < MEAN_ERRORS:
                return []
        one.reported, one.warned, one.whole = finding.onset_step, False, [] if alone else list(whole)
        return [self._dressed(metric, one, finding)]

    def _of_the_whole(self, onset: int) -> bool:
        """Say whether the whole loss has an event that covers a step or came later, or the mixture changed."""
        claims = self.context.claims_since(onset)
        return any(role_of(metric) == LOSS or claim.kind in _EXPLAINING for metric, claim in claims.items())

    def _let_go(self, metric: str, one: _Dataset) -> None:
        """Take back what the two claimed: a spike of this data set may be reported in what they no longer report."""
        for judge in (one.shift, one.climb):
            self.context.release(metric, judge.name)

    def _hand_over(self, metric: str, one: _Dataset, found: Sequence[Finding], step: int) -> list[Finding]:
        """Close an event that the whole loss shows by now: there it is reported with the data set that carries it."""
        last = one.newest(step) or next(iter(found), None)
        closed = None if last is None else replace(last, state="resolved", recovery=None)
        onset, one.reported = one.reported, -1
        self._let_go(metric, one)
        if closed is None or closed.onset_step != onset:
            return []
        dressed = self._dressed(metric, one, closed)
        return [replace(dressed, text=f"{dressed.text} The whole loss shows it by now, or the mixture changed.")]

    def _share(self, name: str) -> float:
        return self._shares.get(f"{RATIO}/{name}", 1 / len(self._sets))

    def _whole(self) -> float:
        """Return the level of the whole loss, put together from those of the data sets and their shares."""
        parts = [(self._share(dataset_of(metric) or ""), one.shift.level()) for metric, one in self._sets.items()]
        return sum(share * abs(level) for share, level in parts) / (sum(share for share, _ in parts) or 1.0)

    def _summed(self, every: Mapping[str, Moved]) -> Moved:
        """Return how far the whole loss moved, put together from the data sets and their shares."""
        shares = {metric: self._share(dataset_of(metric) or "") for metric in every}
        total = sum(shares.values()) or 1.0
        parts = [(shares[metric] / total, moved) for metric, moved in every.items()]
        return Moved(
            sum(share * moved.before for share, moved in parts),
            sum(share * moved.after for share, moved in parts),
            math.hypot(*(share * moved.error for share, moved in parts)) or SMALLEST_SIGMA,
        )

    def _dressed(self, metric: str, one: _Dataset, finding: Finding) -> Finding:
        """Return a finding of one of the two judges as one about a data set, or about all of them."""
        if one.whole:
            return self._of_all(one, finding)
        name = dataset_of(metric) or metric
        share, whole = self._share(name), self._whole()
        facts = finding.evidence
        rise = (facts["level_after"] if finding.kind == "level_shift" else facts["peak"]) - facts["level_before"]
        one.warned = one.warned or rise * share >= SHOWN_IN_THE_WHOLE * whole
        return replace(
            finding,
            detector=self.name,
            key=self.key(metric, finding.onset_step),
            severity="warning" if one.warned else "info",
            title=finding.title.replace("Loss", f"Loss of {name}", 1),
            text=f"{finding.text.replace('The loss', f'The loss of {name}', 1)} It makes up {100 * share:.3g} % of the "
            "data.",
            dataset=name,
        )

    def _of_all(self, one: _Dataset, finding: Finding) -> Finding:
        """Return a finding of one of the two judges as one about all data sets, in the numbers of the whole loss."""
        onset = finding.onset_step
        every = {metric: moved for metric, each in self._sets.items() if (moved := each.moved(onset)) is not None}
        before, after, error = one.whole
        if finding.state == "open" and every:
            after = one.whole[1] = max(after, self._summed(every).after)
        one.warned = one.warned or after - before >= SHOWN_IN_THE_WHOLE * abs(before)
        text = (
            f"Several data sets rose at about step {onset}, or are too noisy to tell: together from {before:.4g} to "
            f"{after:.4g}{change(after, before, error, digits=1)}. No one of them is to blame: look at what they have "
            "in common, such as labels, tokeniser, preprocessing or the code of the loss."
        )
        if finding.state == "recovered":
            text += f" They were back at step {finding.recovered_step}."
        elif finding.state == "resolved":
            text += " The new level is taken as the usual one now."
        facts = {**finding.evidence, "level_before": before, "sigma": error, "rise_percent": percent(after, before)}
        facts |= {name: after for name in ("level_after", "peak") if facts.get(name) is not None}
        del facts["threshold"]  # of one data set
        return replace(
            finding,
            detector=self.name,
            key=self.key(self._loss or LOSS, onset),
            severity="warning" if one.warned else "info",
            text=text,
            metric=self._loss or LOSS,
            score=min((after - before) / error, 1e9),
            evidence={**facts, "score_unit": "standard errors of the whole loss", "all_alike": True},
        )
