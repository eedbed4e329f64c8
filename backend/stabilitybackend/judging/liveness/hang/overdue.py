"""Ranks stalled too long, and excuses: a long phase, a slow rank, a rank with few reports.

Not every rank reports each step: in many jobs only rank 0 logs, or the others log one step in fifty. Then their reports
stall, not the job: the others make steps, which they can't while one of them hangs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from stabilitybackend.judging.liveness.agents import SILENT_AFTER_S
from stabilitybackend.judging.liveness.budgets import AFTER_LOOP, Budgets, Limits
from stabilitybackend.judging.liveness.hang.suspects import furthest_back
from stabilitybackend.judging.liveness.rank_watch import RankWatch

#: Growths of the others' newest step while a reporting rank is stalled: ranks are a step or two apart.
PASSED_AFTER = 3
#: Fewest moves of a rank with few reports that give its own pace.
FEW_MOVES = 8

__all__ = ["Allowance", "StallDetection", "budget_of", "has_pace"]


class Allowance:
    """Budgets of ranks at one moment."""

    def __init__(self, budgets: Budgets, limits: Limits) -> None:
        self.usual_step_s = budgets.usual_step_s
        self._budgets = budgets
        self._limits = limits
        self._known: dict[tuple[str, float, bool, float], float] = {}

    def of(self, watch: RankWatch) -> float:
        """Return a rank's budget, seconds."""
        phase = _declared(watch)
        key = (phase, watch.expect_s, watch.first_step_done, 0.0 if phase else watch.stands.longest_s)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = budget_of(watch, self._budgets, self._limits)
        return found


def budget_of(watch: RankWatch, budgets: Budgets, limits: Limits) -> float:
    """Return a rank's budget, seconds."""
    return budgets.of(
        _declared(watch), watch.expect_s, limits, first_step_done=watch.first_step_done, stand_s=watch.stands.longest_s
    )


def has_pace(watch: RankWatch) -> bool:
    """Return whether a rank's own pace is measured: not without reported steps, or with a few at its start."""
    return watch.in_long_phase or not watch.sparse or watch.moves >= FEW_MOVES


def _declared(watch: RankWatch) -> str:
    return "" if watch.phase == AFTER_LOOP else watch.phase


class StallDetection:
    """Moves of the ranks, and those passed by the others."""

    def __init__(self) -> None:
        #: Past their budgets at the last tick, and excused by another rank's long phase, by source.
        self.waiting: set[str] = set()
        self._newest = -1
        self._front = 0
        #: Rank -> time of its last move, and growths of the newest step by then.
        self._marks: dict[int, tuple[float, int]] = {}
        #: Growth of the newest step, in total and at each rank's first report.
        self._made = 0
        self._made_before: dict[str, int] = {}

    def update(self, visible: Collection[RankWatch], now: float) -> None:
        """Take the moves since the last call, and set ``sparse`` of each visible rank."""
        fresh = [watch for watch in visible if now - watch.seen_at <= SILENT_AFTER_S]
        newest = max((watch.step for watch in fresh), default=-1)
        if newest < self._newest:
            self._marks.clear()  # the job went back
        self._front += newest > self._newest
        self._made += max(0, newest - self._newest) if self._newest >= 0 else 0
        self._newest = newest
        marks = {}
        self._made_before = {w.source: self._made_before.get(w.source, self._made) for w in visible if w.step < 0}
        for watch in fresh:
            if watch.step < 0 and self._made - self._made_before[watch.source] > PASSED_AFTER:
                # It makes its steps with the others and reports none: a loop of run.steps() would have shown one.
                watch.stepless = watch.first_step_done = True
            moved_at, front = self._marks.get(watch.rank, (0.0, self._front))
            if moved_at == 0.0:
                marks[watch.rank] = (watch.moved_at, self._front)
                continue
            passed = self._front - front > PASSED_AFTER
            if moved_at == watch.moved_at:
                marks[watch.rank] = (moved_at, front)
                watch.sparse |= passed
            else:
                marks[watch.rank] = (watch.moved_at, self._front)
                watch.sparse = passed
            watch.sparse |= watch.stepless and not watch.phase
        self._marks = marks

    def overdue(
        self,
        visible: Collection[RankWatch],
        every: Iterable[RankWatch],
        allowed: Allowance,
        excused_until: float,
        now: float,
    ) -> tuple[list[RankWatch], bool]:
        """Return the ranks past their budgets, and whether they are excused.

        Args:
            visible: running ranks whose slots arrive. every: all ranks.
            excused_until: last time of some rank in a long phase, unix seconds.
        """
        overdue, excused = [], False
        self.waiting = set()
        for watch in visible:
            stalled_s, budget_s = watch.stalled_s, allowed.of(watch)
            if watch.in_long_phase:
                if stalled_s > budget_s:
                    overdue.append(watch)
                else:
                    excused = True
            elif not has_pace(watch):
                continue
            elif stalled_s > budget_s and watch.seen_at - excused_until > budget_s:
                overdue.append(watch)
                watch.sparse = False  # longer than its own pace: where it is counts
            elif stalled_s > budget_s:
                self.waiting.add(watch.source)
        if overdue and not excused:
            last = furthest_back([watch for watch in visible if now - watch.seen_at <= SILENT_AFTER_S])
            # The awaited rank is within its budget: slow, not stuck.
            excused = _hidden_excuse(every, allowed, now) or (bool(last) and set(last).isdisjoint(overdue))
        return overdue, excused


def _hidden_excuse(every: Iterable[RankWatch], allowed: Allowance, now: float) -> bool:
    """Return whether an invisible rank was last in a long phase that may still last."""
    return any(
        watch.running and watch.in_long_phase and watch.agent and watch.seen_at
        and now - watch.seen_at > SILENT_AFTER_S and watch.stalled_s + now - watch.seen_at <= allowed.of(watch)
        for watch in every
    )  # fmt: skip
