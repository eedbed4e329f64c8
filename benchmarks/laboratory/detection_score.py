"""Scores alarms against labels: one event, one alarm; a tolerance in logged points; no reward for later alarms.

An event is found when an alarm is raised from one logged point before its onset to ``TOLERANCE`` points after it, a
plateau as long as it lasts. Other alarms until ten points after its end are neither counted nor punished. All others
are false; those no more than 20 points apart are one. An event of one point is found by anything that is recorded
there: nobody is to be paged for one odd batch, and nobody is to lose it. Point-adjusted scores, which count a whole
event as found by any point in it, are not used: they flatter.

A kind is right when it is the effect's, or that of the planted cause: a learning rate that leaves its schedule makes a
spike, a divergence or a bad resume, and to hear of the rate is more use than to hear of its effect. ``learning_rate``
is wrong for every other fault. ``effect`` counts the kinds of effects only.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from labelled_logs import AFTERMATH_POINTS, LASTING_KINDS, Event, Labelled

__all__ = [
    "LOSS_KINDS",
    "Alarm",
    "Score",
    "interval",
    "judge",
    "recall_by_cluster",
    "total_of",
]

#: False alarms no further apart than this are one.
MERGED_POINTS = 20
#: Points after which a quiet event without an end no longer tempts anybody.
QUIET_POINTS = 50
#: Kinds that show in the loss, which is what the rules in use look at.
LOSS_KINDS = ("spike", "divergence", "nonfinite", "level_shift", "resume_artifact", "repeat_data")
#: Kinds that only an alarm of their own kind finds: they do not show in the loss, or a late word of another is no help.
STRICT_KINDS = ("nonfinite", "throughput", "straggler")
#: Draws for an interval, and the part of them that lies in it.
_DRAWS, _INSIDE = 2_000, 0.95


@dataclass(frozen=True)
class Alarm:
    """What a detector said, at the step at which it said it first. Rules in use know no more than the step.

    Args:
        loud: people are called; a quiet word is only counted where an event is missed otherwise.
        more: what else was said (onset, peak, recovery, severity, state), for comparisons only.
    """

    step: int
    kind: str | None = None
    recovery: str | None = None
    dataset: str | None = None
    rank: int | None = None
    loud: bool = True
    more: str = ""


@dataclass
class Score:
    """Counts over logs, by kind where they are dicts. ``delays``: points after the onset. ``right`` and ``asked``
    hold kind, effect, recovery, dataset, ``none to blame``, rank.
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


#: A place in the log, and an alarm there.
_Heard = tuple[int, Alarm]


def judge(log: Labelled, said: Sequence[Alarm]) -> Score:
    """Score what a detector said of one log."""
    score = Score(points=len(log.rows) - log.unscored)
    everything = _heard(log, said)
    alarms = [(place, alarm) for place, alarm in everything if alarm.loud]
    covering = [event for event in log.events if event.alarm or event.excused]
    for event in log.events:
        if not event.alarm or log.place(event.onset) < log.unscored or log.is_ignored(event.onset):
            continue
        score.events[event.kind] = score.events.get(event.kind, 0) + 1
        in_time = [
            (place, alarm)
            for place, alarm in (everything if event.one_point else alarms)
            if log.seen_in_time(event, place) and (not log.exact or _may_find(alarm, event))
        ]
        if not in_time:
            quiet = any(log.seen_in_time(event, place) and one.kind == event.kind for place, one in everything)
            score.told_quietly += quiet
            score.missed.append(f"{log.name}: {event.kind} at {event.onset}{' (told as info only)' * quiet}")
            continue
        _, best = min(in_time, key=lambda heard: (heard[1].kind != event.kind, heard[1].kind != event.cause, heard[0]))
        score.found[event.kind] = score.found.get(event.kind, 0) + 1
        first = min(place for place, _ in in_time)
        score.delays.setdefault(event.kind, []).append(max(0.0, first - log.place(event.onset)))
        score.alarms_in_events += sum(log.covers(event, place) for place, _ in alarms)
        if best.kind is not None:
            _grade(score, log, event, best)
    for place, alarm in _outside(log, covering, alarms):
        text = f"{log.name}: {alarm.kind or 'alarm'} at {alarm.step}"
        score.false_alarms.append(text)
        if any(_tempts(log, event, place) for event in log.events if event not in covering):
            score.quiet_violations.append(text)
    return score


def recall_by_cluster(scores: dict[str, list[Score]]) -> float:
    """Return the mean of the recalls of clusters that have events: one repository with many does not count as many."""
    totals = [total_of(several) for several in scores.values()]
    return fmean([total.recall() for total in totals if total.events] or [0.0])


def interval(scores: dict[str, list[Score]], value: Any, seed: int = 0) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of a figure, drawing whole clusters of logs with replacement.

    Args:
        scores: cluster -> scores of its logs. value: Score -> figure. seed: of the draws.
    """
    dice, names = random.Random(seed), sorted(scores)
    sums = {name: total_of(scores[name]) for name in names}
    drawn = sorted(value(total_of([sums[dice.choice(names)] for _ in names])) for _ in range(_DRAWS))
    cut = round((1 - _INSIDE) / 2 * _DRAWS)
    return drawn[cut], drawn[-cut - 1]


def total_of(scores: Sequence[Score]) -> Score:
    """Return the sum of scores."""
    total = Score()
    for score in scores:
        total.add(score)
    return total


def _heard(log: Labelled, said: Sequence[Alarm]) -> list[_Heard]:
    """Return what was said where it is scored, in the order of the log."""
    last = len(log.steps) - 1
    places = [(log.place(alarm.step), alarm) for alarm in said if log.exact or alarm.kind not in LASTING_KINDS]
    heard = [one for one in places if one[0] >= log.unscored and not log.is_ignored(log.steps[min(one[0], last)])]
    return sorted(heard, key=lambda one: one[0])


def _may_find(alarm: Alarm, event: Event) -> bool:
    """Return whether an alarm can be about the event; a rule without kinds looks at the loss only."""
    if alarm.kind is None:
        return event.kind not in ("throughput", "straggler")
    return alarm.kind == event.kind if event.kind in STRICT_KINDS else alarm.kind not in STRICT_KINDS


def _grade(score: Score, log: Labelled, event: Event, alarm: Alarm) -> None:
    named = event.kind if alarm.kind == event.cause else alarm.kind
    answers = [("kind", event.kind, named), ("effect", event.kind, alarm.kind)]
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
        if expected != said and what != "effect":
            score.wrong.append(
                f"{log.name}: {what} of the {event.kind} at {event.onset} is {expected}, was called {said}"
            )


def _outside(log: Labelled, covering: Sequence[Event], alarms: Sequence[_Heard]) -> list[_Heard]:
    """Return the false alarms: those of no event, of which those that are close are one."""
    false = []
    last: int | None = None
    for place, alarm in alarms:
        if any(log.covers(event, place) for event in covering):
            continue
        if last is None or place - last > MERGED_POINTS:
            false.append((place, alarm))
        last = place
    return false


def _tempts(log: Labelled, event: Event, place: int) -> bool:
    onset = log.place(event.onset)
    end = onset + QUIET_POINTS if event.recovered is None else log.place(event.recovered)
    return onset - 1 <= place <= end + AFTERMATH_POINTS


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
