"""Finds spikes of the loss and of the losses of data sets, and reports whether they come back."""

from __future__ import annotations

import math
from typing import ClassVar

from stabilitybackend.detectors.engine.base import SENSITIVITY, Detector, Finding, Parameter, Point, fresh
from stabilitybackend.detectors.engine.context import EXCUSE_POINTS
from stabilitybackend.detectors.engine.metric_roles import LOSS, dataset_of, role_of
from stabilitybackend.detectors.engine.row_blocks import QuietRows
from stabilitybackend.detectors.stats.alike import drag_of
from stabilitybackend.detectors.stats.blocks import quiet_from
from stabilitybackend.detectors.stats.levels import LARGEST
from stabilitybackend.detectors.stats.robust import MAD_TO_SIGMA, median

from .event import RECOVERY_RING, SpikeEvent
from .report import finding_of, lone_finding
from .tracker import LONE_STEPS, NOTED_SIGMAS, Proof, Suspect, Tracker

#: Data sets that are watched, first ones seen. Each takes about 3 KB.
MAX_TRACKERS = 64
#: A spike within so many points and steps after the first point back goes on with the same event.
REOPEN_POINTS = 5
REOPEN_STEPS = 10
#: A learning rate or batch size that jumped right before explains a rise up to this fraction.
EXCUSED_RISE = 0.5
#: Other claims: an event of another detector that ended within so many points is still the same event.
CLAIM_POINTS = 10

#: One point is an event where only one in LONE_STEPS is logged, it is so high, and the gradient norm jumped with it.
LONE_SIGMAS = 7.0
LONE_RISE = 0.1
LONE_GRADIENT_RATIO = 4.0
LONE_GRADIENT_SIGMAS = 6.0
#: Values of the gradient norm that make its usual range known, and the least spread of its logarithm.
GRADIENT_POINTS = 16
GRADIENT_SPREAD = 0.1
#: The loss of one data set has to prove this many times more than the whole loss: it is noisier, and there are many.
DATASET_DEMAND = 1.5
#: Points that a data set's event waits for the whole loss to open one.
HOLD_POINTS = 3
#: Events of several losses whose onsets are so many points apart at most are one event.
TOGETHER_POINTS = 16

__all__ = ["SpikeDetector"]


