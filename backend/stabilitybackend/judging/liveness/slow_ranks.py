"""Ranks whose own work takes longer than the others', by the slots' phases and waiting.

Each rank's slot counts the passes through each phase and their own time. Over a window of steps that gives every rank's
seconds per step and phase, judged by the straggler detector like logged times. In synchronous training the sum is equal
on all ranks: the fast ones wait, in a phase in which they meet the others. So only a phase before the wait is evidence,
in which few ranks are slow while the many agree.

Without phases the waiting itself is: the slots count the part of the samples in which a rank's loop waited for others.
The rest of a step is its own work, and the rank with the least wait is slow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from msgspec import to_builtins

from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.detectors.stats.rank_table import RankPast, SlowRankTable
from stabilitybackend.judging.detectors.stats.robust import median
from stabilitybackend.judging.detectors.straggler import ENOUGH_RANKS, WAITING, StragglerDetector
from stabilitybackend.judging.liveness.budgets import is_long
from stabilitybackend.judging.liveness.format import MAX_NAMED_RANKS, capital, gpus_of, seat_of
from stabilitybackend.judging.liveness.rank_watch import MAX_TABLE, RankWatch
from stabilitybackend.schema.evidence import StragglerFacts, facts
from stabilitybackend.schema.health import PhaseTimes, WaitSamples

#: Least length of a window in seconds and steps: slots are sampled once a second.
WINDOW_S, WINDOW_STEPS = 10.0, 16
#: Few samples are added up until they decide: over so many seconds at most, from so many moments.
MOST_WAITING_S, MOST_STARTS = 640.0, 16
#: Label of own work measured by waiting only.
OWN_WORK = "its own work"
#: Facts of a slow rank's past for a restarted server: whether it changed, and how long it is slow.
KEPT_OF_PAST = ("before", "past_excess", "slow_windows", "slow_excess", "cost")
#: A window is skipped if own-work times of ranks arrived within this time, as the detector judges those, seconds.
DETECTOR_S = 300.0

__all__ = ["SlowRanks"]


@dataclass(slots=True)
class _WindowStart:
    """A rank's position at the start of the window."""

    source: str
    step: int
    table: dict[str, tuple[float, float]]


@dataclass(slots=True)
class _WaitStart:
    """The ranks' waiting at a moment, by rank: source, step and samples."""

    time: float
    ranks: dict[int, tuple[str, int, WaitSamples]]


@dataclass(slots=True)
class _OwnWork:
    """The own work of ranks over some time, by their waiting.

    Attributes:
        times: rank -> seconds a step. error_s: standard error of the difference of two of them.
        step_s: seconds of a whole step. took_s: seconds of all. first, last: steps.
    """

    times: dict[int, float]
    error_s: float
    step_s: float
    took_s: float
    first: int
    last: int


@dataclass(slots=True)
class _RankSpeed:
    """Seconds per step of each rank in each phase, over one window."""

    phases: dict[str, dict[int, float]] = field(default_factory=dict)
    steps_s: dict[int, float] = field(default_factory=dict)


