"""Finds that the job has become slower, and says how much time that cost so far."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from .engine.base import SENSITIVITY, Detector, Finding, Mark, Parameter, Point, Row, State, fresh
from .engine.metric_roles import SPEED, STEP_TIME, role_of
from .slow_stretch import LEAST_LOST_S, LEAST_S, SlowStretch, duration
from .stats.levels import level_of, percent

#: Roles of the metrics that are watched (``metric_roles.py`` knows their spellings), with whether more of it is faster.
_MORE_IS_FASTER = {SPEED: True, STEP_TIME: False}
#: How our own names are called in a sentence.
_NAMES = {SPEED: "Tokens per second fell", STEP_TIME: "The time of a step rose"}
#: Points that are judged as one: half of them may be slow (a checkpoint, an evaluation, a pause) without moving it.
BLOCK_POINTS = 8
#: Slow blocks in a row that make an event. One alone is a checkpoint that takes long, or a neighbour on the network.
CONFIRM_BLOCKS = 2
#: Blocks that the usual speed is taken from, and how many must be known before anything is reported.
USUAL_BLOCKS = 32
LEAST_BLOCKS = 4
#: Points after a start or a fork that are not judged: compilation, caches, connections.
WARM_UP_POINTS = 16
#: A slow block also lies this many robust sigmas of blocks above the usual one.
SLOW_SIGMAS = 5.0
#: Smallest sigma of blocks, as a fraction of the usual cost.
SIGMA_FLOOR = 0.02
#: Two slow blocks agree within this part of what they lost; a speed that still moves after so many blocks wears off,
#: as it does when it was not usual right before. What slows down over many blocks (longer sequences) is a new normal.
SAME_SPEED, RAMP_BLOCKS = 0.2, 3
#: A block this little above the usual cost needs no further look.
FINE = 0.05
#: The usual cost is measured once in so many blocks, and whenever a block may be slow.
MEASURE_BLOCKS = 8
#: Points before a block in which a change of the batch size explains longer steps.
EXCUSE_POINTS = 16
#: After one that went by itself the next has to last so long, seconds: a machine that others use as well is slow again
#: and again, and once is enough to know it.
COOLDOWN_S = 300.0
#: The lost time is reported again after so many slow blocks.
NEWS_BLOCKS = (4, 8, 16)
#: So many slow blocks in a row that last so long, seconds, are the new normal; so many do however short they are.
ACCEPT_BLOCKS, ACCEPT_S, ACCEPT_ALWAYS = 32, 600.0, 256
#: A slow stretch is a habit of the job (an evaluation each 1,000 steps), and a note, when HABIT of the newest
#: REMEMBERED ones that went by themselves were as slow and as long, up to this factor.
HABIT, REMEMBERED, LONGER = 2, 8, 1.5
#: Values outside are no speeds.
LEAST_VALUE, MOST_VALUE = 1e-150, 1e150

__all__ = ["ThroughputDetector"]

_T = TypeVar("_T")


@dataclass(slots=True)
class _Track:
    """One metric in blocks. Its cost is time: a step's seconds, or one over the tokens per second."""

    block: list[tuple[int, float, float]] = field(default_factory=list)
    usual: deque[float] = field(default_factory=lambda: deque(maxlen=USUAL_BLOCKS))
    skip: int = WARM_UP_POINTS
    #: Whether the metric is judged slow; then the number of slow blocks, and of usual ones since the last of them.
    slow: bool = False
    slow_blocks: list[tuple[int, float, float]] = field(default_factory=list)
    fast_blocks: list[int] = field(default_factory=list)
    #: A block that costs less is fine without a look at the usual ones; as old as so many blocks.
    fine_below: float = 0.0
    unmeasured: int = 0


