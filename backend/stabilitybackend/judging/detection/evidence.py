"""Evidence of an incident: curve, first movers, nearby events, batches.

Made for every new finding, so it reads only a few dozen rows of a few dozen series, up to the finding's own step: the
same points give the same evidence in any cut of frames.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import itemgetter
from statistics import median
from typing import TYPE_CHECKING, Any

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.judging.detection.attribution import (
    BASELINE_POINTS,
    CONFIRMED_SIGMAS,
    EARLIER_POINTS,
    LOSS_FLOOR,
    attribute,
    is_logit,
    part_of,
    usual,
    watched,
)
from stabilitybackend.judging.detection.naming.watched_names import WatchedNames
from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.detectors.engine.context import JUMP
from stabilitybackend.judging.detectors.repeat_data import KNOWN_DATA, OTHER_SHARES, SAME_BATCHES
from stabilitybackend.judging.detectors.stats import left_range as at_resume
from stabilitybackend.judging.detectors.stats.robust import MEDIAN_ERROR
from stabilitybackend.judging.detectors.stats.together import MEAN_ERRORS
from stabilitybackend.lineage.returns import left_by
from stabilitybackend.schema.json_data import MAX_LISTED, NAME_CHARS
from stabilitybackend.schema.kinds import kind_of, kinds_where
from stabilitybackend.schema.metric_roles import (
    BATCH_SIZE,
    GRAD_NORM,
    LOSS,
    LR,
    SEQUENCE_LENGTH,
    dataset_of,
    of_machine,
    role_of,
)
from stabilitybackend.storage.points.store import SeriesKey

if TYPE_CHECKING:
    from stabilitybackend.judging.incidents.incidents import IncidentBook
    from stabilitybackend.lineage.fold import LineageFold
    from stabilitybackend.lineage.tree import FoldedSegment
    from stabilitybackend.storage.points.store import RunStore

__all__ = ["EvidenceCollector", "onset_band"]

#: Points before the onset searched for an earlier climb.
BAND_POINTS = 512
#: Points of a compared block; the error of a median of so many is 0.44 sigma.
BLOCK_POINTS = 8
BLOCK_ERROR = MEDIAN_ERROR / math.sqrt(BLOCK_POINTS)
#: A quadratic climb in a falling loss is hidden until it has regained its start; noise hides it for as long again.
HIDDEN_TIMES = 2


def onset_band(
    before: Points,
    since: Points,
    onset_step: int,
    seen_step: int,
    found: tuple[float, float] | None = None,
    gradients: Points = (),
) -> list[int] | None:
    """Return the first and last possible step of an onset, both inclusive; None for an exact one.

    It is exact where the first point is already far outside the noise. Otherwise it began after the last minimum of the
    loss. The steps from there to its detection may have been preceded by HIDDEN_TIMES as many hidden ones, in noise and
    in the fall of the loss: a rollback has to predate them. Growing weights show in the gradient norm first: the last
    minimum of that counts, if earlier.

    Args:
        before: (step, value) with rising steps, before the onset; BAND_POINTS are enough.
        since: from the onset to the detection.
        onset_step, seen_step: of the incident.
        found: level and robust sigma of the detector. It follows a steep fall, where the spread of the points before is
            mostly the fall.
        gradients: the gradient norm over the same steps; empty without one.
    """
    calm = usual((value for _, value in before[-4 * BLOCK_POINTS :]), LOSS_FLOOR)
    first = next((value for _, value in since), math.nan)
    known = [one for one in (calm, found) if one is not None]
    if calm is None or not math.isfinite(first) or any(first - at >= CONFIRMED_SIGMAS * wide for at, wide in known):
        return None
    late = min(onset_step, _last_low(_blocks([*before, *since]), calm[1], onset_step))
    early = max(0, min(late - HIDDEN_TIMES * (seen_step - late), _rose(gradients, onset_step, seen_step)))
    return [early, onset_step] if early < onset_step else None


def _rose(gradients: Points, onset_step: int, seen_step: int) -> int:
    """Return the last step of a minimal gradient norm, or the onset.

    The calm before has to last as long as the rise, and no longer: a norm that rises all the time rises for itself, and
    its start means nothing. It has risen where half of the later points exceed all earlier ones.
    """
    calm = usual([value for step, value in gradients if step < onset_step][-4 * BLOCK_POINTS :], LOSS_FLOOR)
    if calm is None:
        return onset_step
    blocks = _blocks(gradients)
    for at, (first, _) in enumerate(blocks):
        rose = _last_low(blocks[at:], calm[1], seen_step)
        since = [middle for step, middle in blocks if step > rose]
        if since and seen_step - rose <= rose - first and median(since) > max(m for s, m in blocks[at:] if s <= rose):
            return min(rose, onset_step)
    return onset_step


def _blocks(points: Points) -> Points:
    """Return (last step, median) of each block of finite values."""
    finite = [(step, value) for step, value in points if math.isfinite(value)]
    blocks = [finite[at : at + BLOCK_POINTS] for at in range(0, len(finite) - BLOCK_POINTS + 1, BLOCK_POINTS)]
    return [(block[-1][0], median(value for _, value in block)) for block in blocks]


def _last_low(blocks: Points, spread: float, otherwise: int) -> int:
    """Return the last step of the minimal level of the blocks."""
    if len(blocks) < 2:
        return otherwise
    limit = min(middle for _, middle in blocks) + MEAN_ERRORS * math.sqrt(2) * BLOCK_ERROR * spread
    return max(step for step, middle in blocks if middle <= limit)


#: Largest distance of a nearby event, logged points or seconds.
NEAR_POINTS = 32
NEAR_S = 60.0
#: A change of a setting by JUMP also has to be so many times the usual change there: the first steps of a warm-up
#: double the rate each.
JUMP_TIMES = 4.0

#: Roles of settings -> label.
_SETTINGS = {LR: "learning rate", BATCH_SIZE: "batch size", SEQUENCE_LENGTH: "sequence length"}


def nearby_events(
    finding: Finding,
    time: float,
    fold: LineageFold,
    incidents: IncidentBook,
    series: Mapping[str, Points],
    interval: float,
) -> list[dict[str, Any]]:
    """Return ``{"what", "step", "distance", "text"}`` of events near the onset, the nearest first.

    Args:
        finding: of the incident.
        time: unix seconds of its point.
        fold, incidents: of the run, as of now.
        series: metric -> points around the onset; of these the learning rate and the batch size count.
        interval: usual distance of two logged points, steps.
    """
    found = [*_happened(finding, time, fold, incidents, interval), *_jumps(finding, series, interval)]
    found.sort(key=lambda fact: (abs(fact["distance"]), fact["step"], fact["text"]))
    return found[:MAX_LISTED]


def _fact(what: str, step: int, onset: int, text: str) -> dict[str, Any]:
    return {"what": what, "step": step, "distance": step - onset, "text": text}


def _happened(
    finding: Finding, time: float, fold: LineageFold, incidents: IncidentBook, interval: float
) -> Iterator[dict[str, Any]]:
    onset, reach = finding.onset_step, NEAR_POINTS * interval
    low, high = onset - reach, min(onset + reach, finding.now_step)
    path = {part.segment for part in fold.tree.path()}
    for segment in fold.tree:
        if segment.id in path and segment.parent is not None and low <= segment.fork_step + 1 <= high:
            yield _fact("fork", segment.fork_step + 1, onset, _went_back(segment))
    near = [c for c in fold.checkpoints if low <= c.step <= high and c.segment in path]
    saved = [c for c in near if not fold.tree.is_dead(c.segment, c.step)]  # else a step is named once for each branch
    for checkpoint in sorted(saved, key=lambda c: abs(c.step - onset))[:MAX_OF_A_SORT]:
        gone = "" if checkpoint.available else " (gone since)"
        yield _fact("checkpoint", checkpoint.step, onset, f"a checkpoint was saved at step {checkpoint.step}{gone}")
    named = kinds_where(lambda kind: kind.nearby_label)
    others = incidents.near(named, low, high, time - NEAR_S, time + NEAR_S, but=finding.key)
    for step, kind, title in others[:MAX_OF_A_SORT]:
        yield _fact(kind_of(kind).nearby_label, step, onset, title)


def _went_back(segment: FoldedSegment) -> str:
    if segment.cause in ("restart", "resume"):
        return f"the job was started again from step {segment.fork_step}"
    how = "was rolled back" if segment.cause == "command" else "went back by itself"
    why = f": {segment.reason}" if segment.reason else ""
    return f"the run {how} to step {segment.fork_step}{why}"


def _jumps(finding: Finding, series: Mapping[str, Points], interval: float) -> Iterator[dict[str, Any]]:
    """Yield the jumps of the learning rate and the batch size near the onset."""
    low = finding.onset_step - NEAR_POINTS * interval
    high = finding.onset_step + NEAR_POINTS * interval
    for name, points in series.items():
        role = role_of(name)
        what = _SETTINGS.get(role or "")
        if what is None or role is None:
            continue
        changes = _changes(points)
        found = [
            _fact(role, step, finding.onset_step, f"the {what} went from {before:.4g} to {after:.4g}")
            for step, before, after, change in changes
            if low <= step <= high and change > JUMP and change > JUMP_TIMES * _usual_change(changes, step)
        ]
        yield from found[:MAX_OF_A_SORT]


def _changes(points: Points) -> list[tuple[int, float, float, float]]:
    """Return (step, before, after, change as a fraction) between consecutive finite points."""
    finite = [point for point in points if math.isfinite(point[1])]
    return [
        (step, before, after, abs(after - before) / abs(before) if before else math.inf if after else 0.0)
        for (_, before), (step, after) in pairwise(finite)
    ]


def _usual_change(changes: Sequence[tuple[int, float, float, float]], step: int) -> float:
    """Return the median of the few changes around a step, without the step's own."""
    at = next(i for i, change in enumerate(changes) if change[0] == step)
    others = [change[3] for change in [*changes[max(0, at - 3) : at], *changes[at + 1 : at + 4]]]
    return median(others) if others else 0.0


