"""A slower job, and the time lost so far."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

from stabilitybackend.schema.metric_roles import SPEED, STEP_TIME, role_of

from .engine.base import SENSITIVITY, Detector, Finding, Mark, Parameter, Point, Row, State, fresh
from .engine.row_blocks import QuietRows
from .slow_stretch import USUAL_BLOCKS, PaceTrack, SlowStretch, duration
from .stats.levels import percent
from .stats.own_past import more_than_before

#: Labels of roles in a sentence.
_NAMES = {SPEED: "Tokens per second fell", STEP_TIME: "The time of a step rose"}
#: The time between the points, besides the roles.
_WALL = "wall"
#: Remembered losses of self-healed intervals, the newest ones.
REMEMBERED = 64
#: Usual blocks in a row that end an interval: one alone may be noise.
BACK_BLOCKS = 2
#: A slow interval that fills the memory of usual blocks and lasts so long, seconds, is the new usual speed.
ACCEPT_S = 600.0
#: Values outside are no speeds.
LEAST_VALUE, MOST_VALUE = 1e-150, 1e150

__all__ = ["ThroughputDetector"]


class ThroughputDetector(Detector):
    """Opens one incident when the job is slower than usual for half a minute, and counts the lost time.

    Idea: points are judged in blocks of eight and of four seconds at least, by their median, so that single slow
    steps (checkpoints, evaluations, a pause) never count. The usual cost of a step is the median of the last 32
    blocks. A stretch of blocks above it is an event when it lasted 30 s, lost 10 s of the job's time, was sudden and
    further up than the usual blocks lie apart, and cost twice as much as the run's own past: the second worst of the
    newest 64 stretches that went by themselves. Where a speed and a step time are logged both have to show it. From a
    fifth more time per step on it is an alarm, from a tenth on a note (``info``). It recovers after two usual blocks;
    after 32 slow ones and 10 minutes the new speed is accepted.

    Args:
        slower: how much slower counts, as a fraction of the time of a step.

    Source: OSDI'25 "Understanding Stragglers in Large Model Training Using What-if Analysis", which calls a job slow
    from 10 % on: 42 % of 3,079 jobs were.

    Example:
        >>> detector = ThroughputDetector()
        >>> speeds = [100.0 + i % 3 for i in range(160)] + [70.0 + i % 3 for i in range(24)]
        >>> points = [Point(step, "tokens_per_s", speed, 10.0 * step) for step, speed in enumerate(speeds)]
        >>> [(f.onset_step, f.step, f.severity) for point in points for f in detector.update(point)]
        [(160, 175, 'warning')]
    """

    name: ClassVar[str] = "throughput"
    kinds: ClassVar[tuple[str, ...]] = ("throughput",)
    title: ClassVar[str] = "Slower than usual"
    version: ClassVar[int] = 2
    parameters: ClassVar[dict[str, Parameter]] = {
        "sensitivity": SENSITIVITY,
        "slower": Parameter(
            0.2,
            0.05,
            9.0,
            "fraction",
            "How much more time per step is an alarm; half of it is a note. Higher: only worse slow-downs.",
        ),
    }

    #: The first metric of each role; further ones are ignored.
    _tracks: dict[str, PaceTrack] = fresh(dict)
    #: Step and time of the newest point of a speed.
    _last: tuple[int, float] = (-1, math.inf)
    #: The rises of the newest two blocks.
    _rises: deque[float] = fresh(deque, [0.0], maxlen=2)
    _stretch: SlowStretch | None = None
    #: Costs of the newest self-healed intervals, in blocks of usual length.
    _went: deque[float] = fresh(deque, maxlen=REMEMBERED)

    def configured(self) -> None:
        sensitivity = self.settings["sensitivity"]
        #: Excess of a step's time, as a fraction: for an alarm, and for a note. Infinite opens nothing.
        self._alarm = self.settings["slower"] / sensitivity if sensitivity else float("inf")
        self._note = self._alarm / 2

    @classmethod
    def story(cls) -> Sequence[Row | Mark]:
        rows: list[Row | Mark] = []
        for step in range(400):
            seconds = (0.5 if not 200 <= step < 300 else 0.8) + 0.01 * (step % 5) + (4.0 if step % 50 == 49 else 0.0)
            rows.append(Row(step, 1e9 + step, {"step_time_s": seconds, "tokens_per_s": 4096 / seconds}))
        return rows

    def wants(self, metric: str) -> bool:
        return role_of(metric) in _NAMES

    def note(self, mark: Mark) -> list[Finding]:
        if mark.kind == "fork":
            for track in self._tracks.values():
                track.fork()
        return []

    def update(self, point: Point) -> list[Finding]:
        step, metric, value, time, _ = point
        role = role_of(metric)
        if role not in _NAMES or not LEAST_VALUE < value < MOST_VALUE:
            return []
        track = self._tracks.get(role)
        if track is None:
            track = self._tracks[role] = PaceTrack(metric)
        if track.metric != metric:
            return []
        if role == SPEED:
            self._tick(step, time)
        return self._judge(track, step, time) if track.add(step, 1 / value if role == SPEED else value, time) else []

    def take_quiet(self, rows: QuietRows, start: int, stop: int) -> int:
        some = []
        for metric in rows.columns:
            role = role_of(metric)
            if role in _NAMES:
                track, among = self._tracks.get(role), rows.ranges.get(metric)
                if track is None or among is None or not (among[0] > LEAST_VALUE and among[1] < MOST_VALUE):
                    return start
                if track.metric == metric:
                    stop = track.quiet(rows.times, start, stop)
                    some.append((track, role, rows.columns[metric]))
        for track, role, values in some:
            costs = [1 / value for value in values[start:stop]] if role == SPEED else values[start:stop]
            if role == SPEED:
                self._ticks(rows.steps[start:stop], rows.times[start:stop])
            track.points.extend(zip(rows.steps[start:stop], costs, rows.times[start:stop], strict=True))
        return stop

    def _tick(self, step: int, time: float) -> None:
        """Take the seconds per step since the last point."""
        (last_step, last_time), self._last = self._last, (step, time)
        wall = self._tracks.setdefault(_WALL, PaceTrack(_WALL))
        if step > last_step and time > last_time:
            wall.add(step, (time - last_time) / (step - last_step), time)

    def _ticks(self, steps: Sequence[int], times: Sequence[float]) -> None:
        """Take those of many points."""
        wall, at = self._tracks.get(_WALL), 0
        while at < len(steps) and (wall is None or wall.skip):
            self._tick(steps[at], times[at])
            wall, at = self._tracks.get(_WALL), at + 1
        if wall is None or at == len(steps):
            return
        points = [self._last, *zip(steps[at:], times[at:], strict=True)]
        wall.points += [
            (step, (time - before) / (step - since), time)
            for (since, before), (step, time) in pairwise(points)
            if step > since and time > before
        ]
        self._last = points[-1]

    def _rise(self) -> float:
        """Return the excess of a step's time in the newest block, as a fraction, 0.0 for unknown.

        A speed and a step time are one clock read twice, and each may change for a reason of its own: shorter batches
        are fewer tokens a second, larger ones are longer steps. So both have to show it. A step time of this rank's own
        work alone does not: then the time between the points has to.
        """
        rises = {role: track.rise() for role, track in self._tracks.items() if track.votes}
        speed, step_time = rises.get(SPEED), rises.get(STEP_TIME)
        if speed is None or step_time is None:
            return speed or step_time or 0.0
        return min(speed, max(step_time, rises.get(_WALL) or 0.0))

    def _judge(self, full: PaceTrack, step: int, time: float) -> list[Finding]:
        """Judge a block of points."""
        begin, rise = full.points[0][0], self._rise()
        tracks, stretch = [track for track in self._tracks.values() if track.votes], self._stretch
        found: list[Finding] = []
        if self._batch_changed(begin, step):
            found = self._over("resolved", step)
            for track in tracks:
                track.usual.clear()
        elif rise > self._note / 2:
            if stretch is None:
                stretch = self._begin(tracks, step, time)
            stretch.add(rise, rise - min(self._rises), full.took_s())
            found = self._slow(stretch, step)
        elif stretch is not None:
            stretch.usual, stretch.back = stretch.usual + 1, begin if not stretch.usual else stretch.back
            if stretch.usual == BACK_BLOCKS:
                found = self._over("recovered", step)
        self._rises.append(rise)
        for track in tracks:
            track.close()
            if self._stretch is None:
                track.settle()
        return found

    def _begin(self, tracks: Sequence[PaceTrack], step: int, time: float) -> SlowStretch:
        shown = [track for track in tracks if track.metric != _WALL and (track.rise() or 0.0) > self._note / 2]
        main = min(shown, key=lambda track: role_of(track.metric) != SPEED)
        level, limit = main.level() or 0.0, 1 + self._note / 2
        onset, onset_time = next(((at, when) for at, cost, when in main.points if cost > limit * level), (step, time))
        stretch = self._stretch = SlowStretch(main.metric, onset, step, "info", onset_time, level, main.spread())
        stretch.also = [track.metric for track in shown if track is not main]
        return stretch

    def _slow(self, stretch: SlowStretch, step: int) -> list[Finding]:
        """Follow an interval by a slow block: report it, its changes, or accept the new speed."""
        stretch.usual = 0
        if stretch.blocks >= USUAL_BLOCKS and not (stretch.told and 0 < stretch.lasted_s < ACCEPT_S):
            return self._over("resolved", step)
        worse = stretch.severity == "info" and stretch.rise >= self._alarm and stretch.sudden
        if not stretch.told:
            news = stretch.rise >= self._note and stretch.cost > self._usual_cost() and stretch.matters
        else:
            news = worse or 0 < 2 * stretch.told_lost_s <= stretch.lost_s
        if not news:
            return []
        if not stretch.told:
            stretch.told, stretch.seen = True, step
            self.claim(stretch.metric, stretch.onset)
        stretch.severity, stretch.told_lost_s = "warning" if worse else stretch.severity, stretch.lost_s
        return [self._finding(stretch, "open", step)]

    def _usual_cost(self) -> float:
        """Return the cost that an interval must exceed: more than the run's own past."""
        return more_than_before(self._went)

    def _over(self, state: State, step: int) -> list[Finding]:
        """End the open interval, if any."""
        stretch, self._stretch = self._stretch, None
        if stretch is None:
            return []
        if state == "recovered":
            self._went.append(stretch.cost)
        if not stretch.told:
            return []
        if state == "recovered":
            for track in self._tracks.values():
                track.since.clear()
        self.claim(stretch.metric, stretch.onset, step)
        return [self._finding(stretch, state, step)]

    def _batch_changed(self, first: int, last: int) -> bool:
        """Return whether the batch size stepped in this block, and no speed in samples or tokens decides."""
        if SPEED in self._tracks:
            return False
        return any(excuse.kind == "batch_size" for excuse in self.context.excuses_between(first, last))

    def _finding(self, stretch: SlowStretch, state: State, now_step: int) -> Finding:
        more = role_of(stretch.metric) == SPEED
        usual, cost = stretch.level, stretch.level * (1 + stretch.rise)
        before, after = (1 / usual, 1 / cost) if more else (usual, cost)
        change = percent(after, before) or 0.0
        name = _NAMES[SPEED if more else STEP_TIME]
        if stretch.metric not in _NAMES:
            name = f"{stretch.metric} {'fell' if more else 'rose'}"
        text = f"{name} from {before:.4g} to {after:.4g} ({change:+.0f} %) at step {stretch.onset}."
        lost_s = min(stretch.lost_s, 1e12)
        if lost_s > 0:
            text += f" About {duration(lost_s)} of the job's time lost so far."
        if stretch.also:
            text += f" {', '.join(stretch.also)} shows it too."
        back = stretch.back if state == "recovered" else None
        text += {
            "open": " It is still slow.",
            "recovered": f" It is back at its usual speed since step {back}.",
            "resolved": " It has stayed so: this speed counts as the usual one from here on.",
        }[state]
        evidence: dict[str, Any] = {
            "level_before": before,
            "level_after": after,
            "rise_percent": change,
            "direction": "down" if more else "up",
            "lost_s": lost_s,
            "since_time": stretch.onset_time,
            "blocks": stretch.blocks,
            "threshold": self.settings["slower"],
            "score_unit": "percent of time per step added",
            "also": list(stretch.also),
            "cost_blocks": stretch.cost,
            "usual_cost_blocks": self._usual_cost(),
        }
        if back is not None:
            evidence["recovered_at"] = back
        title = f"Slower {'since' if state == 'open' else 'from'} step {stretch.onset} ({change:+.0f} %)"
        return self.finding(
            stretch, now_step, state, title=title, text=text, recovered_step=back, score=100 * stretch.rise,
            evidence=evidence,
        )  # fmt: skip