class SlowRanks:
    """The slow ranks of one run."""

    def __init__(self) -> None:
        self._starts: dict[int, _WindowStart] = {}
        self._began = 0.0
        #: Moments from which samples of waiting are added up, oldest first.
        self._wait_starts: list[_WaitStart] = []
        self._judge = StragglerDetector()
        #: Keys of the detector's events -> own keys.
        self._keys: dict[str, str] = {}
        self._own_work: dict[int, float] = {}
        #: Newest step of a finding: after a rollback the same rank may be slow again at a lower one.
        self._newest_step = -1

    def load(self, finding: Finding) -> None:
        """Take over a stored open incident."""
        known = facts(finding.evidence, StragglerFacts)
        if finding.rank is None:
            return
        ranks = dict.fromkeys(known.slow or [finding.rank], known.level_after)
        event = SlowRankTable(
            known.phase, finding.onset_step, finding.step, finding.severity, ranks, known.level_before, known.sigma,
            [known.phase], lost_s=known.lost_s, reported_s=known.lost_s,
        )  # fmt: skip
        past = {name: value for name, value in known.past.items() if name in KEPT_OF_PAST}
        self._judge.carry_on(event, RankPast(**past))  # type: ignore[arg-type]
        self._keys[self._judge.key(known.phase, event.onset)] = finding.key
        self._newest_step = max(self._newest_step, finding.now_step)

    def logs_own_work(self, rank: int, now: float) -> None:
        """Take that a rank logs times of its own work: from two on the detector judges them."""
        self._own_work[rank] = now
        while len(self._own_work) > 2:
            del self._own_work[next(iter(self._own_work))]

    def tick(self, visible: list[RankWatch], excused_until: float, over: bool, now: float) -> list[Finding]:
        """Return new findings about slow ranks; ``over``: no process of the job runs any more."""
        if not visible:
            ended = self._judge.end(self._newest_step) if over else []
            return [self._dressed(finding, {}) for finding in ended]
        logged = sum(now - time < DETECTOR_S for time in self._own_work.values()) > 1
        found: list[Finding] = []
        if not self._began or excused_until >= self._began:
            self._begin(visible, now)
        elif now - self._began >= WINDOW_S and self._is_full(visible):
            pace, starts = self._speed(visible), self._starts
            self._begin(visible, now)
            found = [] if logged else self._compared(pace, starts, {watch.rank: watch for watch in visible})
        since = [start for start in self._wait_starts if start.time > excused_until and not logged]
        if not since:
            self._wait_starts = [_wait_start(visible, now)]
        elif now - since[-1].time >= WINDOW_S:
            found += self._compared_waits(visible, since, now)
        return found

    def _begin(self, visible: Iterable[RankWatch], now: float) -> None:
        self._began = now
        self._starts = {
            w.rank: _WindowStart(w.source, w.step, _passes(w.table)) for w in visible if w.table and w.step >= 0
        }

    # --- by waiting ------------------------------------------------------------------------------------------------

    def _compared_waits(self, visible: list[RankWatch], starts: list[_WaitStart], now: float) -> list[Finding]:
        """Compare the own work of ranks, from the moment that shows a slow one best.

        While it proves neither a slow one nor its absence, further samples are added up.
        """
        watches = {watch.rank: watch for watch in visible}
        works = [work for start in starts if (work := _own_work(watches, start, now)) is not None]
        best = max(works, key=self._strength, default=None)
        if best is not None and not self._strength(best):
            best = works[0] if self._judge.is_sure(list(works[0].times.values()), works[0].error_s) else None
        newest = _wait_start(visible, now)
        if best is None:
            kept = [*starts[:: 2 if len(starts) >= MOST_STARTS else 1], newest]
            self._wait_starts = [start for start in kept if now - start.time < MOST_WAITING_S]
            return []
        self._wait_starts = [newest]
        found = self._judge.compare(
            OWN_WORK, best.times, (best.first, best.last - best.first), best.last, best.step_s, MAX_TABLE + 1,
            error_s=best.error_s, windows=max(1, round(best.took_s / WINDOW_S)),
        )  # fmt: skip
        return [self._dressed(finding, watches) for finding in found]

    def _strength(self, work: _OwnWork) -> float:
        return self._judge.strength(list(work.times.values()), work.step_s, work.error_s)

    def _is_full(self, visible: Iterable[RankWatch]) -> bool:
        steps = [w.step - self._starts[w.rank].step for w in visible if w.rank in self._starts]
        return bool(steps) and median(steps) >= WINDOW_STEPS

    def _speed(self, visible: Iterable[RankWatch]) -> _RankSpeed:
        pace = _RankSpeed()
        passes: dict[str, list[float]] = {}
        means: dict[str, dict[int, float]] = {}
        for watch in visible:
            start = self._starts.get(watch.rank)
            if start is None or start.source != watch.source or watch.step - start.step < WINDOW_STEPS // 2:
                continue
            steps = watch.step - start.step
            whole = 0.0
            for name, (count, total) in _passes(watch.table).items():
                old_count, old_total = start.table.get(name, (0.0, 0.0))
                if count <= old_count or total < old_total:
                    continue
                whole += (total - old_total) / steps
                # By the pass and not by the step: an unfinished pass is in no total.
                means.setdefault(name, {})[watch.rank] = (total - old_total) / (count - old_count)
                passes.setdefault(name, []).append((count - old_count) / steps)
            pace.steps_s[watch.rank] = whole
        for name, by_rank in means.items():
            if not is_long(name) and not any(word in name.lower() for word in WAITING):
                a_step = median(passes[name])
                pace.phases[name] = {rank: mean * a_step for rank, mean in by_rank.items()}
        return pace

    def _compared(
        self, pace: _RankSpeed, starts: Mapping[int, _WindowStart], watches: Mapping[int, RankWatch]
    ) -> list[Finding]:
        """Compare the ranks in each phase, in the order within a step."""
        if not pace.steps_s:
            return []
        step_s, start = median(list(pace.steps_s.values())), min(starts[rank].step for rank in pace.steps_s)
        newest = max(watches[rank].step for rank in pace.steps_s)
        found: list[Finding] = []
        for name, times in pace.phases.items():
            if len(times) < 2:
                continue
            found += self._judge.compare(name, times, (start, newest - start), newest, step_s, MAX_TABLE)
            if len(times) < ENOUGH_RANKS and self._judge.is_slow(name):
                break  # in the phases after it the others wait for it
        return [self._dressed(finding, watches) for finding in found]

    def _dressed(self, finding: Finding, watches: Mapping[int, RankWatch]) -> Finding:
        """Return a finding of the detector as one about processes."""
        rank, phase, ranks = finding.rank or 0, finding.metric or "", [int(name) for name in finding.evidence["ranks"]]
        past = self._judge.past_of(phase, rank)
        self._newest_step = max(self._newest_step, finding.now_step)
        key = self._keys.setdefault(finding.key, f"straggler:liveness:{rank}")
        if finding.state != "open":
            del self._keys[finding.key]
        title, text = finding.title, finding.text
        if phase == OWN_WORK:  # its moment is measured by a window, no better
            title, text = (words.replace("since step", "since about step", 1) for words in (title, text))
        else:
            title = title.replace("is slow", f"is slow in {phase}", 1)
        watch = watches.get(rank)
        who = capital(seat_of(watch)) if watch is not None else f"Rank {rank}"
        known = [watches[one] for one in ranks[:MAX_NAMED_RANKS] if one in watches]
        return replace(
            finding,
            detector="liveness",
            key=key,
            metric=None,
            node=(watch.node or None) if watch is not None else None,
            title=title,
            text=text.replace(f"Rank {rank} ", f"{who} ", 1),
            now_step=self._newest_step,
            evidence=finding.evidence
            | {"phase": phase, "slow": ranks, "gpus": to_builtins(gpus_of(known))}
            | {"past": {name: getattr(past, name) for name in KEPT_OF_PAST}},
        )