#: Points of the drawn window: before the onset, and from there on. Together below the 64 entries of a list of evidence.
WINDOW_BEFORE = 24
WINDOW_SINCE = 36
#: The band drawn around the usual level, robust sigmas to each side.
BAND_SIGMAS = 3.0
#: Points read before the onset, and the longest search for them in a sparse log, steps.
BEFORE_POINTS = BASELINE_POINTS + EARLIER_POINTS
FIRST_LOOKBACK_STEPS = 64
MAX_LOOKBACK_STEPS = 262_144
#: Points since the onset for attribution; a slow divergence is seen some hundred points after it began.
SINCE_POINTS = 256
#: A longer event is drawn at its start, peak and end, steps.
MAX_SPAN_STEPS = 5_000
#: Batches remembered per run; shown are those so many points around it.
MAX_BATCHES = 256
BATCHES_BEFORE = 4
BATCHES_SINCE = 4
#: Growth of logits worth a line, percent. Logarithmic growth gives 28 % from the first quarter to the last eighth of
#: 10,000 steps, and 21 % of 100,000.
GROWTH_PERCENT = 30.0
MAX_GROWING = 4
#: Fewest points, or blocks of the run's history, for growth, and most blocks.
GROWTH_POINTS = 16
GROWTH_BLOCKS = 64
#: Entries named of each sort: metrics at a resume, events near an onset.
MAX_OF_A_SORT = 4

