"""How often ranks of healthy but odd jobs are suspected, and how soon and how rightly a rank that computes wrongly is.

    python benchmarks/ranks_apart.py [--seed 1] [--jobs 3] [--json]

Each job of a kind is drawn anew from its seed. Printed are suspicions in 100,000 rank-steps of healthy jobs, of any
severity, and for each fault: jobs, found, rank right, two ranks of which one is wrong, other suspicions, and delays in
logged steps. One job in five has two ranks.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.judging.detectors.engine.base import Finding, Mark
from stabilitybackend.judging.detectors.sdc_suspect import SdcSuspectDetector

STEPS = 1_500
#: Step at which faults begin.
ONSET = 400

#: rank -> metric -> value, of one step; a mark may come before it.
Step = tuple[int, dict[int, dict[str, float]], Mark | None]
Rng = np.random.Generator


def fork(step: int) -> Mark:
    """Return the mark of another process that goes on."""
    return Mark("fork", step, 0.0, "another process went on", {"fork_step": step - 1, "cause": "resume"})


def healthy(rng: Rng, ranks: int, step: int) -> dict[int, dict[str, float]]:
    """Return the values of a plain data-parallel job at a step."""
    trend = 2 + 4 * math.exp(-step / 120)
    copies = {
        "checksum/weights": float(rng.integers(2**32)),
        "grad_norm": float(rng.lognormal(0, 0.3)),
        "weight_norm": 40 + 0.01 * step + float(rng.normal(0, 1e-3)),
        "lr": 3e-4 * math.cos(step / 3_000),
        "tokens": 4_096.0 * step,
    }
    return {
        rank: copies | {"loss_local": trend + rng.normal(0, 0.06), "grad_norm_local": rng.lognormal(0, 0.08)}
        for rank in range(ranks)
    }


# --- healthy jobs -----------------------------------------------------------------------------------------------------


def plain(rng: Rng, ranks: int) -> Iterator[Step]:
    for step in range(1, STEPS):
        yield step, healthy(rng, ranks, step), None


def dropout_and_ema(rng: Rng, ranks: int) -> Iterator[Step]:
    for step in range(1, STEPS):
        rows = healthy(rng, ranks, step)
        rows[0] = rows[0] | {"weight_norm": rows[0]["weight_norm"] * 0.98, "ema/norm": 38.0 + 0.01 * step}
        for row in rows.values():
            row["loss_local"] *= rng.lognormal(0, 0.1)
        yield step, rows, None


def datasets(rng: Rng, ranks: int) -> Iterator[Step]:
    """Each rank has a data set; they drift, and ranks take another one now and then."""
    levels, norms = rng.uniform(0.8, 3.5, 5), rng.lognormal(0, 0.4, 5)
    of = np.append(rng.permutation(5)[:2], rng.integers(0, 5, ranks))[:ranks]
    for step in range(1, STEPS):
        if rng.random() < 0.01:
            of[rng.integers(ranks)] = of[rng.integers(ranks)]
        levels *= rng.lognormal(0, 0.002, 5)
        rows = healthy(rng, ranks, step)
        for rank, row in rows.items():
            row["loss_local"] *= levels[of[rank]] / 2
            row["grad_norm_local"] *= norms[of[rank]]
        yield step, rows, None


def mixture(rng: Rng, ranks: int) -> Iterator[Step]:
    """Each value is of a data set that is drawn; the mixture changes over the run, for each rank in its own way."""
    levels = rng.uniform(0.8, 3.5, 4)
    begin, end = rng.dirichlet(np.ones(4), ranks), rng.dirichlet(np.ones(4), ranks)
    for step in range(1, STEPS):
        part = step / STEPS
        rows = healthy(rng, ranks, step)
        for rank, row in rows.items():
            drawn = rng.choice(4, p=(1 - part) * begin[rank] + part * end[rank])
            row["loss_local"] *= levels[drawn]
            row["grad_norm_local"] *= levels[drawn] ** 2
        yield step, rows, None


def phases(rng: Rng, ranks: int) -> Iterator[Step]:
    """All ranks go to other data at one step, each to its own."""
    for step in range(1, STEPS):
        if step % 300 == 1:
            levels = rng.lognormal(0, 0.4, ranks)
        rows = healthy(rng, ranks, step)
        for rank, row in rows.items():
            row["loss_local"] *= levels[rank]
            row["grad_norm_local"] *= levels[rank] ** 2
        yield step, rows, None


def elastic(rng: Rng, ranks: int) -> Iterator[Step]:
    """The job goes on with other ranks, with and without going back; each resume deals the data anew."""
    step, now = 1, ranks
    for part in range(5):
        level = rng.lognormal(0, 0.3, now)
        for at in range(step, step + STEPS // 5):
            rows = healthy(rng, now, at)
            for rank, row in rows.items():
                row["loss_local"] *= level[rank]
                row["grad_norm_local"] *= level[rank]
            yield at, rows, fork(step) if part % 2 and at == step else None
        now = max(2, ranks - 2) if now == ranks else ranks
        step = at - 20 if part % 2 == 0 else at + 1


def other_steps(rng: Rng, ranks: int) -> Iterator[Step]:
    every = rng.integers(1, 5, ranks)
    for step in range(1, STEPS):
        rows = healthy(rng, ranks, step)
        yield step, {rank: row for rank, row in rows.items() if (step + rank) % every[rank] == 0}, None


def some_metrics(rng: Rng, ranks: int) -> Iterator[Step]:
    """Pipeline stages: the loss is 0, or is not there, on all but the last; experts have their own numbers."""
    for step in range(1, STEPS):
        rows = healthy(rng, ranks, step)
        for rank, row in rows.items():
            if rank < ranks - 1:
                row["loss_local"] = 0.0
            if rank % 3 == 0:
                del row["checksum/weights"], row["lr"]
            row[f"expert/{rank}/load"] = rng.random()
            row["shard_norm"] = 10.0 + rank + rng.normal(0, 0.01)
            row["expert_share"] = rng.beta(0.5, 2)
            if step < 200 and rank == 1:
                del row["grad_norm"]
        yield step, rows, None


def kernels(rng: Rng, ranks: int) -> Iterator[Step]:
    """Copies that are equal up to rounding, up to 0.1 %, and equal for a while."""
    for step in range(1, STEPS):
        rows = healthy(rng, ranks, step)
        for row in rows.values():
            row["weight_norm"] *= 1 + 1e-7 * rng.normal()
            row["grad_norm"] *= 1 + 1e-3 * rng.normal()
            row["reduced_loss"] = round(rows[0]["loss_local"], 7) * (1 + 2e-7 * rng.normal() * (step > 200))
        yield step, rows, None


def heavy_tails(rng: Rng, ranks: int) -> Iterator[Step]:
    for step in range(1, STEPS):
        rows = healthy(rng, ranks, step)
        for row in rows.values():
            row["loss_local"] += abs(rng.standard_t(1.5)) * 0.2
            row["grad_norm_local"] = 0.3 + float(rng.pareto(1.2))
            row["max_activation"] = rng.lognormal(2, 1.2)
        yield step, rows, None


def stretches(rng: Rng, ranks: int) -> Iterator[Step]:
    """Long documents: a rank has other data for some rows in a row, now and then."""
    left = np.zeros(ranks, np.int64)
    for step in range(1, STEPS):
        left = np.where(left > 0, left - 1, np.where(rng.random(ranks) < 0.01, rng.geometric(1 / 8, ranks), 0))
        rows = healthy(rng, ranks, step)
        for rank, row in rows.items():
            row["grad_norm_local"] *= 3.0 if left[rank] else 1.0
            row["loss_local"] *= 0.5 if left[rank] else 1.0
        yield step, rows, None


def warm_up(rng: Rng, ranks: int) -> Iterator[Step]:
    """What is equal by a reduction, but for a warm-up, and for what a rank logs of its own after a resume."""
    for step in range(1, STEPS):
        rows = healthy(rng, ranks, step)
        for rank, row in rows.items():
            if step < 60:
                row["grad_norm"] *= 1 + 0.1 * rank
            row["reduced"] = rows[0]["loss_local"] if step > 40 else row["loss_local"]
        yield step, rows, None


def counts(rng: Rng, ranks: int) -> Iterator[Step]:
    seen, skipped = np.zeros(ranks), np.zeros(ranks)
    for step in range(1, STEPS):
        seen += rng.integers(1_000, 4_000) if step < 400 else rng.integers(1_000, 4_000, ranks)
        skipped += rng.random(ranks) < 0.0005
        rows = healthy(rng, ranks, step)
        for rank, row in rows.items():
            row |= {"tokens_seen": seen[rank], "skipped": skipped[rank], "epoch": step / (900 + rank)}
            row |= {
                "accuracy": rng.integers(28, 34) / 64,
                "loss_scale": 2.0 ** (10 + step // 200 - (skipped[rank] > 0)),
            }
        yield step, rows, None


def spikes(rng: Rng, ranks: int) -> Iterator[Step]:
    """Spikes of the model: all ranks rise, each by its own factor."""
    for step in range(1, STEPS):
        if step % 250 == 1:
            height = rng.lognormal(1.5, 0.3, ranks)
        rows = healthy(rng, ranks, step)
        for rank, row in rows.items():
            up = 1 + (height[rank] - 1) * math.exp(-(step % 250 - 100) / 15) if step % 250 >= 100 else 1.0
            row["grad_norm_local"] *= up
            row["loss_local"] *= 1 + (up - 1) / 4
        yield step, rows, None


def decades(rng: Rng, ranks: int) -> Iterator[Step]:
    """Losses fall by decades, on each rank at its own speed."""
    speed = rng.uniform(0.7, 1.3, ranks)
    for step in range(1, STEPS):
        rows = healthy(rng, ranks, step)
        for rank, row in rows.items():
            row["loss_local"] = 5 * (1 + step / 10) ** -speed[rank] * rng.lognormal(0, 0.1)
            row["grad_norm_local"] *= (1 + step / 50) ** (-0.5 * speed[rank])
        yield step, rows, None


def shards(rng: Rng, ranks: int) -> Iterator[Step]:
    """Replicas of shards: pairs of ranks have equal checksums and norms."""
    for step in range(1, STEPS):
        rows = healthy(rng, ranks, step)
        half = max(1, ranks // 2)
        own = rng.integers(2**32, size=half), 10 + rng.normal(0, 0.01, half)
        for rank, row in rows.items():
            row |= {"checksum/weights": float(own[0][rank % half]), "shard_norm": own[1][rank % half]}
        yield step, rows, None


HEALTHY: dict[str, Callable[[Rng, int], Iterator[Step]]] = {
    make.__name__: make
    for make in (
        plain, dropout_and_ema, datasets, mixture, phases, elastic, other_steps, some_metrics, kernels, heavy_tails,
        stretches, warm_up, counts, spikes, decades, shards,
    )
}  # fmt: skip


# --- faults -----------------------------------------------------------------------------------------------------------


def faulty(metric: str, change: Callable[[Rng, float], float], every: int = 1) -> Callable[..., Iterator[Step]]:
    """Return a job in which one rank's values of a metric, logged at each ``every`` step, are changed from ONSET on."""

    def job(rng: Rng, ranks: int, bad: int) -> Iterator[Step]:
        for step in range(1, ONSET + 80 * every):
            rows = healthy(rng, ranks, step)
            if step >= ONSET:
                rows[bad][metric] = change(rng, rows[bad][metric])
            if step % every:
                for row in rows.values():
                    del row[metric]
            yield step, rows, None

    return job


