"""Series that left their usual range, in order, and the data set that carries the rise of a loss. Pure.

Input ends at the finding: the same points give the same answer live and in a backtest.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from stabilitybackend.judging.detectors.stats.together import COMPANION_SHARE, MEAN_ERRORS
from stabilitybackend.judging.incidents.advice import RATE_RISE_PERCENT
from stabilitybackend.schema.json_data import MAX_LISTED
from stabilitybackend.schema.metric_roles import (
    BATCH_SIZE,
    GRAD_NORM,
    LOSS,
    LR,
    SEQUENCE_LENGTH,
    SHARE_OF,
    SPEED,
    STEP_TIME,
    dataset_of,
    role_of,
)

__all__ = ["BASELINE_POINTS", "EARLIER_POINTS", "Attribution", "attribute", "is_logit", "part_of", "usual", "watched"]

#: Points before the onset for the usual level and spread.
BASELINE_POINTS = 48
#: Points before the onset in which a series may have moved already, ahead of the loss.
EARLIER_POINTS = 8
#: Points after the onset within which a series that is no loss counts as moved by the same event.
LATER_POINTS = 8
#: Points of a contribution: the first ones from the first move on, or the newest.
SINCE_POINTS = 16
#: Points from the onset on in which another data set may rise with it.
FIRST_POINTS = 4
#: Fewest points before the onset of a reported series.
MIN_BASELINE = 4
#: Robust sigmas of an outlier confirmed by the next point, and of a lone one.
CONFIRMED_SIGMAS = 5.0
CONFIRMING_SIGMAS = 3.0
ALONE_SIGMAS = 10.0
#: Least spread, as a fraction of the level: a bf16 log of a loss has steps of half a percent.
LOSS_FLOOR = 0.005
#: Share of the whole rise needed by a single culprit.
MIN_SHARE = 0.6
#: Series in the comparison.
MAX_WATCHED = 64

#: ``loss_cm4`` is the loss of a part; these are the whole, or no loss.
_NO_PART = re.compile(
    r"^(scaled?|scaler|avg|average|ema|smooth(ed)?|running|rolling|moving|mean|median|sum|total|std|var|variance|min|max"
    r"|train|val|valid|eval|test|step|epoch|per|raw|unscaled|reduced|local|global|rank|micro|batch|weight|mask|tokens"
    r"|norm|ratio|delta|diff|change|window)(_|$)"
)
_LOGITS = re.compile(r"logit|logsumexp|log_z\b|z_loss|zloss", re.IGNORECASE)
_OPTIMIZER = re.compile(r"update_norm|rms_t|update_rms", re.IGNORECASE)

Series = Sequence[tuple[int, float]]


def part_of(metric: str) -> str | None:
    """Return the data set or part of a loss, also of ``loss_<part>``.

    Example:
        >>> part_of("loss/code"), part_of("loss_cm4"), part_of("loss_scale"), part_of("loss")
        ('code', 'cm4', None, None)
    """
    named = dataset_of(metric)
    if named is not None or role_of(metric) is not None:
        return named
    part = metric.removeprefix("train/").removeprefix("loss_")
    return part if part != metric.removeprefix("train/") and part and not _NO_PART.match(part) else None


def is_logit(metric: str) -> bool:
    """Return whether a metric is a size of logits."""
    return bool(_LOGITS.search(metric)) and part_of(metric) is None


def watched(metrics: Iterable[str], main: str | None = None) -> list[str]:
    """Return the series to compare with an incident, at most MAX_WATCHED, the most telling first.

    Args:
        metrics: names in the run's log.
        main: the metric of the incident; always the first.
    """
    ranks: list[tuple[int, str]] = []
    for name in dict.fromkeys(metrics):
        role = role_of(name)
        if name == main:
            rank = 0
        elif role in (LOSS, GRAD_NORM, LR, BATCH_SIZE, SEQUENCE_LENGTH):
            rank = 1
        elif part_of(name) is not None:
            rank = 2
        elif name.startswith(SHARE_OF) or role in (SPEED, STEP_TIME):
            rank = 3
        elif is_logit(name) or _OPTIMIZER.search(name):
            rank = 4
        else:
            continue
        ranks.append((rank, name))
    return [name for _, name in sorted(ranks, key=lambda entry: entry[0])[:MAX_WATCHED]]


@dataclass(frozen=True, slots=True)
class Move:
    """A series that left its usual range.

    Args:
        metric: its name. dataset: of its loss, or None.
        onset_step: first step outside.
        level: the usual value before.
        extreme: the value furthest from it so far, or the first non-finite one.
        rise_percent: ``extreme`` against ``level``, negative for a fall; None where one of them is 0 or not finite.
        share: of the rise of all data sets, 0 to 1; None for other series.
    """

    metric: str
    dataset: str | None
    onset_step: int
    level: float
    extreme: float
    rise_percent: float | None
    share: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of ``evidence["moved_first"]``."""
        entry: dict[str, Any] = {
            "metric": self.metric,
            "onset_step": self.onset_step,
            "rise_percent": self.rise_percent,
        }
        entry |= {"from": round(self.level, 6), "to": self.extreme}
        if self.dataset is not None:
            entry["dataset"] = self.dataset
        if self.share is not None:
            entry["share"] = round(self.share, 3)
        return entry