#: Kinds that may begin long before their detection.
BANDED = frozenset({"spike", "divergence", "level_shift"})

#: Kinds for which every metric is checked at the resume, and metrics in that check.
AT_RESUME = frozenset({"repeat_data", "resume_artifact"})
MAX_ASKED = 48

Points = Sequence[tuple[int, float]]


class EvidenceCollector(Stateful):
    """Evidence and data sets for findings of one run. Holds only the newest batches' fingerprints."""

    _batches: deque[tuple[int, str]] = fresh(deque, maxlen=MAX_BATCHES)
    _batch_rank: int | None = None

    # --- its input ----------------------------------------------------------------------------------------------

    def batch(self, rank: int | None, step: int | None, data: Mapping[str, Any]) -> None:
        """Take a ``batch`` event of the job; those of the lowest rank count."""
        if rank is None or step is None or (self._batch_rank is not None and rank > self._batch_rank):
            return
        if not data.get("fingerprint"):
            return
        if rank != self._batch_rank:
            self._batches.clear()
            self._batch_rank = rank
        self._batches.append((step, str(data.get("fingerprint", ""))[:NAME_CHARS]))

    def forked(self, fork_step: int) -> None:
        """Forget the batches after the fork step."""
        kept = [entry for entry in self._batches if entry[0] <= fork_step]
        self._batches.clear()
        self._batches.extend(kept)

    # --- text ----------------------------------------------------------------------------------------------------

    def add(
        self,
        finding: Finding,
        time: float,
        *,
        rank: int | None,
        store: RunStore,
        fold: LineageFold,
        incidents: IncidentBook,
        names: WatchedNames | None = None,
    ) -> Finding:
        """Return the finding with its data set, if one carries it, and the evidence around its onset.

        Args:
            finding: of a detector, the liveness monitor or the job. Its own data set stays, except for an incident of
                the whole loss with clearer curves.
            time: unix seconds of its point.
            rank: the primary one; None for none.
            store, fold, incidents: of the run, as of now.
            names: roles of the metrics; None: by the table of names.
        """
        names = WatchedNames() if names is None else names
        more: dict[str, Any] = {}
        dataset = finding.dataset
        interval, series = 1.0, {}
        # A differing copy is visible only next to the other ranks.
        copy = finding.kind == "sdc_suspect" and finding.evidence.get("copy")
        if finding.metric is not None and rank is not None and not copy:
            own = rank if finding.rank is None else finding.rank
            main = _before(store, fold, finding.metric, own, finding)
            interval = _interval(main)
            window = _window(store, fold, finding, own, main, interval)
            if window is not None:
                more["window"] = window
            back = finding.onset_step - (main[0][0] if main else 0)
            series = _series(store, fold, finding, rank, interval, back, names)
            norm = next((name for name in store.metrics() if names.compared_as(name) == GRAD_NORM), None)
            band = _band(store, fold, finding, own, interval, norm)
            # An onset within an earlier open incident is no earlier than that: the loss was no longer minimal.
            earlier = [one.onset_step for one in incidents.affects_weights() if one.onset_step < finding.onset_step]
            if band is not None:
                more["onset_band"] = [max(band[0], *earlier), band[1]] if earlier else band
            if not kind_of(finding.kind).of_machine:
                alike = incidents.rate_was_off(finding.onset_step, interval) or "all_alike" in finding.evidence
                dataset = _attributed(finding, names.known_as(finding.metric), series, more, all_alike=alike)
            _gradients(finding, series, more)
            growing = _growing(store, fold, rank, finding.onset_step, series, names)
            if growing:
                more["growing"] = growing
        if rank is not None and finding.kind in AT_RESUME and "fork_step" in finding.evidence:
            finding = _asked_at_resume(store, fold, finding, rank, interval, more, _stretches(incidents, finding.key))
        nearby = nearby_events(finding, time, fold, incidents, series, interval)
        if nearby:
            more["nearby"] = nearby
        batches = self._around(finding, interval)
        if batches:
            more["batches"] = batches
        if not more and dataset == finding.dataset:
            return finding
        # The detector's own facts come first: the bound on entries cuts from the end.
        text = finding.text
        if dataset is not None and "datasets" in more:
            share = next(
                (one.get("share") for one in more.get("moved_first", ()) if one.get("dataset") == dataset), None
            )
            text += f" Caused by data set {dataset}" + (
                "." if share is None else f" ({100 * share:.0f} % of the rise)."
            )
        return replace(finding, dataset=dataset, text=text, evidence={**finding.evidence, **more})

    def _around(self, finding: Finding, interval: float) -> list[dict[str, Any]]:
        if finding.metric is None:
            return []
        low = finding.onset_step - BATCHES_BEFORE * interval
        high = min(finding.onset_step + BATCHES_SINCE * interval, finding.now_step)
        found = {step: mark for step, mark in self._batches if low <= step <= high}
        return [{"step": step, "fingerprint": found[step]} for step in sorted(found)][: 4 * BATCHES_BEFORE]