class SpikeDetector(Detector):
    """Opens one incident when a loss leaves its usual range upwards, and follows it until it is back.

    Idea: the usual range is robust (medians of the last 128 points, see ``baseline.py``). Each point of an excursion
    adds evidence by its height and by how rare such points are in this run (``tail.py``), clipped so that one alone
    proves nothing; an event is proved when the sum reaches 1 (``tracker.py``). A lone high point is one odd batch and
    leaves a note (``info``). Where one logged point stands for many steps, a jump of the gradient norm makes it an
    event. Two odd batches side by side are chance less than once in 50,000 points even where 2 % of all points are odd.
    The baseline learns nothing while an
    event is open. The event is ``pending`` until the median of five points is back (``fast`` within 10 points,
    otherwise ``slow``), or until it stays up for 100 points or does not fall over 50 (``none``, critical). Later
    spikes are measured from where it stays then, and the old event still recovers if the loss falls back to where it
    came from. A rise up to 50 % that begins with a higher learning rate or batch size is reported as
    ``info``.
    The losses of data sets (``loss/<data set>``) are watched as well; what moves the loss too is one incident.

    Args:
        sensitivity: thresholds are divided by it.
        min_rise: an event rises by this fraction of the level at least.

    Source: cumulative sums (Page, Biometrika 1954) over robust heights; skip-step rule of OLMo-core and the ring of
    llm.c for window sizes; PaLM (arXiv 2204.02311) for what a spike looks like.

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
    parameters: ClassVar[dict[str, Parameter]] = {
        "sensitivity": SENSITIVITY,
        "min_rise": Parameter(
            0.05, 0.0, 100.0, "fraction", "Least rise over the usual level: higher values pass over small spikes."
        ),
    }

    _trackers: dict[str, Tracker] = fresh(dict)
    _total: str | None = None

    def configured(self) -> None:
        self._sensitivity = self.settings["sensitivity"]
        self._min_rise = self.settings["min_rise"]

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
                self.context.drags[tracker.metric] = drag_of(tracker.neighbours)
            return []
        return self._check(tracker, point.step, value)

    def take_quiet(self, rows: QuietRows, start: int, stop: int) -> int:
        trackers = [(self._trackers.get(metric), metric) for metric in rows.columns if self.wants(metric)]
        parts = []
        for tracker, metric in trackers:
            if tracker is None and self._has_enough(metric):
                continue
            if tracker is None or metric not in rows.ranges:
                return start
            stop = min(stop, start + tracker.limit - len(tracker.block) - 1)
            if stop <= start:
                return start
            parts.append((tracker, rows.columns[metric]))
        for tracker, values in parts:
            stop = start + quiet_from(values[start:stop], tracker.low, tracker.high)
        for tracker, values in parts:
            tracker.block += values[start:stop]
        return stop

    def _new_tracker(self, metric: str) -> Tracker | None:
        if not self.wants(metric) or self._has_enough(metric):
            return None
        if dataset_of(metric) is None:
            self._total = metric
        tracker = self._trackers[metric] = Tracker(metric, DATASET_DEMAND if dataset_of(metric) else 1.0)
        return tracker

    def _has_enough(self, metric: str) -> bool:
        """Say whether a new curve is ignored: there are too many, or it is a second spelling of the loss."""
        return len(self._trackers) >= MAX_TRACKERS or (dataset_of(metric) is None and self._total is not None)

    def _check(self, tracker: Tracker, step: int, value: float) -> list[Finding]:
        """Take a point that is not plainly quiet."""
        if tracker.event is not None:
            return self._follow(tracker, tracker.event, step, value)
        if not -LARGEST < value < LARGEST:
            return []
        lone = tracker.check(step, value, self._sensitivity)
        if not tracker.suspects or not self._sensitivity:
            found = self._old_event_back(tracker, step)
            return found + self._note(tracker, lone, step) if lone is not None else found
        proof = tracker.proof() or self._lone_proof(tracker)
        if (
            proof is None
            or max(one.rise for one in proof.suspects) < self._min_rise * tracker.demand * self._sensitivity
        ):
            return []
        claim = self.context.claimed(tracker.metric, self.name, CLAIM_POINTS * tracker.interval)
        if claim is not None:
            if claim.kind == "repeat_data":  # its jump back to the true level
                tracker.accept()
            return []
        return self._open(tracker, proof, step)

    def _note(self, tracker: Tracker, lone: Suspect, step: int) -> list[Finding]:
        """Report a lone point that hardly any other of the run is as high as, for the record."""
        if tracker.metric != self._total or lone.rise < self._min_rise * self._sensitivity:
            return []
        event = tracker.event_of([lone], step, f"1 point above {tracker.demand * NOTED_SIGMAS:g} sigmas")
        event.severity, event.points, event.recovery = "info", 1, "fast"
        event.recovered_step = min(step, lone.step + round(tracker.interval))
        return [lone_finding(self, event, step)]

    def _lone_proof(self, tracker: Tracker) -> Proof | None:
        """Return the proof of a single point: the gradient norm jumped with it."""
        newest = tracker.suspects[-1]
        if tracker.interval < LONE_STEPS or newest.sigmas < LONE_SIGMAS * tracker.demand or newest.rise < LONE_RISE:
            return None
        ratio, sigmas = self._gradient(newest.step)
        if ratio < LONE_GRADIENT_RATIO or sigmas < LONE_GRADIENT_SIGMAS:
            return None
        return Proof([newest], f"1 point above {LONE_SIGMAS:g} sigmas with a jump of the gradient norm")

    def _gradient(self, step: int) -> tuple[float, float]:
        """Return how high the gradient norm of a step is: times the usual one, and in sigmas of the logarithm; 1 and 0
        where that is unknown."""
        values = self.context.grad_norm.values
        logs = sorted(math.log(value) for at, value in values if at < step and value > 0)
        highest = max((value for at, value in values if at == step and value > 0), default=None)
        if len(logs) < GRADIENT_POINTS or highest is None:
            return 1.0, 0.0
        middle = logs[len(logs) // 2]
        spread = MAD_TO_SIGMA * sorted(abs(one - middle) for one in logs)[len(logs) // 2]
        above = math.log(highest) - middle
        return math.exp(min(above, 20.0)), above / max(spread, GRADIENT_SPREAD)

    def _open(self, tracker: Tracker, proof: Proof, step: int) -> list[Finding]:
        event = tracker.event_of(proof.suspects, step, proof.needed)
        closed, tracker.closed = tracker.closed, None
        back = closed.recovered_step if closed is not None else None
        near = min(REOPEN_STEPS, REOPEN_POINTS * tracker.interval)
        if closed is not None and back is not None and event.onset - back <= near:
            closed.reopen(step, event.peak, event.peak_step, tracker.since_closed)
            event = closed
        else:
            event.explained_by = self._excuses(tracker, event.onset, step)
            self._grade(event)
            self._place(tracker, event)
        for suspect in proof.suspects:
            event.recent.append((suspect.step, suspect.value))
            event.trend.append(suspect.value)
        tracker.forget()
        tracker.event = event
        tracker.set_band()
        return self._report(tracker, event, step) if event.told else []

    def _report(self, tracker: Tracker, event: SpikeEvent, step: int) -> list[Finding]:
        """Open the incident of an event."""
        self.claim(event.metric, event.onset)
        return [self._finding(tracker, event, step)]

    def _finding(self, tracker: Tracker, event: SpikeEvent, step: int) -> Finding:
        """Return what is known; an event in which another data set moves as well is none of one alone."""
        together, whole = TOGETHER_POINTS * tracker.interval, self._trackers.get(self._total or "")
        for other in self._trackers.values():
            if other is tracker or other is whole:
                continue
            if other.suspects or (other.event is not None and abs(other.event.onset - event.onset) <= together):
                event.dataset = None
        return finding_of(self, event, step)

    def _place(self, tracker: Tracker, event: SpikeEvent) -> None:
        """Say whether a new event is reported at once, later, or as a part of one that is reported already."""
        together = TOGETHER_POINTS * tracker.interval
        others = [one for one in self._trackers.values() if one is not tracker]
        told = [one.event for one in others if one.event is not None and one.event.told]
        event.told = not any(abs(one.onset - event.onset) <= together for one in told)
        if event.dataset is None or not event.told:
            return
        total = self._trackers.get(self._total or "")
        just_over = total is not None and total.closed is not None and total.since_closed <= HOLD_POINTS
        event.told = False
        event.tell_at = None if just_over else event.points + HOLD_POINTS

    def _excuses(self, tracker: Tracker, onset: int, step: int) -> list[str]:
        excuses = self.context.excuses_between(onset - round(EXCUSE_POINTS * tracker.interval), step)
        return [f"{e.kind}: {e.text}" for e in excuses if e.kind in ("lr_jump", "batch_size") and e.after > e.before]

    def _grade(self, event: SpikeEvent) -> None:
        """Set the severity that the event has earned by now; it never gets lower."""
        if event.explained_by and event.rise * self._sensitivity <= EXCUSED_RISE:
            event.severity = "info"
        elif event.severity == "critical" or (dataset_of(event.metric) is None and event.stays_high(self._min_rise)):
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
        if event.tell_at is not None and event.points >= event.tell_at and not event.is_over:
            event.tell_at, event.seen = None, step
            self._place(tracker, event)
            if event.tell_at is not None:  # nothing else reports it
                event.tell_at, event.told = None, True
                return self._report(tracker, event, step)
        if event.is_over:
            self._learn_again(tracker, event)
            event.recent.clear()
            event.trend.clear()
            tracker.closed, tracker.event, tracker.since_closed = event, None, 0
        elif event.recovery == "none" and (newest := event.newest()):
            tracker.baseline.restart(newest)
            event.accept(newest)
            tracker.event = None
            tracker.left_behind.append(event)
        if tracker.event is None:
            tracker.tail.passed(1)
            tracker.set_band()
            if event.told:
                self.claim(event.metric, event.onset, step, back=event.is_over)
        return [self._finding(tracker, event, step)] if news and event.told else []

    def _learn_again(self, tracker: Tracker, event: SpikeEvent) -> None:
        """Learn the first points after an event; where they are a little higher than before, that is the level."""
        usual = event.usual_again()
        higher = median(usual) - tracker.baseline.location()
        if higher > event.scale:
            tracker.baseline.shift(higher)
        for value in usual:
            tracker.baseline.learn(value)

    def _old_event_back(self, tracker: Tracker, step: int) -> list[Finding]:
        """Close the events that did not come back, when the loss is back where it came from after all."""
        baseline = tracker.baseline
        newest, slow = baseline.newest(RECOVERY_RING), baseline.slow_location()
        over = [one for one in tracker.left_behind if one.came_back_late(step, newest, slow, tracker.interval)]
        for event in over:
            tracker.left_behind.remove(event)
        if over:
            tracker.set_band()
        return [finding_of(self, event, step) for event in over if event.told]