@dataclass(frozen=True, slots=True)
class Attribution:
    """Result.

    Args:
        dataset: the one that carries the change, None for several, none, or a single one in the log.
        datasets: all that left their range or carry a quarter, largest share first.
        moved: series outside their usual range, in order.
        by_rate: the cause is the learning rate, common to all data sets.
    """

    dataset: str | None
    datasets: tuple[str, ...]
    moved: tuple[Move, ...]
    by_rate: bool


def usual(values: Iterable[float], floor: float = LOSS_FLOOR) -> tuple[float, float] | None:
    """Return (level, spread) of the finite values: median and robust sigma with a floor; None for too few."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < MIN_BASELINE:
        return None
    level = median(finite)
    spread = 1.4826 * median(abs(value - level) for value in finite)
    return level, max(spread, floor * abs(level), 1e-12)


def attribute(
    series: Mapping[str, Series], onset_step: int, *, falling: bool = False, all_alike: bool = False
) -> Attribution:
    """Return the series that moved around an onset, and the data set that carries the change of the loss.

    A data set carries its own change times its share of the data; a move is measured in its own noise. None is named
    where others moved no later and as far in their own noise, or where the cause is the learning rate or the mixture.

    Args:
        series: metric -> (step, value) with rising steps, up to the step of the finding.
        onset_step: first abnormal step of the incident.
        falling: the incident is a fall of the loss, not a rise.
        all_alike: its cause is certainly common to all data sets.
    """
    sign = -1.0 if falling else 1.0
    moves = [move for name, rows in series.items() if (move := _move(name, rows, onset_step, sign)) is not None]
    losses = {part: rows for name, rows in series.items() if (part := part_of(name)) is not None}
    carried = _carried({move.dataset: move for move in moves if move.dataset}, losses, series, onset_step, sign)
    total = sum(one.change for one in carried.values())
    shares = {name: one.change / total for name, one in carried.items()} if total > 0 else {}
    moves = [replace(move, share=shares.get(move.dataset)) if move.dataset else move for move in moves]
    moves.sort(key=lambda move: (move.onset_step, -(move.share or 0.0), move.metric))
    ordered = sorted(shares, key=lambda name: (-shares[name], name))
    onsets = {move.dataset: move.onset_step for move in moves if move.dataset}
    datasets = tuple(name for name in ordered if name in onsets or shares[name] >= COMPANION_SHARE)
    by_rate = all_alike or any(role_of(m.metric) == LR and (m.rise_percent or 0) >= RATE_RISE_PERCENT for m in moves)
    elsewhere = by_rate or any(move.metric.startswith(SHARE_OF) for move in moves)
    one = None if elsewhere or _at_once(losses, onsets, shares) else _one(ordered, shares, carried, onsets)
    if len(losses) < 2:
        one, datasets = None, ()
    return Attribution(one, datasets, tuple(moves[:MAX_LISTED]), by_rate)


def _one(
    ordered: Sequence[str], shares: Mapping[str, float], carried: Mapping[str, _Carried], onsets: Mapping[str, int]
) -> str | None:
    """Return the single culprit, None for none."""
    if not ordered or ordered[0] not in onsets or shares[ordered[0]] < MIN_SHARE:
        return None
    first = ordered[0]
    # A rising one within its range has no onset: it may have begun with the others.
    together = [
        name
        for name in ordered[1:]
        if (onsets.get(name, 0) <= onsets[first] or carried[name].at_once)
        and max(shares[name], carried[name].sigmas / (carried[first].sigmas or 1.0)) >= COMPANION_SHARE
    ]
    return None if together else first


def _at_once(losses: Mapping[str, Series], onsets: Mapping[str, int], shares: Mapping[str, float]) -> bool:
    """Return whether all data sets left their range at one step, and those with smaller shares carry a quarter
    together.

    Damage by one data set shows in the others a step later, possibly in the same row of a sparse log.
    """
    each_step = all(rows[-1][0] - rows[-2][0] == 1 for rows in losses.values() if len(rows) > 1)
    together = set(onsets) == set(losses) and len(set(onsets.values())) == 1
    return each_step and together and 1 - max(shares.values(), default=1.0) >= COMPANION_SHARE


def _split(rows: Series, onset_step: int) -> tuple[int, int]:
    """Return the index of the onset, and of the earliest possible move."""
    onset = bisect_left(rows, onset_step, key=lambda row: row[0])
    first = onset - EARLIER_POINTS
    return (first if first >= 2 * MIN_BASELINE else onset), onset


def _move(metric: str, rows: Series, onset_step: int, sign: float) -> Move | None:
    """Return the move of a series around the onset, None for none."""
    first, onset = _split(rows, onset_step)
    before = [value for _, value in rows[max(0, first - BASELINE_POINTS) : first]]
    calm = usual(before)
    if calm is None or onset >= len(rows):
        return None
    level, spread = calm
    loss = part_of(metric) is not None or role_of(metric) == LOSS
    absent = not all(map(math.isfinite, before))  # a NaN shows that this batch had none

    def away(value: float) -> float:
        """Return the distance from the level in sigmas; of a loss only in the direction of the incident."""
        if not math.isfinite(value):
            return 0.0 if absent else math.inf
        distance = (value - level) / spread
        return distance * sign if loss else abs(distance)

    # Later moves of other series are unrelated: a schedule moves on, too.
    distances = [away(value) for _, value in rows[first : None if loss else onset + LATER_POINTS]]
    begin = next((i for i in range(len(distances)) if _outside(distances, i, at_onset=first + i >= onset)), None)
    if begin is None:
        return None
    begin = begin if absent else _last_way(distances, begin)
    since = rows[first + begin :]
    strange = next((value for _, value in since if not math.isfinite(value)), None)
    if strange is not None and not absent:
        extreme, percent = strange, None
    else:
        finite = [value for _, value in since if math.isfinite(value)]
        extreme = max(finite, key=lambda value: away(value))
        percent = round(100 * (extreme - level) / abs(level), 1) if level else None
    return Move(metric, part_of(metric), rows[first + begin][0], level, extreme, percent)


def _last_way(distances: Sequence[float], begin: int) -> int:
    """Return the start of the excursion that ended in a non-finite value; ``begin`` for none."""
    at = next((i for i in range(begin, len(distances)) if distances[i] == math.inf), begin)
    while at > begin and distances[at - 1] >= CONFIRMING_SIGMAS:
        at -= 1
    return at


def _outside(distances: Sequence[float], i: int, *, at_onset: bool) -> bool:
    """Return whether a point is out of range: far alone, or confirmed by one of the next two."""
    distance = distances[i]
    if distance < CONFIRMED_SIGMAS:
        return False
    if distance == math.inf:
        return True
    # A lone outlier before the onset is unrelated; the newest point has no successor to confirm it.
    following = distances[i + 1 : i + 3]
    if any(other >= CONFIRMING_SIGMAS for other in following):
        return True
    return at_onset and (distance >= ALONE_SIGMAS or not following)


@dataclass(frozen=True, slots=True)
class _Carried:
    """Change of one data set: in the unit of the loss, and in its own noise.

    Args:
        at_once: its points between the onset and its own are higher as well: it does not only follow.
    """

    change: float
    sigmas: float
    at_once: bool = False


def _carried(
    moved: Mapping[str, Move],
    losses: Mapping[str, Series],
    series: Mapping[str, Series],
    onset_step: int,
    sign: float,
) -> dict[str, _Carried]:
    """Return the change of each data set, also of those within their range.

    A small event takes one data set out of its range by luck while all rise a little: the mean separates them from
    noise.
    """
    if not moved:
        return {}
    begin = min(move.onset_step for move in moved.values())
    broken = [name for name in moved if not all(math.isfinite(v) for step, v in losses[name] if step == begin)]
    if broken:
        return dict.fromkeys(broken, _Carried(1.0, 1.0))
    weights = _weights(losses, series, onset_step)
    early: dict[str, _Carried] = {}
    late: dict[str, _Carried] = {}
    for name, rows in losses.items():
        first = min(_split(rows, onset_step)[0], bisect_left(rows, begin, key=lambda row: row[0]))
        calm = usual((value for _, value in rows[max(0, first - BASELINE_POINTS) : first]))
        since = [value for step, value in rows if step >= begin and math.isfinite(value)]
        if calm is None or not since:
            continue
        level, spread = calm
        until = moved[name].onset_step if name in moved else math.inf
        few = [value for step, value in rows if onset_step <= step < until and math.isfinite(value)][:FIRST_POINTS]
        away = sign * (sum(few) / len(few) - level) / spread if few else 0.0
        at_once = away * math.sqrt(len(few)) >= MEAN_ERRORS
        for found, values in ((early, since[:SINCE_POINTS]), (late, since[-SINCE_POINTS:])):
            change = sign * (sum(values) / len(values) - level)
            sigmas = change / spread
            if change > 0 and (name in moved or sigmas * math.sqrt(len(values)) >= MEAN_ERRORS):
                found[name] = _Carried(change * weights[name], sigmas, at_once)
    # A spike is reported by its first points, a slow drift by its newest.
    return max(early, late, key=lambda found: sum(one.change for one in found.values()))


def _weights(losses: Mapping[str, Series], series: Mapping[str, Series], onset_step: int) -> dict[str, float]:
    """Return each data set's share of the data at the onset: the logged ones, equal ones unless all are logged."""
    weights: dict[str, float] = {}
    for name in losses:
        logged = [value for step, value in series.get(f"{SHARE_OF}{name}", ()) if step <= onset_step]
        share = next((value for value in reversed(logged) if math.isfinite(value)), 0.0)
        if not 0 < share <= 1:
            return dict.fromkeys(losses, 1.0 / len(losses))
        weights[name] = share
    return weights