# --- rows ----------------------------------------------------------------------------------------------------------


def _read(
    store: RunStore, fold: LineageFold, metric: str, rank: int, first: int, last: int, head: int | None = None
) -> Points:
    """Return the effective points of ``first <= step <= last``, steps rising; ``head``: of another branch's end."""
    points: list[tuple[int, float]] = []
    for part in fold.tree.path(head, since=first):
        low, high = max(first, part.first), last if part.last is None else min(last, part.last)
        if low <= high:
            rows = store.rows(SeriesKey(metric, part.segment, rank, ""), low, high)
            points += zip(rows.steps.tolist(), rows.values.tolist(), strict=True)
    return points


def _before(store: RunStore, fold: LineageFold, metric: str, rank: int, finding: Finding) -> Points:
    """Return the newest points before the onset, looking back further in a sparse log."""
    back, onset = FIRST_LOOKBACK_STEPS, finding.onset_step
    while True:
        points = _read(store, fold, metric, rank, max(0, onset - back), onset - 1)
        if len(points) >= BEFORE_POINTS or back >= min(onset, MAX_LOOKBACK_STEPS):
            return points[-BEFORE_POINTS:]
        back *= 8


def _interval(points: Points) -> float:
    """Return the usual distance between two points, steps."""
    distances = [later[0] - earlier[0] for earlier, later in pairwise(points)]
    return max(1.0, median(distances)) if distances else 1.0


