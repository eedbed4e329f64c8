"""Repeated training data: a loss falsely low after a resume, an earlier order of batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.judging.detectors.engine.base import (
    SENSITIVITY,
    CurveDetector,
    Event,
    Finding,
    Mark,
    Parameter,
    Point,
    Row,
    Severity,
    State,
)
from stabilitybackend.judging.detectors.engine.long_past import PAST_BLOCK, LongPast
from stabilitybackend.judging.detectors.engine.row_blocks import QuietRows
from stabilitybackend.judging.detectors.stats.before_fork import BEFORE_POINTS, LR_DIFFERS, BeforeFork, before_fork
from stabilitybackend.judging.detectors.stats.fingerprint import WORD_POINTS, Fingerprints
from stabilitybackend.judging.detectors.stats.levels import LARGEST, percent
from stabilitybackend.judging.detectors.stats.low_loss import (
    BACK_POINTS,
    LOW_POINTS,
    PATIENCE_POINTS,
    WayBack,
    falsely_low,
)
from stabilitybackend.judging.detectors.stats.robust import median

__all__ = ["KNOWN_DATA", "OTHER_SHARES", "SAME_BATCHES", "RepeatDataDetector"]

#: Guesses without another explanation.
KNOWN_DATA = (
    "Either data is fed which these weights have learnt already (is the loader's place restored?), or the loss is "
    "computed otherwise (label smoothing, dropout, masks)."
)
#: The same for batches equal, one by one, to those of the discarded branch.
SAME_BATCHES = (
    "The batches are those of the branch that was left, in its order: the loader's place is restored. Is the loss "
    "computed as before (label smoothing, dropout, masks), and are the weights those of the fork step?"
)
#: The same for shares of a declared mixture that are off.
OTHER_SHARES = "The data are taken in other shares since then, and another mixture has another loss: see there."


#: The claim is held for so many points after it: the baselines of the others have to learn the true level again.
REST_POINTS = 32


@dataclass(slots=True)
class LowEvent(Event):
    """A loss that is too low since a fork.

    Attributes:
        before: state at the fork. level, low: expected and actual loss.
        evidence: facts behind it. points: since the fork.
        same: the batches equal, one by one, those of the discarded branch.
        by_mixture: caused by another mixture, which is the event then.
        recent: newest three points. back: the step of the return.
        rest: points until the claim ends; negative: ended by another event.
    """

    before: BeforeFork
    level: float
    low: float
    evidence: dict[str, Any]
    way: WayBack
    points: int = 0
    same: bool = False
    by_mixture: bool = False
    recent: list[tuple[int, float]] = field(default_factory=list)
    back: int | None = None
    rest: int = REST_POINTS

    @property
    def gave_way(self) -> bool:
        """Whether it was reported as an event of its own before the shares of the data explained it."""
        return self.by_mixture and self.severity != "info"


def worded(event: LowEvent, state: State) -> tuple[str, dict[str, Any]]:
    """Return text and evidence of the present state."""
    change = percent(event.low, event.level)
    shown = f" ({change:+.1f} %)" if change is not None else ""
    text = f"{event.before.text[:1].upper()}{event.before.text[1:]}, and the loss came back at {event.low:.4g}"
    text += f" where {event.level:.4g} was to be expected{shown}. "
    if event.by_mixture:
        text += OTHER_SHARES
    else:
        text += SAME_BATCHES if event.same else KNOWN_DATA
    if event.rest < 0:
        text += f" It ended at step {event.back}: the loss rose far above its true level, which is another event."
    elif state == "recovered" and event.same:
        text += f" It was back at the level of that branch at step {event.back}."
    elif state == "recovered":
        text += f" It jumped back to the true level at step {event.back}: that is the end of it, not a spike."
    elif state == "resolved" and not event.gave_way:
        text += " It has stayed so: this counts as the usual level from here on."
    evidence = {
        "level_before": event.level,
        "level_after": event.low,
        "sigma": event.before.sigma,
        "rise_percent": change,
        "direction": "down",
        "score_unit": "robust sigmas",
        "points": event.points,
        "fork_step": event.before.step - 1,
        "recovered_at": event.back,
        **event.evidence,
    }
    return text, evidence


#: Searches in a row without a match that end a repetition.
LOST_SEARCHES = 2


@dataclass(slots=True)
class Repetition:
    """An interval of data repeated in its order.

    Args:
        onset: first step of the repetition. earlier: first step of that data.
        lag: distance of the two in points. r: correlation at the detection.
        lost: windows in a row that did not agree.
    """

    onset: int
    earlier: int
    lag: int
    r: float
    lost: int = 0

    @property
    def distance(self) -> int:
        """Distance of the repeated data, steps."""
        return self.onset - self.earlier

    @property
    def fresh_step(self) -> int:
        """The step at which the repetition reaches its own beginning: new data follows, or another repetition."""
        return self.onset + self.distance


class RepeatedOrder(Stateful):
    """Searches each block of points in all earlier ones, and follows a match to its end."""

    _prints: Fingerprints = fresh(Fingerprints)
    current: Repetition | None = None

    def add(self, past: LongPast, step: int, block: list[float]) -> Literal["begins", "ends"] | None:
        """Take PAST_BLOCK losses that begin at ``step``; return whether ``current`` changed.

        An ended one stays until the next call.
        """
        if self.current is not None and self.current.lost >= LOST_SEARCHES:
            self.current = None
        before = self._prints.blocks
        self._prints.add(past, step, block)
        if self._prints.blocks == before:
            return None
        if self.current is not None:
            lost = not self._prints.goes_on(past, self.current.lag)
            self.current.lost = self.current.lost + 1 if lost else 0
            return "ends" if self.current.lost >= LOST_SEARCHES else None
        match = self._prints.search(past)
        if match is None:
            return None
        onset, earlier = self._prints.began(past, match.lag)
        self.current = Repetition(onset, earlier, match.lag, match.r)
        return "begins"

    def add_unmet(self, past: LongPast, steps: Sequence[int], losses: Sequence[float]) -> int:
        """Take blocks, as ``add`` does, up to the first one that may change ``current``; return their number.

        Args:
            steps: of their starts. losses: PAST_BLOCK for each.
        """
        return 0 if self.current is not None else self._prints.add_unmet(past, steps, losses)


#: Points after a fork in which a low loss is attributed to it, checked each LOOK_POINTS.
WATCH_POINTS = 64
LOOK_POINTS = 4
#: Compared shares of a declared mixture are judged first: that takes 16 rows and the start of the next.
SHARES_POINTS = 20
#: Points above the true level by so many sigmas are unrelated: the claim ends immediately.
ABOVE_SIGMAS = 8.0
#: Distance from a resume of a repeated order that is attributed to it: the first batches of a run, of an untrained
#: model, are hardly recognisable.
RESUME_POINTS = 64


class RepeatDataDetector(CurveDetector):
    """Finds when the model gets data again that it has learnt already.

    Idea, two signs. (1) After a fork the loss lies clearly below that of the branch that was left at the same steps,
    and below the level at the fork step: the weights went back, but the loader hands out data these weights have seen.
    Where the batches are those of that branch one by one, it is the resume that is off, not the data.
    It ends with a jump up to the true level, which belongs to the same incident. (2) The part of a loss that its past
    does not foretell is a fingerprint of the batch. The newest 64 points are searched in the whole run, each 16;
    where they agree more than chance and the structure of the job do, the order of the data repeats: a warning where
    that began at a resume, else a note, once a run. The same data at the same steps after a rollback is a correct
    resume and not reported.

    Args:
        min_drop: smallest amount by which the loss is too low after a fork, as a fraction of the level.

    Source: the measurements of the project's detection notes, section 2.2 (r >= 0.96 for the same data order in other
    models, |r| < 0.35 for another order).

    Example:
        >>> import random
        >>> rng, detector, found = random.Random(1), RepeatDataDetector(), []
        >>> batches = [2.0 + rng.gauss(0, 0.05) for _ in range(300)]
        >>> for step in range(450):  # the loader starts over at step 300
        ...     found += detector.update(Point(step, "loss", batches[step % 300], 0.0))
        >>> [(f.severity, f.evidence["lag_points"], round(f.evidence["r"], 2)) for f in found]
        [('info', 300, 0.94)]
    """

    name: ClassVar[str] = "repeat_data"
    kinds: ClassVar[tuple[str, ...]] = ("repeat_data", "resume_artifact")
    title: ClassVar[str] = "Data repeats"
    remembers: ClassVar[bool] = True
    parameters: ClassVar[dict[str, Parameter]] = {
        "sensitivity": SENSITIVITY,
        "min_drop": Parameter(
            0.01, 0.001, 1.0, "fraction", "Smallest amount by which the loss is too low. Higher: fewer reports."
        ),
    }

    _losses: list[float] = fresh(list)
    _block: list[tuple[int, float]] = fresh(list)
    _order: RepeatedOrder = fresh(RepeatedOrder)
    _watch: BeforeFork | None = None
    _after: list[tuple[int, float]] = fresh(list)
    _low: LowEvent | None = None
    _low_onset: int = -(2**62)  # of the newest low loss
    #: The repetition with an event of its own, and the state at the newest fork.
    _again: Event | None = None
    _before: BeforeFork | None = None
    #: Whether epochs in the same order were reported: once a run is enough.
    _noted_order: bool = False

    def configured(self) -> None:
        self._by = self.settings["sensitivity"]
        self._min_drop = self.settings["min_drop"] / (self._by or 1.0)

    @classmethod
    def story(cls) -> Sequence[Row | Mark]:
        losses = [2.5 + 0.02 * ((7 * step) % 5 - 2) + 0.01 * ((3 * step) % 11 - 5) for step in range(700)]
        left = {"loss": [(step, losses[step]) for step in range(300, 400)]}
        data = {"fork_step": 299, "cause": "restart", "reason": "", "changes": {}, "last_step": 399}
        fork = Mark("fork", 300, 1e9 + 400, "the run went back to step 299", {**data, "left_behind": left})
        known = [loss - (0.25 if 300 <= step < 420 else 0.0) for step, loss in enumerate(losses)]
        rows = [Row(step, 1e9 + step, {"loss": loss}) for step, loss in enumerate(known)]
        return [*rows[:300], fork, *rows[300:]]

    def note(self, mark: Mark) -> list[Finding]:
        if mark.kind != "fork":
            return []
        found = [] if self._low is None else self._close(self._low, mark.step - 1, "resolved")
        self._watch, self._after = None, []
        if self._by:
            losses = [*self._losses, *(value for _, value in self._block)][-BEFORE_POINTS:]
            self._before = self._watch = before_fork(
                mark.step, mark.text, mark.data, losses, self._metric, self.context, left=WATCH_POINTS
            )
        return found

    def update(self, point: Point) -> list[Finding]:
        step, metric, value, _, _ = point
        if metric != self._metric and self._is_another(metric):
            return []
        if not -LARGEST < value < LARGEST:
            return []
        block = self._block
        block.append((step, value))
        found: list[Finding] = []
        if self._low is not None:
            found += self._follow_low(self._low, step, value)
        elif self._watch is not None:
            found += self._check(self._watch, step, value)
        return found + self._full(step) if len(block) == PAST_BLOCK else found

    def take_quiet(self, rows: QuietRows, start: int, stop: int) -> int:
        if self._metric not in rows.ranges or self._low is not None or self._watch is not None:
            return start
        block, steps, losses = self._block, rows.steps, rows.columns[self._metric]
        first = start - len(block)  # where the block would begin among these rows
        whole = (stop - first) // PAST_BLOCK
        if whole:
            begins = [block[0][0] if block else steps[start], *steps[first + PAST_BLOCK : stop : PAST_BLOCK]]
            values = [*(loss for _, loss in block), *losses[start:stop]]
            taken = self._order.add_unmet(self.past, begins[:whole], values[: whole * PAST_BLOCK])
            if taken:
                self._losses = [*self._losses, *values[: taken * PAST_BLOCK]][-BEFORE_POINTS:]
                self._block, first = [], first + taken * PAST_BLOCK
                start = first
            stop = min(stop, first + PAST_BLOCK - 1)
        self._block.extend(zip(steps[start:stop], losses[start:stop], strict=True))
        return stop

    # --- too low after a fork ------------------------------------------------------------------------------------

    def _check(self, before: BeforeFork, step: int, value: float) -> list[Finding]:
        """Judge whether the first losses after a fork are too low to be true."""
        after = self._after
        after.append((step, value))
        count = len(after)
        if count > WATCH_POINTS:
            self._watch, self._after = None, []
            return []
        if count < (SHARES_POINTS if self.context.mixture else LOW_POINTS) or count % LOOK_POINTS:
            return []
        low = falsely_low(before, after, min_drop=self._min_drop, by=self._by)
        if low is None:
            return []
        self._watch, self._after = None, []
        if before.lr_differs(self.context.lr.last, LR_DIFFERS) or self._others(BACK_POINTS):
            return []
        drift = self._drift()
        known = [*before.declared(), *drift]
        evidence = {**low.evidence, "explained_by": known}
        severity: Severity = "info" if known else "warning"
        event = LowEvent(
            self._metric, after[0][0], step, severity, before, low.level, low.low, evidence,
            WayBack(low.level, low.low, before.drag * before.sigma), count, low.same, bool(drift),
        )  # fmt: skip
        self._low, self._low_onset = event, event.onset
        self.claim(self._metric, event.onset)
        return [self._low_finding(event, "open", step)]

    def _drift(self) -> list[str]:
        """Return the shares of the data that are off, each as one clause."""
        claims = self.context.open_claims().values()
        return [f"the data mixture is off since step {c.onset_step}" for c in claims if c.kind == "data_mix_drift"]

    def _follow_low(self, event: LowEvent, step: int, value: float) -> list[Finding]:
        """Wait for the jump back to the true level, which belongs to the same event."""
        event.points += 1
        alone = event.back is None and event.severity != "info" and not event.by_mixture and "r" not in event.evidence
        if alone and (drift := self._drift()):
            event.by_mixture, event.evidence["explained_by"] = True, drift
            return [self._low_finding(event, "resolved", step)]
        event.recent = [*event.recent[-2:], (step, value)]
        high = [at for at, loss in event.recent if loss > event.level + ABOVE_SIGMAS * event.before.sigma]
        was_back = event.back is not None
        if not was_back and event.way.add(step, value):
            event.back = event.way.first
        if len(high) >= 2:  # far above the true level: others report that
            event.back = event.back or high[0]
            self._low, event.rest = None, -1
            self.context.release(self._metric, self.name)
        elif was_back:
            event.rest -= 1
            return [] if event.rest > 0 else self._close(event, step, "recovered")
        if event.back is not None:
            return [] if was_back or event.gave_way else [self._low_finding(event, "recovered", step)]
        return self._close(event, step, "resolved") if event.points >= PATIENCE_POINTS else []

    def _close(self, event: LowEvent, step: int, state: State) -> list[Finding]:
        self._low = None
        self.claim(self._metric, event.onset, step)
        over = event.back is not None or event.gave_way
        return [] if over else [self._low_finding(event, state, max(step, event.seen))]

    # --- the order of the data -----------------------------------------------------------------------

    def _full(self, step: int) -> list[Finding]:
        """Take a full block: the level, and a search in the past."""
        first, losses = self._block[0][0], [value for _, value in self._block]
        if self._low is None:
            self._losses = [*self._losses, *losses][-BEFORE_POINTS:]
        self._block = []
        change, order = self._order.add(self.past, first, losses), self._order.current
        if order is None:
            return []
        if change is None:
            self._await_new_data(order, losses, step)
            return []
        return self._begin(order, step) if change == "begins" else self._end(order, step)

    def _begin(self, order: Repetition, step: int) -> list[Finding]:
        """Report a repeated order: with a low loss if any, epochs once a run."""
        if not self._by:
            return []
        resumed = self._resumed(order)
        reach = RESUME_POINTS * self.context.interval
        near = abs(order.onset - self._low_onset) <= reach
        if self._low is not None and near and "r" not in self._low.evidence:  # a later repetition has its own figures
            self._low.evidence, self._low.same = self._low.evidence | _facts(order), False
            if self._low.by_mixture:  # repeated data whatever their shares
                self._low.by_mixture, self._low.evidence["explained_by"] = False, self._low.before.declared()
            return [self._low_finding(self._low, "open" if self._low.back is None else "recovered", step)]
        if resumed is not None and near:
            return []
        if resumed is None and self._noted_order:
            return []
        self._noted_order = self._noted_order or resumed is None
        if resumed is not None:
            order.onset, order.earlier = resumed, resumed - order.distance
        self._again = Event(self._metric, order.onset, step, "info" if resumed is None else "warning")
        return [self._again_finding(self._again, order, "open", step)]

    def _await_new_data(self, order: Repetition, losses: Sequence[float], step: int) -> None:
        """Claim the loss around the expected step of new data: its jump to the true level is of this event."""
        event, before, after = self._again, self._before, (step - order.fresh_step) / self.context.interval
        if event is None or before is None or event.severity == "info" or self._others(BACK_POINTS):
            return
        if -2 * PAST_BLOCK <= after <= REST_POINTS + PAST_BLOCK:
            over = after > REST_POINTS or median(losses) > before.level + ABOVE_SIGMAS * before.sigma
            self.claim(event.metric, event.onset, step if over else None)

    def _end(self, order: Repetition, step: int) -> list[Finding]:
        event, self._again = self._again, None
        if event is None:
            return []
        if self.context.claimed(event.metric, "") is not None and not self._others(0):
            self.claim(event.metric, event.onset, step)
        return [self._again_finding(event, order, "recovered", step)]

    def _resumed(self, order: Repetition) -> int | None:
        """Return the first step after the resume at which an order began to repeat, None for none.

        That is one shortly before it, or any after which a restarted loader would feed just this.
        """
        near, first = RESUME_POINTS * self.context.interval, self.past.steps[0]
        for excuse in reversed(self.context.excuses_between(0, round(order.onset + near / 4))):
            over = not self.past.dropped and abs(excuse.step - order.distance - first) <= 2 * self.context.interval
            if excuse.kind in ("fork", "gap") and (over or order.onset - excuse.step <= near):
                return excuse.step
        return None

    # --- findings ------------------------------------------------------------------------------------------------

    def _others(self, points: int) -> bool:
        """Return whether another detector has an event of the loss; a level shift is this one's own."""
        claim = self.context.claimed(self._metric, self.name, within_steps=points * self.context.interval)
        return claim is not None and claim.kind != "level_shift"

    def _low_finding(self, event: LowEvent, state: State, now_step: int) -> Finding:
        text, evidence = worded(event, state)
        score = (event.level - event.low) / event.before.sigma
        title = (
            f"Loss too low{' on the same batches' if event.same else ''} after the resume at step {event.before.step}"
        )
        found = self.finding(
            event, now_step, state, title=title, text=text, recovered_step=event.back, score=min(score, 1e9),
            evidence=evidence,
        )  # fmt: skip
        # The data are in order then: another part of the state changed.
        return replace(found, kind="resume_artifact") if event.same else found

    def _again_finding(self, event: Event, order: Repetition, state: State, now_step: int) -> Finding:
        text = (
            f"The batches since about step {order.onset} are those that came {order.lag} logged points earlier, since"
        )
        text += f" step {order.earlier}: what is new in each loss agrees (r = {order.r:.2f} over {WORD_POINTS} points)."
        if event.severity == "info":
            text += " Epochs in the same order do this, and it is reported once."
            text += " Is the order meant to be the same in each epoch?"
        else:
            text += " It began at a resume: does the loader start over? The loss is lower than the model deserves until"
            text += f" new data comes, at about step {order.fresh_step}: a rise there is no spike."
        back = now_step if state == "recovered" else None
        if back is not None and back < order.fresh_step:
            text += f" It is no longer recognised since about step {back}."
        elif back is not None:
            text += f" It ended before step {back}."
        evidence = {**_facts(order), "score_unit": "correlation", "points": WORD_POINTS, "recovered_at": back}
        title = f"Known data is fed again since step {event.onset}"
        return self.finding(
            event, now_step, state, title=title, text=text, recovered_step=back, score=order.r, evidence=evidence,
        )  # fmt: skip


def _facts(order: Repetition) -> dict[str, Any]:
    return {
        "lag_points": order.lag,
        "r": round(order.r, 3),
        "earlier_step": order.earlier,
        "fresh_data_step": order.fresh_step,
    }