class ThroughputDetector(Detector):
    """Opens one incident when the job is slower than usual for half a minute, and counts the lost time.

    Idea: points are judged in blocks of eight, by the mean of the middle four, so that single slow steps
    (checkpoints, evaluations, a pause) never count. The usual cost is the median of the last 32 blocks.
    Two blocks in a row that are a fifth slower than usual (and 5 sigmas of blocks) are an event, if the speed was
    usual right before: a speed that wears off over many blocks is a new normal, as is a larger batch
    (``batch_size``). It is reported when it lasted 30 s and lost 10 s of the job's time, and after one that went by
    itself when it lasted 300 s. Both metrics are one fact and belong to one incident; a tenth is a note (``info``). It
    recovers after two usual blocks; after 256 slow points and 10 minutes the new speed is accepted.

    Args:
        slower: how much slower counts, as a fraction: tokens per second lost, or step time added.

    Source: OSDI'25 "Understanding Stragglers in Large Model Training Using What-if Analysis", which calls a job slow
    from 10 % on: 42 % of 3,079 jobs were.

    Example:
        >>> detector = ThroughputDetector()
        >>> speeds = [100.0 + i % 3 for i in range(80)] + [70.0 + i % 3 for i in range(24)]
        >>> points = [Point(step, "tokens_per_s", speed, 10.0 * step) for step, speed in enumerate(speeds)]
        >>> [(f.onset_step, f.step, f.severity) for point in points for f in detector.update(point)]
        [(80, 95, 'warning')]
    """

    name: ClassVar[str] = "throughput"
    kinds: ClassVar[tuple[str, ...]] = ("throughput",)
    title: ClassVar[str] = "Slower than usual"
    parameters: ClassVar[dict[str, Parameter]] = {
        "sensitivity": SENSITIVITY,
        "slower": Parameter(
            0.2,
            0.05,
            0.9,
            "fraction",
            "How much slower is an alarm; half of it is a note. Higher: only worse slow-downs.",
        ),
    }

    _tracks: dict[str, _Track] = fresh(dict)
    _event: SlowStretch | None = None
    #: (onset, blocks, rise) of the newest events that went by themselves.
    _went: deque[tuple[int, int, float]] = fresh(deque, maxlen=REMEMBERED)
    #: When the newest of these was over, or of those that were not reported because of it, unix seconds.
    _went_time: float = -math.inf

    def configured(self) -> None:
        sensitivity = self.settings["sensitivity"]
        slower = min(0.95, self.settings["slower"] / sensitivity) if sensitivity else 0.0
        #: By what the cost is multiplied when it is slow, by role, and when it may be; 0 opens nothing.
        self._slow = {name: _factor(slower, more) for name, more in _MORE_IS_FASTER.items()}
        self._factor = {name: _factor(slower / 2, more) for name, more in _MORE_IS_FASTER.items()}
        self._sigmas = SLOW_SIGMAS / (sensitivity or 1.0)

    @classmethod
    def story(cls) -> Sequence[Row | Mark]:
        rows: list[Row | Mark] = []
        for step in range(400):
            seconds = (0.5 if not 200 <= step < 300 else 0.8) + 0.01 * (step % 5) + (4.0 if step % 50 == 49 else 0.0)
            rows.append(Row(step, 1e9 + step, {"step_time_s": seconds, "tokens_per_s": 4096 / seconds}))
        return rows

    def wants(self, metric: str) -> bool:
        return role_of(metric) in _MORE_IS_FASTER

    def note(self, mark: Mark) -> list[Finding]:
        if mark.kind == "fork":
            for track in self._tracks.values():
                track.block.clear()
                track.skip = WARM_UP_POINTS
        return []

    def update(self, point: Point) -> list[Finding]:
        step, metric, value, time, _ = point
        track = self._tracks.get(metric)
        if track is None:
            if not self.wants(metric):
                return []
            track = self._tracks[metric] = _Track()
        if not LEAST_VALUE < value < MOST_VALUE:
            return []
        if track.skip:
            track.skip -= 1
            return []
        block = track.block
        block.append((step, value, time))
        if len(block) < BLOCK_POINTS:
            return []
        found = self._judge(metric, track, step, time)
        block.clear()
        return found

    def _judge(self, metric: str, track: _Track, step: int, time: float) -> list[Finding]:
        """Judge a full block."""
        more = _more(metric)
        costs = sorted(1 / value if more else value for _, value, _ in track.block)
        cost = sum(costs[2:6]) / 4
        usual = track.usual
        if cost < track.fine_below and track.unmeasured < MEASURE_BLOCKS and not track.slow:
            track.slow_blocks.clear()
            track.unmeasured += 1
            usual.append(cost)
            return []
        if len(usual) < LEAST_BLOCKS:
            usual.append(cost)
            return []
        if metric != SPEED and self._batch_changed(track.block[0][0], step):
            usual.clear()
            track.slow_blocks.clear()
            track.slow, track.fine_below = False, 0.0
            return self._close(metric, step, time, "resolved", None)
        level, sigma = level_of(usual, SIGMA_FLOOR)
        track.fine_below, track.unmeasured = (1 + FINE) * level, 0
        if track.slow:
            return self._follow(metric, track, cost, level, step, time)
        factor = _of(self._factor, metric)
        if not factor or cost <= level * factor or cost <= level + self._sigmas * sigma:
            track.slow_blocks.clear()
            usual.append(cost)
            return []
        limit = 0.5 * (1 + factor) * level
        onset = next((s, t) for s, value, t in track.block if (1 / value if more else value) > limit or s == step)
        track.slow_blocks.append((*onset, cost))
        if len(track.slow_blocks) < CONFIRM_BLOCKS:
            return []
        moves = abs(cost - track.slow_blocks[-2][2]) > max(SAME_SPEED * (cost - level), 2 * sigma)
        if moves and len(track.slow_blocks) < RAMP_BLOCKS:
            return []
        if moves or min(usual[-1], usual[-2]) > level * (1 + 0.25 * (factor - 1)) + sigma:
            usual.extend(block_cost for _, _, block_cost in track.slow_blocks)  # it came slowly: a new normal
            track.slow_blocks.clear()
            return []
        track.slow = True
        track.fast_blocks.clear()
        return self._open(metric, track, level, step, time)

    def _open(self, metric: str, track: _Track, level: float, step: int, time: float) -> list[Finding]:
        event = self._event
        if event is None:
            onset, onset_time, _ = track.slow_blocks[0]
            least_s = COOLDOWN_S if onset_time - self._went_time < COOLDOWN_S else LEAST_S
            event = self._event = SlowStretch(metric, onset, step, "info", onset_time, level, least_s, level)
            for _, _, cost in track.slow_blocks:
                self._count(event, cost, time)
            event.sudden = event.cost >= event.level * _of(self._slow, metric) > 0
        else:
            event.also.append(metric)
        return self._report(event, step, time)

    def _report(self, event: SlowStretch, step: int, time: float) -> list[Finding]:
        """Report an event as soon as it lasted and cost enough, and again what is new of one that was reported."""
        if not event.told:
            if not event.lasts(time) or event.lost_s < LEAST_LOST_S:
                return []
            event.told, event.seen = True, step
            event.sudden &= event.cost >= event.level * _of(self._slow, event.metric)
            self.claim(event.metric, event.onset)
        return [self._finding(event, "open", step, None)]

    def _follow(self, metric: str, track: _Track, cost: float, level: float, step: int, time: float) -> list[Finding]:
        """Advance a slow metric by one block."""
        event = self._event if self._event is not None and self._event.metric == metric else None
        back = cost <= level * 0.5 * (1 + (_of(self._factor, metric) or 1 + self.settings["slower"]))
        if back:
            track.fast_blocks.append(track.block[0][0])
            if len(track.fast_blocks) < CONFIRM_BLOCKS:
                return []
            track.slow = False
            track.slow_blocks.clear()
            return self._close(metric, step, time, "recovered", track.fast_blocks[0])
        track.fast_blocks.clear()
        track.slow_blocks.append((step, time, cost))
        if event is not None:
            self._count(event, cost, time)
        if len(track.slow_blocks) > ACCEPT_BLOCKS:
            del track.slow_blocks[1]  # the first one says since when, the last ones how slow
        many = len(track.slow_blocks) if event is None else event.blocks
        brief = event is not None and many < ACCEPT_ALWAYS and 0 < time - event.onset_time < ACCEPT_S
        if many >= ACCEPT_BLOCKS and not brief:
            track.usual.clear()
            track.usual.extend(block_cost for _, _, block_cost in track.slow_blocks[-LEAST_BLOCKS:])
            track.slow, track.fine_below = False, 0.0
            track.slow_blocks.clear()
            return self._close(metric, step, time, "resolved", None)
        if event is not None and (not event.told or many in NEWS_BLOCKS):
            return self._report(event, step, time)
        return []

    def _batch_changed(self, first: int, last: int) -> bool:
        """Return whether the batch size stepped in this block or right before it."""
        since = first - round(EXCUSE_POINTS * self.context.interval)
        return any(excuse.kind == "batch_size" for excuse in self.context.excuses_between(since, last))

    def _count(self, event: SlowStretch, cost: float, time: float) -> None:
        """Add a block to what is known of the event: its mean cost and the time that it lost."""
        event.blocks += 1
        event.cost += (cost - event.cost) / event.blocks
        if event.metric != STEP_TIME:  # of others' step times the unit is not known
            event.lost_s = max(0.0, (time - event.onset_time) * (1 - event.level / event.cost))
        else:
            event.lost_s += max(0.0, cost - event.level) * BLOCK_POINTS * self.context.interval

    def _close(self, metric: str, step: int, time: float, state: State, recovered_step: int | None) -> list[Finding]:
        event = self._event
        if event is None or event.metric != metric:
            return []
        self._event = None
        if state == "recovered" and (event.told or event.least_s > LEAST_S):
            self._went_time = time
        if not event.told:
            return []
        self.claim(event.metric, event.onset, step)
        found = self._finding(event, state, step, recovered_step)
        if state == "recovered":
            self._went.append((event.onset, event.blocks, event.rise))
        return [found]

    def _alike(self, event: SlowStretch) -> list[int]:
        """Return the onsets of earlier events as slow and as long as this one, when they make a habit."""
        alike = [
            onset
            for onset, blocks, rise in self._went
            if event.blocks <= LONGER * blocks and event.rise <= LONGER * rise
        ]
        return alike if len(alike) >= HABIT else []

    def _finding(self, event: SlowStretch, state: State, now_step: int, recovered_step: int | None) -> Finding:
        more = _more(event.metric)
        before, after = (1 / event.level, 1 / event.cost) if more else (event.level, event.cost)
        change = percent(after, before) or 0.0
        name = _NAMES.get(event.metric) or f"{event.metric} {'fell' if more else 'rose'}"
        text = f"{name} from {before:.4g} to {after:.4g} ({change:+.0f} %) at step {event.onset}."
        lost_s = min(event.lost_s, 1e12)
        if lost_s > 0:
            text += f" About {duration(lost_s)} of the job's time lost so far."
        if event.also:
            text += f" {', '.join(event.also)} shows it too."
        text += {
            "open": " It is still slow.",
            "recovered": f" It is back at its usual speed since step {recovered_step}.",
            "resolved": " It has stayed so: this speed counts as the usual one from here on.",
        }[state]
        event.earlier = self._alike(event)
        if event.sudden and not event.earlier:
            event.severity = "warning"
        if event.earlier:
            text += f" The same came and went at steps {', '.join(map(str, event.earlier[-3:]))}: an evaluation?"
        evidence: dict[str, Any] = {
            "level_before": before,
            "level_after": after,
            "rise_percent": change,
            "direction": "down" if more else "up",
            "lost_s": lost_s,
            "since_time": event.onset_time,
            "points": event.blocks * BLOCK_POINTS,
            "threshold": self.settings["slower"],
            "score_unit": "percent of time per step added",
            "also": list(event.also),
            "explained_by": [f"habit: as at step {onset}" for onset in event.earlier[-3:]],
        }
        if recovered_step is not None:
            evidence["recovered_at"] = recovered_step
        return self.finding(
            event,
            now_step,
            state,
            title=f"Slower since step {event.onset} ({change:+.0f} %)"
            if state == "open"
            else f"Slower from step {event.onset} ({change:+.0f} %)",
            text=text,
            recovered_step=recovered_step,
            score=percent(event.cost, event.level) or 0.0,
            evidence=evidence,
        )


def _more(metric: str) -> bool:
    return _of(_MORE_IS_FASTER, metric)


def _of(table: Mapping[str, _T], metric: str) -> _T:
    """Return what a table of roles says of a metric that is watched."""
    return table[role_of(metric) or SPEED]


def _factor(slower: float, more: bool) -> float:
    """Return by what a cost is multiplied: of a step that takes longer, or of a speed (``more``) that is lost."""
    return (1 / (1 - slower) if more else 1 + slower) if slower else 0.0
