"""Runs of a project that had each other's data: after how many points that is found, and how often wrongly.

    python benchmarks/other_runs.py [--seeds 2] [--first-seed 1] [--runs 200] [--points 100000] [--logs FOLDER]

Small models train with torch on the CPU: a base run of each task and seed, and runs that begin later. Some have its
data in its order (another rate, other weights, another model, the loader from the start after a checkpoint, data from
the middle), some have not. Each is followed from its loss alone, as the server does it, against all base runs of all
tasks and seeds at once, filled up with runs of noise to a project of ``--runs`` with ``--points`` each. A note that
names another run or another distance is wrong. Then what a comparison costs. With ``--logs`` each log of a folder is
followed against all others: what they share is printed, one line a pair, for a person to judge.

The exit code is 1 where a note is wrong, or one of the same data is missing after 400 points.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
from resumes.tiny_jobs import BATCH, TinyJob, samples_of
from torch.utils.data import DataLoader

from stabilitybackend.judging.detectors.engine.long_past import PAST_BLOCK, LongPast
from stabilitybackend.judging.detectors.stats.fingerprint import Fingerprints
from stabilityplugins.other_runs.prints import Prints, prints_of
from stabilityplugins.other_runs.search import LEAST_POINTS, Place, search, stretch_of
from stabilityplugins.other_runs.service import CONFIRM_TIMES

#: Steps of a base run, at which its checkpoint is made, and of a run that is followed.
LAST, SAVED, FOLLOWED = 1_000, 500, 400
TASKS = ("text", "fixed", "images", "numbers")
#: The aim: points until it is found.
AIM_POINTS = 120


class Followed(NamedTuple):
    """A run that begins later. ahead: points that the base run was further with its data; None for other data."""

    kind: str
    task: str
    base: str
    ahead: int | None
    losses: list[float]


def main() -> int:
    """Train, follow, and print three tables."""
    options = _options()
    torch.set_num_threads(1)
    if options.logs:
        return _logs(Path(options.logs))
    bases, runs = {}, []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for task in TASKS:
            name = f"{task}-{seed}"
            bases[name], followed = _jobs(task, seed, name)
            runs += followed
    library = {name: past_of(losses) for name, losses in bases.items()}
    missing = options.runs - len(library)
    library |= {f"noise-{number}": noise(options.points, number) for number in range(missing)}
    wrong = _follow(runs, library)
    _costs(library)
    return 1 if wrong else 0


# --- jobs -----------------------------------------------------------------------------------------------------------


def _jobs(task: str, seed: int, name: str) -> tuple[list[float], list[Followed]]:
    data = samples_of(task, (LAST + 100) * BATCH, seed)
    in_order = task == "text"
    base = TinyJob(task, seed=seed)
    _train(base, _batches(data, seed, in_order), SAVED)
    saved = base.saved()
    _train(base, _batches(data, seed, in_order, SAVED), LAST)
    found = []

    def later(kind: str, ahead: int | None, job: TinyJob, order: int, first: int = 0) -> None:
        shuffled = not in_order or order != seed
        _train(job, _batches(data, order, not shuffled, first), job.step + FOLLOWED)
        found.append(Followed(kind, task, name, ahead, _losses(job)))

    def from_checkpoint(rate: float = 3e-3) -> TinyJob:
        job = TinyJob(task, seed=seed + 90, lr=rate)
        job.load(saved)
        return job

    later("other weights, rate / 3", 0, TinyJob(task, seed=seed + 91, lr=1e-3), seed)
    later("same weights, rate * 2", 0, TinyJob(task, seed=seed, lr=6e-3), seed)
    later("other weights, dropout 0.2", 0, TinyJob(task, seed=seed + 92, dropout=0.2), seed)
    if task in ("text", "fixed"):
        later("another model", 0, TinyJob(task, "gru", seed=seed + 93), seed)
    later("from a checkpoint, loader from the start", 0, from_checkpoint(), seed)
    later("from a checkpoint, data from step 200", 200, from_checkpoint(), seed, 200)
    later("from a checkpoint, the next data", SAVED, from_checkpoint(), seed, SAVED)
    later("other order", None, TinyJob(task, seed=seed), seed + 5_000)
    later("from a checkpoint, other order", None, from_checkpoint(), seed + 6_000)
    return _losses(base), found


def _batches(
    data: torch.Tensor, seed: int, in_order: bool, first: int = 0
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    numbered: Sequence[tuple[int, torch.Tensor]] = list(enumerate(data))
    loader = DataLoader(
        numbered,  # type: ignore[arg-type]
        batch_size=BATCH,
        shuffle=not in_order,
        generator=torch.Generator().manual_seed(seed),
    )
    for at, batch in enumerate(loader):
        if at >= first:
            yield tuple(batch)


def _train(job: TinyJob, batches: Iterator[tuple[torch.Tensor, torch.Tensor]], until: int) -> None:
    while job.step < until:
        job.train(next(batches))


def _losses(job: TinyJob) -> list[float]:
    return [row["loss"] for row in job.rows]


# --- following ------------------------------------------------------------------------------------------------------


def past_of(losses: Sequence[float]) -> Prints:
    """Return what the server keeps of a run with these losses."""
    past, prints = LongPast(), Fingerprints()
    for at in range(0, len(losses) - PAST_BLOCK + 1, PAST_BLOCK):
        prints.add(past, at, [float(loss) for loss in losses[at : at + PAST_BLOCK]])
    return prints_of(past, np.empty(0, np.int64), np.empty(0, np.uint64))


def noise(points: int, seed: int) -> Prints:
    """Return what the server keeps of a run whose batches differ by chance."""
    past = LongPast()
    data = np.clip(128 + 32 * np.random.default_rng(seed).normal(size=points), 32, 224).astype(np.uint8)
    whole = points - points % PAST_BLOCK
    past.data, past.steps = bytearray(data[:whole].tobytes()), list(range(0, whole, PAST_BLOCK))
    return prints_of(past, np.empty(0, np.int64), np.empty(0, np.uint64))


def cut(prints: Prints, points: int) -> Prints:
    """Return a run as it was after so many points."""
    none = np.empty(0, np.uint64)
    return Prints(prints.data[:points], 0, prints.steps[: points // PAST_BLOCK], none, none, prints.id_steps)


def confirmed(own: Prints, others: Mapping[str, Prints], every: int = PAST_BLOCK) -> Iterator[tuple[int, Place]]:
    """Yield (points, place) of what is confirmed as a run grows."""
    hits: Counter[tuple[str, int]] = Counter()
    for end in range(LEAST_POINTS, len(own.data) + 1, every):
        for place in search(cut(own, end), others):
            hits[place.run, place.shift] += 1
            if hits[place.run, place.shift] == CONFIRM_TIMES:
                yield end, place


def _follow(runs: Sequence[Followed], library: Mapping[str, Prints]) -> int:
    """Print when each kind of run was recognised, and return how many were not, or wrongly."""
    found: dict[tuple[str, str], list[int | None]] = defaultdict(list)
    wrong = 0
    for run in runs:
        own = past_of(run.losses)
        points, place = next(confirmed(own, library), (None, None))
        right = place is not None and run.ahead is not None and (place.run, place.shift) == (run.base, run.ahead)
        found[run.kind, run.task].append(points)
        if place is None or points is None:
            wrong += run.ahead is not None
            continue
        since = stretch_of(cut(own, points), library[place.run], place)
        if not right or since.first:
            print(f"  {run.kind}, {run.task} of {run.base}: {'right' if right else 'WRONG'}, {place}, {since}")
        wrong += not right
    total = sum(len(other.data) for other in library.values())
    print(f"\n{len(library)} runs of {total:,} points together; points until found by task, - is never in {FOLLOWED}")
    print(f"{'kind':42}" + "".join(f"{task:>22}" for task in TASKS))
    for kind in dict.fromkeys(kind for kind, _ in found):
        print(f"{kind:42}" + "".join(f"{_points(found[kind, task]):>22}" for task in TASKS))
    other = [points for (kind, _), several in found.items() if "other order" in kind for points in several]
    every = [points for (kind, _), several in found.items() if "other order" not in kind for points in several]
    in_time = sum(points is not None and points <= AIM_POINTS for points in every)
    print(f"found within {AIM_POINTS} points: {in_time} of {len(every)}; never: {every.count(None)}")
    print(f"runs with other data of which something was found: {len(other) - other.count(None)} of {len(other)}")
    return wrong


def _points(points: Sequence[int | None]) -> str:
    return " ".join("-" if each is None else str(each) for each in points)


def _costs(library: Mapping[str, Prints]) -> None:
    own = noise(2_000, 10**6)
    times = []
    for _ in range(7):
        began = time.perf_counter()
        search(own, library)
        times.append(time.perf_counter() - began)
    size = sum(prints.nbytes for prints in library.values()) / 2**20
    print(f"\na comparison takes {1e3 * median(times):.0f} ms ({1e3 * min(times):.0f} to {1e3 * max(times):.0f}), "
          f"{1e3 * median(times) / PAST_BLOCK:.1f} ms a point; {size:.0f} MiB are kept")  # fmt: skip


# --- logs of others -------------------------------------------------------------------------------------------------


def _logs(folder: Path) -> int:
    """Follow each log of a folder against all others."""
    library = {path.name: past_of(_read(path)) for path in sorted(folder.rglob("*.jsonl*"))}
    library = {name: prints for name, prints in library.items() if len(prints.data) >= LEAST_POINTS}
    comparisons = 0
    for name, own in library.items():
        others = {other: prints for other, prints in library.items() if other != name}
        first: dict[tuple[str, int], tuple[int, float]] = {}
        for points, place in confirmed(own, others):
            first.setdefault((place.run, place.shift), (points, place.r))
        comparisons += max(0, len(own.data) - LEAST_POINTS) // PAST_BLOCK + 1
        for (other, shift), (points, r) in first.items():
            print(f"{name} has the data of {other}, {shift:+} points, found at {points} (r = {r:.2f})")
    total = sum(len(prints.data) for prints in library.values())
    print(f"{len(library)} logs, {total:,} points, {comparisons:,} comparisons")
    return 0


def _read(path: Path) -> list[float]:
    losses, last = [], -math.inf
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        for line in lines:
            row = json.loads(line)
            loss, step = row.get("loss"), row.get("step", -1)
            if isinstance(loss, int | float) and math.isfinite(loss) and step > last and not row.get("rank"):
                losses.append(float(loss))
                last = step
    return losses


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=2, help="seeds of each task")
    parser.add_argument("--first-seed", type=int, default=1, help="first seed")
    parser.add_argument("--runs", type=int, default=200, help="runs of the project, those of noise included")
    parser.add_argument("--points", type=int, default=100_000, help="points of a run of noise")
    parser.add_argument("--logs", help="follow the logs of this folder instead")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