FAULTS: dict[str, tuple[int, Callable[..., Iterator[Step]]]] = {
    "checksum, each step": (1, faulty("checksum/weights", lambda rng, value: float(rng.integers(2**32)))),
    "checksum, each 10": (10, faulty("checksum/weights", lambda rng, value: value + 1, 10)),
    "checksum, each 50": (50, faulty("checksum/weights", lambda rng, value: value + 1, 50)),
    "weight norm + 0.1 %": (1, faulty("weight_norm", lambda rng, value: value * 1.001)),
    "reduced gradient norm x 1.5": (1, faulty("grad_norm", lambda rng, value: value * 1.5)),
    "own gradient norm x 2": (1, faulty("grad_norm_local", lambda rng, value: value * 2)),
    "own gradient norm x 6": (1, faulty("grad_norm_local", lambda rng, value: value * 6)),
    "own gradient norm x 0.3": (1, faulty("grad_norm_local", lambda rng, value: value * 0.3)),
    "own loss x 3": (1, faulty("loss_local", lambda rng, value: value * 3)),
}


def found_in(job: Iterator[Step]) -> tuple[list[Finding], int]:
    """Return what is found in a job, and how many rank-steps it had."""
    detector, found, count = SdcSuspectDetector(), list[Finding](), 0
    for step, rows, mark in job:
        found += detector.note(mark) if mark else []
        count += len(rows)
        for names, ranks in _alike(rows):
            values: NDArray[np.float64] = np.array([[rows[rank][name] for rank in ranks] for name in names])
            steps, times = np.full(len(ranks), step), np.full(len(ranks), 1e9 + step)
            found += [one for _, one in detector.update_table(names, steps, times, values, ranks)]
    return found, count


