"""Scores alarms against labels: one event, one alarm; a tolerance in logged points; no reward for later alarms.

An event is found when an alarm is raised from one logged point before its onset to ``TOLERANCE`` points after it, a
plateau as long as it lasts. Other alarms until ten points after its end are neither counted nor punished. All others
are false. Point-adjusted scores, which count a whole event as found by any point in it, are not used: they flatter.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["LOSS_KINDS", "Alarm", "Event", "Labelled", "Score", "interval", "judge", "labels_of"]

#: Points after the onset within which an event must be found.
TOLERANCE = {"spike": 10, "nonfinite": 10}
#: For the others: they develop.
SLOW_TOLERANCE = 50
#: A state rather than an event: it is one only after it has lasted, and worth hearing of while it lasts.
LASTING_KINDS = ("plateau",)
#: Points after an event's end that still belong to it.
AFTERMATH_POINTS = 10
#: A rule without a memory of events speaks at each point: alarms no further apart than this are one.
MERGED_POINTS = 20
#: Points after which a quiet event without an end no longer tempts anybody.
QUIET_POINTS = 50
#: Kinds that show in the loss, which is what the rules in use look at.
LOSS_KINDS = ("spike", "divergence", "nonfinite", "level_shift", "resume_artifact", "repeat_data")
#: Kinds that only an alarm of their own kind finds: they do not show in the loss, or a late word of another is no help.
STRICT_KINDS = ("nonfinite", "throughput", "straggler")
#: What the labels of public logs call the kinds.
_OTHER_NAMES: dict[str, tuple[str, str | None]] = {
    "fast_spike": ("spike", "fast"),
    "slow_spike": ("spike", "slow"),
    "unrecovered_spike": ("spike", "none"),
    "nan": ("nonfinite", None),
    "repeat_data_drop": ("repeat_data", None),
    "grad_spike": ("grad_norm", None),
    "grokking_drop": ("sudden_drop", None),
}
#: Draws for an interval, and the part of them that lies in it.
_DRAWS, _INSIDE = 2_000, 0.95


@dataclass(frozen=True)
class Event:
    """What a label says.

    Args:
        kind, recovery, rank, alarm: as in the labels.
        onset: first step of the event. recovered: first step after it, None when it is never over.
        dataset: None for all of them, if ``asks_dataset``.
        began: first step at which an alarm can be about it: the fault was there, its effect not yet. None: the onset.
        visible: first step at which it can be seen, None for the onset: the tolerance counts from there.
        ignore_until: alarms up to this step belong to its aftermath.
    """

    kind: str
    onset: int
    recovered: int | None = None
    recovery: str | None = None
    dataset: str | None = None
    asks_dataset: bool = False
    rank: int | None = None
    alarm: bool = True
    began: int | None = None
    visible: int | None = None
    ignore_until: int | None = None

    @property
    def first(self) -> int:
        """The first step at which an alarm can be about this event."""
        return self.onset if self.began is None else self.began

    def seen_in_time(self, step: int, interval: int) -> bool:
        """Return whether an alarm at ``step`` finds this event."""
        if self.kind in LASTING_KINDS:
            return self.covers(step, interval)
        seen_from = self.onset if self.visible is None else self.visible
        return self.first - interval <= step <= seen_from + TOLERANCE.get(self.kind, SLOW_TOLERANCE) * interval

    def covers(self, step: int, interval: int) -> bool:
        """Return whether an alarm at ``step`` speaks of this event, in time or not."""
        end = 2**62 if self.recovered is None else self.recovered + AFTERMATH_POINTS * interval
        return self.first - interval <= step <= max(end, self.ignore_until or 0)


@dataclass(frozen=True)
class Labelled:
    """One log and what is known of it.

    Args:
        name: of the log. cluster: logs that resemble each other, for the interval.
        rows: of the primary rank, in the order of the log.
        interval: steps between two rows.
        ignore: (first, last) steps at which an alarm is neither right nor wrong.
    """

    name: str
    cluster: str
    rows: Sequence[dict[str, Any]]
    interval: int
    events: Sequence[Event]
    ignore: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True)
class Alarm:
    """What a detector said, at the step at which it said it first. Rules in use know no more than the step.

    Args:
        loud: people are called; a quiet word is only counted where an event is missed otherwise.
    """

    step: int
    kind: str | None = None
    recovery: str | None = None
    dataset: str | None = None
    rank: int | None = None
    loud: bool = True


@dataclass
class Score:
    """Counts over logs, by kind where they are dicts. ``delays``: points after the onset. ``right`` and ``asked``
    hold kind, recovery, dataset, ``none to blame``, rank.
    """

    points: int = 0
    found: dict[str, int] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    delays: dict[str, list[float]] = field(default_factory=dict)
    false_alarms: list[str] = field(default_factory=list)
    quiet_violations: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    right: dict[str, int] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    alarms_in_events: int = 0
    told_quietly: int = 0

    def add(self, other: Score) -> None:
        """Take the counts of another score in."""
        self.points += other.points
        self.alarms_in_events += other.alarms_in_events
        self.told_quietly += other.told_quietly
        for kind, delays in other.delays.items():
            self.delays.setdefault(kind, []).extend(delays)
        for name in ("false_alarms", "quiet_violations", "missed", "wrong"):
            getattr(self, name).extend(getattr(other, name))
        for name in ("found", "events", "right", "asked"):
            mine = getattr(self, name)
            for key, count in getattr(other, name).items():
                mine[key] = mine.get(key, 0) + count

    def recall(self, kinds: Sequence[str] | None = None) -> float:
        """Return found over all, of some kinds or of all."""
        return _ratio(self._count(self.found, kinds), self._count(self.events, kinds))

    def precision(self, kinds: Sequence[str] | None = None) -> float:
        """Return found events over those and the false alarms."""
        found = self._count(self.found, kinds)
        return _ratio(found, found + len(self.false_alarms))

    def f1(self, kinds: Sequence[str] | None = None) -> float:
        """Return the harmonic mean of precision and recall."""
        precision, recall = self.precision(kinds), self.recall(kinds)
        return 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0

    def share(self, what: str) -> str:
        """Return ``right of asked``, e.g. of ``kind``."""
        return f"{self.right.get(what, 0)} of {self.asked.get(what, 0)}"

    def false_per_10k(self) -> float:
        """Return false alarms per 10,000 logged points."""
        return 1e4 * _ratio(len(self.false_alarms), self.points)

    @staticmethod
    def _count(counts: dict[str, int], kinds: Sequence[str] | None) -> int:
        return sum(count for kind, count in counts.items() if kinds is None or kind in kinds)


def labels_of(label: dict[str, Any]) -> list[Event]:
    """Return the events of a label of public logs, or of a laboratory truth."""
    if "events" in label:
        return [
            Event(
                event["kind"],
                event["onset_step"],
                event["recovered_step"],
                event["recovery"],
                event["dataset"],
                event["kind"] in ("spike", "level_shift"),
                event["rank"],
                event["alarm"],
                event["injected_step"],
                event["visible_step"],
                event["ignore_until"],
            )
            for event in label["events"]
        ]
    events = []
    for anomaly in label["anomalies"]:
        kind, recovery = _OTHER_NAMES.get(anomaly["kind"], (anomaly["kind"], None))
        end = anomaly["recovered_step"]
        events.append(Event(kind, anomaly["onset_step"], end, recovery, alarm=anomaly["alarm"]))
    return events


def judge(log: Labelled, said: Sequence[Alarm]) -> Score:
    """Score what a detector said of one log."""
    score = Score(points=len(log.rows))
    alarms = [alarm for alarm in said if alarm.loud]
    loud = [event for event in log.events if event.alarm]
    for event in loud:
        score.events[event.kind] = score.events.get(event.kind, 0) + 1
        in_time = [
            alarm for alarm in alarms if event.seen_in_time(alarm.step, log.interval) and _may_find(alarm, event)
        ]
        if not in_time:
            quiet = any(event.seen_in_time(one.step, log.interval) and one.kind == event.kind for one in said)
            score.told_quietly += quiet
            score.missed.append(f"{log.name}: {event.kind} at {event.onset}{' (told as info only)' * quiet}")
            continue
        best = min(in_time, key=lambda alarm: (alarm.kind != event.kind, alarm.step))
        score.found[event.kind] = score.found.get(event.kind, 0) + 1
        first = min(alarm.step for alarm in in_time)
        score.delays.setdefault(event.kind, []).append(max(0.0, (first - event.onset) / log.interval))
        score.alarms_in_events += sum(event.covers(alarm.step, log.interval) for alarm in alarms)
        if best.kind is not None:
            _grade(score, log, event, best)
    for alarm in _outside(log, loud, alarms):
        text = f"{log.name}: {alarm.kind or 'alarm'} at {alarm.step}"
        score.false_alarms.append(text)
        if any(_tempts(event, alarm.step, log.interval) for event in log.events if not event.alarm):
            score.quiet_violations.append(text)
    return score


def interval(scores: dict[str, list[Score]], value: Any, seed: int = 0) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of a figure, drawing whole clusters of logs with replacement.

    Args:
        scores: cluster -> scores of its logs. value: Score -> figure. seed: of the draws.
    """
    dice, names = random.Random(seed), sorted(scores)
    sums = {name: _sum(scores[name]) for name in names}
    drawn = sorted(value(_sum([sums[dice.choice(names)] for _ in names])) for _ in range(_DRAWS))
    cut = round((1 - _INSIDE) / 2 * _DRAWS)
    return drawn[cut], drawn[-cut - 1]