def _passes(table: Mapping[str, PhaseTimes]) -> dict[str, tuple[float, float]]:
    """Return name -> (passes, seconds) of a table of phases, without those never passed."""
    named = islice(table.items(), MAX_TABLE)
    return {name: (seen.count, seen.total_s) for name, seen in named if seen.count > 0 and seen.total_s >= 0}


def _wait_start(visible: Iterable[RankWatch], now: float) -> _WaitStart:
    seen = (watch for watch in visible if watch.step >= 0)
    return _WaitStart(now, {w.rank: (w.source, w.step, w.waits) for w in seen if w.waits is not None})


def _own_work(watches: Mapping[int, RankWatch], start: _WaitStart, now: float) -> _OwnWork | None:
    """Return the result of the samples since a moment, None where fewer than two ranks were sampled in enough steps."""
    shares: dict[int, float] = {}
    made: list[float] = []
    variances, fewest = 0.0, math.inf
    for rank, (source, step, before) in start.ranks.items():
        watch = watches.get(rank)
        if watch is None or watch.source != source or watch.waits is None:
            continue
        steps, sampled = watch.step - step, watch.waits.steps - before.steps
        if min(steps, sampled) < WINDOW_STEPS:
            continue
        waited = (watch.waits.waited - before.waited) / sampled
        shares[rank] = 1 - waited
        variances += max(0.0, (watch.waits.squares - before.squares) / sampled - waited**2)
        fewest = min(fewest, sampled)
        made.append(float(steps))
    if len(shares) < 2:
        return None
    step_s = (now - start.time) / median(made)
    # Of the difference of two means of so many steps, each at best exact to one sample.
    error_s = step_s * math.sqrt(2 * (variances / len(shares) / fewest + fewest**-2))
    first, last = min(start.ranks[rank][1] for rank in shares), max(watches[rank].step for rank in shares)
    times = {rank: share * step_s for rank, share in shares.items()}
    return _OwnWork(times, error_s, step_s, now - start.time, first, last)
