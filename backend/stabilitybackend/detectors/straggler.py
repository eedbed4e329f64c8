"""Finds the rank that is slower than the others: the one that all of them wait for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

from .engine.base import SENSITIVITY, Detector, Finding, Mark, Parameter, Point, Row, State, fresh
from .slow_stretch import LEAST_LOST_S, duration
from .stats.levels import LARGEST, level_of, percent
from .stats.own_past import more_than_before
from .stats.rank_table import RankTable, RankWindow, SlowRankTable
from .stats.robust import median

#: Names of times that a rank spends on its own work, beside all that end with ``_time_s``.
OWN_WORK = frozenset({"compute_s", "forward_s", "backward_s", "optimizer_s", "data_s", "dataloader_s", "gpu_s"})
#: Times with one of these words are waiting: long for the ranks that are fast.
WAITING = ("wait", "comm", "nccl", "sync", "barrier", "reduce", "gather", "bubble", "idle")
#: Metrics of one run that are watched; further ones are ignored.
MAX_METRICS = 8
#: Ranks that are compared; what further ones log is dropped and counted.
MAX_RANKS = 4_096
#: A window of WINDOW_STEPS doubles, up to this, where a rank logs fewer than LEAST_POINTS in it.
MAX_WINDOW_STEPS = 2**20
LEAST_POINTS = 6
#: Values of a rank in a window that its median is taken of, the first ones.
MAX_POINTS = 16
#: A window is judged when all known ranks have passed it. A rank that is further behind the first is not waited for.
LAG_WINDOWS = 4
#: Smallest sigma of ranks, as a fraction of their median.
SIGMA_FLOOR = 0.02
#: Seconds that a slow rank needs more than the others at least: what is shorter delays nobody.
LEAST_EXCESS_S = 0.001
#: Ranks that a robust deviation can be taken of. Fewer are compared with the fastest one, by FEW_FACTOR of the excess.
ENOUGH_RANKS = 4
FEW_FACTOR = 3.0
#: Windows in a row that make an event, and that end it. When the others have waited as long as so many take, it is an
#: alarm; and LEAST_LOST_S at least, as for the whole job.
CONFIRM_WINDOWS = 2
#: Slow ranks that an event names.
MAX_NAMED = 16
#: A rank that is slow for so many windows is what it is: the event is closed and the rank not reported again until it
#: has been usual. One that is slow again within as many continues its event: it comes and goes. What a rank cost is
#: forgotten over as many.
REMEMBERED_WINDOWS = 64
#: So many values in a row behind a rank's newest window mean that its steps began again, not that they are late.
LATE_ACCEPTED_AFTER = 32

__all__ = ["StragglerDetector", "reports_own_work"]


class StragglerDetector(Detector):
    """Names the rank whose own work takes longer than that of the others.

    Idea: steps are cut in windows of 16 (more where little is logged). In each of them every rank has a median, and
    the ranks' medians have a median and a robust deviation. A rank 15 % and 4 deviations above, twice in a row, is
    slow. It is news when it cost more time of late than twice what the second worst of the usual ranks did: where
    ranks are slow in turn, who is slow now is no evidence. That is a note (``info``) first, and an alarm when the
    others have waited ten seconds in all, and as long as two windows of usual work take. Times of waiting are left
    out, as there the fast ranks are the slow ones. In synchronous training ``step_time_s`` is equal on all ranks
    and can't tell; ``data_time_s``, ``forward_s`` or ``compute_time_s`` can. A window is judged when all known
    ranks have passed it, so that the order in which ranks arrive changes nothing as long as none is more than four
    windows behind. Ranks that become slow at once, as those of a node do, are one incident. Fewer than four ranks
    are compared with the fastest of them, by three times the excess.

    Args:
        slower: how far above the median of the ranks counts, as a fraction.

    Source: NVIDIA resiliency extension's straggler score (median of own times against the others); OSDI'25
    "Understanding Stragglers in Large Model Training Using What-if Analysis": a suspect, not a culprit.

    Example:
        >>> detector, found = StragglerDetector(), []
        >>> for step in range(192):
        ...     for rank in range(8):
        ...         seconds = (0.3 if rank == 3 else 0.2) + 0.001 * (step % 7)
        ...         found += detector.update(Point(step, "data_time_s", seconds, 0.0, rank))
        >>> [(f.rank, f.onset_step, f.severity) for f in found]
        [(3, 0, 'info'), (3, 0, 'warning')]
    """

    name: ClassVar[str] = "straggler"
    kinds: ClassVar[tuple[str, ...]] = ("straggler",)
    title: ClassVar[str] = "Slow rank"
    every_rank: ClassVar[bool] = True
    parameters: ClassVar[dict[str, Parameter]] = {
        "sensitivity": SENSITIVITY,
        "slower": Parameter(
            0.15,
            0.02,
            5.0,
            "fraction",
            "How far above the median of the ranks. A higher value reports slower ranks only.",
        ),
        "sigmas": Parameter(
            4.0,
            1.0,
            20.0,
            "robust sigmas of ranks",
            "How far above, against the spread of the ranks. Higher: fewer reports.",
        ),
    }

    _tables: dict[str, RankTable] = fresh(dict)
    #: Values of ranks beyond MAX_RANKS, and of windows that were judged before they came.
    dropped: int = 0
    late: int = 0

    def configured(self) -> None:
        sensitivity = self.settings["sensitivity"]
        self._on = sensitivity > 0
        self._slower = self.settings["slower"] / (sensitivity or 1.0)
        self._sigmas = self.settings["sigmas"] / (sensitivity or 1.0)

    @classmethod
    def story(cls) -> Sequence[Row | Mark]:
        return [
            Row(
                step,
                1e9 + step,
                {"data_time_s": (0.4 if rank == 5 and 96 <= step < 192 else 0.2) + 0.001 * ((step + rank) % 7)},
                rank,
            )
            for step in range(320)
            for rank in range(6)
        ]

    def wants(self, metric: str) -> bool:
        return _is_own_work(metric)

    def note(self, mark: Mark) -> list[Finding]:
        if mark.kind == "fork":
            for table in self._tables.values():
                slow = {number: rank for number, rank in table.ranks.items() if rank.reported}
                table.restart(table.width)
                # Who was slow before the fork still is until it has been usual: the same event goes on.
                for number in slow:
                    start = mark.step // table.width
                    table.ranks[number] = RankWindow(start, reported=True, slow=CONFIRM_WINDOWS)
                    table.moved(None, start)

        return []

    def update(self, point: Point) -> list[Finding]:
        step, metric, value, _, number = point
        table = self._tables.get(metric)
        if table is None:
            if len(self._tables) >= MAX_METRICS or not _is_own_work(metric):
                return []
            table = self._tables[metric] = RankTable()
        if not 0.0 <= value < LARGEST:
            return []
        window = step // table.width
        rank = table.ranks.get(number)
        if rank is None:
            if len(table.ranks) >= MAX_RANKS:
                self.dropped += 1
                return []
            rank = table.ranks[number] = RankWindow(window)
            table.moved(None, window)
            table.settled = max(table.settled, window + LAG_WINDOWS + 1)
        if window == rank.window:
            if len(rank.values) < MAX_POINTS:
                rank.values.append(value)
            return []
        if window < rank.window:
            self.late += 1
            rank.late += 1
            if rank.late >= LATE_ACCEPTED_AFTER:  # a stray huge step must not make us deaf
                table.restart(table.width)
            return []
        self._pass(table, number, rank)
        table.moved(rank.window, window)
        rank.window, rank.late = window, 0
        rank.values = [value]
        return self._judge_due(metric, table, step)

    def update_column(
        self, metric: str, steps: Sequence[int], values: Sequence[float], times: Sequence[float], rank: int
    ) -> list[tuple[float, Finding]]:
        found: list[tuple[float, Finding]] = []
        at, count = 0, len(steps)
        while at < count:
            table = self._tables.get(metric)
            known = None if table is None else table.ranks.get(rank)
            if table is not None and known is not None:
                # The quick way for all points that lie in the rank's present window.
                first, end = known.window * table.width, (known.window + 1) * table.width
                kept = known.values
                while at < count and first <= steps[at] < end:
                    if 0.0 <= values[at] < LARGEST and len(kept) < MAX_POINTS:
                        kept.append(values[at])
                    at += 1
                if at == count:
                    break
            news = self.update(Point(steps[at], metric, values[at], times[at], rank))
            found += [(times[at], finding) for finding in news]
            at += 1
        return found

    def _pass(self, table: RankTable, number: int, rank: RankWindow) -> None:
        """Note the median of the window that a rank leaves."""
        if rank.window <= table.judged:
            self.late += bool(rank.values)
        elif rank.values:
            table.done.setdefault(rank.window, {})[number] = (median(rank.values), len(rank.values))

    def _judge_due(self, metric: str, table: RankTable, step: int) -> list[Finding]:
        """Judge the windows that nobody is waited for any more, oldest first."""
        found: list[Finding] = []
        while table.done:
            window = min(table.done)
            lowest, front = min(table.at), max(table.at)
            behind = front - window > LAG_WINDOWS + 1
            if not behind and not window < lowest >= table.settled:
                break
            medians = table.done.pop(window)
            table.judged = window
            if lowest <= window:
                for number in [n for n, rank in table.ranks.items() if rank.window <= window]:
                    table.moved(table.ranks.pop(number).window, None)  # a rank that is gone is not waited for
            if median([points for _, points in medians.values()]) < LEAST_POINTS:
                if table.width < MAX_WINDOW_STEPS:
                    table.restart(2 * table.width)
                break
            found += self._judge(metric, table, window, {n: value for n, (value, _) in medians.items()}, step)
        return found

    def _judge(self, metric: str, table: RankTable, window: int, medians: dict[int, float], step: int) -> list[Finding]:
        """Compare the ranks of one window."""
        limit, level, sigma = self._limit(list(medians.values()))
        fresh: dict[int, float] = {}
        for number, value in medians.items():
            rank = table.ranks.get(number)
            if rank is None:
                continue
            rank.cost *= 1 - 1 / REMEMBERED_WINDOWS
            if value > limit:
                rank.onset = window * table.width if not rank.slow else rank.onset
                rank.slow, rank.usual = rank.slow + 1, 0
                rank.cost += value / level - 1 if level > 0 else LARGEST
                if rank.slow >= CONFIRM_WINDOWS and not rank.reported:
                    fresh[number] = value
            elif not rank.reported or value < 0.5 * (level + limit):  # back is clearly below what opens
                rank.usual += 1
                if rank.usual >= CONFIRM_WINDOWS or not rank.reported:
                    rank.slow, rank.reported = 0, False
        if fresh:
            others = more_than_before(rank.cost for rank in table.ranks.values() if not rank.slow)
            fresh = {number: value for number, value in fresh.items() if table.ranks[number].cost > others}
        found: list[Finding] = []
        if table.event is not None:
            found += self._follow(metric, table, table.event, medians, window, step)
        if fresh:
            found += self._open(metric, table, fresh, level, sigma, step)
        return found

    def _limit(self, values: list[float]) -> tuple[float, float, float]:
        """Return what a rank must exceed to be slow, the usual time and the deviation of the ranks."""
        if not self._on or len(values) < 2:
            return float("inf"), 0.0, 1.0
        if len(values) >= ENOUGH_RANKS:
            level, sigma = level_of(values, SIGMA_FLOOR)
            return level + max(level * self._slower, self._sigmas * sigma, LEAST_EXCESS_S), level, sigma
        level = min(values)
        return (
            max(level * (1 + FEW_FACTOR * self._slower), level + LEAST_EXCESS_S),
            level,
            max(SIGMA_FLOOR * level, 1e-12),
        )

    def _open(
        self, metric: str, table: RankTable, fresh: dict[int, float], level: float, sigma: float, step: int
    ) -> list[Finding]:
        for number in fresh:
            table.ranks[number].reported = True
        same = next((t.event for t in self._tables.values() if t.event and set(fresh) <= set(t.event.ranks)), None)
        if same is not None:  # another metric of ranks that are known to be slow
            if metric not in same.metrics:
                same.metrics.append(metric)
            return []
        if table.event is not None:  # one more slow rank while others are: reported with the next update
            table.event.ranks.update(fresh)
            return [self._finding(table.event, "open", step, None)] if len(table.event.ranks) <= MAX_NAMED else []
        if table.last and table.judged - table.last[1] <= REMEMBERED_WINDOWS and set(fresh) <= set(table.last[0].ranks):
            event = table.event = table.last[0]
            event.windows = 0
        else:
            onset = min(table.ranks[number].onset for number in fresh)
            event = table.event = SlowRankTable(metric, onset, step, "info", dict(fresh), level, sigma, [metric])
        for _ in range(max(table.ranks[number].slow for number in fresh)):
            self._lost(table, event, fresh)
        self._is_worse(event)
        self.claim(event.metrics[0], event.onset)
        return [self._finding(event, "open", step, None)]

    def _lost(self, table: RankTable, event: SlowRankTable, medians: dict[int, float]) -> None:
        """Count a window in which the others waited for the slowest of an event."""
        slowest = max((medians[n] for n in event.ranks if n in medians and table.ranks[n].slow), default=event.level)
        event.lost_s += table.width * (slowest - event.level)
        event.cost += slowest / event.level - 1 if event.level > 0 else LARGEST

    def _is_worse(self, event: SlowRankTable) -> bool:
        """Return whether there is more to report: an alarm for the first time, or twice as much lost time."""
        worse = event.severity == "info" and event.cost >= CONFIRM_WINDOWS and event.lost_s >= LEAST_LOST_S
        if worse:
            event.severity = "warning"
        if not worse and (event.severity == "info" or event.lost_s < 2 * event.reported_s):
            return False
        event.reported_s = event.lost_s
        return True

    def _follow(
        self, metric: str, table: RankTable, event: SlowRankTable, medians: dict[int, float], window: int, step: int
    ) -> list[Finding]:
        """Advance an open event by one window."""
        event.windows += 1
        still = [n for n in event.ranks if n in table.ranks and table.ranks[n].reported]
        if still and event.windows < REMEMBERED_WINDOWS:
            self._lost(table, event, medians)
            return [self._finding(event, "open", step, None)] if self._is_worse(event) else []
        table.event = None
        self.claim(event.metrics[0], event.onset, step)
        if still or not any(n in medians for n in event.ranks):
            return [self._finding(event, "resolved", step, None)]
        table.last = (event, window)
        back = (window - CONFIRM_WINDOWS + 1) * table.width
        return [self._finding(event, "recovered", step, max(back, event.onset))]

    def _finding(self, event: SlowRankTable, state: State, now_step: int, back: int | None) -> Finding:
        worst = max(event.ranks, key=lambda number: event.ranks[number])
        value, metric = event.ranks[worst], event.metrics[0]
        above = percent(value, event.level)
        shown = f" ({above:+.0f} %)" if above is not None else ""
        others = sorted(set(event.ranks) - {worst})
        text = f"Rank {worst} needs {value:.4g} s of {metric} where the others need {event.level:.4g} s{shown}"
        text += f", since step {event.onset}. About {duration(min(event.lost_s, 1e12))} of the job's time lost so far."
        if others:
            text += f" With it {len(others)} more: {', '.join(map(str, others[:8]))}."
        if len(event.metrics) > 1:
            text += f" {', '.join(event.metrics[1:4])} shows it too."
        text += {
            "open": " All ranks wait for it. A suspect, not a culprit: its data may be longer than theirs.",
            "recovered": f" It keeps up with the others again since step {back}.",
            "resolved": " It has stayed so, or is gone; it is not reported again until it has been usual.",
        }[state]
        return self.finding(
            event,
            now_step,
            state,
            title=f"Rank {worst} is slow since step {event.onset}{shown}",
            text=text,
            rank=worst,
            recovered_step=back,
            score=min((value - event.level) / event.sigma, 1e9),
            evidence={
                "level_before": event.level,
                "level_after": value,
                "sigma": event.sigma,
                "rise_percent": above,
                "direction": "up",
                "threshold": self._slower,
                "score_unit": "robust sigmas of ranks",
                "ranks": {str(n): event.ranks[n] for n in sorted(event.ranks)[:MAX_NAMED]},
                "slow_ranks": len(event.ranks),
                "lost_s": min(event.lost_s, 1e12),
                "also": event.metrics[1:],
                "recovered_at": back,
            },
        )


@lru_cache(maxsize=4_096)
def _is_own_work(metric: str) -> bool:
    """Return whether a metric is the time of a rank's own work."""
    name = metric.lower()
    return (name.endswith("_time_s") or name in OWN_WORK) and not any(word in name for word in WAITING)


@lru_cache(maxsize=1_024)
def reports_own_work(names: tuple[str, ...]) -> bool:
    """Return whether a row of these metrics tells the time of its rank's own work: ranks are compared by that then."""
    return any(map(_is_own_work, names))