def _series(
    store: RunStore, fold: LineageFold, finding: Finding, rank: int, interval: float, back: int, names: WatchedNames
) -> dict[str, Points]:
    """Return the series to compare, around the onset, by the detectors' names."""
    series: dict[str, Points] = {}
    logged = {known: name for name in store.metrics() if (known := names.compared_as(name)) is not None}
    onset = finding.onset_step
    last = min(finding.now_step, onset + int(SINCE_POINTS * interval))
    for name in watched(logged, finding.metric and names.compared_as(finding.metric)):
        points = _read(store, fold, logged[name], rank, max(0, onset - max(back, 1)), last)
        if points:
            begin = bisect_left(points, onset, key=lambda point: point[0])
            series[name] = points[max(0, begin - BEFORE_POINTS) : begin + SINCE_POINTS]
    return series


def _band(
    store: RunStore, fold: LineageFold, finding: Finding, rank: int, interval: float, norm: str | None
) -> list[int] | None:
    """Return the band of possible onsets, None for an exact one, or for no reason for a rollback.

    Args:
        norm: name of the gradient norm, None without one.
    """
    onset, seen = finding.onset_step, finding.step
    if finding.metric is None or seen <= onset or finding.kind not in BANDED:
        return None
    first, last = max(0, onset - int(BAND_POINTS * interval)), min(seen, onset + MAX_SPAN_STEPS)
    points = _read(store, fold, finding.metric, rank, first, last)
    at = bisect_left(points, onset, key=lambda point: point[0])
    level, sigma = finding.evidence.get("level_before"), finding.evidence.get("sigma")
    # The sigma of a climb is of a block's median: a usual point lies far outside of that.
    found = (level, sigma) if level is not None and sigma and finding.kind != "divergence" else None
    gradients = [] if norm is None else _read(store, fold, norm, rank, first, last)
    return onset_band(points[:at], points[at:], onset, seen, found, gradients)


# --- other metrics that left their range at a resume -------------------------------------------------------------


def _stretches(incidents: IncidentBook, but: str) -> list[tuple[int, int]]:
    """Return the first and last step of each event after an earlier resume, excluded from the usual past."""
    every = (one for one in incidents.of(AT_RESUME) if not one.dead and one.key != but)
    return [(one.onset_step, one.now_step if one.recovered_step is None else one.recovered_step) for one in every]


def _asked_at_resume(
    store: RunStore,
    fold: LineageFold,
    finding: Finding,
    rank: int,
    interval: float,
    more: dict[str, Any],
    odd: Sequence[tuple[int, int]],
) -> Finding:
    """Return a finding about a resume with inputs of the training that changed at it.

    Then a low loss is no sign of repeated data: another mixture has another loss.

    Args:
        odd: first and last steps that are left out of the past of a metric.
    """
    fork = int(finding.evidence["fork_step"])
    last = min(finding.now_step, fork + 1 + int(2 * at_resume.SINCE_POINTS * interval))
    first = fork - int(2 * at_resume.BEFORE_POINTS * interval)
    begun = next((part.segment for part in fold.tree.path() if part.first == fork + 1), None)
    old = None if begun is None else left_by(fold.tree, fold.heads, begun)
    found = []
    for name in [one for one in store.metrics() if not of_machine(one)][:MAX_ASKED]:
        points = _read(store, fold, name, rank, max(0, first), last)
        at = bisect_left(points, fork + 1, key=lambda point: point[0])
        left = {} if old is None else dict(_read(store, fold, name, rank, fork + 1, last, old))
        past = [point for point in points[:at] if not any(low <= point[0] <= high for low, high in odd)]
        one = at_resume.left_range(name, past, points[at:], left)
        found += [] if one is None else [one]
    inputs = [one for one in at_resume.inputs_that_left(found, finding.metric) if not _is_named(one.metric, finding)]
    if not inputs:
        return finding
    more["left_at_resume"] = [one.as_dict() for one in inputs[:MAX_OF_A_SORT]]
    clauses = "; ".join(one.clause for one in inputs[:MAX_OF_A_SORT])
    again = all(one.counter for one in inputs)
    restored = "the loader's place" if again else "its sampler, its schedule or its setting"
    asks = f"was {restored} restored?"
    guess = next((one for one in (KNOWN_DATA, SAME_BATCHES, OTHER_SHARES) if one in finding.text), "")
    if not guess or again:
        return replace(finding, text=f"{finding.text} With it {clauses}: {asks}")
    causes = [*finding.evidence.get("causes", ()), *(one.clause for one in inputs[:MAX_OF_A_SORT])]
    head, _, ending = finding.text.partition(guess)
    return replace(
        finding,
        kind="resume_artifact",
        title=f"{inputs[0].metric} differs after the resume at step {fork + 1}"[:NAME_CHARS],
        text=f"{head}With it {clauses}: {asks}{ending}",
        evidence={**finding.evidence, "causes": causes},
    )


