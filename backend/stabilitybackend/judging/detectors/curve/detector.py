"""Curves of a run: the loss, the losses of data sets and the gradient norm; each by the one engine."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar

from stabilitybackend.judging.detectors.curve.engine import CLIMB_BLOCK, PROOF, Curve, CurveEvent
from stabilitybackend.judging.detectors.curve.report import batch_of, clauses, evidence_of, score_of, text_of, title_of
from stabilitybackend.judging.detectors.engine.base import (
    SENSITIVITY,
    SEVERITIES,
    Claim,
    Detector,
    Finding,
    Mark,
    Parameter,
    Point,
    Severity,
    State,
    fresh,
)
from stabilitybackend.judging.detectors.engine.context import EXCUSE_POINTS
from stabilitybackend.judging.detectors.engine.row_blocks import QuietRows, quiet_from
from stabilitybackend.judging.detectors.stats.levels import percent
from stabilitybackend.judging.detectors.stats.robust import MEDIAN_ERROR, median, robust_sigma
from stabilitybackend.judging.detectors.stats.together import MEAN_ERRORS, CurveMove, moved_alone
from stabilitybackend.schema.metric_roles import GRAD_NORM, LOSS, RATIO, dataset_of, role_of

__all__ = ["CurvesDetector", "Flatness"]

#: Entries over the whole run: when full, neighbours are merged and each is of twice as many points.
MAX_ENTRIES = 64
#: Part of the run so far that has to be flat: a power law with the usual exponent of 0.1 falls by 3 % in it; twice that
#: without a logged learning rate. At least MIN_POINTS; the BEGIN_POINTS after the warm-up, in which a model learns
#: class frequencies, do not count.
FLAT_PART = 0.25
MIN_POINTS = 500
BEGIN_POINTS = 128
MIN_ENTRIES = 8
#: A smaller fall counts as none, early in a run and later.
STILL_EARLY = 0.015
STILL = 0.003
#: A change of a level that counts, and a large one; both as fractions.
CHANGE = 0.025
LARGE = 0.1
#: First loss of an untrained model, at least; above MOST of its first level it has learned at most class frequencies.
UNTRAINED = 3.9
MOST = 0.7
#: Numbers of classes whose logarithm is the loss of an untrained model: binary, data sets of pictures, arithmetic
#: tasks, bytes, powers of two, vocabularies of common tokenizers; and the tolerance.
KNOWN_CLASSES = (
    2, 10, 64, 97, 100, 113, 128, 256, 257, 512, 1000, 1024, 2048, 4096, 8192, 16384, 21841, 28996, 30522, 32000, 32128,
    32768, 49152, 50257, 50304, 50368, 64000, 65024, 65536, 100277, 100352, 128000, 128256, 151936, 152064, 250112,
    256000, 262144,
)  # fmt: skip
NEAR_CLASSES = 0.005


@dataclass(slots=True)
class Flatness:
    """At most MAX_ENTRIES medians of the whole run.

    Attributes:
        entries, steps: medians and their first steps. points: of the run.
    """

    entries: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    points: int = 0
    warm_up: int = 0
    noise: float = 0.0
    _each: int = 1
    _part: list[float] = field(default_factory=list)
    _part_step: int = 0
    _per_block: int = 1

    def add(self, middle: float, step: int, points: int, sigma: float, *, warming_up: bool) -> bool:
        """Take the median of ``points`` points from ``step`` on; return whether there is a new entry.

        Args:
            sigma: noise of a single point.
        """
        self._per_block = points
        if len(self.entries) < MIN_ENTRIES and sigma == sigma:
            self.noise = max(self.noise, sigma)
        if warming_up and self.warm_up == self.points:
            self.warm_up += points
        self.points += points
        if not self._part:
            self._part_step = step
        self._part.append(middle)
        if len(self._part) < self._each:
            return False
        self.entries.append(sum(self._part) / len(self._part))
        self.steps.append(self._part_step)
        self._part = []
        if len(self.entries) == MAX_ENTRIES:
            self.entries = [0.5 * (a + b) for a, b in zip(self.entries[::2], self.entries[1::2], strict=True)]
            self.steps = self.steps[::2]
            self._each *= 2
        return True

    def never_learns(self, needed: float) -> bool:
        """Return whether the loss has not moved since the beginning, for ``needed`` points, as high as untrained."""
        if len(self.entries) < 2 * MIN_ENTRIES or self.entries[0] <= 0:
            return False
        per_entry = self._each * self._per_block
        first, flat = self.entries[0], self.entries[(self.warm_up + BEGIN_POINTS) // per_entry :]
        if len(flat) < MIN_ENTRIES or len(flat) * per_entry < needed:
            return False
        level = median(flat)
        still = abs(_fall(flat)) + _bound(flat) <= STILL_EARLY * level
        lowest = min(0.5 * (a + b) for a, b in pairwise(self.entries))
        high = level >= (MOST * first if first >= UNTRAINED else (1 - CHANGE) * first)
        return still and high and lowest > (1 - CHANGE) * level and self.noise <= LARGE * first

    def stopped(self, needed: float, since: int, *, rate_known: bool) -> bool:
        """Return whether the loss had fallen, and then did not move over the newest part of the run.

        Args:
            since: only steps from here on count.
        """
        count, per_entry = len(self.entries), self._each * self._per_block
        part = FLAT_PART if rate_known else 2 * FLAT_PART
        newest = max(MIN_ENTRIES, int(part * count), math.ceil(needed / per_entry) if needed < math.inf else count + 1)
        if count < 2 * MIN_ENTRIES or newest > MOST * count or self.steps[-newest] < since:
            return False
        flat, first = self.entries[-newest:], median(self.entries[:3])
        level = median(flat)
        learned = first - min(self.entries) > LARGE * abs(first)
        return learned and abs(_fall(flat)) <= STILL * abs(level) and _bound(flat) <= CHANGE * abs(level)

    def begin(self) -> int:
        """Return the first step of the flat interval at the end: each entry is at its level, and its halves are equal.
        Noise hides a slow fall from single entries, not from halves."""
        newest = self.entries[-max(MIN_ENTRIES, int(FLAT_PART * len(self.entries))) :]
        level, at = median(newest), len(self.entries) - 1
        reach = 3 * _sigma(newest) + 0.5 * STILL * abs(level)
        while at > 0 and abs(self.entries[at - 1] - level) <= reach:
            longer = self.entries[at - 1 :]
            if len(longer) > len(newest) and abs(_fall(longer)) > STILL * abs(level) + _bound(longer):
                break
            at -= 1
        return self.steps[at]

    def level(self) -> tuple[float, float]:
        """Return the level at the end and its error."""
        newest = self.entries[-max(MIN_ENTRIES, int(FLAT_PART * len(self.entries))) :]
        return median(newest), _sigma(newest)

    def left(self, level: float, sigma: float) -> str:
        """Return the direction in which the newest entries left a level: ``down``, ``up``, "" for neither."""
        reach, newest = max(CHANGE * abs(level), 3 * sigma), self.entries[-2:]
        return "down" if max(newest) < level - reach else "up" if min(newest) > level + reach else ""


def _sigma(entries: Sequence[float]) -> float:
    """Return the standard deviation of an entry, by the differences of neighbours."""
    return max(robust_sigma([b - a for a, b in pairwise(entries)]) / math.sqrt(2.0), 1e-9)


def _fall(flat: Sequence[float]) -> float:
    half = len(flat) // 2
    return median(flat[:half]) - median(flat[-half:])


def _bound(flat: Sequence[float]) -> float:
    """Return the largest fall hidden by noise, two standard errors."""
    return 2 * MEDIAN_ERROR * _sigma(flat) * math.sqrt(2.0 / (len(flat) // 2))


def known_classes(level: float) -> int | None:
    """Return a common number of classes whose logarithm is the level, None for none.

    Example:
        >>> known_classes(4.727), known_classes(2.0)
        (113, None)
    """
    nearest = min(KNOWN_CLASSES, key=lambda classes: abs(math.log(classes) - level))
    return nearest if abs(math.log(nearest) - level) <= NEAR_CLASSES * math.log(nearest) else None


# --- drops -----------------------------------------------------------------------------------------------------------

#: An explained drop, and an unexplained one, as fractions; and relative to the usual move.
EXPLAINED_DROP = 0.02
DROP = 0.05
MOVES = 6.0
#: Blocks between two noted drops; doubled with each: a staircase is noted twice or thrice.
REST_BLOCKS = 16


@dataclass(slots=True)
class Drops:
    """The newest medians of blocks, with possible sudden drops.

    Attributes:
        blocks, steps: medians and their first steps.
    """

    blocks: deque[float] = field(default_factory=lambda: deque(maxlen=24))
    steps: deque[int] = field(default_factory=lambda: deque(maxlen=24))
    first: float = math.nan
    rest: int = 0
    noted: int = 0

    def add(self, middle: float, step: int) -> tuple[int, float, float] | None:
        """Take a median and return (first step, level before, level after) of a drop that stayed for three blocks."""
        self.blocks.append(middle)
        self.steps.append(step)
        self.first = self.first if self.first == self.first else middle
        self.rest = max(0, self.rest - 1)
        blocks = list(self.blocks)
        if len(blocks) < 16:
            return None
        after, before = max(blocks[-3:]), min(blocks[-6:-4])
        moves = [abs(b - a) for a, b in pairwise(blocks[:-5])]
        falls = [a - b for a, b in zip(blocks[:-7], blocks[3:-4], strict=True)]  # over the same distance, before
        way = before - after
        if way < max(EXPLAINED_DROP * abs(before), MOVES * median(moves), 2 * max(falls)):
            return None
        onset = self.steps[-3] if before - blocks[-4] < 0.5 * way else self.steps[-4]
        return onset, median(blocks[-9:-4]), median(blocks[-3:])

    def is_worth_a_note(self, before: float, after: float, *, explained: bool) -> bool:
        """Return whether a drop deserves a note: explained, or large and no beginning of learning."""
        learned = before < (1 - DROP) * self.first
        if self.rest or not (explained or (learned and before - after > DROP * abs(before))):
            return False
        self.noted = min(self.noted + 1, 12)
        self.rest = REST_BLOCKS * 2**self.noted
        return True

    def rebase(self) -> None:
        """Restart from the newest blocks."""
        newest, steps = list(self.blocks)[-3:], list(self.steps)[-3:]
        self.blocks.clear()
        self.steps.clear()
        self.blocks.extend(newest)
        self.steps.extend(steps)


#: Watched data sets, the first ones, and remembered shares. A curve takes some 5 KB.
MAX_DATASETS = 32
#: Factor on the proof of one data set's loss: it is noisier, and there are many.
DATASET_DEMAND = 1.5
#: Events of several losses with onsets this close are one; one data set's waits as long.
TOGETHER_POINTS = 16
#: A smaller move of the whole loss, as a fraction (the rise times the data set's share), is a note: a loss logged from
#: bf16 moves in steps of that size.
SHOWN_IN_THE_WHOLE = 0.005
#: Least jump of a gradient norm for a note, relative to its level: it scatters by a tenth in the calmest runs.
NORM_RISE = 1.0
#: Largest rise explained by a jump of the learning rate or batch size right before.
EXCUSED_RISE = 0.5
#: An event of another detector that ended within so many points is still the same event.
CLAIM_POINTS = 10
#: Growth of the peak for another report of an open event, so many times at most.
PEAK_FACTOR = 2.0
PEAK_NEWS = 6
#: Open events; older ones are forgotten.
MAX_INCIDENTS = 64
#: A learning rate below this part of its largest is at its floor, where a flat loss is normal.
RATE_FLOOR = 0.2
#: A first point later than so many usual distances is the middle of a training.
FIRST_POINT = 3
#: Claims that explain a move of the loss.
_EXPLAINING = frozenset({"data_mix_drift", "mixture"})

#: Final lives of events.
OVER = ("back", "regained")


@dataclass(slots=True)
class CurveIncident:
    """One incident, from its report until its curve, and those of the data sets in it, are back.

    Attributes:
        metric: of its curve. event: its last state. of_all: several data sets share it.
        severity: the worst so far. explained: changes at its onset.
        waits: its data sets (metrics) that are not back -> onset of their event.
        said: last report; said_peak: the peak then; peaks: reports of a higher one.
        let_go: other detectors may report from here on. sets_back: first step at which all its data sets were back.
        before, after, error: of all data sets together, for their joint event.
    """

    metric: str
    event: CurveEvent
    of_all: bool
    severity: Severity
    explained: list[str]
    waits: dict[str, int] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    said_peak: float = 0.0
    peaks: int = 0
    let_go: bool = False
    sets_back: int = -1
    before: float = 0.0
    after: float = 0.0
    error: float = 1.0


@dataclass(slots=True)
class Plateau:
    """A stretch in which the loss does not fall."""

    onset: int
    seen: int
    severity: Severity
    level: float
    sigma: float
    never: bool
    points: int
    classes: int | None
    explained: list[str]
    state: State = "open"
    left_step: int | None = None
    left_level: float | None = None


class CurvesDetector(Detector):
    """Follows each loss from the first point above its usual level until it is back, and classifies the event.

    Idea: the logarithm of a loss has a local level and a noise, both robust. Each point above adds evidence by how rare
    points as high are in this run and in others; one alone proves nothing and leaves a note. An event is a spike, a
    level shift where it went up in one step and stays, or a divergence where it keeps rising; its kind may change
    while it lasts. It is back when as many points as the noise needs are within 2 %, or three standard errors, of
    where the trend from before it leads, in the whole loss and in each data set that moved with it. A loss that is up
    and flat for 192 points does not come back by itself: it is critical and stays open, though later events are
    measured from its new level. A rise up to 50 % that begins with a higher learning rate or batch size is a note.
    The losses of data sets (loss/<data set>) are judged equally. An event of the whole is one incident of the whole
    loss; of one data set alone it is a warning where it moves the whole by half a percent, else a note. The gradient
    norm leaves notes. A loss that never fell from its first level, or that had learned and stopped, is a plateau; a
    sudden drop is a note.

    Args:
        sensitivity: heights are multiplied by it.
        min_rise: an event rises by this fraction of the level at least.

    Source: cumulative sums (Page, Biometrika 1954) over log shares of robust heights; times to recover: 35 spikes of
    Llama 8B in MLPerf Training v5.1 took 9 to 155 steps.

    Example:
        >>> curves = CurvesDetector()
        >>> losses = [2.0 + 0.01 * (i % 3) for i in range(100)] + [3.5, 3.6, 3.4] + [2.0] * 6
        >>> found = [f for step, loss in enumerate(losses) for f in curves.update(Point(step, "loss", loss, 0.0))]
        >>> [(f.key, f.kind, f.recovery, f.onset_step, f.recovered_step) for f in found]
        [('curve:loss:100', 'spike', 'pending', 100, None), ('curve:loss:100', 'spike', 'fast', 100, 103)]
    """

    name: ClassVar[str] = "curve"
    kinds: ClassVar[tuple[str, ...]] = ("spike", "level_shift", "divergence", "plateau", "grad_norm")
    title: ClassVar[str] = "Losses and gradient norm"
    parameters: ClassVar[dict[str, Parameter]] = {
        "sensitivity": SENSITIVITY,
        "min_rise": Parameter(
            0.05, 0.0, 100.0, "fraction", "Least rise over the usual level: higher values pass over small events."
        ),
    }

    _curves: dict[str, Curve] = fresh(dict)
    #: The first metric of each role.
    _whole: str = ""
    _norm: str = ""
    #: Metric of a share -> its newest value; of a declared mixture alone.
    _shares: dict[str, float] = fresh(dict)
    _declared: bool = False
    #: ``metric:onset`` -> incident.
    _incidents: dict[str, CurveIncident] = fresh(dict)
    #: Metric of a data set, or the gradient norm -> its event, held until the whole loss decides.
    _held: dict[str, CurveEvent] = fresh(dict)
    #: Metric -> onset of its unreported event.
    _silent: dict[str, int] = fresh(dict)
    _flat: Flatness = fresh(Flatness)
    _drops: Drops = fresh(Drops)
    _blocks_seen: int = 0
    _plateau: Plateau | None = None
    _first_step: int = -1
    _largest_rate: float = 0.0

    def configured(self) -> None:
        for metric, curve in self._curves.items():
            self._set_up(metric, curve)

    def _set_up(self, metric: str, curve: Curve) -> None:
        sensitivity = self.settings["sensitivity"] or 1e-300
        curve.demand = (DATASET_DEMAND if dataset_of(metric) else 1.0) / sensitivity
        least = NORM_RISE if metric == self._norm else self.settings["min_rise"]
        curve.min_rise = min(least / sensitivity, 1e300) if self.settings["sensitivity"] else 1e300

    def wants(self, metric: str) -> bool:
        return role_of(metric) in (LOSS, GRAD_NORM) or dataset_of(metric) is not None or metric.startswith(f"{RATIO}/")

    def update(self, point: Point) -> list[Finding]:
        step, metric, value, _, _ = point
        curve = self._curves.get(metric)
        if curve is None:
            curve = self._first(metric, value, step)
            if curve is None:
                return []
        if curve.low < value < curve.high:
            curve.step = step
            curve.pending.append(value)
            if len(curve.pending) < curve.room:
                return []
            return self._after(metric, curve, curve.flush(), step)
        return self._after(metric, curve, curve.take(step, value), step)

    def take_quiet(self, rows: QuietRows, start: int, stop: int) -> int:
        parts, shares = [], []
        for metric in rows.columns:
            curve = self._curves.get(metric)
            if curve is not None and metric in rows.ranges:
                stop = min(stop, start + curve.room - len(curve.pending) - 1)
                if stop <= start:
                    return start
                parts.append((curve, rows.columns[metric]))
            elif metric in self._shares and not self._declared and _are_shares(rows, metric):
                shares.append(metric)
            elif self.wants(metric) and not self._passes_over(metric):
                return start
        for curve, values in parts:
            stop = start + quiet_from(values[start:stop], curve.low, curve.high)
        if stop <= start:
            return start
        for curve, values in parts:
            curve.pending += values[start:stop]
            curve.step = rows.steps[stop - 1]
        for metric in shares:
            self._shares[metric] = rows.columns[metric][stop - 1]
        return stop

    def note(self, mark: Mark) -> list[Finding]:
        if mark.kind == "mixture":
            shares = list(mark.data["shares"].items())[:MAX_DATASETS]
            self._shares, self._declared = {f"{RATIO}/{name}": share for name, share in shares}, True
        return []

    # --- curves -----------------------------------------------------------------------------------------------------

    def _first(self, metric: str, value: float, step: int) -> Curve | None:
        """Take a share, or begin a curve; return None for a share, a second spelling, or one too many."""
        if metric.startswith(f"{RATIO}/"):
            if not self._declared and 0 <= value <= 1 and (metric in self._shares or len(self._shares) < MAX_DATASETS):
                self._shares[metric] = value
            return None
        if not self.wants(metric) or self._passes_over(metric):
            return None
        role = role_of(metric)
        if role == LOSS:
            self._whole, self._first_step = metric, step
        elif role == GRAD_NORM:
            self._norm = metric
        curve = self._curves[metric] = Curve()
        self._set_up(metric, curve)
        return curve

    def _passes_over(self, metric: str) -> bool:
        """Return whether points of a metric without a curve change nothing."""
        if metric in self._curves or (metric in self._shares and not self._declared):
            return False
        if metric.startswith(f"{RATIO}/"):
            return self._declared or len(self._shares) >= MAX_DATASETS
        role = role_of(metric)
        if role in (LOSS, GRAD_NORM):
            return bool(self._whole if role == LOSS else self._norm)
        return sum(1 for name in self._curves if dataset_of(name)) >= MAX_DATASETS

    def _after(self, metric: str, curve: Curve, news: Sequence[CurveEvent], step: int) -> list[Finding]:
        """Report the changes of a point."""
        found: list[Finding] = []
        for event in news:
            found += self._news(metric, curve, event, step)
        if metric in self._held:
            found += self._release(metric, curve, step)
        elif curve.event is not None:
            found += self._grown(metric, curve.event, step)
        if not news and curve.event is None and (role_of(metric) == LOSS) and self._claimed(metric) is not None:
            curve.forget_climb()
        if metric == self._whole and curve.slow.points > self._blocks_seen:
            found += self._blocks(curve, step)
        return found

    def _news(self, metric: str, curve: Curve, event: CurveEvent, step: int) -> list[Finding]:
        """Take the engine's changes of an event."""
        found = self._member(metric, event, step) if event.life in OVER else []
        one = self._incidents.get(f"{metric}:{event.onset}")
        if one is not None:
            return found + self._advance(one, event, step)
        if self._silent.get(metric) == event.onset or event.new_level is not None:
            return found
        if metric != self._whole:
            if not event.lone:
                self._held[metric] = event
            return found
        claim = self._claimed(metric)
        if event.lone:
            return found if claim else [self._open(metric, event, step, [])]
        if claim is not None:
            self._silent[metric] = event.onset
            if claim.kind == "repeat_data":
                curve.accept()  # its jump back to the true level
            return found
        return [*found, *self._handed_over(event, step), self._open(metric, event, step, self._excuses(event, step))]

    def _claimed(self, metric: str) -> Claim | None:
        return self.context.claimed(metric, self.name, CLAIM_POINTS * self.context.interval)

    def _loss_is_followed(self) -> bool:
        return any(role_of(metric) == LOSS for metric in self.context.open_claims())

    def _excuses(self, event: CurveEvent, step: int) -> list[str]:
        """Return the changes at the onset of an event."""
        begin = event.onset - round(EXCUSE_POINTS * self.context.interval)
        excuses = self.context.excuses_between(begin, step)
        texts = [f"{e.kind}: {e.text}" for e in excuses if e.kind in ("lr_jump", "batch_size") and e.after > e.before]
        before, now = self.context.lr.before(event.onset + 1), self.context.lr.last
        if self.context.warming_up and now > before:
            texts.append(f"lr: the learning rate went from {before:.4g} to {now:.4g} meanwhile")
        return texts[-4:]

    # --- one incident -----------------------------------------------------------------------------------------------

    def _open(
        self, metric: str, event: CurveEvent, step: int, explained: list[str], whole: CurveMove | None = None
    ) -> Finding:
        """Open the incident of an event; of several data sets with their joint move in ``whole``."""
        one = CurveIncident(metric, event, whole is not None, "info", explained)
        if whole is not None:
            one.before, one.after, one.error = whole
        if metric == self._whole and not event.lone:
            one.waits = self._joined(event)
        self._incidents[f"{metric}:{event.onset}"] = one
        while len(self._incidents) > MAX_INCIDENTS:
            del self._incidents[next(iter(self._incidents))]
        return self._report(one, step)

    def _advance(self, one: CurveIncident, event: CurveEvent, step: int) -> list[Finding]:
        """Report an incident again after a change."""
        one.event = event
        kind, severity, state = self._kind(one), self._severity(one), self._state(one)
        if one.said == [kind, severity, state, event.recovery, str(event.new_level)]:
            return []
        return [self._report(one, step)]

    def _grown(self, metric: str, event: CurveEvent, step: int) -> list[Finding]:
        """Report an open event with a much higher peak, or one freed by another detector."""
        one = self._incidents.get(f"{metric}:{event.onset}")
        if one is None or one.peaks >= PEAK_NEWS:
            return []
        one.event = event
        if event.peak - event.level <= PEAK_FACTOR * (one.said_peak - event.level) and (
            self._severity(one) == one.severity
        ):
            return []
        one.peaks += 1
        return [self._report(one, step)]

    def _report(self, one: CurveIncident, step: int) -> Finding:
        """Return the finding of an incident, and record the report."""
        event = one.event
        one.severity = self._severity(one)
        kind, state = self._kind(one), self._state(one)
        one.said, one.said_peak = [kind, one.severity, state, event.recovery, str(event.new_level)], event.peak
        if not event.lone and not one.let_go:
            key = f"{self.name}:{one.metric}:{event.onset}"
            one.let_go = event.life in ("new level", *OVER)
            ended, back = (step, event.life == "back") if one.let_go else (None, False)
            self.context.claim(one.metric, Claim(self.name, key, kind, event.onset, ended, back))
        if state != "open":
            self._incidents.pop(f"{one.metric}:{event.onset}", None)
        finding = self._finding(one, kind, state, step)
        one.event = replace(event, values=deque(), steps=deque())
        return finding

    def _now(self, one: CurveIncident) -> CurveEvent:
        """Return the present event of an incident."""
        event = self._curves[one.metric].event
        return event if event is not None and event.onset == one.event.onset else one.event

    def _kind(self, one: CurveIncident) -> str:
        return "grad_norm" if one.metric == self._norm else one.event.kind

    def _state(self, one: CurveIncident) -> State:
        event = one.event
        if event.life in OVER:
            return "open" if one.waits else "recovered" if event.life == "back" else "resolved"
        # A lasting note ends here; damage does not end because statistics got used to it.
        return "resolved" if event.recovery == "none" and self._severity(one) == "info" else "open"

    def _severity(self, one: CurveIncident) -> Severity:
        """Return the severity of an event: the engine's, lower for one data set or a changed rate; it never falls."""
        event = one.event
        if one.metric == self._norm or (event.lone and not event.outdone):
            now: Severity = "info"
        elif one.metric != self._whole:
            # A step of a setting acts on all data: then one data set alone is no alarm, at any height.
            stepped = not one.of_all and any(not text.startswith("lr:") for text in one.explained)
            now = "warning" if self._moves_the_whole(one) and not stepped else "info"
        elif one.explained and event.peak - event.level <= EXCUSED_RISE * abs(event.level):
            now = "info"
        else:
            now = event.severity
        return max(now, one.severity, key=SEVERITIES.index)

    def _finding(self, one: CurveIncident, kind: str, state: State, step: int) -> Finding:
        event, dataset = one.event, dataset_of(one.metric)
        what = "gradient norm" if one.metric == self._norm else f"loss of {dataset}" if dataset else "loss"
        waits = [dataset_of(metric) or metric for metric in one.waits]
        recovered = max(event.recovered_step or 0, one.sets_back) if state == "recovered" else None
        text = text_of(event, what, step, waits, one.explained)
        if recovered is not None and one.sets_back > (event.recovered_step or 0):
            text += f" The data sets that rose with it were back at step {one.sets_back}."
        threshold = "1 point, noted" if event.lone and not event.outdone else f"evidence of {PROOF:g} nats"
        made = Finding(
            self.name,
            f"{self.name}:{one.metric}:{event.onset}",
            kind,
            state,
            one.severity,
            title_of(event, what),
            text,
            event.onset,
            event.seen,
            step,
            metric=one.metric,
            dataset=dataset,
            peak_step=event.peak_step,
            recovered_step=recovered,
            recovery="pending" if state == "open" and event.life == "back" else event.recovery,
            score=score_of(event),
            evidence=evidence_of(event, threshold, one.explained)
            | ({"below_zero": True} if self._curves[one.metric].linear else {}),
        )
        if one.metric == self._norm:
            alone = " Alone this is no alarm: most such jumps have no effect on the loss."
            if math.isnan(self.context.batch_size.last) and not self._loss_is_followed():
                alone += batch_of(event)
            return replace(made, text=made.text + alone, recovery=None)
        if one.of_all:
            return self._of_all(one, made)
        if dataset:
            return replace(made, text=f"{made.text} It makes up {100 * self._share(dataset):.3g} % of the data.")
        return made

    # --- data sets ----------------------------------------------------------------------------------------------------

    def _release(self, metric: str, curve: Curve, step: int) -> list[Finding]:
        """Report the held event of a data set or norm: alone, of all data sets, or not at all."""
        event, reach = self._held[metric], TOGETHER_POINTS * self.context.interval
        if curve.event is not None and curve.event.onset == event.onset:
            event = curve.event
            if step - event.onset < reach:
                return []
        del self._held[metric]
        if self._of_the_whole(metric, event):
            return []
        if metric == self._norm:
            return [self._open(metric, event, step, self._excuses(event, step))]
        mine = self._as_moved(curve.moved_by(event))
        points = max(1, round((step - event.onset) / self.context.interval) + 1)
        others = {
            name: self._as_moved(moved)
            for name, one in self._curves.items()
            if name != metric and dataset_of(name) and (moved := one.moved(points))
        }
        if moved_alone(mine, list(others.values())):
            return [self._open(metric, event, step, self._excuses(event, step))]
        known = any(one.of_all for one in self._incidents.values())
        whole = self._summed({metric: mine, **others})
        if known or not others or whole.errors < MEAN_ERRORS or event.life == "back":
            self._silent[metric] = event.onset
            return []
        return [self._open(metric, event, step, self._excuses(event, step), whole)]

    def _of_the_whole(self, metric: str, event: CurveEvent) -> bool:
        """Return whether another incident has the event; a data set's is part of that of the whole loss."""
        begin = event.onset - TOGETHER_POINTS * self.context.interval
        claims = self.context.claims_since(event.onset)
        own = self.context.open_claims().get(metric)
        near = [
            one
            for one in self._incidents.values()
            if one.metric == self._whole and one.event.onset >= begin and not one.event.lone
        ]
        for one in near:
            if event.life not in OVER and metric != self._norm:
                one.waits[metric] = event.onset
        of_loss = any(role_of(of) == LOSS or claim.kind in _EXPLAINING for of, claim in claims.items())
        if near or of_loss or (own is not None and own.detector != self.name):
            self._silent[metric] = event.onset
            return True
        return False

    def _joined(self, event: CurveEvent) -> dict[str, int]:
        """Return the data sets with an open event within one of the whole loss -> its onset."""
        reach, joined = TOGETHER_POINTS * self.context.interval, dict[str, int]()
        for metric, curve in self._curves.items():
            own = curve.event
            if dataset_of(metric) and own is not None and abs(own.onset - event.onset) <= reach:
                joined[metric] = self._silent[metric] = own.onset
                self._held.pop(metric, None)
        return joined

    def _handed_over(self, event: CurveEvent, step: int) -> list[Finding]:
        """Close the incidents of data sets that the whole loss now has."""
        found, reach = list[Finding](), 2 * TOGETHER_POINTS * self.context.interval
        for key, one in list(self._incidents.items()):
            settled = one.event.new_level is not None or one.event.onset < event.onset - reach
            if dataset_of(one.metric) is None or settled:
                continue
            del self._incidents[key]
            one.event = self._now(one)
            self._silent[one.metric] = one.event.onset
            self.context.release(one.metric, self.name)
            last = self._finding(one, self._kind(one), "resolved", step)
            found.append(replace(last, text=f"{last.text} The whole loss shows it by now.", recovery=None))
        return found

    def _member(self, metric: str, event: CurveEvent, step: int) -> list[Finding]:
        """Take the end of a data set's event, and end its incident with the last one."""
        found = list[Finding]()
        for one in list(self._incidents.values()):
            if one.waits.get(metric) == event.onset:
                del one.waits[metric]
                one.sets_back = max(one.sets_back, step if event.recovered_step is None else event.recovered_step)
                found += self._advance(one, self._now(one), step)
        return found

    def _share(self, name: str) -> float:
        sets = sum(1 for metric in self._curves if dataset_of(metric))
        return self._shares.get(f"{RATIO}/{name}", 1 / max(1, sets))

    def _moves_the_whole(self, one: CurveIncident) -> bool:
        """Return whether an event of data sets visibly moves the whole loss."""
        if one.of_all:
            return one.after - one.before >= SHOWN_IN_THE_WHOLE * abs(one.before)
        event = one.event
        rise = (event.peak if event.new_level is None else event.new_level) - event.level
        return rise * self._share(dataset_of(one.metric) or "") >= SHOWN_IN_THE_WHOLE * self._level()

    def _level(self) -> float:
        """Return the level of the whole loss, from the data sets' levels and shares."""
        parts = [
            (self._share(name), abs(level))
            for metric, curve in self._curves.items()
            if (name := dataset_of(metric)) and math.isfinite(level := curve.usual()[0])
        ]
        return sum(share * level for share, level in parts) / (sum(share for share, _ in parts) or 1.0)

    @staticmethod
    def _as_moved(moved: tuple[float, float]) -> CurveMove:
        rise, error = moved
        return CurveMove(1.0, math.exp(min(rise, 50.0)), max(error, 1e-9))

    def _summed(self, every: Mapping[str, CurveMove]) -> CurveMove:
        """Return the move of the whole loss, from the data sets' levels and shares."""
        parts = [
            (self._share(dataset_of(metric) or "") * abs(self._curves[metric].usual()[0]), moved)
            for metric, moved in every.items()
        ]
        total = sum(self._share(dataset_of(metric) or "") for metric in every) or 1.0
        before = sum(part for part, _ in parts) / total
        after = sum(part * moved.after for part, moved in parts) / total
        return CurveMove(before, after, math.hypot(*(part * moved.error for part, moved in parts)) / total or 1e-12)

    def _of_all(self, one: CurveIncident, made: Finding) -> Finding:
        """Return a finding about all data sets, in the numbers of the whole loss."""
        metric, onset = self._whole or LOSS, one.event.onset
        size = percent(one.after, one.before)
        text = (
            f"Several data sets rose at about step {onset}, or are too noisy to tell: together from {one.before:.4g} "
            f"to {one.after:.4g}{'' if size is None else f' ({size:+.1f} %)'}. No one of them is to blame: look at "
            "what they have in common, such as labels, tokeniser, preprocessing or the code of the loss."
        )
        if made.state == "recovered":
            text += f" They were back at step {made.recovered_step}."
        facts: dict[str, Any] = {**made.evidence, "level_before": one.before, "sigma": one.error, "peak": one.after}
        facts |= {"rise_percent": size, "score_unit": "standard errors of the whole loss", "all_alike": True}
        facts["level_after"] = None if facts["level_after"] is None else one.after
        return replace(
            made,
            key=f"{self.name}:{metric}:{onset}",
            title=title_of(one.event, "loss"),
            text=text,
            metric=metric,
            dataset=None,
            score=min((one.after - one.before) / one.error, 1e9),
            evidence=facts,
        )

    # --- flat, and suddenly lower -------------------------------------------------------------------------------------

    def _blocks(self, curve: Curve, step: int) -> list[Finding]:
        """Take the newly completed blocks of the whole loss."""
        count = min(curve.slow.points - self._blocks_seen, len(curve.blocks))
        self._blocks_seen = curve.slow.points
        found, sigma = list[Finding](), curve.usual()[1]
        rate = self.context.lr.last
        self._largest_rate = max(self._largest_rate, rate if rate == rate else 0.0)
        pairs = list(zip(curve.block_steps, curve.blocks, strict=True))[-count:] if count else []
        for begin, value in pairs:
            middle = curve.back_of(value)
            found += self._drop(middle, begin, step)
            new = self._flat.add(middle, begin, CLIMB_BLOCK, sigma, warming_up=self.context.warming_up)
            if new and self.settings["sensitivity"] and self._claimed(self._whole) is None:
                found += self._check_flat(step)
        return found

    def _drop(self, middle: float, begin: int, step: int) -> list[Finding]:
        """Report a sudden drop that stayed, as a note."""
        drop = self._drops.add(middle, begin)
        if drop is None or not self.settings["sensitivity"]:
            return []
        onset, before, after = drop
        reach = round(EXCUSE_POINTS * self.context.interval) + step - begin
        known = [
            f"{excuse.kind}: {excuse.text}"
            for excuse in self.context.excuses_between(onset - reach, step)
            if excuse.kind in ("lr_jump", "batch_size", "fork")
        ][-4:]
        self._drops.rebase()
        if self._claimed(self._whole) or not self._drops.is_worth_a_note(before, after, explained=bool(known)):
            return []
        key = f"{self.name}:drop:{self._whole}:{onset}"
        self.context.claim(self._whole, Claim(self.name, key, "level_shift", onset, step))
        text = f"The loss went from {before:.4g} to {after:.4g} at about step {onset} and stayed there."
        text += (
            f" Explained: {'; '.join(clauses(known))}. This is no alarm."
            if known
            else " Learning drops a loss over some points: a step of the learning rate that is not logged, or "
            "understanding after a plateau. Within one point it is other data, or the loss is computed otherwise "
            "(masks, smoothing). This is no alarm."
        )
        sigma = max(self._curves[self._whole].usual()[1], 1e-12)
        return [
            Finding(
                self.name, key, "level_shift", "resolved", "info",
                f"Loss dropped to a lower level at step {onset}", text, onset, step, step,
                metric=self._whole, score=min((before - after) / sigma, 1e9),
                evidence={
                    "direction": "down", "level_before": before, "level_after": after, "sigma": sigma,
                    "rise_percent": percent(after, before), "score_unit": "robust sigmas", "explained_by": known,
                    "recovered_at": None,
                },
            )
        ]  # fmt: skip

    def _check_flat(self, step: int) -> list[Finding]:
        """Report a loss that does not fall, and its next fall."""
        plateau, flat = self._plateau, self._flat
        if plateau is not None and plateau.state == "open":
            plateau.points = flat.points if plateau.never else plateau.points + CLIMB_BLOCK
            left = flat.left(plateau.level, plateau.sigma)
            if not left:
                return []
            plateau.state = "recovered" if left == "down" else "resolved"
            plateau.left_step, plateau.left_level = step, flat.entries[-1]
            return [self._flat_finding(plateau, step)]
        needed = MIN_POINTS / self.settings["sensitivity"]
        from_start = self._first_step <= FIRST_POINT * max(1.0, self.context.interval)
        never = plateau is None and from_start and flat.never_learns(needed)
        since = -1 if plateau is None or plateau.left_step is None else plateau.left_step
        at_floor = bool(self._largest_rate) and self.context.lr.last <= RATE_FLOOR * self._largest_rate
        stopped = not at_floor and flat.stopped(needed, since, rate_known=bool(self._largest_rate))
        if not never and not stopped:
            return []
        level, sigma = flat.level()
        first = flat.entries[0]
        classes = known_classes(level) if level > 0 and (never or level >= MOST * first) else None
        warns = never and (classes is not None or first >= UNTRAINED)
        explained = ["lr: the learning rate is 0"] if never and self.context.lr.last == self._largest_rate == 0 else []
        onset = flat.steps[0] if never else flat.begin()
        self._plateau = Plateau(
            onset, step, "warning" if warns else "info", level, sigma, never, flat.points, classes, explained
        )
        return [self._flat_finding(self._plateau, step)]

    def _flat_finding(self, flat: Plateau, step: int) -> Finding:
        over = flat.state != "open"
        hint = f" {flat.level:.4g} is ln({flat.classes}), the loss of mere guessing." if flat.classes else ""
        if flat.never:
            title = f"Loss {'did' if over else 'does'} not learn from the start"
            text = f"After {flat.points} points the loss was flat at {flat.level:.4g}; it began at "
            text += f"{self._flat.entries[0]:.4g}.{hint}"
        else:
            title = f"Loss {'was flat from' if over else 'is flat since'} step {flat.onset}{' on' if over else ''}"
            text = f"The loss had fallen before, and was flat at {flat.level:.4g} from step {flat.onset} on.{hint}"
            if not self._largest_rate:
                text += " The learning rate is not logged, so that a decayed one may be the reason."
        if flat.explained:
            text += " Known before: " + "; ".join(clauses(flat.explained)) + "."
        if over:
            way = "fell again" if flat.state == "recovered" else "left that level upwards"
            text += f" It {way}: {flat.left_level:.4g} at step {flat.left_step}."
        recovered = flat.left_step if flat.state == "recovered" else None
        return Finding(
            self.name, f"{self.name}:flat:{self._whole}:{flat.onset}", "plateau", flat.state, flat.severity,
            title, text, flat.onset, flat.seen, step,
            metric=self._whole, recovered_step=recovered, score=float(flat.points),
            evidence={
                "direction": "flat", "level_before": flat.level, "level_after": flat.left_level, "sigma": flat.sigma,
                "points": flat.points, "never_learnt": flat.never, "nearest_classes": flat.classes,
                "learning_rate": self.context.lr.last if math.isfinite(self.context.lr.last) else None,
                "explained_by": flat.explained, "recovered_at": recovered,
            },
        )  # fmt: skip


def _are_shares(rows: QuietRows, metric: str) -> bool:
    """Return whether all values of a metric may be shares."""
    low, high = rows.ranges.get(metric, (-1.0, 0.0))
    return 0 <= low <= high <= 1
