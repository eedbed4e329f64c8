"""Training curves made from seeds: healthy ones of many kinds, and ones with a single event. For checks and tests."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

from .base import Point, Row

#: Metrics that the checks feed; a detector must want at least one of them.
METRICS = (
    "loss", "loss/text", "grad_norm", "lr", "ratio/image_text", "tokens_per_s", "step_time_s", "data_time_s",
)  # fmt: skip
#: Seeds of every healthy curve.
SEEDS = (1, 2, 3)
#: Points of a healthy curve.
HEALTHY_POINTS = 1_500

__all__ = ["METRICS", "eventful", "healthy", "nasty", "noisy", "points", "rows", "smooth"]


def points(metric: str, values: Sequence[float], every: int = 1) -> list[Point]:
    """Return the points of ``rows``, for a detector that is fed without a bank."""
    return [Point(row.step, metric, row.values[metric], row.time) for row in rows(metric, values, every)]


def rows(metric: str, values: Sequence[float], every: int = 1, start: int = 0) -> list[Row]:
    """Return the rows of one curve, one each ``every`` steps and tenth of a second."""
    return [Row((start + i) * every, 1e9 + 0.1 * (start + i), {metric: value}) for i, value in enumerate(values)]


def smooth(count: int, start: float = 10.5, end: float = 2.0, half_life: float = 40.0) -> list[float]:
    """Return a loss that falls from ``start`` towards ``end``, first steeply and then slowly."""
    fast = [(start - end) * 0.8 * 0.5 ** (i / half_life) for i in range(count)]
    return [end + f + (start - end) * 0.2 / (1 + i / (4 * half_life)) for i, f in enumerate(fast)]


def noisy(count: int, seed: int, sigma: float = 0.03, level: float = 2.5) -> list[float]:
    """Return a level with Gaussian noise of ``sigma`` times the level."""
    rng = random.Random(seed)
    return [level * (1 + rng.gauss(0, sigma)) for _ in range(count)]


def bf16(value: float) -> float:
    """Return ``value`` as bfloat16 would hold it."""
    if value == 0:
        return 0.0
    step = 2.0 ** (math.floor(math.log2(abs(value))) - 7)
    return round(value / step) * step


def healthy() -> Iterator[tuple[str, list[float]]]:
    """Yield named healthy curves."""
    count = HEALTHY_POINTS
    yield "smooth decay", smooth(count)
    yield "steep decay", smooth(count, half_life=8.0)
    yield "constant", [2.0] * count
    yield "constant zero", [0.0] * count
    for seed in SEEDS:
        rng = random.Random(seed)
        curve = smooth(count)
        yield f"noisy decay {seed}", [v * (1 + rng.gauss(0, 0.02)) for v in curve]
        yield f"batch of 8 {seed}", [v * (1 + rng.gauss(0, 0.08)) for v in curve]
        yield f"heavy tails {seed}", _heavy_tails(curve, rng)
        yield f"warm-up {seed}", _warm_up(count, rng)
        yield (
            f"drops with the learning rate {seed}",
            [v * (1.0, 0.85, 0.75)[3 * i // count] * (1 + rng.gauss(0, 0.015)) for i, v in enumerate(curve)],
        )
        yield f"logged from bf16 {seed}", [bf16(v * (1 + rng.gauss(0, 0.004))) for v in curve]
        yield f"integers {seed}", [float(rng.choice((3, 3, 3, 4, 4, 5))) for _ in range(count)]
        yield (
            f"two alternating sources {seed}",
            [(2.0 if i % 2 else 2.6) * (1 + rng.gauss(0, 0.01)) for i in range(count)],
        )
        yield f"slow wander {seed}", [2.5 * (1 + 0.02 * math.sin(i / 60) + rng.gauss(0, 0.01)) for i in range(count)]


def eventful() -> Iterator[list[float]]:
    """Yield curves of 600 points with one event in the middle: up and back, up for good, not a number."""
    for lasts, height in ((4, 2.0), (30, 1.5), (300, 1.0)):
        values = noisy(600, seed=lasts)
        for i in range(lasts):
            values[300 + i] *= 1 + height
        yield values
    gone = noisy(600, seed=7)
    gone[300:] = [math.nan] * 300
    yield gone
    burst = noisy(600, seed=8)
    burst[300:304] = [math.inf, math.nan, -math.inf, math.nan]
    yield burst


def nasty(metric: str) -> Iterator[tuple[str, list[Row]]]:
    """Yield named runs of bad but real logs, each with one fault at most."""
    count = 400
    usual = noisy(count, seed=5)
    yield "all NaN", rows(metric, [math.nan] * count)
    yield "all infinite", rows(metric, [math.inf] * count)
    yield "now and then NaN", rows(metric, [math.nan if i % 7 == 3 else v for i, v in enumerate(usual)])
    yield "1e308 without end", rows(metric, [1e308] * count)
    yield "1e308 of both signs", rows(metric, [1e308 if i % 2 else -1e308 for i in range(count)])
    yield "1e308 from the middle on", rows(metric, [v if i < 200 else 1e308 for i, v in enumerate(usual)])
    yield "one 1e308", rows(metric, [v if i != 200 else 1e308 for i, v in enumerate(usual)])
    yield "tiny", rows(metric, [5e-324 * (i % 3) for i in range(count)])
    yield "negative", rows(metric, [-v for v in usual])
    yield "around zero", rows(metric, [v - 2.5 for v in usual])
    yield "missing for 10,000 steps", [*rows(metric, usual[:200]), *rows(metric, usual[200:], start=10_200)]
    yield "each step twice", [row for row in rows(metric, usual) for _ in range(2)]
    swapped = rows(metric, usual)
    for i in range(0, count - 1, 5):
        swapped[i], swapped[i + 1] = swapped[i + 1], swapped[i]
    yield "out of order", swapped
    yield "one stray huge step", [*rows(metric, usual[:200]), Row(10**15, 1e9, {metric: 2.5}), *rows(metric, usual)]
    yield "time does not advance", [row._replace(time=0.0) for row in rows(metric, usual)]
    yield "time runs backwards", [row._replace(time=1e9 - row.time) for row in rows(metric, usual)]


def _heavy_tails(curve: list[float], rng: random.Random) -> list[float]:
    """One point in about 150 lies far above, alone, as the loss of one rank's odd batch does."""
    values, last = [], -10
    for i, value in enumerate(curve):
        odd = i > 30 and rng.random() < 1 / 150 and i - last > 3
        last = i if odd else last
        values.append(value * (1 + abs(rng.gauss(0.4, 0.3)) if odd else 1 + rng.gauss(0, 0.02)))
    return values


def _warm_up(count: int, rng: random.Random) -> list[float]:
    """Flat while the learning rate rises, then a steep fall, then slow."""
    fall = smooth(count)
    return [(fall[0] if i < 60 else fall[i - 60]) * (1 + rng.gauss(0, 0.01)) for i in range(count)]
