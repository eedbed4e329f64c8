"""Names the rank whose own work takes longer than that of the others, by the tables of phases in the slots.

Each rank's slot counts the passes through each phase and their own time. Over a window of steps that gives every
rank's seconds per step and phase, which are compared among the ranks. In synchronous training the sum is equal on all
ranks: the fast ones wait, in a phase in which they meet the others. So only a phase that comes before the waiting
tells, and it is one in which few ranks are slow while the many agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from msgspec import to_builtins

from stabilitybackend.detectors.engine.base import Finding
from stabilitybackend.detectors.stats.robust import MAD_TO_SIGMA, median
from stabilitybackend.liveness.budgets import is_long
from stabilitybackend.liveness.format import MAX_NAMED_RANKS, capital, gpus_of, name_ranks, seat_of
from stabilitybackend.liveness.rank_watch import MAX_TABLE, RankWatch
from stabilitybackend.schema.evidence import StragglerFacts, facts

#: A window lasts at least so many steps of the job, and so many seconds.
WINDOW_STEPS = 8
WINDOW_S = 10.0
#: Windows in a row that must agree, for slow and for usual again.
CONFIRM = 2
#: A rank is slow in a phase from so much above the median of the ranks, as a share of that median, ...
SLOWER = 0.25
#: ... of the step (a slow crumb of a step is nothing), ...
STEP_SHARE = 0.05
#: ... and in robust deviations of the ranks.
SIGMAS = 5.0
#: A deviation is at least this share of the median: ranks that agree to the microsecond still differ by luck.
SIGMA_FLOOR = 0.02
#: Seconds a step below which nothing is said: the clock of a busy machine.
LEAST_EXCESS_S = 0.005
#: Fewer ranks than this are compared with the fastest one, by this many times the excess.
FEW_RANKS = 4
FEW_FACTOR = 2.0
#: Of the ranks so many may be slow at once; where more are, the usual ones are fast, or all are slow.
MOST_SLOW = 0.4
#: Open findings at a time; ranks that become slow together are one.
MAX_OPEN = 8
#: A window is skipped while own-work times of ranks came within this time: the detector judges those, seconds.
DETECTOR_S = 300.0
#: Phases in which a rank waits for others, by a part of their name.
_WAITING = ("wait", "sync", "barrier", "reduce", "gather", "comm", "idle")

__all__ = ["SlowRanks"]


@dataclass(slots=True)
class _WindowStart:
    """Where a rank was when the window began."""

    source: str
    step: int
    table: dict[str, tuple[float, float]]


@dataclass(slots=True)
class _SlowRankEvent:
    finding: Finding
    phase: str
    ranks: set[int]
    usual: int = 0


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
        self._slow: dict[tuple[str, int], tuple[int, int]] = {}
        self._open: list[_SlowRankEvent] = []
        self._own_work: dict[int, float] = {}
        #: Newest step of a finding: after a rollback the same rank may be slow again at a lower one.
        self._newest_step = -1

    def load(self, finding: Finding) -> None:
        """Take over a stored open incident."""
        if finding.rank is not None and len(self._open) < MAX_OPEN:
            known = facts(finding.evidence, StragglerFacts)
            self._open.append(_SlowRankEvent(finding, known.phase, set(known.slow or [finding.rank])))

    def logs_own_work(self, rank: int, now: float) -> None:
        """Take note that a rank logs times of its own work: from two on the detector judges, not we."""
        self._own_work[rank] = now
        while len(self._own_work) > MAX_OPEN:
            del self._own_work[next(iter(self._own_work))]

    def tick(self, visible: list[RankWatch], excused_until: float, over: bool, now: float) -> list[Finding]:
        """Return what is news about slow ranks; ``over``: no process of the job runs any more."""
        if not visible:
            ended, self._open = (self._open, []) if over else ([], self._open)
            return [_ended(event.finding, "The job is over.", event.finding.now_step, gone=True) for event in ended]
        if not self._began or excused_until >= self._began:
            self._begin(visible, now)
            return []
        if now - self._began < WINDOW_S or not self._is_full(visible):
            return []
        pace = self._speed(visible)
        self._begin(visible, now)
        if sum(now - time < DETECTOR_S for time in self._own_work.values()) > 1:
            pace = _RankSpeed()
        return self._judge(pace, {watch.rank: watch for watch in visible})

    def _begin(self, visible: Iterable[RankWatch], now: float) -> None:
        self._began = now
        self._starts = {
            w.rank: _WindowStart(w.source, w.step, _passes(w.table)) for w in visible if w.table and w.step >= 0
        }

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
                # By the pass and not by the step: a pass that is under way is in no total.
                means.setdefault(name, {})[watch.rank] = (total - old_total) / (count - old_count)
                passes.setdefault(name, []).append((count - old_count) / steps)
            pace.steps_s[watch.rank] = whole
        for name, by_rank in means.items():
            if not is_long(name) and not any(word in name.lower() for word in _WAITING):
                a_step = median(passes[name])
                pace.phases[name] = {rank: mean * a_step for rank, mean in by_rank.items()}
        return pace

    def _judge(self, pace: _RankSpeed, watches: Mapping[int, RankWatch]) -> list[Finding]:
        step_s = median(list(pace.steps_s.values())) if pace.steps_s else 0.0
        fresh: dict[str, dict[int, tuple[float, float, float]]] = {}
        blamed: set[int] = set()
        slow_now: set[tuple[str, int]] = set()
        compared: set[int] = set()
        for name, times in pace.phases.items():  # in the order in which the phases of a step come
            if len(times) < 2:
                continue
            compared.update(times)
            slow, level, sigma = _slow(times, step_s)
            # Who waits for a rank that was slow in an earlier phase is not slow.
            others = slow if len(times) >= FEW_RANKS else {r: s for r, s in slow.items() if not blamed - {r}}
            blamed |= others.keys()
            for rank, value in others.items():
                slow_now.add((name, rank))
                windows, onset = self._slow.get((name, rank), (0, self._starts_step(rank, watches)))
                self._slow[name, rank] = (windows + 1, onset)
                if windows + 1 >= CONFIRM:
                    fresh.setdefault(name, {})[rank] = (value, level, sigma)
        if not compared:
            return []
        self._slow = {key: kept for key, kept in self._slow.items() if key in slow_now}
        return [*self._opened(fresh, watches), *self._followed(slow_now, compared, watches)]

    def _starts_step(self, rank: int, watches: Mapping[int, RankWatch]) -> int:
        start = self._starts.get(rank)
        return max(0, (start.step if start is not None else watches[rank].step) - WINDOW_STEPS)

    def _opened(
        self, fresh: Mapping[str, Mapping[int, tuple[float, float, float]]], watches: Mapping[int, RankWatch]
    ) -> list[Finding]:
        found = []
        for name, ranks in fresh.items():
            known = {rank for event in self._open for rank in event.ranks}
            new = {rank: speed for rank, speed in ranks.items() if rank not in known}
            if not new or len(self._open) >= MAX_OPEN:
                continue
            onset = min(self._slow[name, rank][1] for rank in new)
            finding = _finding(name, new, onset, watches)
            finding = replace(finding, now_step=max(finding.now_step, self._newest_step))
            self._open.append(_SlowRankEvent(finding, name, set(new)))
            found.append(finding)
        return found

    def _followed(
        self, slow_now: set[tuple[str, int]], compared: set[int], watches: Mapping[int, RankWatch]
    ) -> list[Finding]:
        found = []
        for event in list(self._open):
            still = any((event.phase, rank) in slow_now for rank in event.ranks)
            gone = compared.isdisjoint(event.ranks)
            event.usual = 0 if still else event.usual + 1
            if event.usual < CONFIRM:
                continue
            self._open.remove(event)
            now_step = max([event.finding.now_step, *(watch.step for watch in watches.values())])
            who = name_ranks(sorted(event.ranks))
            verb = "keeps" if len(event.ranks) == 1 else "keep"
            end = f"No data from {who} any more." if gone else f"Now {who} {verb} up with the others again."
            found.append(_ended(event.finding, end, now_step, gone=gone))
            self._newest_step = max(self._newest_step, now_step)
        return found


def _ended(finding: Finding, end: str, now_step: int, *, gone: bool) -> Finding:
    return replace(
        finding,
        state="resolved" if gone else "recovered",
        text=f"{finding.text} {end}",
        now_step=now_step,
        recovered_step=None if gone else now_step,
    )


def _passes(table: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, float]]:
    """Return name -> (passes, seconds) of a table of phases; one that was never passed is left out."""
    named = islice(table.items(), MAX_TABLE)
    return {name: (count, total) for name, (count, total, _) in named if count > 0 and total >= 0}


def _slow(times: Mapping[int, float], step_s: float) -> tuple[dict[int, float], float, float]:
    """Return the slow ranks of a phase with their seconds a step, the usual seconds, and the ranks' deviation."""
    values = list(times.values())
    if len(values) < FEW_RANKS:
        level = min(values)
        sigma = max(SIGMA_FLOOR * level, 1e-9)
        limit = level + max(FEW_FACTOR * SLOWER * level, FEW_FACTOR * STEP_SHARE * step_s, LEAST_EXCESS_S)
        most = 1
    else:
        level = median(values)
        sigma = max(MAD_TO_SIGMA * median([abs(value - level) for value in values]), SIGMA_FLOOR * level, 1e-9)
        limit = level + max(SLOWER * level, SIGMAS * sigma, STEP_SHARE * step_s, LEAST_EXCESS_S)
        most = max(1, int(MOST_SLOW * len(values)))
    slow = {rank: value for rank, value in times.items() if value > limit}
    return (slow if len(slow) <= most else {}), level, sigma