def _is_named(metric: str, finding: Finding) -> bool:
    """Return whether a finding's text names the metric; a learning rate is no name there."""
    return metric in finding.text or (role_of(metric) == LR and "learning rate is" in finding.text)


# --- the window ----------------------------------------------------------------------------------------------------


def _window(
    store: RunStore, fold: LineageFold, finding: Finding, rank: int, before: Points, interval: float
) -> dict[str, Any] | None:
    assert finding.metric is not None
    onset, now = finding.onset_step, finding.now_step
    if now - onset <= MAX_SPAN_STEPS:
        since = _read(store, fold, finding.metric, rank, onset, now)
    else:
        middle = onset + MAX_SPAN_STEPS
        tail = max(middle + 1, now - int(4 * WINDOW_SINCE * interval))
        since = [*_read(store, fold, finding.metric, rank, onset, middle)]
        peak = finding.peak_step
        if peak is not None and middle < peak < tail:
            since += _read(store, fold, finding.metric, rank, peak, peak)
        since += _read(store, fold, finding.metric, rank, tail, now)
    points = [*before[-WINDOW_BEFORE:], *_thin(since, WINDOW_SINCE)]
    if not points:
        return None
    window: dict[str, Any] = {
        "metric": finding.metric,
        "steps": [step for step, _ in points],
        "values": [_short(value) for _, value in points],
    }
    calm = usual((value for _, value in before))
    if calm is not None:
        level, spread = calm
        # The level in the sentence, if any: one figure has one source.
        said = finding.evidence.get("level_before")
        level = level if said is None or finding.kind == "straggler" else said
        window["level"] = _short(level)
        low = level - BAND_SIGMAS * spread
        never_below_0 = all(value >= 0 for _, value in before if math.isfinite(value))
        window["band"] = [_short(max(low, 0.0) if never_below_0 else low), _short(level + BAND_SIGMAS * spread)]
    return window


