"""Finds spikes of the loss and of the losses of data sets, and tells whether they come back."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from .baseline import median
from .context import Claim
from .contract import SENSITIVITY, Detector, Finding, Parameter, Point, State
from .nonfinite import OVERFLOW
from .roles import LOSS, dataset_of, role_of
from .spike_event import SpikeEvent
from .spike_tracker import Proof, Tracker

#: Data sets that are watched, first ones seen. Each takes about 3 KB.
MAX_TRACKERS = 64
#: A spike within so many points and steps after the first point back goes on with the same event.
REOPEN_POINTS = 5
REOPEN_STEPS = 10
#: A learning rate or batch size that jumped within so many points before the onset explains a rise up to this
#: fraction.
EXCUSE_POINTS = 3
EXCUSED_RISE = 0.5
#: Other claims: an event of another detector that ended within so many points is still the same event.
CLAIM_POINTS = 10

__all__ = ["SpikeDetector"]


#: One point is an event where it stands for so many steps, is so high, and the gradient norm jumped with it.
LONE_STEPS = 10
LONE_SIGMAS = 7.0
LONE_RISE = 0.1
LONE_GRADIENT_RATIO = 5.0
LONE_GRADIENT_SIGMAS = 6.0
#: Values of the gradient norm that make its usual range known, and the least spread of its logarithm.
GRADIENT_POINTS = 16
GRADIENT_SPREAD = 0.1


class SpikeDetector(Detector):
    """Opens one incident when a loss leaves its usual range upwards, and follows it until it is back.

    Idea: the usual range is robust (medians of the last 128 points, see ``baseline.py``). One point far above it is an
    odd batch. Proof accumulates: two of three points above 8 sigmas, three of five above 6, four of six above 5, five
    of eight above 4.5, each with a least rise. How high is high enough comes from the run: where lone outliers are
    common the same rule asks for higher points (``tail.py``), so that chance makes less than one event in a million
    points of any run. Where one logged point stands for many steps, a jump of the gradient norm proves a lone point.
    The baseline learns nothing while an event is open. The event is ``pending`` until the median of five points is
    back (``fast`` within 10 points, otherwise ``slow``), or until it stays up for 100 points or does not fall over 50
    (``none``, critical). When the loss settles, later spikes are measured from the new level, and the old event still
    recovers if the loss falls back to where it came from. A rise up to 50 % that begins with a jump of the learning
    rate or the batch size is told, but as ``info``.

    Args:
        sensitivity: thresholds are divided by it.

    Source: the rules of the project's detection notes, section 5; skip-step rule of OLMo-core and the ring of llm.c
    for window sizes; PaLM (arXiv 2204.02311) for what a spike looks like.

    Example:
        >>> spike = SpikeDetector()
        >>> losses = [2.0 + 0.01 * (i % 3) for i in range(100)] + [3.5, 3.6, 3.4] + [2.0] * 5
        >>> found = [f for step, loss in enumerate(losses) for f in spike.update(Point(step, "loss", loss, 0.0))]
        >>> [(f.key, f.recovery, f.onset_step, f.step, f.recovered_step) for f in found]
        [('spike:loss:100', 'pending', 100, 101, None), ('spike:loss:100', 'fast', 100, 101, 103)]
    """

    name: ClassVar[str] = "spike"
    kinds: ClassVar[tuple[str, ...]] = ("spike",)
    title: ClassVar[str] = "Loss spikes"
    parameters: ClassVar[dict[str, Parameter]] = {"sensitivity": SENSITIVITY}

    def __init__(self, **settings: float) -> None:
        super().__init__(**settings)
        self._trackers: dict[str, Tracker] = {}
        self._total: str | None = None

    def configured(self) -> None:
        self._sensitivity = self.settings["sensitivity"]

    def wants(self, metric: str) -> bool:
        return role_of(metric) == LOSS or dataset_of(metric) is not None

    def update(self, point: Point) -> list[Finding]:
        tracker = self._trackers.get(point.metric)
        if tracker is None:
            tracker = self._new_tracker(point.metric)
            if tracker is None:
                return []
        value = point.value
        if tracker.low < value < tracker.high:
            tracker.block.append(value)
            if len(tracker.block) >= tracker.limit:
                tracker.flush(point.step)
            return []
        return self._look(tracker, point.step, value)

    def _new_tracker(self, metric: str) -> Tracker | None:
        if not self.wants(metric) or len(self._trackers) >= MAX_TRACKERS:
            return None
        if dataset_of(metric) is None:
            if self._total is not None:
                return None
            self._total = metric
        tracker = self._trackers[metric] = Tracker(metric)
        return tracker

    def _look(self, tracker: Tracker, step: int, value: float) -> list[Finding]:
        """Take a point that is not plainly quiet."""
        if tracker.event is not None:
            return self._follow(tracker, tracker.event, step, value)
        if not -OVERFLOW < value < OVERFLOW:
            return []
        found = self._old_event_back(tracker, step, value)
        if not tracker.look(step, value, self._sensitivity) or not self._sensitivity:
            return found
        proof, confirmed_by = tracker.proof(), None
        if proof is None:
            proof, confirmed_by = self._lone_proof(tracker)
        if proof is None or self._held_by_another(tracker):
            return found
        return [*found, self._open(tracker, proof, confirmed_by, step)]

    def _lone_proof(self, tracker: Tracker) -> tuple[Proof | None, dict[str, Any] | None]:
        """Return the proof of a point that stands alone, and the jump of the gradient norm that confirms it."""
        newest = tracker.suspects[-1]
        if tracker.interval < LONE_STEPS or newest.sigmas < LONE_SIGMAS or newest.rise < LONE_RISE:
            return None, None
        ratio, sigmas = self._gradient(newest.step)
        if ratio < LONE_GRADIENT_RATIO or sigmas < LONE_GRADIENT_SIGMAS:
            return None, None
        needed = f"1 point above {LONE_SIGMAS:g} sigmas with a jump of the gradient norm"
        return Proof([newest], needed), {"metric": "grad_norm", "step": newest.step, "ratio": ratio}

    def _gradient(self, step: int) -> tuple[float, float]:
        """Return how the gradient norm of ``step`` compares to the ones before: as a ratio, and in sigmas of its
        logarithm. Both 0 where it is unknown."""
        values = self.context.grad_norm.values
        now = self.context.grad_norm.at(step)
        logs = sorted(math.log(value) for at, value in values if at < step and value > 0)
        if len(logs) < GRADIENT_POINTS or not now > 0:
            return 0.0, 0.0
        middle = logs[len(logs) // 2]
        spread = 1.4826 * sorted(abs(one - middle) for one in logs)[len(logs) // 2]
        above = math.log(now) - middle
        return math.exp(min(above, 20.0)), above / max(spread, GRADIENT_SPREAD)

    def _held_by_another(self, tracker: Tracker) -> bool:
        return self.context.claimed(tracker.metric, self.name, CLAIM_POINTS * tracker.interval) is not None

    def _open(self, tracker: Tracker, proof: Proof, confirmed_by: dict[str, Any] | None, step: int) -> Finding:
        first, top = proof.suspects[0], max(proof.suspects, key=lambda suspect: suspect.value)
        points = tracker.seen - first.number
        closed, tracker.closed = tracker.closed, None
        back = closed.recovered_step if closed is not None else None
        again = (
            closed is not None
            and back is not None
            and first.step - back <= min(REOPEN_STEPS, REOPEN_POINTS * tracker.interval)
        )
        if closed is not None and again:
            event = closed
            event.reopen(step, top.value, top.step, tracker.since_closed)
        else:
            baseline = tracker.baseline
            event = SpikeEvent(
                metric=tracker.metric,
                onset=first.step,
                seen=step,
                level=baseline.level(),
                scale=baseline.scale(),
                peak=top.value,
                peak_step=top.step,
                told_peak=top.value,
                points=points,
                needed=proof.needed,
                dataset=dataset_of(tracker.metric),
                confirmed_by=[] if confirmed_by is None else [confirmed_by],
            )
            event.explained_by = self._excuses(tracker, first.step, step)
            self._grade(event)
        for suspect in proof.suspects:
            event.recent.append((suspect.step, suspect.value))
            event.trend.append(suspect.value)
        tracker.suspects.clear()
        tracker.event = event
        tracker.set_band()
        self.context.claim(event.metric, Claim(self.name, _key(event), "spike", event.onset))
        return self._finding(event, step)

    def _excuses(self, tracker: Tracker, onset: int, step: int) -> list[str]:
        excuses = self.context.excuses_between(onset - round(EXCUSE_POINTS * tracker.interval), step)
        return [f"{e.kind}: {e.text}" for e in excuses if e.kind in ("lr_jump", "batch_size") and e.after > e.before]

    def _grade(self, event: SpikeEvent) -> None:
        """Set the severity that the event has earned by now; it never gets lower."""
        if event.explained_by and event.rise * self._sensitivity <= EXCUSED_RISE:
            event.severity = "info"
        elif event.recovery == "none" or event.severity == "critical":
            event.severity = "critical"
        else:
            event.severity = "warning"

    def _follow(self, tracker: Tracker, event: SpikeEvent, step: int, value: float) -> list[Finding]:
        """Advance the open event by one point."""
        tracker.seen += 1
        tracker.step = step
        event.take(step, value)
        news = event.advance()
        before = event.severity
        self._grade(event)
        news = news or event.severity != before
        if event.is_over:
            self._learn_again(tracker, event)
            event.recent.clear()
            event.trend.clear()
            tracker.closed, tracker.event, tracker.since_closed = event, None, 0
        elif level := event.settled():
            tracker.baseline.restart(level)
            event.accept(level)
            tracker.left_behind, tracker.event = event, None
            news = True
        if tracker.event is None:
            tracker.tail.passed(1)
            tracker.set_band()
            self.context.claim(event.metric, Claim(self.name, _key(event), "spike", event.onset, step))
        return [self._finding(event, step)] if news else []

    def _learn_again(self, tracker: Tracker, event: SpikeEvent) -> None:
        """Learn the first points after an event; where they stand a little higher than before, that is the level."""
        usual = event.usual_again()
        higher = median(usual) - tracker.baseline.location()
        if higher > event.scale:
            tracker.baseline.shift(higher)
        for value in usual:
            tracker.baseline.learn(value)

    def _old_event_back(self, tracker: Tracker, step: int, value: float) -> list[Finding]:
        """Close an event whose new level had been accepted, when the loss is back where it came from."""
        event = tracker.left_behind
        if event is None or not event.came_back_late(step, value):
            return []
        tracker.left_behind = None
        tracker.set_band()
        return [self._finding(event, step)]

    def _finding(self, event: SpikeEvent, now_step: int) -> Finding:
        settled = event.new_level is not None
        state: State = (
            "recovered" if event.is_over else ("resolved" if settled and event.severity == "info" else "open")
        )
        what = "loss" if event.dataset is None else f"loss of {event.dataset}"
        percent = f" (+{100 * event.rise:.0f} %)" if event.level else ""
        text = f"The {what} rose from {event.level:.4g} to {event.peak:.4g}{percent}, onset at step {event.onset}."
        text += {
            "pending": " It is still high; whether it comes back by itself is not known yet.",
            "fast": f" It was back at its level by itself at step {event.recovered_step}.",
            "slow": f" It came back slowly by itself, at step {event.recovered_step}.",
            "none": " It does not come back by itself.",
        }[event.recovery]
        if event.new_level is not None and not event.is_over:
            text += f" It has settled at a new level of {event.new_level:.4g}."
        if event.explained_by:
            text += f" It began with a known change ({'; '.join(event.explained_by)})."
        evidence: dict[str, Any] = {
            "level_before": event.level,
            "sigma": event.scale,
            "peak": event.peak,
            "rise_percent": min(100 * event.rise, 1e12) if event.level else None,
            "direction": "up",
            "score_unit": "robust sigmas",
            "threshold": event.needed,
            "points": event.points,
            "back_below": event.back_below,
            "level_after": event.new_level,
            "recovered_at": event.recovered_step,
            "confirmed_by": list(event.confirmed_by),
            "explained_by": list(event.explained_by),
        }
        return Finding(
            detector=self.name,
            key=_key(event),
            kind="spike",
            state=state,
            severity=event.severity,
            title=f"{what[0].upper()}{what[1:]} spike at step {event.onset}",
            text=text,
            onset_step=event.onset,
            step=event.seen,
            now_step=now_step,
            metric=event.metric,
            dataset=event.dataset,
            peak_step=event.peak_step,
            recovered_step=event.recovered_step,
            recovery=event.recovery,
            score=event.score,
            evidence=evidence,
        )


def _key(event: SpikeEvent) -> str:
    return f"spike:{event.metric}:{event.onset}"
