"""Plants events into healthy logs: real noise of a real run, an event whose place and size are known.

Sizes are drawn in sigmas of the run's own noise and as a part of its level, whichever is more, as labels by eye demand
both. Between two events lie 300 points, so that each begins in a curve that is back.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

from labelled_logs import Event, Labelled

__all__ = ["KINDS", "plant"]

#: What is planted, equally often.
KINDS = ("fast_spike", "slow_spike", "climb", "level_shift")
#: Points between two events, before the first one, and of a log for each event.
APART_POINTS, BEFORE_POINTS, POINTS_AN_EVENT = 300, 120, 900
#: Events of one log at most: a long log shall not decide alone.
MOST = 12
#: Rises in sigmas, and the least as a part of the level: of spikes (smaller ones were not labelled), of shifts.
SPIKE_SIGMAS, SPIKE_LEAST, SHIFT_SIGMAS, SHIFT_LEAST = (8.0, 60.0), 0.08, (3.0, 12.0), 0.05
#: Climbs: part of the level that they gain, and points that it takes them.
CLIMB_PART, CLIMB_POINTS = (0.1, 0.4), (100, 400)
#: Part of the spikes in which the gradient norm jumps as well, and by how much.
WITH_GRADIENT, GRADIENT = 0.5, (2.0, 8.0)


def plant(log: Labelled, seed: int) -> Labelled:
    """Return a healthy log with events in it, and their labels; the same for the same seed.

    Args:
        log: without events. seed: of places, kinds and sizes.
    """
    dice = random.Random(f"{log.name} {seed}")
    rows = [dict(row) for row in log.rows]
    first, events = max(BEFORE_POINTS, log.unscored), []
    for _ in range(max(1, min(MOST, len(rows) // POINTS_AN_EVENT))):
        free = [at for at in range(first, len(rows) - 40) if all(abs(at - e) > APART_POINTS for e, _ in events)]
        if not free:
            break
        at = dice.choice(free)
        room = min([e - 60 for e, _ in events if e > at] + [len(rows)]) - at
        kind, noise = dice.choice(KINDS), _noise(rows, at)
        factors = list(_shape(kind, noise, dice))[:room]
        jump = math.exp(dice.uniform(*map(math.log, GRADIENT))) if dice.random() < WITH_GRADIENT else 1.0
        for row, factor in zip(rows[at:], factors, strict=False):
            row["loss"] += factor * abs(row["loss"])
            if "spike" in kind and isinstance(row.get("grad_norm"), int | float):
                row["grad_norm"] *= jump
        end = at + len(factors)
        name = "spike" if "spike" in kind else {"climb": "divergence"}.get(kind, kind)
        # A climb is to be seen from where it is up by twice the noise of a point and twice the least shift, or highest.
        least = min(2 * max(noise, SHIFT_LEAST), max(factors))
        up = next(by for by, factor in enumerate(factors) if factor >= least)
        seen = rows[at + up]["step"] if kind == "climb" else None
        events.append((at, Event(name, rows[at]["step"], rows[end]["step"] if end < len(rows) else None, visible=seen)))
    return replace(log, name=f"{log.name}+{seed}", rows=rows, events=[event for _, event in sorted(events, key=_place)])


def _place(planted: tuple[int, Event]) -> int:
    return planted[0]


def _noise(rows: Sequence[dict[str, float]], at: int) -> float:
    """Return the sigma of the points before a place, as a part of their level."""
    values = [row["loss"] for row in rows[max(0, at - 64) : at] if math.isfinite(row["loss"])]
    steps = [abs(b - a) for a, b in pairwise(values)]
    return 1.4826 * median(steps) / math.sqrt(2) / (abs(median(values)) or 1.0) if len(steps) > 8 else 0.01


def _shape(kind: str, noise: float, dice: random.Random) -> Iterator[float]:
    """Yield by what part of itself each point is raised."""
    if kind == "climb":
        points, part = dice.randint(*CLIMB_POINTS), dice.uniform(*CLIMB_PART)
        yield from (part * at / points for at in range(1, points))
        yield from (part * (1 - at / 50) for at in range(50))
        return
    sigmas = math.exp(dice.uniform(*map(math.log, SHIFT_SIGMAS if kind == "level_shift" else SPIKE_SIGMAS)))
    height = max(sigmas * noise, SHIFT_LEAST if kind == "level_shift" else SPIKE_LEAST)
    if kind == "level_shift":
        yield from [height] * dice.randint(150, 300)
        return
    points = dice.randint(2, 9) if kind == "fast_spike" else dice.randint(11, 80)
    for at in range(points):
        yield height * dice.uniform(0.7, 1.3) * (1.0 if kind == "fast_spike" else math.exp(-2.0 * at / points))
