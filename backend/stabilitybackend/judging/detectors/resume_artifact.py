"""A loss that is higher after a restart, resume or rollback than at the fork step."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from stabilitybackend.schema.metric_roles import LOSS, SHARE_OF, role_of

from .engine.base import SENSITIVITY, Detector, Event, Finding, Mark, Parameter, Point, Recovery, Row, State, fresh
from .engine.context import GAP_INTERVALS
from .engine.row_blocks import QuietRows
from .stats.before_fork import (
    BEFORE_POINTS,
    FORK_CONFIRM,
    FORK_POINTS,
    FORK_WINDOW,
    LEAST_POINTS,
    LEVEL_POINTS,
    BeforeFork,
    above_left,
    before_fork,
    differences,
    drifted,
    far,
    small_rise,
)  # fmt: skip
from .stats.levels import LARGEST, Level, level_of, percent
from .stats.robust import median

#: In the first points after the fork two of three that are so many times as high are enough: the same two that make a
#: spike, here of a certain cause. A recovery within them is fast.
EARLY_POINTS, LARGE = 10, 2.0
#: Shares of the data with LEVEL_POINTS newest values.
MAX_RATIOS = 16
#: Points without a recovery, or half of them where most of the rise is left: critical when still so much up. After
#: twice as many the event is closed.
DECIDE_POINTS, MUCH = 100, 0.1
#: Part of the rise that the discarded branch had too, so that the resume is not its cause. A rise with this part left
#: is not recovering.
SAME_RISE = 0.5
#: Kind of event that explains a rise.
DRIFT = "data_mix_drift"

__all__ = ["ResumeArtifactDetector"]


@dataclass(slots=True)
class _ForkWatch:
    """The first points after a fork, and the state at it."""

    before: BeforeFork
    ratios: dict[str, Level]
    #: Whether the learning rate of the first point was far off.
    came_off: bool = False
    points: int = 0
    recent: list[tuple[int, float, bool]] = field(default_factory=list)
    values: list[tuple[int, float]] = field(default_factory=list)

    def drift(self) -> float:
        """Return the expected rise of the loss since the fork: a fall is not counted on, a rise continues."""
        return max(0.0, self.before.slope) * min(self.points, FORK_POINTS)

    def expected(self) -> float:
        """Return the expected level of the loss."""
        return self.before.level + self.drift()


@dataclass(slots=True)
class _ResumeEvent(Event):
    """A rise after a fork."""

    before: BeforeFork
    peak: float = math.nan
    peak_step: int | None = None
    points: int = 0
    recovery: Recovery = "pending"
    recovered_step: int | None = None
    recent: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=FORK_WINDOW))
    #: Of the loss at the report.
    rise: float = 0.0
    #: Visible only in many points together.
    together: bool = False
    causes: list[str] = field(default_factory=list)
    explained_by: list[str] = field(default_factory=list)
    paired: float | None = None


class ResumeArtifactDetector(Detector):
    """Compares the loss after every fork with the level before the fork step.

    Idea: a clean resume continues at its level. The level and its noise are those of the last 64 points up to the fork
    step. In the 50 points after it, three of five that lie 4 sigmas and 1 % above that level are an event (or the
    newest 12, 24 or 48 together by 4.5 standard errors), unless the branch that was left rose at the same steps (then
    the data did it), or another detector has the event. It names differences: learning rate, gradient norm, shares of
    the data. Ordered changes of the rollback (seed, skipped batches) explain a small rise. A rate that resumed
    off is reported by ``learning_rate``; a rise is put down to the rate while that is off. A step of the learning rate
    after a gap in the log counts as a resume without a mark.

    Args:
        sigmas: how far above the level before the fork counts.
        min_rise: smallest rise that counts, as a fraction of the level.

    Source: IDEFICS-80B's log of its training (two rollbacks were lost to a silently reset learning rate, small bumps
    after resumes); the resume rules of the project's detection notes, sections 2 and 5.

    Example:
        >>> detector, found = ResumeArtifactDetector(), []
        >>> for step in range(100):
        ...     found += detector.update(Point(step, "loss", 2.0 + 0.01 * (step % 3), 0.0))
        >>> found += detector.note(Mark("fork", 100, 0.0, "another process went on after step 99", {"changes": {}}))
        >>> for step in range(100, 120):
        ...     found += detector.update(Point(step, "loss", (2.2 if step < 106 else 2.0) + 0.01 * (step % 3), 0.0))
        >>> [(f.key, f.severity, f.step, f.recovery, f.recovered_step) for f in found]
        ... # doctest: +NORMALIZE_WHITESPACE
        [('resume_artifact:loss:100', 'warning', 101, 'pending', None),
         ('resume_artifact:loss:100', 'warning', 101, 'fast', 106)]
    """

    name: ClassVar[str] = "resume_artifact"
    kinds: ClassVar[tuple[str, ...]] = ("resume_artifact",)
    title: ClassVar[str] = "Bump after a resume"
    parameters: ClassVar[dict[str, Parameter]] = {
        "sensitivity": SENSITIVITY,
        "sigmas": Parameter(
            4.0, 1.0, 20.0, "robust sigmas", "How far above the level before the fork counts. Higher: fewer reports."
        ),
        "min_rise": Parameter(
            0.01, 0.001, 1.0, "fraction", "Smallest rise over the level before the fork. Higher: larger bumps only."
        ),
    }

    _metric: str = ""
    #: (step, loss, time) of usual points, newest last.
    _ring: deque[tuple[int, float, float]] = fresh(deque, maxlen=BEFORE_POINTS)
    _ratios: dict[str, deque[float]] = fresh(dict)
    _watch: _ForkWatch | None = None
    _event: _ResumeEvent | None = None

    def configured(self) -> None:
        by = self.settings["sensitivity"]
        self._on = by > 0
        self._sigmas, self._rise = self.settings["sigmas"] / (by or 1.0), self.settings["min_rise"] / (by or 1.0)

    @classmethod
    def story(cls) -> Sequence[Row | Mark]:
        losses = [2.5 + 0.02 * ((7 * step) % 5 - 2) for step in range(500)]
        left = {"loss": [(step, losses[step]) for step in range(300, 330)]}
        data = {"fork_step": 299, "cause": "rolled_back", "reason": "", "changes": {}, "last_step": 329}
        fork = Mark("fork", 300, 1e9 + 330, "the run went back to step 299", {**data, "left_behind": left})
        bump = [losses[step] + 0.3 * 0.9 ** (step - 300) for step in range(300, 500)]
        rows = [Row(step, 1e9 + step, {"loss": loss, "lr": 3e-4}) for step, loss in enumerate(losses[:300] + bump)]
        return [*rows[:300], fork, *rows[300:]]

    def wants(self, metric: str) -> bool:
        return metric.startswith(SHARE_OF) or role_of(metric) == LOSS

    def note(self, mark: Mark) -> list[Finding]:
        if mark.kind != "fork":
            return []
        found = [] if self._event is None else self._close(self._event, mark.step, "resolved", None)
        self._watch = self._begin(mark.step, mark.text, mark.data) if self._on else None
        return found

    def update(self, point: Point) -> list[Finding]:
        step, metric, value, time, _ = point
        if metric != self._metric:
            return self._other(point)
        if not -LARGEST < value < LARGEST:
            return []
        if self._watch is None and self._event is None:
            excuses = self.context.excuses
            if excuses and excuses[-1].step == step and self._on and self._silent_restart(step, time):
                return self._judge(step, value, time)
            self._ring.append((step, value, time))
            return []
        return self._judge(step, value, time)

    def take_quiet(self, rows: QuietRows, start: int, stop: int) -> int:
        if self._watch is not None or self._event is not None or not self._metric:
            return start
        excuses, loss = self.context.excuses, {self._metric} & rows.columns.keys()
        if excuses and excuses[-1].step >= rows.steps[start]:
            return start
        shares = [name for name in rows.columns if name.startswith(SHARE_OF)]
        if any(name not in self._ratios for name in shares) or not rows.ranges.keys() >= {*shares, *loss}:
            return start
        if loss:
            newest = slice(max(start, stop - BEFORE_POINTS), stop)
            self._ring.extend(
                zip(rows.steps[newest], rows.columns[self._metric][newest], rows.times[newest], strict=True)
            )
        for name in shares:
            self._ratios[name].extend(rows.columns[name][start:stop])
        return stop

    def _other(self, point: Point) -> list[Finding]:
        """Take a share of the data, or the first point of the loss; its second spelling is ignored."""
        if point.metric.startswith(SHARE_OF):
            ring = self._ratios.get(point.metric)
            if ring is None and len(self._ratios) < MAX_RATIOS:
                ring = self._ratios[point.metric] = deque(maxlen=LEVEL_POINTS)
            if ring is not None and -LARGEST < point.value < LARGEST:
                ring.append(point.value)
        elif not self._metric and role_of(point.metric) == LOSS:
            self._metric = point.metric
            return self.update(point)
        return []

    # --- before the fork -----------------------------------------------------------------------------------------

    def _silent_restart(self, step: int, time: float) -> bool:
        """Begin to watch when the learning rate steps after a gap: an unannounced resume."""
        jump = self.context.excuses[-1]
        if jump.kind != "lr_jump" or len(self._ring) < LEAST_POINTS or not far(jump.after, jump.before):
            return False
        (first, _, began), (last, _, ended) = self._ring[0], self._ring[-1]
        rows = len(self._ring) - 1
        late = time - ended > GAP_INTERVALS * (ended - began) / rows > 0
        if not late and step - last <= GAP_INTERVALS * (last - first) / rows:
            return False
        self._watch = self._begin(step, f"the log has a gap before step {step} and {jump.text}", {})
        if self._watch is not None:
            self._watch.before.lr = jump.before
        return self._watch is not None

    def _begin(self, step: int, text: str, data: Mapping[str, Any]) -> _ForkWatch | None:
        losses = [value for _, value, _ in self._ring]
        before = before_fork(step, text, data, losses, self._metric, self.context, left=2 * FORK_POINTS)
        ratios = {name: level_of(ring, 0.005) for name, ring in self._ratios.items() if len(ring) >= FORK_WINDOW}
        return None if before is None else _ForkWatch(before, ratios)

    # --- after the fork ------------------------------------------------------------------------------------------

    def _judge(self, step: int, value: float, time: float) -> list[Finding]:
        if self._event is not None:
            return self._follow(self._event, step, value, time)
        watch = self._watch
        assert watch is not None
        watch.points += 1
        if watch.points == 1:
            watch.came_off = self._is_off(watch.before, self.context.lr.at(step))
        over = value - watch.expected()
        high = over > max(self._sigmas * watch.before.sigma, self._rise * abs(watch.before.level))
        watch.recent = [*watch.recent[-(FORK_WINDOW - 1) :], (step, value, high)]
        large = LARGE * max(self._sigmas * watch.before.sigma, self._rise * abs(watch.before.level))
        far_up = [(at, loss) for at, loss, _ in watch.recent[-FORK_CONFIRM:] if loss - watch.expected() > large]
        if len(far_up) >= 2 and watch.points <= EARLY_POINTS:
            return self._open(watch, far_up, step)
        if not high:
            self._ring.append((step, value, time))
        else:
            out = [(at, loss) for at, loss, up in watch.recent if up]
            if len(out) >= FORK_CONFIRM:
                return self._open(watch, out, step)
        watch.values.append((step, value))
        if watch.points >= LEAST_POINTS and watch.points % (LEAST_POINTS // 3) == 0:
            least = self._rise * abs(watch.before.level)
            together = small_rise(watch.before, watch.values, drift=watch.drift(), least=least, by=self._sigmas / 4)
            if together:
                return self._open(watch, together, step, together=True)
        # A rise is attributed to a rate that is off: a restarted schedule warms up first.
        off = watch.came_off and self._is_off(watch.before, self.context.lr.last)
        if watch.points >= (2 * DECIDE_POINTS if off else FORK_POINTS):
            self._watch = None
        return []

    @staticmethod
    def _is_off(before: BeforeFork, rate: float) -> bool:
        return far(rate, before.lr * before.lr_scale)

    def _open(
        self, watch: _ForkWatch, out: Sequence[tuple[int, float]], step: int, together: bool = False
    ) -> list[Finding]:
        """Open an event, unless the rise is not the resume's."""
        # A rate that is off shows late: equal branches before are no excuse then.
        same = above_left(watch.before, out, () if watch.came_off else watch.values)
        rise = median([loss for _, loss in out]) - watch.expected()
        known = bool(same) and median(same) < (1 - SAME_RISE) * rise
        self._watch = None
        if known or self.context.claimed(self._metric, self.name, within_steps=FORK_WINDOW * self.context.interval):
            return []
        onset = watch.before.step if watch.came_off else out[0][0]
        event = self._event = _ResumeEvent(self._metric, onset, step, "info", watch.before)
        scaled = [f"declared: lr_scale = {watch.before.changes['lr_scale']}"] if watch.before.lr_scale > 1 else []
        event.explained_by = [*watch.before.declared(), *scaled, *drifted(self._shares(watch))]
        drifts = [claim for claim in self.context.open_claims().values() if claim.kind == DRIFT]
        event.explained_by += [f"the data mixture is off since step {drift.onset_step}" for drift in drifts]
        small = rise < MUCH * abs(watch.before.level)
        event.severity = "info" if event.explained_by and small else "warning"
        event.peak_step, event.peak = max(out, key=lambda pair: pair[1])
        event.points, event.rise, event.together = len(out), rise, together
        if together:
            event.peak, event.recent = median([loss for _, loss in out]), deque(maxlen=LEAST_POINTS)
        event.recent.extend(out)
        event.paired = median(same) if same else None
        event.causes = differences(watch.before, self.context, self._shares(watch))[:8]
        self.claim(self._metric, event.onset)
        return [self._finding(event, "open", step)]

    def _follow(self, event: _ResumeEvent, step: int, value: float, time: float) -> list[Finding]:
        """Advance an open event by one point."""
        before = event.before
        event.points += 1
        event.recent.append((step, value))
        now = median([loss for _, loss in event.recent])
        highest = now if event.together else value
        if highest > event.peak:
            event.peak_step, event.peak = step, highest
        least = max(self._sigmas * before.sigma, self._rise * abs(before.level))
        limit = before.level + 0.5 * min(least, event.rise)
        if len(event.recent) == event.recent.maxlen and now <= limit:
            back = next(at for at, loss in event.recent if loss <= limit)
            above = event.points - sum(at >= back for at, _ in event.recent)
            event.recovery = "fast" if above <= EARLY_POINTS else "slow"
            return self._close(event, step, "recovered", back)
        stays = event.points == DECIDE_POINTS // 2 and now - before.level > SAME_RISE * (event.peak - before.level)
        if event.points == DECIDE_POINTS or stays:
            event.recovery = "none"
            if now - before.level > MUCH * abs(before.level):
                event.severity = "critical"
            return [self._finding(event, "open", step)]
        if event.points > 2 * DECIDE_POINTS - LEVEL_POINTS:
            self._ring.append((step, value, time))
        if event.points >= 2 * DECIDE_POINTS:
            while len(self._ring) > LEVEL_POINTS:
                self._ring.popleft()
            return self._close(event, step, "resolved", None)
        return []

    def _shares(self, watch: _ForkWatch) -> dict[str, tuple[Level, list[float]]]:
        """Return level and newest values of each share of the data, possibly without this row's."""
        newest = max(1, min(watch.points - 1, LEVEL_POINTS))
        return {name: (level, list(self._ratios[name])[-newest:]) for name, level in watch.ratios.items()}

    # --- findings ------------------------------------------------------------------------------------------------

    def _close(self, event: _ResumeEvent, step: int, state: State, back: int | None) -> list[Finding]:
        self._event, event.recovered_step = None, back
        if back is None:
            event.recovery = "none"
        self.claim(self._metric, event.onset, step)
        now = max(self.context.step, event.seen) if self.context.step >= 0 else step
        return [self._finding(event, state, min(step, now))]

    def _finding(self, event: _ResumeEvent, state: State, now_step: int) -> Finding:
        before = event.before
        rise = percent(event.peak, before.level)
        shown = f" ({rise:+.1f} %)" if rise is not None else ""
        text = f"{before.text[:1].upper()}{before.text[1:]}: the loss rose from {before.level:.4g} to {event.peak:.4g}"
        text += f"{shown}, onset at step {event.onset}."
        text += "".join(f" {cause[0].upper()}{cause[1:]}." for cause in event.causes)
        if not event.causes:
            text += " Learning rate and shares are as before, as far as they are logged: check the optimizer's state."
        if event.explained_by:
            text += f" {'; '.join(event.explained_by)}."
        if event.recovered_step is not None:
            text += f" It is back since step {event.recovered_step}."
        elif event.recovery == "none":
            text += " The loss has not come back."
        return self.finding(
            event, max(now_step, event.seen), state,
            title=f"Loss bump after the resume at step {before.step}", text=text,
            peak_step=event.peak_step, recovered_step=event.recovered_step, recovery=event.recovery,
            score=min((event.peak - before.level) / before.sigma, 1e9),
            evidence={
                "level_before": before.level,
                "sigma": before.sigma,
                "peak": event.peak,
                "rise_percent": rise,
                "threshold": self._sigmas,
                "score_unit": "robust sigmas",
                "points": event.points,
                "fork_step": before.step - 1,
                "causes": list(event.causes),
                "explained_by": list(event.explained_by),
                "above_left_branch": event.paired,
                "lr_before": before.lr if math.isfinite(before.lr) else None,
                "recovered_at": event.recovered_step,
            },
        )  # fmt: skip
