"""Finds a loss that jumps to another level and stays there, and says why where that is known."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import ClassVar

from .engine.base import SENSITIVITY, CurveDetector, Finding, Mark, Parameter, Point, Row, fresh
from .engine.context import EXCUSE_POINTS
from .engine.row_blocks import QuietRows
from .engine.synthetic import noisy
from .level_shift_report import Jump, ShiftEvent, finding_of
from .stats.blocks import AFTER_CLAIM_POINTS, BACK_PART, BLOCK_POINTS, SETTLED_POINTS
from .stats.levels import LARGEST, quantum
from .stats.robust import Q90_SIGMAS, median, robust_sigma
from .stats.wander import OVER_TAKEN_BACK, Wander

#: Points kept one by one, to name the step of the jump.
RING_POINTS = 64
#: Differences between neighbouring pairs of blocks that the usual one is taken from: 512 points.
DIFFERENCES = 64
#: Newest differences that the usual one and its spread are taken from: older ones may be of the steep beginning.
RECENT_DIFFERENCES = 24
#: Points between two measurements of the usual difference.
MEASURE_EVERY_POINTS = 64
#: The newest differences are not asked: they may be the same jump, half seen.
NEWEST_DIFFERENCES = 4
#: Differences that must be known before a jump is believed.
MIN_DIFFERENCES = 12
#: Each side of the test is the middle of two blocks (16 points), with one block between them: a jump within a block
#: is seen whole with the next block.
SIDE_BLOCKS = 2
GAP_BLOCKS = 1
#: Blocks that must stay on the new level before a jump is reported: 32 points after the two that showed it.
CONFIRM_BLOCKS = 3
#: Their median must keep this part of the least jump: what was seen first is the largest by selection. Each of them
#: keeps more than what is left of one that went back.
KEPT_PART = 0.75
#: A drop that nothing explains is reported only from this fraction of the level on: smaller ones are of no use to
#: anyone.
UNEXPLAINED_DROP = 0.05
#: Points between two known drops without an excuse; doubled with each one that was reported: a staircase is reported
#: twice or thrice.
REST_POINTS = 256
#: A jump upwards by this fraction needs a decision now, where the loss is as high as this part of its first level.
CRITICAL_RISE = 0.2

__all__ = ["LevelShiftDetector"]


class LevelShiftDetector(CurveDetector):
    """Finds a loss that jumps to another level within some points and stays there.

    Idea: the middle of the newest 16 points is compared with that of 16 points before, one block of 8 between them. A
    jump is larger than 1.2 %, than 4 robust sigmas of the same difference over the last 192 points and than 1.4 times
    the largest of the last 512, and it lasts for 24 more points. Upwards and unexplained it is a warning. With a reason
    that the run itself gives (the learning rate or the batch size jumped, a fork) and downwards (an LR step, sudden
    understanding after a plateau) it is known and shown, never an alarm. All detectors follow to the new level at once.

    Args:
        sensitivity: divides the thresholds.
        min_shift: smallest jump, fraction of the level before it.
        sigmas: smallest jump, robust standard deviations of the usual difference.

    Example:
        >>> shift = LevelShiftDetector()
        >>> losses = [2.0 + 0.01 * (i % 3) for i in range(200)] + [2.2 + 0.01 * (i % 3) for i in range(200)]
        >>> found = [f for step, loss in enumerate(losses) for f in shift.update(Point(step, "loss", loss, 0.0))]
        >>> [(f.onset_step, f.state, f.severity, f.evidence["direction"]) for f in found]
        [(200, 'open', 'warning', 'up'), (200, 'resolved', 'warning', 'up')]

    Source: the project's detection notes, section 5 (two windows of 16, 4 sigmas, 1 %, conditioned on the learning
    rate); grokking: arXiv 2201.02177.
    """

    name: ClassVar[str] = "level_shift"
    kinds: ClassVar[tuple[str, ...]] = ("level_shift",)
    title: ClassVar[str] = "Loss jumps to another level"
    parameters: ClassVar[dict[str, Parameter]] = {
        "sensitivity": SENSITIVITY,
        "min_shift": Parameter(
            0.012, 0.001, 1.0, "fraction", "Smallest jump of the level that is reported; higher is quieter."
        ),
        "sigmas": Parameter(
            4.0, 2.0, 50.0, "robust sigmas", "Smallest jump in the usual difference of two windows; higher is quieter."
        ),
    }

    _values: deque[float] = fresh(deque, maxlen=RING_POINTS)
    _steps: deque[int] = fresh(deque, maxlen=RING_POINTS)
    _count: int = 0
    _blocks: deque[float] = fresh(deque, maxlen=2 * SIDE_BLOCKS + GAP_BLOCKS)
    _differences: deque[float] = fresh(deque, maxlen=DIFFERENCES + NEWEST_DIFFERENCES)
    _usual: float = 0.0
    _sigma: float = math.inf
    #: Points when they were measured.
    _measured: int = 0
    _candidate: Jump | None = None
    _confirming: list[float] = fresh(list)
    _event: ShiftEvent | None = None
    _first_level: float = 0.0
    _after_claim: bool = False
    _drops: int = 0
    _rest_points: int = 0
    _wander: Wander = fresh(Wander)

    def configured(self) -> None:
        sensitivity = self.settings["sensitivity"]
        self._min_shift = self.settings["min_shift"] / sensitivity if sensitivity else math.inf
        self._sigmas = self.settings["sigmas"] / sensitivity if sensitivity else math.inf

    def update(self, point: Point) -> list[Finding]:
        value = point.value
        if point.metric != self._metric and self._is_another(point.metric):
            return []
        if not -LARGEST < value < LARGEST:
            return self._follow(self._event, point.step, math.inf, points=1) if self._event is not None else []
        self._values.append(value)
        self._steps.append(point.step)
        self._count += 1
        if self._count % BLOCK_POINTS:
            return []
        return self._block(point.step, median(list(self._values)[-BLOCK_POINTS:]))

    def take_quiet(self, rows: QuietRows, start: int, stop: int) -> int:
        if self._metric not in rows.ranges:
            return start
        stop = min(stop, start + BLOCK_POINTS - 1 - self._count % BLOCK_POINTS)
        self._values.extend(rows.columns[self._metric][start:stop])
        self._steps.extend(rows.steps[start:stop])
        self._count += stop - start
        return stop

    def take_block(self, steps: Sequence[int], values: Sequence[float], middle: float) -> list[Finding]:
        """Take BLOCK_POINTS points below LARGEST, whose median is ``middle``, at once."""
        self._values.extend(values)
        self._steps.extend(steps)
        self._count += BLOCK_POINTS
        return self._block(steps[-1], middle)

    def open_finding(self, step: int) -> Finding | None:
        """Return what is known at ``step`` of the alarm that is open, None where none is."""
        return None if self._event is None else self._report(self._event, step)

    def level(self) -> float:
        """Return the median of the newest points, 0 before the first."""
        return median(self._values) if self._values else 0.0

    def since(self, step: int) -> list[float]:
        """Return the newest points, those of ``step`` and later, RING_POINTS at most."""
        return [value for at, value in zip(self._steps, self._values, strict=True) if at >= step]

    @classmethod
    def story(cls) -> Sequence[Row | Mark]:
        losses = noisy(700, seed=22, sigma=0.01)
        return [Row(i, 1e9 + i, {"loss": loss * (1.08 if i >= 400 else 1.0)}) for i, loss in enumerate(losses)]

    # --- one block ----------------------------------------------------------------------------------------------

    def _block(self, step: int, middle: float) -> list[Finding]:
        """Take the newest eight points as one block, by their median."""
        if not self._first_level:
            self._first_level = abs(middle)
        self._rest_points = max(0, self._rest_points - BLOCK_POINTS)
        self._wander.passed(BLOCK_POINTS)
        found: list[Finding] = []
        if self._event is not None:
            found = self._follow(self._event, step, middle)
        if self.context.claimed(self._metric, self.name, AFTER_CLAIM_POINTS * self.context.interval) is not None:
            self._candidate, self._after_claim = None, True
            return found
        if self._after_claim:
            # What lies before the other event is no neighbour of what comes now.
            self._after_claim = False
            self._blocks.clear()
        if self._candidate is not None:
            return found + self._confirm(self._candidate, step, middle)
        self._blocks.append(middle)
        if len(self._blocks) == self._blocks.maxlen:
            self._check(step)
        return found

    def _check(self, step: int) -> None:
        """Compare the two sides; either remember a candidate or learn the difference."""
        blocks = self._blocks
        before, after = 0.5 * (blocks[0] + blocks[1]), 0.5 * (blocks[-1] + blocks[-2])
        difference = after - before
        size = abs(difference - self._usual)
        if (
            len(self._differences) >= MIN_DIFFERENCES + NEWEST_DIFFERENCES
            and abs(difference) > self._min_shift * abs(before)
            and size > self._sigmas * self.context.drag(self._metric) * self._sigma
            and (candidate := self._candidate_of(step, before, after)) is not None
        ):
            self._candidate = candidate
            self._confirming = []
            return
        self._learn(difference)

    def _learn(self, difference: float) -> None:
        """Take a difference that the curve made by itself: none of a jump, or of one that went back at once."""
        self._differences.append(difference)
        if self._count - self._measured >= MEASURE_EVERY_POINTS or not math.isfinite(self._sigma):
            self._measure()

    def _measure(self) -> None:
        """Take the usual difference and its spread again: it moves slowly."""
        self._measured = self._count
        every = sorted(self._differences)
        recent = list(self._differences)[-RECENT_DIFFERENCES:]
        self._usual = median(recent)
        # Of all of them the upper half only: the lower one is the steep beginning.
        upper = (every[int(0.9 * len(every))] - every[len(every) // 2]) / Q90_SIGMAS
        self._sigma = max(robust_sigma(recent), upper, 1e-4 * abs(self._values[-1]), 1e-9)

    def _candidate_of(self, step: int, before: float, after: float) -> Jump | None:
        """Return the jump as a candidate, None when the curve does that now and then."""
        way = after - before
        threshold = max(
            self._min_shift * abs(before), self._sigmas * self.context.drag(self._metric) * self._sigma,
            2 * quantum(self._values),
        )  # fmt: skip
        if abs(way) <= threshold:
            return None
        sign = 1.0 if way > 0 else -1.0
        differences = list(self._differences)[:-NEWEST_DIFFERENCES]
        recent = differences[-RECENT_DIFFERENCES:]
        # What goes down may come up. Downwards only the recent ones count: every run begins with falls that nothing
        # later comes up to.
        earlier = max(sign * difference for difference in (differences if way > 0 else recent))
        opposite = max(-sign * difference for difference in recent)
        if abs(way) <= OVER_TAKEN_BACK * max(earlier, opposite):
            return None
        values, steps = list(self._values), list(self._steps)
        newest = (2 * SIDE_BLOCKS + GAP_BLOCKS) * BLOCK_POINTS
        values, steps = values[-newest:], steps[-newest:]
        half = 0.5 * (before + after)
        # The first of three points in a row beyond the half of the way.
        beyond = [sign * (value - half) > 0 for value in values]
        onset = next((i for i in range(len(values) - 2) if all(beyond[i : i + 3])), len(values) - 1)
        return Jump(steps[onset], step, before, after, self._sigma, threshold)

    def _confirm(self, jump: Jump, step: int, middle: float) -> list[Finding]:
        """Wait until the jump has lasted, then report it; forget it when the loss went back."""
        way = jump.after - jump.before
        self._confirming.append(middle)
        if (middle - jump.before) / way <= BACK_PART:
            self._rebase([middle])
            self._learn(way)
            return []
        if len(self._confirming) < CONFIRM_BLOCKS:
            return []
        confirmed = self._confirming
        self._rebase(confirmed)
        after = median(confirmed)
        if (after - jump.before) * math.copysign(1, way) < KEPT_PART * jump.threshold:
            return []
        jump = jump._replace(after=after)
        self._scale_up(jump)
        explained = self._explanations(jump)
        if jump.after < jump.before:
            return self._drop(jump, step, explained)
        if explained:
            return self._known(jump, step, explained)
        if self._event is not None:  # one more step of a staircase is the same event
            jump = self._event.jump._replace(after=max(jump.after, self._event.jump.after))
            self._event.jump = jump
            self._wander.note(jump.before, jump.after)
            return [self._report(self._event, step)]
        if self._wander.is_usual(jump.before, jump.after - jump.before):
            return []
        self._wander.note(jump.before, jump.after)
        event = self._event = ShiftEvent(self._metric, jump.onset, step, "warning", jump)
        self.claim(self._metric, jump.onset)
        return [self._report(event, step)]

    def _rebase(self, blocks: list[float]) -> None:
        """Go on from the newest blocks: the jump itself is not learnt from."""
        self._candidate, self._confirming = None, []
        self._blocks.clear()
        self._blocks.extend(blocks)

    def _scale_up(self, jump: Jump) -> None:
        """Expect larger differences on a higher level: noise grows with the loss."""
        ratio = abs(jump.after / jump.before) if jump.before else 1.0
        if 1.0 < ratio < LARGEST:
            scaled = [difference * ratio for difference in self._differences]
            self._differences.clear()
            self._differences.extend(scaled)
            self._sigma *= ratio

    def _explanations(self, jump: Jump) -> tuple[str, ...]:
        """Return the known reasons near the jump, newest last."""
        slack = int(EXCUSE_POINTS * self.context.interval)
        return tuple(
            f"{excuse.kind}: {excuse.text}"
            for excuse in self.context.excuses_between(jump.onset - slack, jump.seen)
            if excuse.kind in ("lr_jump", "batch_size", "fork")
        )[-4:]

    def _drop(self, jump: Jump, step: int, explained: tuple[str, ...]) -> list[Finding]:
        """Report a known drop, unless it is the beginning of learning or one step of a staircase that was reported."""
        large = jump.before - jump.after > UNEXPLAINED_DROP * abs(jump.before)
        learnt = jump.before < (1 - UNEXPLAINED_DROP) * self._first_level  # what comes first is learning
        if self._rest_points or not (explained or (large and learnt)):
            return []
        self._drops += 1
        self._rest_points = REST_POINTS * 2 ** min(self._drops, 12)
        return self._known(jump, step, explained)

    def _known(self, jump: Jump, step: int, explained: tuple[str, ...]) -> list[Finding]:
        """Report a shift that is no alarm, and let all others start from its level."""
        self.claim(self._metric, jump.onset, step)
        event = ShiftEvent(self._metric, jump.onset, step, "info", jump, state="resolved")
        return [finding_of(self, event, step, explained)]

    def _follow(self, event: ShiftEvent, step: int, middle: float, points: int = BLOCK_POINTS) -> list[Finding]:
        """Advance an alarm: it is over when the loss is back, or when the level is the usual one."""
        event.points += points
        jump = event.jump
        back = jump.before + BACK_PART * (jump.after - jump.before)
        if middle <= back:
            event.state, event.recovered_step = "recovered", step
        elif event.points >= SETTLED_POINTS:
            event.state = "resolved"
        else:
            return []
        self._event = None
        self.claim(self._metric, jump.onset, step)
        return [self._report(event, step)]

    def _report(self, event: ShiftEvent, step: int) -> Finding:
        """Report an alarm as it is now; its severity never goes down."""
        jump = event.jump
        far = jump.after - jump.before > CRITICAL_RISE * abs(jump.before)
        if far and jump.after > CRITICAL_RISE * self._first_level:
            event.severity = "critical"
        return finding_of(self, event, step)
