"""Names the rank whose own work takes longer than that of the others, by the tables of phases in the slots.

Each rank's slot counts the passes through each phase and their own time. Over a window of steps that gives every
rank's seconds per step and phase, which the straggler detector judges as it does logged times. In synchronous training
the sum is equal on all ranks: the fast ones wait, in a phase in which they meet the others. So only a phase that comes
before the waiting tells, and it is one in which few ranks are slow while the many agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from msgspec import to_builtins

from stabilitybackend.detectors.engine.base import Finding
from stabilitybackend.detectors.stats.rank_table import SlowRankTable
from stabilitybackend.detectors.stats.robust import median
from stabilitybackend.detectors.straggler import ENOUGH_RANKS, WAITING, StragglerDetector
from stabilitybackend.liveness.budgets import is_long
from stabilitybackend.liveness.format import MAX_NAMED_RANKS, capital, gpus_of, seat_of
from stabilitybackend.liveness.rank_watch import MAX_TABLE, RankWatch
from stabilitybackend.schema.evidence import StragglerFacts, facts
from stabilitybackend.schema.health import PhaseTimes

#: A window lasts at least so many seconds and steps: slots are read once a second.
WINDOW_S, WINDOW_STEPS = 10.0, 16
#: A window is skipped while own-work times of ranks came within this time: the detector judges those, seconds.
DETECTOR_S = 300.0

__all__ = ["SlowRanks"]


@dataclass(slots=True)
class _WindowStart:
    """Where a rank was when the window began."""

    source: str
    step: int
    table: dict[str, tuple[float, float]]


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
        self._judge = StragglerDetector()
        #: Keys of the detector's events -> ours.
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
        self._judge.carry_on(event)
        self._keys[self._judge.key(known.phase, event.onset)] = finding.key
        self._newest_step = max(self._newest_step, finding.now_step)

    def logs_own_work(self, rank: int, now: float) -> None:
        """Take note that a rank logs times of its own work: from two on the detector judges, not we."""
        self._own_work[rank] = now
        while len(self._own_work) > 2:
            del self._own_work[next(iter(self._own_work))]

    def tick(self, visible: list[RankWatch], excused_until: float, over: bool, now: float) -> list[Finding]:
        """Return what is news about slow ranks; ``over``: no process of the job runs any more."""
        if not visible:
            ended = self._judge.end(self._newest_step) if over else []
            return [self._dressed(finding, {}) for finding in ended]
        if not self._began or excused_until >= self._began:
            self._begin(visible, now)
            return []
        if now - self._began < WINDOW_S or not self._is_full(visible):
            return []
        pace, starts = self._speed(visible), self._starts
        self._begin(visible, now)
        if sum(now - time < DETECTOR_S for time in self._own_work.values()) > 1:
            return []
        return self._compared(pace, starts, {watch.rank: watch for watch in visible})

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
            if not is_long(name) and not any(word in name.lower() for word in WAITING):
                a_step = median(passes[name])
                pace.phases[name] = {rank: mean * a_step for rank, mean in by_rank.items()}
        return pace

    def _compared(
        self, pace: _RankSpeed, starts: Mapping[int, _WindowStart], watches: Mapping[int, RankWatch]
    ) -> list[Finding]:
        """Compare the ranks in each phase, in the order in which those of a step come."""
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
        """Return a finding of the detector as one about processes that are known."""
        rank, phase, ranks = finding.rank or 0, finding.metric, [int(name) for name in finding.evidence["ranks"]]
        self._newest_step = max(self._newest_step, finding.now_step)
        key = self._keys.setdefault(finding.key, f"straggler:liveness:{rank}")
        if finding.state != "open":
            del self._keys[finding.key]
        watch = watches.get(rank)
        who = capital(seat_of(watch)) if watch is not None else f"Rank {rank}"
        known = [watches[one] for one in ranks[:MAX_NAMED_RANKS] if one in watches]
        return replace(
            finding,
            detector="liveness",
            key=key,
            metric=None,
            node=(watch.node or None) if watch is not None else None,
            title=finding.title.replace("is slow", f"is slow in {phase}", 1),
            text=finding.text.replace(f"Rank {rank} ", f"{who} ", 1),
            now_step=self._newest_step,
            evidence=finding.evidence | {"phase": phase, "slow": ranks, "gpus": to_builtins(gpus_of(known))},
        )


def _passes(table: Mapping[str, PhaseTimes]) -> dict[str, tuple[float, float]]:
    """Return name -> (passes, seconds) of a table of phases; one that was never passed is left out."""
    named = islice(table.items(), MAX_TABLE)
    return {name: (seen.count, seen.total_s) for name, seen in named if seen.count > 0 and seen.total_s >= 0}