def _sum(scores: Sequence[Score]) -> Score:
    total = Score()
    for score in scores:
        total.add(score)
    return total


def _may_find(alarm: Alarm, event: Event) -> bool:
    """Return whether an alarm can be about the event; a rule without kinds looks at the loss only."""
    if alarm.kind is None:
        return event.kind not in ("throughput", "straggler")
    return alarm.kind == event.kind if event.kind in STRICT_KINDS else alarm.kind not in STRICT_KINDS


def _grade(score: Score, log: Labelled, event: Event, alarm: Alarm) -> None:
    answers = [("kind", event.kind, alarm.kind)]
    if event.recovery is not None and alarm.kind == event.kind:
        answers.append(("recovery", event.recovery, alarm.recovery))
    if event.asks_dataset:
        what = "none to blame" if event.dataset is None else "dataset"
        answers.append((what, event.dataset, alarm.dataset))
    if event.rank is not None:
        answers.append(("rank", event.rank, alarm.rank))
    for what, expected, said in answers:
        score.asked[what] = score.asked.get(what, 0) + 1
        score.right[what] = score.right.get(what, 0) + (expected == said)
        if expected != said:
            score.wrong.append(
                f"{log.name}: {what} of the {event.kind} at {event.onset} is {expected}, was called {said}"
            )


def _outside(log: Labelled, loud: Sequence[Event], alarms: Sequence[Alarm]) -> list[Alarm]:
    """Return the false alarms; those of a rule without kinds are merged when they are close."""
    false = []
    last: int | None = None
    for alarm in sorted(alarms, key=lambda alarm: alarm.step):
        ignored = any(first <= alarm.step <= end for first, end in log.ignore)
        if ignored or any(event.covers(alarm.step, log.interval) for event in loud):
            continue
        merged = alarm.kind is None and last is not None and alarm.step - last <= MERGED_POINTS * log.interval
        last = alarm.step
        if not merged:
            false.append(alarm)
    return false


def _tempts(event: Event, step: int, interval: int) -> bool:
    end = event.onset + QUIET_POINTS * interval if event.recovered is None else event.recovered
    return event.onset - interval <= step <= end + AFTERMATH_POINTS * interval


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
