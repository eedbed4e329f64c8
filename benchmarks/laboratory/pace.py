"""Jobs whose speed, ranks and mixture are made, healthy or with a planted slow-down: what `silence.py` scores.

Each kind is one habit of real jobs. A job is a function of its seed: rows with ``step_time_s``, ``tokens_per_s`` and
``time``, of one rank or of eight, or with ``ratio/*`` and ``loss``. No kind was taken from a log.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stabilitybackend.judging.detectors.engine.base import Mark, Row

__all__ = [
    "HEALTHY_MIX", "HEALTHY_PACE", "HEALTHY_RANKS", "PACES_S", "RANKS", "SLOW_DOWNS",
    "Plan", "mixture", "pace", "ranks",
]  # fmt: skip

STEPS = 3_000
#: Seconds of a step: of a toy on a CPU to a large model.
PACES_S = (0.1, 0.4, 1.5, 5.0)
START = 1.7e9
TOKENS = 8_192

#: Returns the factors of a healthy job's steps and the seconds that pass between them, which no metric shows.
Habit = Callable[[random.Random, float], Iterator[tuple[float, float]]]


@dataclass(frozen=True)
class Plan:
    """A planted slow-down.

    Args:
        slower: by what fraction a step takes longer. lasts_s: seconds, infinite for the rest of the run.
    """

    slower: float
    lasts_s: float


SLOW_DOWNS = tuple(Plan(slower, lasts_s) for slower in (0.1, 0.2, 0.5) for lasts_s in (30.0, 300.0, math.inf))


def _steady(rng: random.Random, base_s: float, noise: float = 0.02) -> Iterator[tuple[float, float]]:
    while True:
        yield 1 + abs(rng.gauss(0, noise)), 0.0


def _noisy(rng: random.Random, base_s: float) -> Iterator[tuple[float, float]]:
    return _steady(rng, base_s, rng.choice((0.1, 0.2, 0.4)))


def _heavy_tailed(rng: random.Random, base_s: float) -> Iterator[tuple[float, float]]:
    shape = rng.choice((1.2, 1.6, 2.5))
    while True:
        yield 0.9 + 0.1 * min(rng.paretovariate(shape), 500.0), 0.0


def _lengths(rng: random.Random, base_s: float) -> Iterator[tuple[float, float]]:
    """Batches of many lengths: a step is short or long by chance, and longer ones come in runs."""
    sigma, stay = rng.choice((0.2, 0.4)), rng.choice((0.0, 0.5, 0.9))
    x = 0.0
    while True:
        x = stay * x + math.sqrt(1 - stay * stay) * rng.gauss(0, sigma)
        yield math.exp(x), 0.0


def _checkpoints(rng: random.Random, base_s: float) -> Iterator[tuple[float, float]]:
    """A save each some hundred steps, within the step, and a few slower ones after it."""
    every, cost_s, after = rng.choice((50, 200, 500)), rng.choice((5.0, 60.0)), rng.choice((0, 4, 10))
    for i in _count():
        late = i % every
        slow = cost_s / base_s if late == 0 and i else 0.0
        yield 1 + abs(rng.gauss(0, 0.03)) + slow + (0.4 if i > every and 0 < late <= after else 0.0), 0.0


def _evaluations(rng: random.Random, base_s: float) -> Iterator[tuple[float, float]]:
    """The job pauses between steps; caches are cold for a few steps after it."""
    every, pause_s, after = rng.choice((100, 500)), rng.choice((20.0, 180.0)), rng.choice((0, 6, 16))
    for i in _count():
        late = i % every
        cold = 0.3 * (1 - late / after) if i >= every and late < after else 0.0
        yield 1 + abs(rng.gauss(0, 0.03)) + cold, pause_s if late == 0 and i else 0.0


def _compiles(rng: random.Random, base_s: float) -> Iterator[tuple[float, float]]:
    """The first steps compile, and now and then a new shape does."""
    for i in _count():
        slow = 30.0 if i < 3 else 12.0 if rng.random() < 0.002 else 0.3 * math.exp(-i / 20)
        yield 1 + abs(rng.gauss(0, 0.03)) + slow, 0.0


def _growing(rng: random.Random, base_s: float) -> Iterator[tuple[float, float]]:
    """Sequences grow, or memory fragments: each step takes a little longer than the last."""
    a_step = rng.choice((0.0003, 0.001, 0.003))
    for i in _count():
        yield (1 + a_step * i) * (1 + abs(rng.gauss(0, 0.03))), 0.0


def _periodic(rng: random.Random, base_s: float) -> Iterator[tuple[float, float]]:
    """Each n-th step does more: it logs, accumulates, collects garbage."""
    every, more = rng.choice((2, 5, 10, 64)), rng.choice((0.5, 2.0))
    for i in _count():
        yield 1 + abs(rng.gauss(0, 0.03)) + (more if i % every == 0 else 0.0), 0.0


def _waves(rng: random.Random, base_s: float) -> Iterator[tuple[float, float]]:
    """The network or the storage breathes: slower and faster over minutes."""
    period_s, height = rng.choice((60.0, 600.0)), rng.choice((0.1, 0.25))
    time_s = rng.uniform(0, period_s)
    while True:
        factor = (1 + height * math.sin(2 * math.pi * time_s / period_s)) * (1 + abs(rng.gauss(0, 0.03)))
        time_s += base_s * factor
        yield factor, 0.0


def _neighbours(rng: random.Random, base_s: float) -> Iterator[tuple[float, float]]:
    """Others use the machine: for a fraction of a second to some twenty seconds, again and again."""
    mean_s, gap_s = rng.choice((0.5, 3.0, 12.0)), rng.choice((20.0, 120.0))
    left_s, busy, factor = rng.expovariate(1 / gap_s), False, 1.0
    while True:
        step = (factor if busy else 1.0) * (1 + abs(rng.gauss(0, 0.04)))
        left_s -= step * base_s
        yield step, 0.0
        if left_s <= 0:
            busy = not busy
            factor = rng.uniform(1.3, 2.5)
            left_s = rng.expovariate(1 / (mean_s if busy else gap_s))


def _wanders(rng: random.Random, base_s: float) -> Iterator[tuple[float, float]]:
    x, stay, sigma = 0.0, rng.choice((0.99, 0.998)), rng.choice((0.05, 0.12))
    while True:
        x = stay * x + math.sqrt(1 - stay * stay) * rng.gauss(0, sigma)
        yield math.exp(x) * (1 + abs(rng.gauss(0, 0.03))), 0.0


def _count() -> Iterator[int]:
    i = 0
    while True:
        yield i
        i += 1


HEALTHY_PACE: dict[str, Habit] = {
    "steady": _steady, "noisy": _noisy, "heavy_tailed": _heavy_tailed, "lengths": _lengths,
    "checkpoints": _checkpoints, "evaluations": _evaluations, "compiles": _compiles, "growing": _growing,
    "periodic": _periodic, "waves": _waves, "neighbours": _neighbours, "wanders": _wanders,
}  # fmt: skip


def pace(habit: str, seed: int, plan: Plan | None = None, steps: int = STEPS) -> tuple[list[Row], int | None]:
    """Return the rows of a job and the step at which ``plan`` begins, None without one.

    The job logs both metrics, one of them, or every tenth step, by its seed.
    """
    rng = random.Random(f"{habit}-{seed}")
    base_s, logs, every = rng.choice(PACES_S), rng.choice(("both", "both", "speed", "time")), rng.choice((1, 1, 1, 10))
    if plan is not None and plan.lasts_s < math.inf:
        base_s = min(base_s, plan.lasts_s / 60)  # sixty points of it, or nobody could know
    if every == 10 and base_s > 0.1:
        every = 1
    factors, time, rows, began_s = HEALTHY_PACE[habit](rng, base_s), START, [], math.inf
    at = rng.randrange(steps // 3, steps // 2)
    sum_s = 0.0
    for step in range(steps):
        factor, pause_s = next(factors)
        seconds = base_s * factor
        if plan is not None and step >= at:
            began_s = min(began_s, time)
            seconds *= 1 + plan.slower if time - began_s < plan.lasts_s else 1.0
        time += seconds + pause_s
        sum_s += seconds
        if (step + 1) % every:
            continue
        mean_s, sum_s = sum_s / every, 0.0
        values = {"step_time_s": mean_s, "tokens_per_s": TOKENS / mean_s, "loss": 2.0 + rng.gauss(0, 0.05)}
        if logs == "speed":
            del values["step_time_s"]
        elif logs == "time":
            del values["tokens_per_s"]
        rows.append(Row(step, time, values))
    return rows, at if plan is not None else None


# --- ranks ---------------------------------------------------------------------------------------------------------

HEALTHY_RANKS = (
    "equal", "noisy", "stages", "lengths", "turns", "neighbours", "heavy_tailed",
    "uneven", "logs", "evaluates", "saves",
)  # fmt: skip
RANKS = 8


def ranks(habit: str, seed: int, slower: float = 0.0, steps: int = 1_500) -> tuple[list[Row], int | None]:
    """Return the rows of eight ranks with ``forward_s``, and the step from which one of them is ``slower``."""
    rng = random.Random(f"ranks-{habit}-{seed}")
    base_s = rng.choice((0.05, 0.4, 2.0))
    victim, at = rng.randrange(RANKS), steps // 3
    stage = [1 + (0.3 * (rank % 2) if habit == "stages" else rng.uniform(0, 0.05)) for rank in range(RANKS)]
    busy = [0.0] * RANKS
    turn, more = rng.choice((24, 64, 160)), rng.choice((0.2, 0.3, 0.6))
    longer, every = rng.uniform(0.1, 0.6), rng.choice((50, 100, 200))
    rows, time = [], START
    for step in range(steps):
        took = []
        for rank in range(RANKS):
            factor = stage[rank] * (1 + abs(rng.gauss(0, 0.2 if habit == "noisy" else 0.03)))
            if habit == "lengths":
                factor *= math.exp(rng.gauss(0, 0.4))
            elif habit == "heavy_tailed":
                factor *= 0.9 + 0.1 * min(rng.paretovariate(1.3), 100.0)
            elif habit == "turns" and step // turn % RANKS == rank:  # one rank writes the checkpoint, in turns
                factor *= 1 + more
            elif habit == "neighbours":
                busy[rank] = busy[rank] - base_s if busy[rank] > 0 else 0.0
                if rng.random() < 0.002 * base_s:
                    busy[rank] = rng.expovariate(1 / 6.0)
                factor *= 1.6 if busy[rank] > 0 else 1.0
            elif habit == "uneven":  # the documents of one rank are longer, and all of them have many lengths
                factor *= math.exp(rng.gauss(0, 0.3)) * (1 + (longer if rank == 3 else 0.0))
            elif habit == "logs" and rank == 0:  # one rank logs and prints each step
                factor *= 1 + longer
            elif habit == "evaluates" and rank == 0 and step % every == every - 1:  # the others wait for it meanwhile
                factor *= 1 + 60 * longer
            elif habit == "saves" and rank == 0 and step >= every and step % every < 20:  # and writes on in a thread
                factor *= 1 + (40 * longer if step % every == 0 else longer)
            if slower and rank == victim and step >= at:
                factor *= 1 + slower
            took.append(base_s * factor)
        time += max(took)
        rows += [Row(step, time, {"forward_s": seconds}, rank) for rank, seconds in enumerate(took)]
    return rows, at if slower else None


# --- mixture -------------------------------------------------------------------------------------------------------

HEALTHY_MIX = ("constant", "steps", "curriculum", "wanders", "bursts", "cycles", "resumes", "shards", "anneal")


def mixture(habit: str, seed: int, fault: str = "", steps: int = STEPS) -> tuple[list[Row | Mark], int | None]:
    """Return the rows of a job with shares of three data sets and a loss that follows them, and where a fault begins.

    Args:
        fault: ``slide`` (over hundreds of steps), ``after_resume`` (the sampler starts from nothing) or ``jump``.
    """
    rng = random.Random(f"mix-{habit}-{seed}")
    samples = rng.choice((16, 64, 512))
    losses, noise = [2.6, 1.6, 3.4], rng.choice((0.01, 0.04))
    shares, target = [0.5, 0.3, 0.2], [0.5, 0.3, 0.2]
    at = rng.randrange(steps // 3, steps // 2)
    slide, by = rng.randrange(200, 800), rng.uniform(0.15, 0.35)
    forks = set(range(400, steps, 500)) if habit == "resumes" else set()
    if fault == "after_resume":
        forks.add(at)
    changes = {rng.randrange(100, steps) for _ in range(rng.randrange(2, 7))} if habit == "steps" else set()
    x = [0.0, 0.0, 0.0]
    rows: list[Row | Mark] = []
    for step in range(steps):
        if step in forks:
            data = {"fork_step": step - 1, "cause": "restart", "changes": {}, "last_step": step - 1, "left_behind": {}}
            rows.append(Mark("fork", step, START + step, f"another process went on after step {step - 1}", data))
        if step in changes or (habit == "anneal" and step == int(0.8 * steps)):
            target = [rng.uniform(0.1, 1.0) for _ in target]
        if habit == "curriculum":
            target = [0.6 - 0.4 * step / steps, 0.25 + 0.1 * step / steps, 0.15 + 0.3 * step / steps]
        weights = list(target)
        if habit == "cycles":
            weights[0] *= 1 + 0.5 * math.sin(2 * math.pi * step / 400)
        elif habit == "wanders":
            x = [0.995 * one + 0.1 * rng.gauss(0, 0.15) for one in x]
            weights = [one * math.exp(drift) for one, drift in zip(weights, x, strict=True)]
        elif habit == "bursts" and step % 300 < 6:
            weights[1] *= 4
        elif habit == "shards":  # a shard is one data set mostly
            weights[step // 40 % 3] *= 1.5
        part = {"slide": min(1.0, max(0.0, (step - at) / slide)), "": 0.0}.get(fault, float(step >= at))
        total = sum(weights)
        shares = [one / total for one in weights]
        shares = [(1 - by * part) * one + (by * part if i == 2 else 0.0) for i, one in enumerate(shares)]
        drawn = rng.choices(range(3), shares, k=samples)
        seen = [drawn.count(i) / samples for i in range(3)]
        down = 1 + math.exp(-step / 800)
        loss = down * sum(one * each for one, each in zip(seen, losses, strict=True)) * (1 + rng.gauss(0, noise))
        values = {f"ratio/{name}": one for name, one in zip("abc", seen, strict=True)} | {"loss": loss}
        rows.append(Row(step, START + step, values))
    return rows, at if fault else None
