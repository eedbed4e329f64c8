"""Notes on metrics without a detector that leave their own past by far, under any name.

Rows are kept in blocks of BLOCK and checked as arrays: a block within the range of the metric's newest LONG points
costs four comparisons for all metrics. One that leaves it by SIGMAS of its own noise is followed by the engine of
curves until it is back or has settled. Counters, constants, flags and schedules have no noise of their own and are
excluded; the scale of a loss that is halved repeatedly is included.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from stabilitybackend.base.name_sets import key_of
from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.judging.detection.noise import is_noisy
from stabilitybackend.judging.detectors.curve.detector import CurvesDetector
from stabilitybackend.judging.detectors.curve.engine import Curve, CurveEvent
from stabilitybackend.judging.detectors.curve.report import clauses
from stabilitybackend.judging.detectors.engine.base import Finding, State
from stabilitybackend.judging.detectors.engine.context import EXCUSE_POINTS, Context
from stabilitybackend.judging.detectors.stats.innovations import array_median
from stabilitybackend.judging.detectors.stats.levels import percent
from stabilitybackend.judging.detectors.stats.robust import MAD_TO_SIGMA
from stabilitybackend.lineage.batch import Placed
from stabilitybackend.schema.kinds import kind_of

__all__ = ["MAX_METRICS", "OtherMetrics"]

#: Checked metrics of a run, the first ones logged, and sets of them that are logged in one row.
MAX_METRICS = 128
MAX_SETS = 16
#: Rows of a check: a note is no alarm, and may be this late.
BLOCK = 16
#: Points of a metric's noise, and of its past, in blocks.
PAST = 64
LONG_BLOCKS = 64
#: Fewer blocks are the beginning of a training, where all moves.
LEAST_BLOCKS = 8
#: Points in a row that have to be so many robust sigmas off.
IN_A_ROW = 3
SIGMAS = 20.0
#: Halvings in a row, without a rise, beyond a scaler that finds its scale: one grows after 2,000 good steps, and halves
#: once after too much (torch.amp.GradScaler).
HALVINGS = 5
#: Least noise as a fraction of the level: the resolution of three digits.
FLOOR = 0.003
#: Followed metrics, and named ones of a joint event.
MAX_FOLLOWED = 16
MAX_NAMED = 8
#: Events within so many points are one; another detector's event there has those metrics.
TOGETHER_POINTS = 32

#: Blocks, of any set, after a note in which another detector's event may take it over.
YOUNG_TURNS = 8

_KIND = "metric_jump"


@dataclass(slots=True)
class _Set:
    """Metrics logged in one row.

    Attributes:
        pending, steps, times: rows of the next block. past: float64 (m, PAST). low, high: of the newest blocks, float64
            (m, LONG_BLOCKS); all three as bytes. blocks: so far.
    """

    metrics: list[str]
    pending: list[list[float]] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    past: bytes = b""
    low: bytes = b""
    high: bytes = b""
    blocks: int = 0


@dataclass(slots=True)
class _FollowedMetric:
    """A metric that left its past: its curve, inverted for a fall.

    Attributes:
        points: of that past. note: key of its note. proved: the engine agrees.
    """

    curve: Curve
    sign: float
    points: int
    note: str = ""
    proved: bool = False


@dataclass(slots=True)
class _Note:
    """A note: metrics that left their past together."""

    metric: str
    onset: int
    seen: int
    level: float
    scale: float
    peak: float
    peak_step: int
    score: float
    points: int
    turns: int = YOUNG_TURNS
    others: list[str] = field(default_factory=list)
    more: int = 0
    explained: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Turn:
    """A row with pending decisions, after its detectors.

    Attributes:
        step, time: of the row, training steps and unix seconds.
        came: metrics that left their past, with their events as of this row. over: those whose event ended.
    """

    step: int
    time: float
    came: list[tuple[str, _FollowedMetric, CurveEvent]] = field(default_factory=list)
    over: list[tuple[str, _FollowedMetric, CurveEvent]] = field(default_factory=list)


class OtherMetrics(Stateful):
    """Follows the metrics of one run without a detector."""

    _sets: list[_Set] = fresh(list)
    _followed: dict[str, _FollowedMetric] = fresh(dict)
    #: Key -> open note.
    _notes: dict[str, _Note] = fresh(dict)
    _young: int = 0

    def __init__(self) -> None:
        super().__init__()
        #: Metrics of a row -> sets contained in them, with their indices.
        self._of_row: dict[tuple[str, ...], list[tuple[_Set, NDArray[np.intp]]]] = {}

    def restored(self) -> None:
        self._of_row = {}

    @property
    def metrics(self) -> list[str]:
        """Those that are looked at."""
        return [metric for one in self._sets for metric in one.metrics]

    def rewound(self, step: int, time: float) -> list[tuple[float, Finding]]:
        """Begin anew after a fork. Return the notes that end."""
        found = [(time, self._finding(key, note, "resolved", step)) for key, note in self._notes.items()]
        self._notes.clear()
        self._followed.clear()
        self._sets[:] = [_Set(one.metrics) for one in self._sets]
        self._of_row = {}
        return found

    # --- rows ----------------------------------------------------------------------------------------------------

    def take(self, placed: Placed, is_other: Callable[[str], bool]) -> list[Turn]:
        """Take rows of the primary rank with rising steps; return the rows to call ``report`` at.

        Args:
            is_other: whether no detector takes a metric; called again when it has left its past.
        """
        row = key_of(placed.names)
        sets = self._of_row.get(row)
        if sets is None:
            sets = self._place(row, is_other)
        turns = []
        for one, places in sets:
            one.pending += placed.values[places].T.tolist()
            one.steps += placed.steps.tolist()
            one.times += placed.times.tolist()
            if len(one.pending) >= BLOCK:
                turns += self._blocks(one, is_other)
        return sorted(turns, key=lambda turn: turn.step)

    def _place(self, row: tuple[str, ...], is_other: Callable[[str], bool]) -> list[tuple[_Set, NDArray[np.intp]]]:
        places = {name: place for place, name in enumerate(row)}
        known = set(self.metrics)
        room = MAX_METRICS - len(known) if len(self._sets) < MAX_SETS else 0
        others = list(islice((name for name in row if name not in known and is_other(name)), room))
        if others:
            self._sets.append(_Set(others))
        sets = [one for one in self._sets if places.keys() >= set(one.metrics)]
        if len(self._of_row) >= MAX_SETS:
            self._of_row = {}
        found = [(one, np.array([places[name] for name in one.metrics])) for one in sets]
        self._of_row[row] = found
        return found

    def _blocks(self, one: _Set, is_other: Callable[[str], bool]) -> list[Turn]:
        """Check the complete blocks of a set."""
        metrics, count = one.metrics, len(one.pending) // BLOCK
        rows = np.array(one.pending[: count * BLOCK]).T
        rows = np.where(np.isfinite(rows), rows, np.nan)
        blocks = rows.reshape(len(metrics), count, BLOCK)
        past, lows, highs = (np.frombuffer(part).reshape(len(metrics), -1) for part in (one.past, one.low, one.high))
        past = np.hstack([past, rows])
        with np.errstate(all="ignore"):
            lows = np.hstack([lows, np.fmin.reduce(blocks, axis=2)])
            highs = np.hstack([highs, np.fmax.reduce(blocks, axis=2)])
        least, most = _before(lows, count, np.fmin), _before(highs, count, np.fmax)
        left: NDArray[np.bool_] = _in_a_row(blocks < least[..., None]) | _in_a_row(blocks > most[..., None])
        left[:, : max(0, LEAST_BLOCKS - one.blocks)] = False
        turns = list[Turn]()
        for at in range(count):
            rest = (count - at) * BLOCK  # rows after the earlier blocks
            steps = one.steps[at * BLOCK : (at + 1) * BLOCK]
            turn = Turn(steps[-1], one.times[(at + 1) * BLOCK - 1])
            followed = [metric for metric in metrics if metric in self._followed] if self._followed else []
            for metric in followed:
                self._go_on(metric, blocks[metrics.index(metric), at], steps, turn)
            for place in np.flatnonzero(left[:, at]).tolist():
                room = metrics[place] not in followed and len(self._followed) < MAX_FOLLOWED
                if room and is_other(metrics[place]):
                    end = lows.shape[1] - count + at
                    before = slice(max(0, end - LONG_BLOCKS), end)
                    self._check(
                        metrics[place], past[place, -rest - PAST : -rest], lows[place, before], highs[place, before],
                        blocks[place, at], steps, turn,
                    )  # fmt: skip
            self._young = max(0, self._young - 1)
            turns += [turn] if turn.came or turn.over or self._young else []
        one.past, one.low, one.high = (
            part[:, -newest:].tobytes() for part, newest in ((past, PAST), (lows, LONG_BLOCKS), (highs, LONG_BLOCKS))
        )
        one.blocks += count
        del one.pending[: count * BLOCK], one.steps[: count * BLOCK], one.times[: count * BLOCK]
        return turns

    def _check(
        self, metric: str, past: NDArray[np.float64], lows: NDArray[np.float64], highs: NDArray[np.float64],
        block: NDArray[np.float64], steps: Sequence[int], turn: Turn,
    ) -> None:  # fmt: skip
        """Follow a metric from here on if this block leaves its past by far."""
        level = array_median(past)
        sigma = max(MAD_TO_SIGMA * array_median(np.abs(past - level)), FLOOR * abs(level), 1e-300)
        sign = 1.0 if np.fmax.reduce(block) - level >= level - np.fmin.reduce(block) else -1.0
        beyond = block > np.fmax.reduce(highs) if sign > 0 else block < np.fmin.reduce(lows)
        out = beyond & (sign * (block - level) >= SIGMAS * sigma)
        if not _in_a_row(out) or not np.isfinite(past).all():
            return
        if not is_noisy(past) and not _halves(np.concatenate([past, block])):
            return
        curve = Curve()
        for value in past.tolist():
            curve.take(steps[0] - 1, sign * value)
        self._followed[metric] = _FollowedMetric(curve, sign, len(lows) * BLOCK)
        self._go_on(metric, block, steps, turn)

    def _go_on(self, metric: str, block: NDArray[np.float64], steps: Sequence[int], turn: Turn) -> None:
        """Judge the next block of a followed metric."""
        one, news = self._followed[metric], list[CurveEvent]()
        for step, value in zip(steps, block.tolist(), strict=True):
            news += [event for event in one.curve.take(step, one.sign * value) if not event.lone]
        if news:
            event = replace(news[0], values=deque(), steps=deque())
            if not one.proved:
                turn.came.append((metric, one, event))
                self._young = YOUNG_TURNS
            one.proved = True
            if event.life in ("back", "regained", "new level"):
                turn.over.append((metric, one, event))
                del self._followed[metric]
                return
        if one.curve.event is None:
            del self._followed[metric]

    # --- notes ---------------------------------------------------------------------------------------------------

    def report(self, turn: Turn, context: Context) -> list[tuple[float, Finding]]:
        """Return the findings at a row; ``context`` as of after that row."""
        reach, found = TOGETHER_POINTS * context.interval, list[tuple[float, Finding]]()
        for metric, one, event in turn.came:
            found += self._came(metric, one, event, turn, context, reach)
        for metric, one, event in turn.over:
            note = self._notes.get(one.note)
            if note is not None and note.metric == metric:
                del self._notes[one.note]
                note.peak, note.peak_step = one.sign * event.peak, event.peak_step
                found.append((turn.time, self._finding(one.note, note, _ended(event), turn.step, event)))
        for key, note in list(self._notes.items()):
            note.turns = max(0, note.turns - 1)
            if note.turns and (of := _event_of(note.onset, context, reach)):
                del self._notes[key]
                found.append((turn.time, self._finding(key, note, "resolved", turn.step, joined=of)))
        return found

    def _came(
        self, metric: str, one: _FollowedMetric, event: CurveEvent, turn: Turn, context: Context, reach: float
    ) -> list[tuple[float, Finding]]:
        """Open a note, or add the metric to an open one, or to an event of a detector."""
        if _event_of(event.onset, context, reach):
            return []
        near = next((key for key, note in self._notes.items() if abs(note.onset - event.onset) <= reach), None)
        if near is not None:
            one.note, note = near, self._notes[near]
            if len(note.others) < MAX_NAMED:
                note.others.append(metric)
            else:
                note.more += 1
            return [(turn.time, self._finding(near, note, "open", turn.step))]
        begin = event.onset - round(EXCUSE_POINTS * context.interval)
        known = [f"{excuse.kind}: {excuse.text}" for excuse in context.excuses_between(begin, turn.step)][-4:]
        note = _Note(
            metric, event.onset, turn.step, one.sign * event.level, event.scale,
            one.sign * event.peak, event.peak_step, event.score, one.points, explained=known,
        )  # fmt: skip
        one.note = key = f"{CurvesDetector.name}:{_KIND}:{metric}:{event.onset}"
        self._notes[key] = note
        return [(turn.time, self._finding(key, note, "open", turn.step))]

    def _finding(
        self, key: str, note: _Note, state: State, step: int, event: CurveEvent | None = None, joined: str = ""
    ) -> Finding:
        others = [*note.others, *([f"{note.more} more"] if note.more else [])]
        text = (
            f"{note.metric} went from its level of {note.level:.4g} to {note.peak:.4g}, outside all of the "
            f"{note.points:,} points before and more than {SIGMAS:g} times its noise away."
        )
        if others:
            text += f" At the same time: {', '.join(others)}."
        if note.explained:
            text += f" It began with a known change: {'; '.join(clauses(note.explained))}."
        back = event.recovered_step if event is not None and state == "recovered" else None
        if back is not None:
            text += f" It was back at step {back}."
        elif joined:
            text += f" It is part of the event that another detector reported ({kind_of(joined).short})."
        elif event is not None and event.new_level is not None:
            text += f" By step {step} it had not come back."
        halvings = math.log2(note.level / note.peak) if note.level > 0 < note.peak else 0.0
        if halvings >= HALVINGS and halvings == int(halvings):
            text += (
                f" It was halved {halvings:.0f} times: the scale of a loss in fp16 is, with each step that overflows "
                "and is skipped. This is a note, no alarm."
            )
        else:
            text += " Nothing is known of what it measures: this is a note, no alarm."
        return Finding(
            CurvesDetector.name, key, _KIND, state, "info", f"{note.metric} left its past at step {note.onset}", text,
            note.onset, note.seen, step, metric=note.metric, peak_step=note.peak_step, recovered_step=back,
            score=min(note.score, 1e9),
            evidence={
                "level_before": note.level, "sigma": note.scale, "peak": note.peak,
                "rise_percent": percent(note.peak, note.level), "direction": "up" if note.peak > note.level else "down",
                "score_unit": "robust sigmas", "threshold": f"{SIGMAS:g} robust sigmas, {IN_A_ROW} points in a row",
                "other_metrics": others, "explained_by": note.explained, "recovered_at": back,
            },
        )  # fmt: skip


def _before(extremes: NDArray[np.float64], count: int, extreme: np.ufunc) -> NDArray[np.float64]:
    """Return the extreme of the LONG_BLOCKS blocks before each of the ``count`` newest ones, both (m, blocks)."""
    none = np.full((len(extremes), LONG_BLOCKS), np.nan)
    known = np.hstack([none, extremes])[:, -count - LONG_BLOCKS : -1]
    found: NDArray[np.float64] = extreme.reduce(sliding_window_view(known, LONG_BLOCKS, axis=1), axis=2)
    return found


def _in_a_row(of: NDArray[np.bool_]) -> Any:
    """Return whether IN_A_ROW of the last axis hold in a row: bool, or an array of the other axes."""
    starts = of.shape[-1] - IN_A_ROW + 1
    return np.logical_and.reduce([of[..., at : at + starts] for at in range(IN_A_ROW)]).any(axis=-1)


def _halves(values: NDArray[np.float64]) -> bool:
    """Return whether each of HALVINGS or more newest changes halved a value."""
    finite = values[np.isfinite(values)]
    changes = (finite[1:] / finite[:-1])[finite[1:] != finite[:-1]] if (finite > 0).all() else finite[:0]
    return len(changes) >= HALVINGS and bool((changes[-HALVINGS:] == 0.5).all())


def _ended(event: CurveEvent) -> State:
    return "recovered" if event.life == "back" else "resolved"


def _event_of(onset: int, context: Context, reach: float) -> str:
    """Return the kind of another detector's event near an onset, "" for none."""
    claims = context.claims_since(round(onset - reach)).values()
    return next((claim.kind for claim in claims if claim.onset_step <= onset + reach), "")