def _alike(rows: dict[int, dict[str, float]]) -> Iterator[tuple[list[str], list[int]]]:
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank, row in rows.items():
        groups.setdefault(tuple(row), []).append(rank)
    for names, ranks in groups.items():
        yield list(names), ranks


def healthy_figures(seed: int, jobs: int) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for number, (name, make) in enumerate(HEALTHY.items()):
        keys, count = list[str](), 0
        for at in range(jobs):
            for ranks in (2, 3, 4, 8, 16):
                rng = np.random.default_rng([seed, number, at, ranks])
                found, steps = found_in(make(rng, ranks))
                keys += sorted({f"{ranks} ranks, job {at}: {one.key} {one.severity}" for one in found})
                count += steps
        figures[name] = {"rank-steps": count, "suspicions": len(keys), "which": keys[:6]}
    return figures


def fault_figures(seed: int, jobs: int) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for number, (name, (every, make)) in enumerate(FAULTS.items()):
        delays, right, unsure, total, other = list[int](), 0, 0, 0, 0
        for at in range(jobs):
            for ranks in (2, 3, 4, 8, 16):
                rng = np.random.default_rng([seed, 100 + number, at, ranks])
                bad = int(rng.integers(ranks))
                found, _ = found_in(make(rng, ranks, bad))
                total += 1
                true = [one for one in found if one.step >= ONSET and (one.rank == bad or one.rank is None)]
                other += len({one.key for one in found} - {one.key for one in true})
                if true:
                    delays.append((true[0].step - (ONSET + -ONSET % every)) // every)
                    right += true[0].rank == bad
                    unsure += true[0].rank is None
        figures[name] = {
            "jobs": total, "found": len(delays), "rank right": right, "one of two": unsure, "wrong": other,
            "median delay": median(delays) if delays else None, "longest": max(delays, default=None),
        }  # fmt: skip
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=3, help="jobs of each kind and number of ranks")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = {
        "healthy": healthy_figures(options.seed, options.jobs),
        "faults": fault_figures(options.seed, options.jobs),
    }
    if options.json:
        print(json.dumps(figures, indent=1))
        return
    total = sum(one["rank-steps"] for one in figures["healthy"].values())
    wrong = sum(one["suspicions"] for one in figures["healthy"].values())
    for title, kinds in figures.items():
        print(f"\n{title}")
        for name, one in kinds.items():
            print(f"  {name:<30} " + "  ".join(f"{key} {value}" for key, value in one.items() if value != []))
    print(f"\n{wrong} suspicions in {total:,} healthy rank-steps: {1e5 * wrong / total:.2f} in 100,000")


if __name__ == "__main__":
    main()