def _thin(points: Points, most: int) -> Points:
    """Return at most ``most`` points: the first, the last, and of each bucket its extremes or non-finite values."""
    if len(points) <= most:
        return points
    inner, buckets = points[1:-1], (most - 2) // 2
    kept = [points[0]]
    for i in range(buckets):
        bucket = inner[i * len(inner) // buckets : (i + 1) * len(inner) // buckets]
        strange = [point for point in bucket if not math.isfinite(point[1])]
        finite = [point for point in bucket if math.isfinite(point[1])]
        pair = strange[:1] + ([max(finite, key=itemgetter(1))] if finite else [])
        if len(pair) < 2 and finite:
            pair.append(min(finite, key=itemgetter(1)))
        kept += sorted(set(pair))
    return [*kept, points[-1]]


def _short(value: float) -> float:
    """Return a number with six digits, enough for drawing: it travels in every update."""
    return float(f"{value:.6g}")


# --- who moved -----------------------------------------------------------------------------------------------------


def _own_rise(finding: Finding) -> dict[str, Any]:
    """Return the rise of a finding's metric by its detector: one figure has one definition."""
    said = finding.evidence
    to, before, rise = said.get("peak", said.get("level_after")), said.get("level_before"), said.get("rise_percent")
    return {} if to is None or before is None or rise is None else {"from": before, "to": to, "rise_percent": rise}


def _attributed(
    finding: Finding, known: str | None, series: Mapping[str, Points], more: dict[str, Any], *, all_alike: bool
) -> str | None:
    """Record first movers and return the data set that carries the incident."""
    falling = finding.kind == "repeat_data" or finding.evidence.get("direction") == "down"
    found = attribute(series, finding.onset_step, falling=falling, all_alike=all_alike)
    if found.moved:
        own = (finding.metric, known)
        more["moved_first"] = [
            move.as_dict() | (_own_rise(finding) if move.metric in own else {}) for move in found.moved
        ]
    role = role_of(known or "")
    whole = role == LOSS or (role == GRAD_NORM and finding.kind == "nonfinite")
    if not whole or not kind_of(finding.kind).by_dataset or not any(part_of(name) for name in series):
        # The first data set to move is not to blame where the rate moves all of them.
        return None if found.by_rate and dataset_of(known or "") else finding.dataset
    if role == GRAD_NORM and not any(role_of(move.metric) == LOSS for move in found.moved):
        return finding.dataset  # no loss shows it: none carries it
    # For the whole loss, all curves together outweigh the first one outside.
    if found.datasets:
        more["datasets"] = list(found.datasets)
    return found.dataset


def _gradients(finding: Finding, series: Mapping[str, Points], more: dict[str, Any]) -> None:
    """Record signs of trouble in the optimizer's state: small gradients before, large ones since."""
    for name, points in series.items():
        before = [value for step, value in points if step < finding.onset_step and math.isfinite(value)]
        since = [value for step, value in points if step >= finding.onset_step and math.isfinite(value)]
        if role_of(name) == GRAD_NORM and len(before) >= BEFORE_POINTS // 2 and since:
            half = len(before) // 2
            calm, quiet = median(before[:half]), median(before[half:])
            if calm > 0 and quiet > 0:
                more["gradients"] = {
                    "metric": name,
                    "quiet_ratio": _short(quiet / calm),
                    "burst_ratio": _short(max(since) / quiet),
                }


# --- logits --------------------------------------------------------------------------------------------------------


def _growing(
    store: RunStore, fold: LineageFold, rank: int, onset: int, series: Mapping[str, Points], names: WatchedNames
) -> list[dict[str, Any]]:
    """Return the logits that grew over the run up to the onset, the fastest first.

    Fatal logits grow for most of the run (arXiv 2309.14322), by less than their noise around an onset.
    """
    logged = {known: name for name in store.metrics() if (known := names.compared_as(name)) is not None}
    grown: list[dict[str, Any]] = []
    for name in filter(is_logit, series):
        one = _growth(name, _history(store, fold, logged[name], rank, onset - 1))
        grown += [] if one is None else [one]
    return sorted(grown, key=itemgetter("rise_percent"), reverse=True)[:MAX_GROWING]


def _growth(name: str, points: Points) -> dict[str, Any] | None:
    """Return the growth of a series from its first quarter to its last eighth, None for none, or a stopped one.

    Medians of these parts are robust to the start of a run and to lone high points.
    """
    finite = [point for point in points if math.isfinite(point[1])]
    if len(finite) < GROWTH_POINTS:
        return None
    quarter = len(finite) // 4
    eighth = quarter // 2
    early, late, newest = finite[:quarter], finite[-quarter - eighth : -eighth], finite[-eighth:]
    start, before, end = (median(value for _, value in part) for part in (early, late, newest))
    if start <= 0 or end <= before or 100 * (end - start) / start < GROWTH_PERCENT:
        return None
    rise = round(100 * (end - start) / start, 1)
    since = early[len(early) // 2][0]
    return {"metric": name, "from": _short(start), "to": _short(end), "rise_percent": rise, "since_step": since}


def _history(store: RunStore, fold: LineageFold, metric: str, rank: int, last: int) -> Points:
    """Return the means of some GROWTH_BLOCKS blocks of the effective points up to a step, each at its first step."""
    points: list[tuple[int, float]] = []
    level = max(0, (max(0, last) // GROWTH_BLOCKS).bit_length())
    for part in fold.tree.path():
        high = last if part.last is None else min(last, part.last)
        key = SeriesKey(metric, part.segment, rank, "")
        blocks = store.view_of([key]).aggregates(key, max(0, part.first), high, level)
        blocks = blocks[blocks["count"] > 0]
        points += zip(blocks["first_step"].tolist(), (blocks["sum"] / blocks["count"]).tolist(), strict=True)
    return points