def _finding(
    phase: str, ranks: Mapping[int, tuple[float, float, float]], onset: int, watches: Mapping[int, RankWatch]
) -> Finding:
    worst = max(ranks, key=lambda rank: ranks[rank][0])
    value, level, sigma = ranks[worst]
    watch, more = watches[worst], sorted(set(ranks) - {worst})
    rise = 100.0 * (value / level - 1.0) if level > 0 else None
    shown = f" ({rise:+.0f} %)" if rise is not None else ""
    text = (
        f"{capital(seat_of(watch))} needs {value:.3g} s a step in {phase} where the others need {level:.3g} s{shown}, "
        f"since step {onset}."
    )
    if more:
        text += f" With it {name_ranks(more)}."
    text += " All ranks wait for it. A suspect, not a culprit: its data may be longer than theirs, or its stage larger."
    return Finding(
        detector="liveness",
        key=f"straggler:liveness:{worst}",
        kind="straggler",
        state="open",
        severity="warning",
        title=f"Rank {worst} is slow in {phase} since step {onset}{shown}",
        text=text,
        onset_step=onset,
        step=max(watch.step, onset),
        now_step=max(watch.step, onset),
        rank=worst,
        node=watch.node or None,
        score=min((value - level) / sigma, 1e9),
        evidence={
            "phase": phase,
            "level_before": level,
            "level_after": value,
            "sigma": sigma,
            "rise_percent": rise,
            "direction": "up",
            "ranks": {str(rank): ranks[rank][0] for rank in sorted(ranks)[:MAX_NAMED_RANKS]},
            "slow": sorted(ranks)[:MAX_NAMED_RANKS],
            "slow_ranks": len(ranks),
            "gpus": to_builtins(gpus_of([watches[rank] for rank in sorted(ranks)[:MAX_NAMED_RANKS]])),
        },
    )
