"""Changes of the data mixture: ``ratio/*`` that leave their level, above all after a resume."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from stabilitybackend.judging.detectors.engine.base import (
    SENSITIVITY,
    Detector,
    Event,
    Finding,
    Mark,
    Parameter,
    Point,
    Row,
    State,
    fresh,
)
from stabilitybackend.judging.detectors.engine.row_blocks import QuietRows
from stabilitybackend.judging.detectors.stats.before_fork import FORK_CONFIRM, FORK_POINTS, FORK_WINDOW
from stabilitybackend.judging.detectors.stats.levels import LARGEST, Level, level_of, percent, quantum
from stabilitybackend.judging.detectors.stats.own_past import more_than_before
from stabilitybackend.judging.detectors.stats.robust import MEDIAN_ERROR, median
from stabilitybackend.schema.metric_roles import LOSS, SHARE_OF, TAKEN, role_of

__all__ = ["DataMixDriftDetector"]

#: Points judged as one, by the mean of their middle half.
BLOCK_POINTS = 16
#: Blocks of the usual level, and fewest blocks before a report.
USUAL_BLOCKS = 16
LEAST_BLOCKS = 3
#: The usual level is measured once in so many blocks, and for each block that may be away from it.
MEASURE_BLOCKS = 8
#: Smallest sigma of a point, as a fraction of the level.
SIGMA_FLOOR = 0.005
#: Noise of a block's mean, relative to that of one point.
BLOCK_NOISE: float = MEDIAN_ERROR / BLOCK_POINTS**0.5
#: Distance of a block away from the level, sigmas of blocks.
BLOCK_SIGMAS = 5.0
#: A sudden shift has this share of its height within so many points on both sides of its middle.
SUDDEN_POINTS, SUDDEN_PART = 6, 0.55
#: Distance of a point right after a fork that counts.
FORK_SIGMAS = 4.0


@dataclass(slots=True)
class ShareTrack:
    """One ``ratio/*`` metric in blocks, and point by point after a fork.

    The usual level is the median of the last 16 blocks; the noise is that of points within a block, or the wander
    of the blocks where that is larger.
    """

    #: The points since the last full block.
    block: list[tuple[int, float]] = field(default_factory=list)
    #: Means of usual blocks, newest last.
    usual: deque[float] = field(default_factory=lambda: deque(maxlen=USUAL_BLOCKS))
    #: Blocks away from the level: first step that is away, mean. Empty while the share is usual.
    shifted: list[tuple[int, float]] = field(default_factory=list)
    #: The points since a fork as (step, value, direction: -1, 0 or 1); None away from forks.
    after_fork: list[tuple[int, float, int]] | None = None
    _noise: deque[float] = field(default_factory=lambda: deque(maxlen=USUAL_BLOCKS))
    _previous: list[tuple[int, float]] = field(default_factory=list)
    _limit_low: float = math.inf
    _limit_high: float = -math.inf
    _unmeasured: int = 0

    def level(self) -> Level | None:
        """Return the usual level and the noise of one point, None for too few."""
        if len(self.usual) < LEAST_BLOCKS:
            return None
        centre, wander = level_of(self.usual)
        return centre, max(median(self._noise), wander, SIGMA_FLOOR * abs(centre))

    def block_sigma(self) -> float:
        """Return the noise of a block's mean, given a level."""
        _, wander = level_of(self.usual)
        return max(BLOCK_NOISE * median(self._noise), wander, 0.25 * SIGMA_FLOOR * abs(self.usual[-1]))

    def since(self, step: int) -> tuple[float, float]:
        """Return the mean of the points from a step on, of the newest two blocks, and its noise."""
        shares = [share for at, share in (*self._previous, *self.block) if at >= step] or [self.usual[-1]]
        return sum(shares) / len(shares), self.block_sigma() * (BLOCK_POINTS / len(shares)) ** 0.5

    def fork(self) -> None:
        """Watch the next points one by one in a new segment."""
        self.after_fork = None if self.level() is None or self.shifted else []
        self._previous = [*self._previous, *self.block][-BLOCK_POINTS:]
        self.block = []

    def near_fork(self, step: int, value: float, by: float, min_shift: float) -> Level | None:
        """Judge one of the first points after a fork; return the level before it if the share has left that.

        Args:
            by: sensitivity, > 0.
            min_shift: smallest shift that counts, as a fraction of the level.
        """
        recent, level = self.after_fork, self.level()
        if recent is None or level is None or len(self._previous) < FORK_WINDOW:
            self.after_fork = None
            return None
        # The newest points before the fork count, and not only the long past: the level may have wandered.
        centre = median([share for _, share in self._previous])
        sigma = max(level[1], abs(centre - level[0]))
        away = max(FORK_SIGMAS / by * sigma, min_shift * abs(centre))
        recent.append((step, value, (value > centre + away) - (value < centre - away)))
        for way in (-1, 1):
            out = [(at, share) for at, share, there in recent[-FORK_WINDOW:] if there == way]
            if len(out) >= FORK_CONFIRM:
                self.after_fork = None
                self.shifted = [(out[0][0], median([share for _, share in out]))]
                return centre, sigma
        if len(recent) >= FORK_POINTS:
            self.after_fork = None
        return None

    def full(self, by: float, min_shift: float) -> float:
        """Learn the full block, or record it in ``shifted`` when it is away from the level; return its mean."""
        shares = [share for _, share in self.block]
        mean = sum(shares) / BLOCK_POINTS
        if self._limit_low <= mean <= self._limit_high and self._unmeasured < MEASURE_BLOCKS and not self.shifted:
            self._unmeasured += 1
            self.usual.append(mean)
            return mean
        centre = sum(sorted(shares)[4:-4]) / (BLOCK_POINTS - 8)  # of the middle half: few values, as of batches of 8
        noise = max(level_of(shares)[1], quantum(shares))
        level = self.level()
        if self.shifted:
            return centre
        if level is not None and by:
            away = max(BLOCK_SIGMAS / by * self.block_sigma(), min_shift * abs(level[0]))
            if abs(centre - level[0]) > away:
                self.shifted = [(self._onset(level[0], centre), centre)]
                return centre
            self._limit_low, self._limit_high = level[0] - 0.5 * away, level[0] + 0.5 * away
        self._unmeasured = 0
        self.learn(centre, noise)
        return centre

    def learn(self, centre: float, noise: float | None = None) -> None:
        """Take a block as usual."""
        self.usual.append(centre)
        self._noise.append(noise if noise is not None else self._noise[-1])

    def next_block(self) -> None:
        """Begin a new block."""
        self._previous, self.block = self.block, []

    def rebase(self) -> None:
        """Accept the newest shifted blocks as the usual level."""
        newest = [centre for _, centre in self.shifted[-LEAST_BLOCKS:]]
        noise = self._noise[-1] if self._noise else 0.0
        self.usual.clear()
        self._noise.clear()
        for centre in newest:
            self.learn(centre, noise)
        self._limit_low, self._limit_high = math.inf, -math.inf
        self.shifted = []

    def sudden(self, before: float, after: float) -> bool:
        """Return whether most of the shift lies between SUDDEN_POINTS before and as many after its middle.

        Call it when the second block in a row is full: the shift lies in it, in the first, or right before that.
        """
        half, up = 0.5 * (before + after), after > before
        shares = [share for _, share in (*self._previous, *self.block)]
        sides = [(share > half) == up for share in shares]
        # The best split of the points: the fewest on its wrong side.
        wrong = [sum(sides[:i]) + sides[i:].count(False) for i in range(len(sides) - SUDDEN_POINTS + 1)]
        place = wrong.index(min(wrong))
        old = shares[max(0, place - SUDDEN_POINTS) : place]
        new = shares[place : place + SUDDEN_POINTS]
        start = sum(old) / len(old) if len(old) >= SUDDEN_POINTS // 2 else self.usual[-1]
        return abs(sum(new) / len(new) - start) > SUDDEN_PART * abs(after - before)

    def _onset(self, before: float, centre: float) -> int:
        """Return the first step beyond half of the shift, possibly in the block before."""
        half, up = 0.5 * (before + centre), centre > before
        points = [*self._previous, *self.block]
        first = next(i for i in range(len(self._previous), len(points)) if (points[i][1] > half) == up)
        while first and (points[first - 1][1] > half) == up:
            first -= 1
        return points[first][0]


@dataclass(slots=True)
class MixEvent(Event):
    """One change of the mixture.

    Attributes:
        now: its newest step. before, sigma, after: the old level, its noise, and the new level.
        fork, fork_text: first step after the resume at its onset, and the resume as text.
        ramp: steady, not sudden. points: of evidence.
        loss_before, loss_after, loss_moved: level of the loss before, its newest points, and the move with the mixture,
            percent.
        also: other moved shares, each with level before and after. blocks: levels since the onset.
        explained_by: changes of the mixture.
    """

    now: int
    before: float
    sigma: float
    after: float
    fork: int | None
    fork_text: str
    ramp: bool
    points: int
    loss_before: Level | None
    loss_after: list[float] = field(default_factory=list)
    loss_moved: float | None = None
    also: dict[str, list[float]] = field(default_factory=dict)
    blocks: list[float] = field(default_factory=list)
    explained_by: list[str] = field(default_factory=list)


def worded(event: MixEvent, state: State, back: int | None) -> tuple[str, dict[str, Any]]:
    """Return text and evidence of an event.

    Args:
        back: the first step at the level before, None without a recovery.
    """
    change = percent(event.after, event.before)
    shown = f" ({change:+.0f} %)" if change is not None else ""
    verb = "has moved steadily" if event.ramp else "moved"
    text = f"{event.metric} {verb} from {event.before:.4g} to {event.after:.4g}{shown}, onset at step {event.onset}."
    if event.fork is not None:
        text += f" It began right after step {event.fork - 1}, where {event.fork_text}:"
        text += " was the sampler's state restored?"
    if event.loss_moved is not None:
        text += f" The loss moved with it by {event.loss_moved:+.1f} %."
    if event.also:
        text += f" So did {', '.join(list(event.also)[:4])}."
    if event.explained_by:
        text += f" {'; '.join(event.explained_by)}."
    text += {
        "open": "",
        "recovered": f" It is back at its level since step {back}.",
        "resolved": " It is stable: this is the usual level from here on.",
    }[state]
    evidence: dict[str, Any] = {
        "level_before": event.before,
        "level_after": event.after,
        "sigma": event.sigma,
        "rise_percent": change,
        "direction": "up" if event.after > event.before else "down",
        "score_unit": "robust sigmas",
        "points": event.points,
        "after_fork": None if event.fork is None else event.fork - 1,
        "ramp": event.ramp,
        "loss_percent": event.loss_moved,
        "also": dict(list(event.also.items())[:16]),
        "explained_by": list(event.explained_by),
        "recovered_at": back,
    }
    if event.ramp:
        evidence["explained_by"].append("a steady ramp, as a planned change of the mixture is")
    return text, evidence


#: Watched ratios of one run; further ones are ignored.
MAX_RATIOS = 64
#: Least sudden shift far from a fork, with the loss in its place, for an alarm, fraction: a new stage of a curriculum
#: looks the same, and such changes are expected. A mixture with such a move before has stages.
LARGE_SHIFT = 0.5
#: Smaller shares count as this one in a comparison by a factor.
SMALLEST_SHARE = 1e-6
#: Remembered moves of the run's own past far from forks, the newest ones. A mixture that moves in steps, in waves or
#: shard by shard has moved before.
REMEMBERED = 16
#: A moved loss: its median did by so many sigmas of the median, and by this fraction.
LOSS_SIGMAS, LOSS_FRACTION = 5.0, 0.02
LOSS_POINTS = 64
LOSS_AFTER_POINTS = 12
#: Recovered: the median of a block is within this part of the shift.
BACK = 0.4
#: Blocks after which the new level is the usual one.
ACCEPT_BLOCKS = 8


class DataMixDriftDetector(Detector):
    """Opens one incident when shares of the data leave their level, however many ``ratio/*`` metrics show it.

    Idea: ratios of small batches are noisy (a draw per sample), so that they are judged by the middle half of 16
    points against the median of the last 16 blocks; noise and wander of the past are the unit. Two blocks in a row
    away from the level are an event. In the first 50 points after a fork three of five points 4 sigmas away from
    the level at the fork step are enough: a sampler whose state was not restored is the usual cause. A sudden shift
    without a fork is an alarm when it is large, the mixture did not move before, and the other shares kept their
    proportions (one source failed, and is named; a new stage has new weights for all), otherwise a note (``info``),
    as is a steady ramp: that the loss moves with it is reported, and does not show whether the ramp was intended. A
    mixture that has moved like that before (in steps, in waves, shard by shard) is not reported.

    Args:
        min_shift: smallest shift that counts, as a fraction of the level.

    Source: IDEFICS-80B's log of its training (the image-to-text ratio drifted after a resume); the resume rule of the
    project's detection notes, section 5.

    Example:
        >>> detector = DataMixDriftDetector()
        >>> shares = [0.43 + 0.01 * (i % 3 - 1) for i in range(200)]
        >>> found = []
        >>> for step, share in enumerate(shares):
        ...     found += detector.update(Point(step, "ratio/image_text", share, 0.0))
        >>> data = {"fork_step": 150, "cause": "restart"}
        >>> found += detector.note(Mark("fork", 151, 0.0, "the run went back to step 150", data))
        >>> for step in range(151, 160):
        ...     found += detector.update(Point(step, "ratio/image_text", 0.8, 0.0))
        >>> [(f.severity, f.onset_step, f.step, f.evidence["after_fork"]) for f in found]
        [('warning', 151, 153, 150)]
    """

    name: ClassVar[str] = "data_mix_drift"
    kinds: ClassVar[tuple[str, ...]] = ("data_mix_drift",)
    title: ClassVar[str] = "Data mixture drifts"
    parameters: ClassVar[dict[str, Parameter]] = {
        "sensitivity": SENSITIVITY,
        "min_shift": Parameter(
            0.03, 0.001, 1.0, "fraction", "Smallest shift of a share that counts. Higher: larger shifts only."
        ),
    }

    _tracks: dict[str, ShareTrack] = fresh(dict)
    _event: MixEvent | None = None
    _loss: deque[float] = fresh(deque, maxlen=LOSS_POINTS)
    _fork: tuple[int, str, str] | None = None
    #: The newest moves far from forks, as the logarithm of the factor.
    _moves: deque[float] = fresh(deque, maxlen=REMEMBERED)
    #: Former level of a ratio accepted elsewhere: the return is no second alarm.
    _homes: dict[str, tuple[int, float]] = fresh(dict)
    _loss_metric: str | None = None
    #: Ratios beyond MAX_RATIOS, each time they were logged.
    dropped: int = 0

    def configured(self) -> None:
        self._by = self.settings["sensitivity"]
        self._shift = self.settings["min_shift"] / (self._by or 1.0)

    @classmethod
    def story(cls) -> Sequence[Row | Mark]:
        share = [0.43 + 0.004 * (7 * step % 5 - 2) + (0.19 if 300 <= step < 340 else 0.0) for step in range(400)]
        rows = [Row(step, 1e9 + step, {"ratio/image_text": share[step]}) for step in range(400)]
        data = {"fork_step": 299, "cause": "restart", "reason": "", "changes": {}, "last_step": 299, "left_behind": {}}
        fork = Mark("fork", 300, 1e9 + 300, "another process went on after step 299", data)
        return [*rows[:300], fork, *rows[300:]]

    def wants(self, metric: str) -> bool:
        return metric.startswith(SHARE_OF) or role_of(metric) == LOSS

    def note(self, mark: Mark) -> list[Finding]:
        if mark.kind == "fork":
            self._fork = (mark.step, mark.text, str(mark.data.get("cause", "")))
            for track in self._tracks.values():
                track.fork()
        return []

    def update(self, point: Point) -> list[Finding]:
        step, metric, value, _, _ = point
        if not -LARGEST < value < LARGEST or (self.context.mixture and metric.startswith(SHARE_OF)):
            return []  # declared shares are judged by mixture.py
        track = self._tracks.get(metric)
        if track is None:
            if not metric.startswith(SHARE_OF):
                return self._loss_point(metric, step, value)
            if len(self._tracks) >= MAX_RATIOS:
                self.dropped += 1
                return []
            track = self._tracks[metric] = ShareTrack()
        found = [] if track.after_fork is None else self._near_fork(metric, track, step, value)
        block = track.block
        block.append((step, value))
        if len(block) < BLOCK_POINTS:
            return found
        found = found + self._judge(metric, track, step)
        track.next_block()
        return found

    def take_quiet(self, rows: QuietRows, start: int, stop: int) -> int:
        if self._event is not None or self.context.mixture or any(name.startswith(TAKEN) for name in rows.columns):
            return start
        shares = [name for name in rows.columns if name.startswith(SHARE_OF)]
        losses = [name for name in rows.columns if role_of(name) == LOSS]
        if any(name not in rows.ranges for name in shares + losses) or (losses and self._loss_metric is None):
            return start
        known = [(self._tracks[name], rows.columns[name]) for name in shares if name in self._tracks]
        if len(known) < len(shares) or any(track.after_fork is not None for track, _ in known):
            return start
        stop = self._quiet_blocks(known, rows.steps, start, stop)
        if self._loss_metric in losses:
            self._loss.extend(rows.columns[self._loss_metric][max(start, stop - LOSS_POINTS) : stop])
        return stop

    def _quiet_blocks(
        self, shares: Sequence[tuple[ShareTrack, Sequence[float]]], steps: Sequence[int], start: int, stop: int
    ) -> int:
        """Take points up to the one that fills a block of a share that was away from its level; return its index."""
        while start < stop:
            end = min([start + BLOCK_POINTS - len(track.block) for track, _ in shares], default=stop)
            full = [track for track, _ in shares if start + BLOCK_POINTS - len(track.block) == end <= stop]
            judged = any(track.shifted for track in full)
            end = end - 1 if judged else min(end, stop)
            for track, values in shares:
                track.block.extend(zip(steps[start:end], values[start:end], strict=True))
            if judged:
                return end
            for track in full:
                track.full(self._by, self._shift)
                track.next_block()
            start = end
        return start

    def _near_fork(self, metric: str, track: ShareTrack, step: int, value: float) -> list[Finding]:
        """Judge one of the first points after a fork against the level at the fork step."""
        if not self._by or self._fork is None:
            track.after_fork = None
            return []
        level = track.near_fork(step, value, self._by, self._shift)
        return [] if level is None else self._open(metric, track, level, step, at_fork=True)

    def _judge(self, metric: str, track: ShareTrack, step: int) -> list[Finding]:
        """Judge a full block."""
        was_away = bool(track.shifted)
        centre = track.full(self._by, self._shift)
        if not was_away:
            return []
        event, level = self._event, track.level()
        if level is None:
            track.rebase()
            return []
        if event is not None and event.metric == metric:
            track.shifted.append((step, centre))
            return self._advance(event, track, centre, step)
        if event is not None and metric in event.also:
            track.shifted.append((step, centre))
            if len(track.shifted) > ACCEPT_BLOCKS:
                track.rebase()
            return []
        # Away for one block so far: the second one in a row decides.
        before, shift = level[0], track.shifted[-1][1] - level[0]
        if (centre - before) * shift <= 0 or abs(centre - before) < 0.5 * abs(shift):
            track.shifted.clear()
            track.learn(centre)
            return []
        track.shifted.append((step, centre))
        return self._open(metric, track, (before, track.block_sigma()), step, at_fork=False)

    def _advance(self, event: MixEvent, track: ShareTrack, centre: float, step: int) -> list[Finding]:
        """Follow the ratio of the open event by one block."""
        event.blocks.append(centre)
        event.points += BLOCK_POINTS
        event.now = step
        if abs(centre - event.before) < max(BACK * abs(event.after - event.before), 3 * BLOCK_NOISE * event.sigma):
            back = next(
                (at for at, share in track.block if abs(share - event.before) < 0.5 * abs(event.after - event.before)),
                step,
            )
            track.shifted.clear()
            return self._close("recovered", step, back)
        if len(event.blocks) < ACCEPT_BLOCKS:
            if len(event.blocks) in (1, 2):
                event.after = median(event.blocks)
            return self._loss_moved(event, step)
        event.after = centre if event.ramp else median(event.blocks)
        track.rebase()
        self._homes[event.metric] = (event.onset, event.before)
        return self._close("resolved", step, None)

    # --- events --------------------------------------------------------------------------------------------------

    def _open(self, metric: str, track: ShareTrack, level: Level, step: int, *, at_fork: bool) -> list[Finding]:
        before, sigma = level
        onset, after = track.shifted[0][0], track.shifted[-1][1]
        event = self._event
        if event is not None and step - event.now > ACCEPT_BLOCKS * BLOCK_POINTS * self.context.interval:
            return [*self._close("resolved", step, None), *self._open(metric, track, level, step, at_fork=at_fork)]
        if event is not None:
            if metric not in event.also and metric != event.metric:
                event.also[metric] = [before, after]
            return []
        fork = self._fork if self._fork is not None and self._near(onset, self._fork[0]) else None
        onset = max(onset, fork[0]) if fork is not None else onset
        lone = metric if fork is not None else self._lone(onset, metric)
        also: dict[str, list[float]] = {}
        if lone is not None and lone != metric and self._tracks[lone].shifted:
            # The first share that moves is not always the one that moved the others.
            also, metric, track = {metric: [before, after]}, lone, self._tracks[lone]
            before, sigma = track.level() or level
            after, _ = track.since(onset)
        ramp = not at_fork and not track.sudden(before, after)
        home = self._homes.pop(metric, None)
        is_back = home is not None and abs(after - home[1]) < BACK * abs(before - home[1])
        stages = any(move > math.log(1 + LARGE_SHIFT) for move in self._moves)
        if self._moved_before(before, after, at_fork=fork is not None) and not is_back:
            track.rebase()
            return []
        changed = self._changes() if fork is not None else []
        if home is not None and is_back:
            changed.append(f"back at the level of before step {home[0]}")
        elif lone is None:
            changed.append("the other shares changed among themselves, too: all weights are new, as with a new stage")
        # A mixture without a move as far in its remembered past; one that was at this level for a while is a stage.
        large = abs(after - before) > LARGE_SHIFT * abs(before) and len(track.usual) == USUAL_BLOCKS and not stages
        alarm = (fork is not None or large) and not ramp and not changed
        losses = list(self._loss)
        event = self._event = MixEvent(
            metric, onset, step, "warning" if alarm else "info", step, before, sigma, after,
            fork=fork[0] if fork is not None else None, fork_text=fork[1] if fork is not None else "", ramp=ramp,
            points=len(track.shifted) * BLOCK_POINTS if not at_fork else FORK_CONFIRM,
            loss_before=level_of(losses[: -2 * BLOCK_POINTS], 0.002) if len(losses) >= 3 * BLOCK_POINTS else None,
            explained_by=changed,
            also=also,
        )  # fmt: skip
        if not at_fork:
            event.loss_after = losses[-BLOCK_POINTS:]
            event.blocks = [centre for _, centre in track.shifted]
        self.claim(event.metric, event.onset)
        found = self._loss_moved(event, step)
        return found or [self._finding(event, "open", step, None)]

    def _moved_before(self, before: float, after: float, *, at_fork: bool) -> bool:
        """Return whether this move is of the run's own habit; remember it, unless a fork explains it."""
        move = _move(before, after)
        known = more_than_before(self._moves)
        if not at_fork:
            self._moves.append(move)
        return move <= known

    def _lone(self, onset: int, metric: str) -> str | None:
        """Return the one share whose source has another weight, None for more sources.

        By all points since the onset. A source that runs dry, is stuck, or has a wrong weight leaves the proportions of
        the others unchanged: it explains them best when it is left out. They count as unchanged where that is likelier
        than their measured move: few and small batches can't decide. ``metric`` is the answer for fewer than three: of
        two shares each is the rest of the other.
        """
        tracks = self._tracks.items()
        known = [(of, usual[0], *one.since(onset)) for of, one in tracks if (usual := one.level()) is not None]
        if len(known) < 3:
            return metric
        before, after = sum(one[1] for one in known), sum(one[2] for one in known)
        best: tuple[float, str | None] = (1.0, None)
        for at, (name, level, now, _) in enumerate(known):
            rest, move = before - level, _move(level, now)
            scale = (after - now) / rest if rest > 0 else 1.0
            worst = 0.0
            for _, other, share, sigma in known[:at] + known[at + 1 :]:
                noise = sigma / self._by
                likelier = noise * math.sqrt(2 * math.log(max(1.0, scale * other * move / noise)))
                worst = max(worst, abs(share - scale * other) / max(likelier, self._shift * other, SMALLEST_SHARE))
            if worst < best[0]:
                best = worst, name
        return best[1]

    def _near(self, onset: int, fork: int) -> bool:
        # Of small batches the first point beyond half of the shift may lie before it.
        return -FORK_WINDOW <= (onset - fork) / self.context.interval <= FORK_POINTS

    def _changes(self) -> list[str]:
        """Return the declared changes of the mixture at the newest fork."""
        mark = self.context.last_fork()
        changes = mark.data.get("changes") if mark is not None else None
        words = ("mix", "ratio", "weight", "sampl")
        named = [str(name) for name in changes or () if any(word in str(name) for word in words)]
        return [f"declared at the fork: {name}" for name in named]

    def _loss_point(self, metric: str, step: int, value: float) -> list[Finding]:
        event = self._event
        if metric != self._loss_metric:
            if self._loss_metric is not None:
                return []  # a second spelling
            self._loss_metric = metric
        if event is None:
            self._loss.append(value)
            return []
        if len(event.loss_after) < LOSS_POINTS:
            event.loss_after.append(value)
            if len(event.loss_after) % LOSS_AFTER_POINTS == 0:
                return self._loss_moved(event, step)
        else:
            self._loss.append(value)
        return []

    def _loss_moved(self, event: MixEvent, step: int) -> list[Finding]:
        """Report the event again when the loss has moved with it."""
        if event.loss_before is None or event.loss_moved is not None or len(event.loss_after) < LOSS_AFTER_POINTS:
            return []
        before, sigma = event.loss_before
        after = median(event.loss_after[-LOSS_AFTER_POINTS:])
        error = LOSS_SIGMAS * sigma * MEDIAN_ERROR / LOSS_AFTER_POINTS**0.5
        if abs(after - before) <= max(error, LOSS_FRACTION * abs(before)):
            return []
        event.loss_moved = percent(after, before)
        return [self._finding(event, "open", step, None)]

    def _close(self, state: State, step: int, back: int | None) -> list[Finding]:
        event = self._event
        if event is None:
            return []
        self._event = None
        self.claim(event.metric, event.onset, step)
        self._loss.extend(event.loss_after)
        for metric in event.also:
            if self._tracks[metric].shifted:
                self._tracks[metric].rebase()
        return [self._finding(event, state, step, back)]

    def _finding(self, event: MixEvent, state: State, now_step: int, back: int | None) -> Finding:
        """Return the present finding of the event."""
        text, evidence = worded(event, state, back)
        title = f"Data mixture drift at step {event.onset} ({event.metric.removeprefix(SHARE_OF)})"
        score = min(abs(event.after - event.before) / event.sigma, 1e9)
        return self.finding(
            event, now_step, state, title=title, text=text, recovered_step=back, score=score, evidence=evidence
        )


def _move(before: float, after: float) -> float:
    """Return the change of a share, as the logarithm of the factor."""
    return abs(math.log(max(after, SMALLEST_SHARE) / max(before, SMALLEST_SHARE)))
