"""The slowest rank, which all others wait for."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from operator import le
from typing import ClassVar

from stabilitybackend.schema.metric_roles import NAMES_REMEMBERED, STEP_TIME, role_of

from .engine.base import SENSITIVITY, Detector, Finding, Mark, Parameter, Point, Row, State, fresh
from .slow_stretch import BLOCK_S, CONFIRM_BLOCKS, duration
from .stats.levels import LARGEST, level_of, percent
from .stats.rank_table import CONFIRM_WINDOWS, REMEMBERED_WINDOWS, RankPast, RankTable, RankWindow, SlowRankTable
from .stats.robust import median

#: Names of times of a rank's own work, besides all that end with ``_time_s``.
OWN_WORK = frozenset({"compute_s", "forward_s", "backward_s", "optimizer_s", "data_s", "dataloader_s", "gpu_s"})
#: Words of waiting times: long for the fast ranks.
WAITING = ("wait", "comm", "nccl", "sync", "barrier", "reduce", "gather", "bubble", "idle")
#: Watched metrics of one run; further ones are ignored.
MAX_METRICS = 8
#: Compared ranks; values of further ones are dropped and counted.
MAX_RANKS = 4_096
#: A window of WINDOW_STEPS doubles, up to this, for a rank with fewer than LEAST_POINTS in it.
MAX_WINDOW_STEPS = 2**20
LEAST_POINTS = 6
#: Values of a rank in a window for its median, the first ones.
MAX_POINTS = 16
#: A window is judged when all ranks have passed it. A rank further behind the first is not waited for.
LAG_WINDOWS = 9
#: Smallest sigma of ranks, as a fraction of their median.
SIGMA_FLOOR = 0.02
#: Least excess of a slow rank, seconds: a shorter one delays no rank.
LEAST_EXCESS_S = 0.001
#: Least share of the whole step of a slow rank's excess, if measured.
STEP_SHARE = 0.05
#: Ranks for a robust deviation. Fewer are compared with the fastest one, by FEW_FACTOR of the excess.
ENOUGH_RANKS = 4
FEW_FACTOR = 3.0
#: Least duration, seconds: another program on the processor for a while is no event.
LEAST_S = CONFIRM_BLOCKS * BLOCK_S
#: Slow ranks that an event names.
MAX_NAMED = 16
#: Values in a row behind a rank's newest window that are restarted steps, not late ones.
LATE_ACCEPTED_AFTER = 32

__all__ = ["StragglerDetector", "reports_own_work"]


class StragglerDetector(Detector):
    """Names the rank whose own work takes longer than that of the others.

    Idea: steps are cut in windows of 8 (more where little is logged). In each of them every rank has a median, and
    the ranks' medians have a median and a robust deviation. A rank 15 % and 4 deviations above, twice in a row, is
    slow. It is news when it cost more time of late than twice what the second worst of the usual ranks did: where
    ranks are slow in turn, who is slow now is no evidence. That is a note (``info``) first, and an alarm when the
    rank was usual before and has been slow for longer than turns of this job's ranks go (``RankTable.is_new``). Times
    of waiting are left out, as there the fast ranks are the slow ones. In synchronous training ``step_time_s`` is
    equal on all ranks and can't tell; ``data_time_s``, ``forward_s`` or ``compute_time_s`` can. A window is judged
    when all known ranks have passed it, so that the order in which ranks arrive changes nothing as long as none is
    more than nine windows behind. Ranks that become slow at once, as those of a node do, are one incident. Fewer than
    four ranks are compared with the fastest of them, by three times the excess. ``liveness/slow_ranks.py`` gives it
    windows of its own to judge.

    Args:
        slower: how far above the median of the ranks counts, as a fraction.

    Source: NVIDIA resiliency extension's straggler score (median of own times against the others); OSDI'25
    "Understanding Stragglers in Large Model Training Using What-if Analysis": a suspect, not a culprit.

    Example:
        >>> detector, found = StragglerDetector(), []
        >>> for step in range(560):
        ...     for rank in range(8):
        ...         seconds = (0.4 if rank == 3 and step >= 480 else 0.2) + 0.001 * (step % 7)
        ...         found += detector.update(Point(step, "data_time_s", seconds, 0.0, rank))
        >>> [(f.rank, f.onset_step, f.severity) for f in found]
        [(3, 480, 'info'), (3, 480, 'warning')]
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
    #: Values of ranks beyond MAX_RANKS, and of windows that were judged before them.
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
                table.restart(table.width)
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
            rank = table.ranks[number] = RankWindow(window, began=point.time)
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
        rank.window, rank.late, rank.whole = window, 0, True
        rank.values, rank.began = [value], point.time
        return self._judge_due(metric, table, step)

    def update_column(
        self, metric: str, steps: Sequence[int], values: Sequence[float], times: Sequence[float], rank: int
    ) -> list[tuple[float, Finding]]:
        found: list[tuple[float, Finding]] = []
        at, count = 0, len(steps)
        clean = count > 0 and math.isfinite(sum(values)) and min(values) >= 0.0 and max(values) < LARGEST
        plain = clean and _rising(steps)
        while at < count:
            table = self._tables.get(metric)
            known = None if table is None else table.ranks.get(rank)
            if table is not None and known is not None:
                # Fast path for points within the rank's present window.
                first, end = known.window * table.width, (known.window + 1) * table.width
                kept = known.values
                if plain and steps[at] >= first:
                    stop = bisect_left(steps, end, at)
                    kept += values[at : min(stop, at + max(0, MAX_POINTS - len(kept)))]
                    at = stop
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

    def update_turn(self, metric: str, steps: Sequence[int], values: Sequence[float], ranks: Sequence[int]) -> bool:
        if (table := self._tables.get(metric)) is None:
            return False
        width, known = table.width, [table.ranks.get(rank) for rank in ranks]
        for one, step, value in zip(known, steps, values, strict=True):
            if one is None or one.window != step // width or not 0.0 <= value < LARGEST:
                return False
        for one, value in zip(known, values, strict=True):
            if one is not None and len(one.values) < MAX_POINTS:
                one.values.append(value)
        return True

    def _pass(self, table: RankTable, number: int, rank: RankWindow) -> None:
        """Record the median of the window that a rank leaves."""
        if rank.window <= table.judged:
            self.late += bool(rank.values)
        elif rank.values and (rank.whole or len(rank.values) >= LEAST_POINTS):
            table.done.setdefault(rank.window, {})[number] = (median(rank.values), len(rank.values), rank.began)

    def _judge_due(self, metric: str, table: RankTable, step: int) -> list[Finding]:
        """Judge the windows that wait for no rank any more, oldest first."""
        found: list[Finding] = []
        while table.done:
            lowest, front = min(table.at), max(table.at)
            least = table.judged + 1  # no window that waits is below it: mostly none of them needs a look
            if front - least <= LAG_WINDOWS + 1 and not least < lowest >= table.settled:
                break
            window = min(table.done)
            behind = front - window > LAG_WINDOWS + 1
            if not behind and not window < lowest >= table.settled:
                break
            medians = table.done.pop(window)
            table.judged = window
            if lowest <= window:
                for number in [n for n, rank in table.ranks.items() if rank.window <= window]:
                    table.moved(table.ranks.pop(number).window, None)  # a rank that is gone is not waited for
            if median([points for _, points, _ in medians.values()]) < LEAST_POINTS:
                if table.width < MAX_WINDOW_STEPS:
                    table.restart(2 * table.width)
                break
            times = {number: value for number, (value, _, _) in medians.items()}
            began = {number: began for number, (_, _, began) in medians.items()}
            found += self._compare(metric, table, times, (window * table.width, table.width), step, began=began)
        return found

    # --- one window of all ranks ----------------------------------------------------------------------------------

    def compare(
        self, metric: str, times: Mapping[int, float], window: tuple[int, int], step: int, whole_s: float, most: int,
        *, error_s: float = 0.0, windows: int = 1,
    ) -> list[Finding]:  # fmt: skip
        """Judge a complete window of another source; windows come in order.

        Args:
            times: rank -> seconds a step in it.
            window: its first step, and its length.
            step: the newest of the job.
            whole_s: seconds of a step with this metric as a part: a slow rank needs ``STEP_SHARE`` of them more.
            most: metrics that are kept; of more, those judged longest ago without an open event are forgotten.
            error_s: standard error of the difference of two times, 0.0 for unknown.
            windows: its length in usual ones.
        """
        table = self._tables[metric] = self._tables.pop(metric, RankTable())
        idle = [name for name, one in self._tables.items() if one.event is None]
        for name in idle[: max(0, len(self._tables) - most)]:
            del self._tables[name]
        table.measured = error_s > 0
        return self._compare(metric, table, times, window, step, whole_s, error_s, windows)

    def strength(self, times: list[float], whole_s: float, error_s: float) -> float:
        """Return the distance of the slowest rank above the others, sigmas; 0.0 for none slow."""
        limit, level, sigma = self._limit(times, whole_s, error_s)
        return (max(times) - level) / sigma if max(times) > limit else 0.0

    def is_sure(self, times: list[float], error_s: float) -> bool:
        """Return whether times with an error of ``error_s`` would show the least slow rank."""
        return self._sigmas * error_s <= self._slower * median(times)

    def is_slow(self, metric: str) -> bool:
        """Return whether a rank was slow in the newest window of a metric."""
        return metric in self._tables and any(past.slow for past in self._tables[metric].past.values())

    def carry_on(self, event: SlowRankTable, known: RankPast) -> None:
        """Continue an event that was open when the server stopped.

        Args:
            known: comparisons of its ranks until then, as of ``past_of``.
        """
        slow = replace(known, slow=CONFIRM_WINDOWS, usual=0, onset=event.onset, reported=True)
        self._tables[event.metric] = RankTable(past={number: replace(slow) for number in event.ranks}, event=event)

    def past_of(self, metric: str, rank: int) -> RankPast:
        """Return the comparisons of a rank with the others so far."""
        table = self._tables.get(metric)
        return RankPast() if table is None else table.past.get(rank, RankPast())

    def end(self, step: int) -> list[Finding]:
        """Close all open events at the end of the job."""
        found = []
        for table in self._tables.values():
            if table.event is not None:
                found.append(self._finding(table.event, "resolved", step, None))
                table.event = None
        return found

    def _compare(
        self, metric: str, table: RankTable, times: Mapping[int, float], window: tuple[int, int], step: int,
        whole_s: float = 0.0, error_s: float = 0.0, windows: int = 1, began: Mapping[int, float] | None = None,
    ) -> list[Finding]:  # fmt: skip
        """Compare the ranks of one window; ``began``: entry of each, None for unknown."""
        limit, level, sigma = self._limit(list(times.values()), whole_s, error_s)
        news = table.take(times, limit, level, window[0], whole_s, windows)
        if began:
            table.came(began)
        if table.event is not None:
            table.event.waits = table.is_waited_for(table.event)
        a_window = window[1] / windows
        found: list[Finding] = []
        if table.event is not None:
            found += self._follow(table, table.event, times, window, a_window, level, step)
        if news:
            found += self._open(metric, table, news, level, sigma, a_window, step)
        return found

    def _limit(self, values: list[float], whole_s: float, error_s: float = 0.0) -> tuple[float, float, float]:
        """Return the threshold of a slow rank, the usual time and the deviation of the ranks."""
        if not self._on or len(values) < 2:
            return float("inf"), 0.0, 1.0
        least_s = max(LEAST_EXCESS_S, STEP_SHARE * whole_s)
        if len(values) >= ENOUGH_RANKS:
            level, sigma = level_of(values, SIGMA_FLOOR)
            sigma = math.hypot(sigma, error_s)
            return level + max(level * self._slower, self._sigmas * sigma, least_s), level, sigma
        level = min(values)
        if error_s:  # of few ranks, too, it is known then how far they lie apart by chance
            return level + max(level * self._slower, self._sigmas * error_s, least_s), level, error_s
        return level + max(FEW_FACTOR * level * self._slower, least_s), level, max(SIGMA_FLOOR * level, 1e-12)

    def _open(
        self,
        metric: str,
        table: RankTable,
        news: dict[int, float],
        level: float,
        sigma: float,
        a_window: float,
        step: int,
    ) -> list[Finding]:
        for number in news:
            table.past[number].reported = True
        same = next((t.event for t in self._tables.values() if t.event and set(news) <= set(t.event.ranks)), None)
        if same is not None:  # another metric of ranks that are known to be slow
            if metric not in same.metrics:
                same.metrics.append(metric)
            return []
        if table.event is not None:  # one more slow rank while others are: reported with the next update
            table.event.ranks.update(news)
            return [self._finding(table.event, "open", step, None)] if len(table.event.ranks) <= MAX_NAMED else []
        if (
            table.last
            and table.compared - table.last[1] <= REMEMBERED_WINDOWS
            and set(news) <= set(table.last[0].ranks)
        ):
            event = table.event = table.last[0]
            event.windows = 0
        else:
            onset = min(table.past[number].onset for number in news)
            event = table.event = SlowRankTable(metric, onset, step, "info", dict(news), level, sigma, [metric])
        event.waits = table.is_waited_for(event)
        table.lose(event, news, a_window * max(table.past[number].slow_windows for number in news))
        self._is_worse(table, event, a_window)
        self.claim(event.metrics[0], event.onset)
        return [self._finding(event, "open", step, None)]

    def _is_worse(self, table: RankTable, event: SlowRankTable, a_window: float) -> bool:
        """Return whether a report is due: the first alarm, or twice as much lost time."""
        worse = False
        if event.severity == "info" and event.lasted_s >= LEAST_S and table.is_new(event, a_window):
            worse, event.severity = True, "warning"
        if not worse and (event.severity == "info" or event.lost_s < 2 * event.reported_s):
            return False
        event.reported_s = event.lost_s
        return True

    def _follow(
        self, table: RankTable, event: SlowRankTable, times: Mapping[int, float], window: tuple[int, int],
        a_window: float, level: float, step: int,
    ) -> list[Finding]:  # fmt: skip
        """Advance an open event by one window."""
        event.windows += 1
        start, steps = window
        still = [n for n in event.ranks if n in table.past and table.past[n].reported]
        if still and event.windows < REMEMBERED_WINDOWS:
            event.refine(times, level)
            table.lose(event, times, steps)
            return [self._finding(event, "open", step, None)] if self._is_worse(table, event, a_window) else []
        table.event = None
        self.claim(event.metrics[0], event.onset, step)
        if still or not any(n in times for n in event.ranks):
            return [self._finding(event, "resolved", step, None)]
        table.last = (event, table.compared)
        return [self._finding(event, "recovered", step, max(start - (CONFIRM_WINDOWS - 1) * steps, event.onset))]

    def _finding(self, event: SlowRankTable, state: State, now_step: int, back: int | None) -> Finding:
        worst = max(event.ranks, key=lambda number: event.ranks[number])
        value, metric = event.ranks[worst], event.metrics[0]
        above = percent(value, event.level)
        shown = f" ({above:+.0f} %)" if above is not None else ""
        others = sorted(set(event.ranks) - {worst})
        text = f"Rank {worst} needs {value:.4g} s of {metric} where the others need {event.level:.4g} s{shown}"
        whose = "its own" if event.waits is False else "the job's" if event.waits else "its"
        text += f", since step {event.onset}. About {duration(min(event.lost_s, 1e12))} of {whose} time lost so far."
        if others:
            text += f" With it {len(others)} more: {', '.join(map(str, others[:8]))}."
        if len(event.metrics) > 1:
            text += f" {', '.join(event.metrics[1:4])} shows it too."
        text += {
            "open": f" {_WAITING[event.waits]} A suspect, not a culprit: its data may be longer than theirs.",
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
                "waits": event.waits,
                "recovered_at": back,
            },
        )


#: Whether the others wait for a slow rank, None for unknown -> a sentence.
_WAITING: Mapping[bool | None, str] = {
    True: "All ranks wait for it.",
    False: "The others do not wait for it: it falls behind.",
    None: "Ranks that meet it in each step wait for it.",
}


def _rising(steps: Sequence[int]) -> bool:
    return all(map(le, steps, islice(steps, 1, None)))


@lru_cache(maxsize=NAMES_REMEMBERED)
def _is_own_work(metric: str) -> bool:
    """Return whether a metric is the time of a rank's own work."""
    name = metric.lower()
    return (name.endswith("_time_s") or name in OWN_WORK) and not any(word in name for word in WAITING)


@lru_cache(maxsize=128)
def reports_own_work(names: tuple[str, ...]) -> bool:
    """Return whether a row of these metrics has the time of its rank's own work, the basis of the comparison.

    The time of whole steps is none: in it the fast ranks wait for the slow one.
    """
    return any(_is_own_work(name) and role_of(name) != STEP_TIME for name in names)
