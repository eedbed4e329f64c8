"""Rules that training frameworks ship, re-implemented from what they publish, with their defaults.

Each rule gets the rows of one log in order and returns the steps at which it would have spoken. A rule lives in the
training process, so that a restart (steps go back) begins it anew. None of them names a kind, a recovery or a data set.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

__all__ = ["RULES", "Rule"]

#: One row of a log: ``step`` and metrics by name.
LogRow = dict[str, Any]


@dataclass(frozen=True)
class Rule:
    """A rule in use.

    Args:
        name: for the tables.
        text: what it does, with its defaults.
        source: where that is published.
        alarms: rows -> steps at which it speaks.
    """

    name: str
    text: str
    source: str
    alarms: Callable[[Sequence[LogRow]], list[int]]


def _attempts(rows: Sequence[LogRow]) -> Iterator[list[LogRow]]:
    """Yield the rows of each life of the training process."""
    life: list[LogRow] = []
    for row in rows:
        if life and row["step"] <= life[-1]["step"]:
            yield life
            life = []
        life.append(row)
    if life:
        yield life


def _values(rows: Sequence[LogRow], metric: str) -> Iterator[tuple[int, float]]:
    return ((row["step"], float(row[metric])) for row in rows if row.get(metric) is not None)


#: Values in llm.c's ring, the z-score that its run scripts give for the loss (-sl 7), and the outlier in a row that is
#: taken into the ring after all.
LLMC_WINDOW, LLMC_SIGMAS, LLMC_TAKEN_IN = 64, 7.0, 3


def llmc(rows: Sequence[LogRow], own_window: bool = True, sigmas: float = LLMC_SIGMAS) -> list[int]:
    """Return where llm.c would skip an update because of the loss.

    Args:
        rows: of one log.
        own_window: the newest value is part of the window that it is measured by, as the code has it: no z-score of 64
            values then exceeds 7.94. False measures it by the values before it, as one would expect from the text.
        sigmas: the z-score above which it speaks.
    """
    found = []
    for life in _attempts(rows):
        ring: deque[float] = deque(maxlen=LLMC_WINDOW)
        in_a_row = 0
        for step, value in _values(life, "loss"):
            if len(ring) < LLMC_WINDOW:
                ring.append(value)
                continue
            window = [*list(ring)[1:], value] if own_window else list(ring)
            mean = fmean(window)
            deviation = math.sqrt(max(0.0, fmean([v * v for v in window]) - mean * mean))
            if deviation and (value - mean) / deviation > sigmas:
                found.append(step)
                in_a_row += 1
                if in_a_row < LLMC_TAKEN_IN:
                    continue
            else:
                in_a_row = 0
            ring.append(value)
    return found


#: ZClip: weight of the past, z-score at which it clips, gradient norms before it does anything.
ZCLIP_ALPHA, ZCLIP_SIGMAS, ZCLIP_WARM_UP = 0.97, 2.5, 25


def zclip(rows: Sequence[LogRow]) -> list[int]:
    """Return where ZClip would clip; what it learns from is the clipped norm."""
    found = []
    for life in _attempts(rows):
        first: list[float] = []
        mean = variance = math.nan
        for step, norm in _values(life, "grad_norm"):
            if not math.isfinite(norm):
                continue
            if len(first) < ZCLIP_WARM_UP:
                first.append(norm)
                mean = fmean(first)
                variance = fmean([(value - mean) ** 2 for value in first])
                continue
            deviation = math.sqrt(variance)
            z = (norm - mean) / (deviation + 1e-6)
            if z > ZCLIP_SIGMAS:
                found.append(step)
                norm = mean + ZCLIP_SIGMAS * deviation / (z / ZCLIP_SIGMAS)
            mean = ZCLIP_ALPHA * mean + (1 - ZCLIP_ALPHA) * norm
            variance = ZCLIP_ALPHA * variance + (1 - ZCLIP_ALPHA) * (norm - mean) ** 2
    return found


#: llm-foundry: window as its scripts set it (5 % of the run, at least 100), outliers tolerated in a row, how many times
#: the mean an outlier is, and the largest allowed loss.
FOUNDRY_WINDOW, FOUNDRY_SHARE, FOUNDRY_PATIENCE, FOUNDRY_TIMES, FOUNDRY_CAP = 100, 0.05, 4, 2.0, 10.0


def foundry(rows: Sequence[LogRow]) -> list[int]:
    """Return where KillLossSpike would speak: five losses in a row at twice the mean, or half a window over the cap."""
    found = []
    size = max(FOUNDRY_WINDOW, round(FOUNDRY_SHARE * len(rows)))
    for life in _attempts(rows):
        window: deque[float] = deque(maxlen=size)
        in_a_row, cap = 0, FOUNDRY_CAP
        for seen, (step, value) in enumerate(_values(life, "loss")):
            if len(window) == size:
                cap = min(cap, max(window)) if seen == size else cap
                in_a_row = in_a_row + 1 if value >= FOUNDRY_TIMES * fmean(window) else 0
                high = seen >= 2 * size and sum(loss > cap for loss in window) >= size / 2
                if in_a_row > FOUNDRY_PATIENCE or high:
                    found.append(step)
            window.append(value)
    return found


#: OLMo-core: values that the newest one is compared with, sigmas, values before it does anything.
OLMO_WINDOW, OLMO_SIGMAS, OLMO_FROM = 128, 6.0, 64


def olmo(rows: Sequence[LogRow]) -> list[int]:
    """Return where OLMo-core would skip a step: loss or gradient norm far from its mean, upwards or downwards."""
    found: set[int] = set()
    for life in _attempts(rows):
        for metric in ("loss", "grad_norm"):
            past: deque[float] = deque(maxlen=OLMO_WINDOW)
            for step, value in _values(life, metric):
                if len(past) + 1 >= OLMO_FROM:
                    finite = all(map(math.isfinite, past)) and math.isfinite(value)
                    # A comparison with NaN is false there, so that the step is skipped.
                    mean = fmean(past)
                    deviation = math.sqrt(math.fsum((one - mean) ** 2 for one in past) / (len(past) - 1))
                    if not finite or abs(value - mean) > OLMO_SIGMAS * deviation:
                        found.add(step)
                past.append(value)
    return sorted(found)


def olmo_loss_only(rows: Sequence[LogRow]) -> list[int]:
    """Return the same without the gradient norm."""
    return olmo([{name: value for name, value in row.items() if name != "grad_norm"} for row in rows])


#: The sketch: points of its past and of its level, the sigmas of a full point of evidence, the part of one that each
#: point has to pay, the least rise, the least noise, points after which a level that stays is taken as usual.
SKETCH_PAST, SKETCH_LEVEL, SKETCH_FULL, SKETCH_ALLOW = 128, 32, 8.0, 0.35
SKETCH_RISE, SKETCH_FLOOR, SKETCH_PATIENCE = 0.05, 0.003, 100
#: Its climbs: points of a block, blocks whose lowest is compared, and the least rise over it.
SKETCH_BLOCK, SKETCH_BLOCKS, SKETCH_CLIMB = 32, 16, 0.12


def sketch(rows: Sequence[LogRow]) -> list[int]:
    """Return where a detector of a page speaks: robust level and noise of ln(loss), clipped sum, medians of blocks."""
    found: list[int] = []
    past, quiet, blocks = deque[float](maxlen=SKETCH_PAST), list[float](), deque[float](maxlen=SKETCH_BLOCKS)
    proof, up, high, last_broken = 0.0, list[float](), 0, -math.inf
    for at, (step, value) in enumerate(_values(rows, "loss")):
        if not (math.isfinite(value) and value > 0):
            found += [step] if value and at - last_broken > SKETCH_LEVEL else []
            last_broken = at
            continue
        now = math.log(value)
        if len(past) < SKETCH_LEVEL:
            past.append(now)
            continue
        level = median(list(past)[-SKETCH_LEVEL:])
        sigma = max(1.4826 * median(abs(one - level) for one in past), SKETCH_FLOOR)
        if up:  # an event: until it is back, or for good
            up.append(now)
            if median(up[-5:]) > level + 2 * sigma and len(up) < SKETCH_PATIENCE:
                continue
            past.extend(up[-5:] if len(up) < SKETCH_PATIENCE else up[-SKETCH_LEVEL:])
            up, proof = [], 0.0
            continue
        z = (now - level) / sigma
        proof = max(0.0, proof + min(max(z, 0.0) / SKETCH_FULL, 1.0) - SKETCH_ALLOW)
        if proof >= 1 and now - level >= math.log1p(SKETCH_RISE):
            found.append(step)
            up, quiet = [now], []
            continue
        past.append(min(now, level + 4 * sigma))
        quiet.append(now)
        if len(quiet) < SKETCH_BLOCK:
            continue
        middle, quiet = median(quiet), []
        least = math.log1p(SKETCH_CLIMB) + 4 * sigma / math.sqrt(SKETCH_BLOCK)
        high = high + 1 if blocks and middle > min(blocks) + least else 0
        blocks.append(middle)
        if high == 2:
            found.append(step)
            blocks.clear()
    return found


#: In the order of the tables.
RULES: tuple[Rule, ...] = (
    Rule(
        "llm.c z-score",
        "z-score of the loss in a ring of 64, above 7; an outlier is not taken in until the third in a row",
        "github.com/karpathy/llm.c, llmc/outlier_detector.h; 7 from its run scripts",
        llmc,
    ),
    Rule(
        "llm.c, value left out",
        "the same, but the value is no part of the window that it is measured by",
        "as above, as its comment reads",
        lambda rows: llmc(rows, own_window=False),
    ),
    Rule(
        "llm.c, z > 5, value left out",
        "the same, above 5 as some scripts have it",
        "as above",
        lambda rows: llmc(rows, own_window=False, sigmas=5.0),
    ),
    Rule(
        "ZClip",
        "z-score of the gradient norm by moving averages (0.97), above 2.5, after 25 values",
        "arXiv 2504.02507 and github.com/bluorion-com/ZClip",
        zclip,
    ),
    Rule(
        "llm-foundry KillLossSpike",
        "five losses in a row at twice the mean of a window of 100 or 5 % of the run; or half of it above 10",
        "github.com/mosaicml/llm-foundry, callbacks/kill_loss_spike_callback.py",
        foundry,
    ),
    Rule(
        "OLMo-core skip step",
        "loss or gradient norm 6 sigma from the mean of the last 128, both sides, after 64",
        "github.com/allenai/OLMo-core, optim/skip_step_optimizer.py",
        olmo,
    ),
    Rule(
        "OLMo-core, loss only",
        "the same on the loss only",
        "as above",
        olmo_loss_only,
    ),
    Rule(
        "robust sketch",
        "a clipped sum of robust z-scores of ln(loss) above 1, and medians of 32 points 12 % above the lowest of 16",
        "median and MAD (Hampel, JASA 1974), cumulative sum (Page, Biometrika 1954)",
        sketch,
    ),
)
