"""Makes labelled logs from seeds: noise of many kinds with events planted into it, and faults that are no loss's alone.

Nothing of any file is in them. Each log is a function of its name and seed; a healthy one of each kind is among them.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from labelled_logs import Event, Labelled
from planted import plant

__all__ = ["made", "written"]

LogRow = dict[str, Any]
#: Rows of a log with planted events, and of one with a fault, which begins at ONSET.
PLANTED_ROWS, FAULT_ROWS, ONSET = 1_900, 700, 400
START = 1.7e9


def _fall(at: int, to: float = 2.0) -> float:
    """Return a loss as power laws of training have it (Kaplan 2020)."""
    return to * (1 + at / 50) ** -0.12


def _independent(dice: random.Random) -> Iterator[float]:
    """Noise of 0.5 to 5 %, drawn anew for each batch."""
    sigma = math.exp(dice.uniform(math.log(0.005), math.log(0.05)))
    while True:
        yield math.exp(dice.gauss(0, sigma))


def _neighbours(dice: random.Random) -> Iterator[float]:
    """Batches that resemble those before them, as of unshuffled text."""
    sigma, stay, now = dice.uniform(0.01, 0.03), dice.uniform(0.4, 0.8), 0.0
    while True:
        now = stay * now + math.sqrt(1 - stay * stay) * dice.gauss(0, sigma)
        yield math.exp(now)


def _heavy_tails(dice: random.Random) -> Iterator[float]:
    """One batch in 60 is odd: up to half as much again."""
    while True:
        yield math.exp(dice.gauss(0, 0.015) + (dice.uniform(0.05, 0.4) if dice.random() < 1 / 60 else 0.0))


def _skewed(dice: random.Random) -> Iterator[float]:
    """Small batches: the mean of few losses, each exponential."""
    rows = dice.randint(60, 300)
    while True:
        yield sum(dice.expovariate(1.0) for _ in range(rows)) / rows


def _two_clouds(dice: random.Random) -> Iterator[float]:
    """Two tasks in turn by chance, a loss of its own each."""
    other, share = dice.uniform(1.15, 1.5), dice.uniform(0.15, 0.5)
    while True:
        yield (other if dice.random() < share else 1.0) * math.exp(dice.gauss(0, 0.015))


def _rounded(dice: random.Random) -> Iterator[float]:
    """A log of three digits."""
    while True:
        yield round(1 + dice.gauss(0, 0.01), 2)


NOISES = (_independent, _neighbours, _heavy_tails, _skewed, _two_clouds, _rounded)


def _base(noise: Callable[[random.Random], Iterator[float]], rows: int, dice: random.Random) -> list[LogRow]:
    """Return a healthy log: loss, gradient norm, a cosine rate after a warm-up, and the clock."""
    factors, norms = noise(dice), _independent(dice)
    return [
        {
            "step": at, "t": START + at, "loss": _fall(at) * next(factors), "grad_norm": 0.5 * next(norms) ** 3,
            "lr": 3e-4 * min((at + 1) / 50, 0.55 + 0.45 * math.cos(math.pi * at / rows)),
        }
        for at in range(rows)
    ]  # fmt: skip


def _with_sets(rows: list[LogRow], dice: random.Random) -> None:
    """Add three data sets with their shares: the loss is their mean."""
    for row in rows:
        sets = {
            name: row["loss"] * by * math.exp(dice.gauss(0, 0.02)) for name, by in (("a", 0.8), ("b", 1.0), ("c", 1.2))
        }
        row.update({f"loss/{name}": value for name, value in sets.items()}, loss=sum(sets.values()) / 3)
        row.update({f"ratio/{name}": 1 / 3 + 0.01 * dice.uniform(-1, 1) for name in sets})


# --- faults: each changes rows from ONSET on and returns what is to be found -----------------------------------------


def _one_set(rows: list[LogRow], dice: random.Random) -> list[Event]:
    _with_sets(rows, dice)
    for row in rows[ONSET : ONSET + 30]:
        row["loss"] += row["loss/b"] * 0.4 / 3
        row["loss/b"] *= 1.4
    return [Event("spike", ONSET, ONSET + 30, "slow", "b", asks_dataset=True)]


def _mixture(rows: list[LogRow], dice: random.Random) -> list[Event]:
    _with_sets(rows, dice)
    for row in rows[ONSET:]:
        row["ratio/b"] += 0.25
        row["ratio/a"], row["ratio/c"] = row["ratio/a"] - 0.125, row["ratio/c"] - 0.125
    return [Event("data_mix_drift", ONSET)]


def _rate_creeps(rows: list[LogRow], dice: random.Random) -> list[Event]:
    by = dice.uniform(1.02, 1.05)
    for at, row in enumerate(rows[ONSET:]):
        row["lr"] = rows[ONSET - 1]["lr"] * min(by**at, 20.0)
    return [Event("learning_rate", ONSET, visible=ONSET + 30)]


def _not_finite(rows: list[LogRow], dice: random.Random) -> list[Event]:
    for row in rows[ONSET : ONSET + dice.choice((4, 300))]:
        row["loss"] = row["grad_norm"] = math.nan
    return [Event("nonfinite", ONSET)]


def _stands_still(rows: list[LogRow], dice: random.Random) -> list[Event]:
    value = dice.choice((0.0, rows[ONSET]["loss"]))
    for row in rows[ONSET:]:
        row["loss"] = value
    return [Event("frozen", ONSET)]


def _resumed(rows: list[LogRow], dice: random.Random) -> list[Event]:
    """Go back by 40 rows; the loss is higher at first."""
    height, tau = dice.uniform(0.08, 0.2), dice.uniform(20, 60)
    again = [dict(row, t=START + ONSET + at) for at, row in enumerate(rows[ONSET - 40 :])]
    for at, row in enumerate(again):
        row["loss"] *= (1 + height * math.exp(-at / tau)) * math.exp(dice.gauss(0, 0.005))
    rows[ONSET:] = again
    return [Event("resume_artifact", ONSET - 40, ignore_until=ONSET + 300)]


def _resumed_well(rows: list[LogRow], dice: random.Random) -> list[Event]:
    rows[ONSET:] = [dict(row, t=START + ONSET + at) for at, row in enumerate(rows[ONSET - 40 :])]
    return []


def _starts_over(rows: list[LogRow], dice: random.Random) -> list[Event]:
    for at, row in enumerate(rows):
        row["loss"] *= 1 + math.exp(-(at % ONSET) / 40)
        row.update(loss=row["loss"] * _fall(at % ONSET) / _fall(at), lr=rows[at % ONSET]["lr"])
    return [Event("resume_artifact", ONSET, visible=ONSET + 10)]


def _data_again(rows: list[LogRow], dice: random.Random) -> list[Event]:
    """Go back, and get batches that these weights have learnt."""
    again = [dict(row, t=START + ONSET + at) for at, row in enumerate(rows[ONSET - 40 :])]
    for row in again[:150]:
        row["loss"] *= 0.9
    rows[ONSET:] = again
    return [Event("repeat_data", ONSET - 40, ONSET + 110, ignore_until=ONSET + 200)]


def _slower(rows: list[LogRow], dice: random.Random) -> list[Event]:
    by, late = dice.uniform(1.4, 2.0), 0.0
    for at, row in enumerate(rows):
        seconds = (1 + 0.03 * abs(dice.gauss(0, 1))) * (by if at >= ONSET else 1.0)
        late += seconds
        row.update(t=START + late, step_time_s=seconds, tokens_per_s=8_192 / seconds)
    return [Event("throughput", ONSET)]


def _cyclic_rate(rows: list[LogRow], dice: random.Random) -> list[Event]:
    """A triangular rate (Smith 2017); the loss follows it by a hundredth."""
    for at, row in enumerate(rows):
        part = 1 - abs(at % 150 / 75 - 1)
        row.update(lr=3e-5 + 2.7e-4 * part, loss=row["loss"] * (1 + 0.01 * part))
    return []


FAULTS = (
    _one_set, _mixture, _rate_creeps, _not_finite, _stands_still, _resumed, _resumed_well, _starts_over, _data_again,
    _slower, _cyclic_rate,
)  # fmt: skip


def made(seeds: Sequence[int]) -> Iterator[Labelled]:
    """Yield labelled logs, for each seed: of each noise one with planted events, and of each fault one."""
    for seed in seeds:
        for noise in NOISES:
            dice = random.Random(f"{noise.__name__} {seed}")
            name = noise.__name__.strip("_")
            yield plant(Labelled(name, name, _base(noise, PLANTED_ROWS, dice), 1, []), seed)
        for fault in FAULTS:
            dice = random.Random(f"{fault.__name__} {seed}")
            rows = _base(_independent, FAULT_ROWS, dice)
            name = fault.__name__.strip("_")
            yield Labelled(f"{name}-{seed}", name, rows, 1, fault(rows, dice))


def written(logs: Sequence[Labelled], folder: Path) -> list[tuple[Path, Labelled]]:
    """Write each log as a file, one object a line; return them with their paths."""
    found = []
    for log in logs:
        path = folder / f"{log.name}.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in log.rows))
        found.append((path, log))
    return found
