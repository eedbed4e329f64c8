"""Makes a run as a real job would have: long, noisy, rolled back fifty times, with a few single steps that matter.

    python benchmarks/big_run.py --url http://127.0.0.1:8080 [--steps 830000] [--run-id big]

The same numbers every time: everything follows from the seed. The frames go through the agents' door. One in five
rollbacks is a restart that says nothing (the server has to find it), the others are declared; three are nested: the
job goes back again, past the step to which it had gone back before.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx
import numpy as np
from numpy.typing import NDArray
from parts.feeder import WireAgent

from stabilityclient.agent.upload.framing import MAX_FRAME_RECORDS
from stabilityclient.wire import EventBlock, Frame, PointsBlock, SourceInfo

__all__ = ["METRICS", "Plant", "Story", "Stretch", "feed", "frames", "row_values", "tell_story"]

METRICS = (
    "loss", "loss/web", "loss/code", "loss/math", "loss/books", "grad_norm", "lr", "ratio/image_text",
    "tokens_per_s", "step_time_s", "tokens", "mfu",
)  # fmt: skip
#: Metrics that a job takes from a float32 tensor; the others are Python floats.
_FROM_TENSOR = 6
STEP_TIME_S = 0.45
#: Wall time that a rollback takes, seconds.
DOWNTIME_S = 120.0
BEGIN = 1_750_000_000.0
TOKENS_PER_STEP = 4_194_304
#: Checkpoints in a run, and so the places to go back to.
CHECKPOINTS = 415
#: Each so manieth rollback is a restart without a word.
RESTART_EVERY = 5
#: Rows made at once; part of what the numbers follow from.
_BATCH_ROWS = 8_192
#: (metric, where in the run, value): single steps that differ. Away from each other, so that each is alone in a bucket.
_PLANTED = (
    ("loss", 0.123, 41.5), ("loss", 0.551, 38.25), ("loss", 0.9712, 44.75), ("loss", 0.31, math.nan),
    ("loss", 0.777, math.nan), ("loss/code", 0.2031, 61.0), ("loss/code", 0.66, math.inf),
    ("loss/web", 0.42, math.nan), ("loss/math", 0.8123, -math.inf), ("loss/math", 0.154, 55.0),
    ("loss/books", 0.9, 47.0), ("grad_norm", 0.27, 5_000.0), ("grad_norm", 0.5, math.inf),
    ("grad_norm", 0.8, math.nan), ("lr", 0.61, 0.5), ("ratio/image_text", 0.35, 0.99),
    ("tokens_per_s", 0.183, 3.0), ("tokens_per_s", 0.72, math.nan), ("step_time_s", 0.4561, 900.0),
    ("tokens", 0.25, math.nan), ("mfu", 0.95, 0.0),
)  # fmt: skip


@dataclass(frozen=True)
class Plant:
    """One value that differs from all around it, on the effective path."""

    metric: str
    step: int
    value: float


@dataclass(frozen=True)
class Stretch:
    """Steps ``first..last`` of one segment, logged in one go.

    Attributes:
        number: from 0, in the order of time. row: rows of the run before it.
        start: how many processes were started before this one.
        declared: it began with a rollback that the job declared; None for the first one; False for a silent restart.
    """

    number: int
    first: int
    last: int
    row: int
    start: int
    declared: bool | None

    def __len__(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True)
class Story:
    """What happens in a run.

    Attributes:
        steps: the last step. stretches: in the order of time. plants: single values that differ.
        spacing: steps between two checkpoints.
    """

    steps: int
    seed: int
    spacing: int
    stretches: tuple[Stretch, ...]
    plants: tuple[Plant, ...]

    @property
    def rows(self) -> int:
        """Rows that are logged in all, those thrown away included."""
        return sum(map(len, self.stretches))

    @property
    def points(self) -> int:
        """Values that are logged in all."""
        return self.rows * len(METRICS)

    @property
    def rollbacks(self) -> int:
        """How often the job went back."""
        return len(self.stretches) - 1

    def effective(self) -> list[tuple[int, int, int]]:
        """Return (stretch number, first step, last step) of what the model learned, in order."""
        path: list[tuple[int, int, int]] = []
        for stretch in self.stretches:
            while path and path[-1][1] >= stretch.first:
                path.pop()
            if path:
                path[-1] = (path[-1][0], path[-1][1], min(path[-1][2], stretch.first - 1))
            path.append((stretch.number, stretch.first, stretch.last))
        return path

    def effective_values(self, metric: str, first: int, last: int) -> list[tuple[int, float]]:
        """Return (step, value) of a metric as the model learned it, for steps ``first..last``."""
        found: list[tuple[int, float]] = []
        for number, low, high in self.effective():
            stretch = self.stretches[number]
            low, high = max(low, first), min(high, last)
            for batch in range((low - stretch.first) // _BATCH_ROWS, (high - stretch.first) // _BATCH_ROWS + 1):
                if low > high:
                    break
                begin = stretch.first + batch * _BATCH_ROWS
                row = self.values(stretch, batch)[METRICS.index(metric)]
                found += [
                    (step, float(row[step - begin]))
                    for step in range(max(low, begin), min(high, begin + len(row) - 1) + 1)
                ]
        return found

    def values(self, stretch: Stretch, batch: int) -> NDArray[np.float64]:
        """Return the values of rows ``batch * 8192 ...`` of a stretch: float64 (metrics, rows)."""
        first = stretch.first + batch * _BATCH_ROWS
        steps = np.arange(first, min(first + _BATCH_ROWS, stretch.last + 1))
        out = row_values(np.random.default_rng([self.seed, stretch.number, batch]), steps)
        for plant in self.plants:
            if steps[0] <= plant.step <= steps[-1]:
                out[METRICS.index(plant.metric), plant.step - steps[0]] = plant.value
        return out

    def times(self, stretch: Stretch, batch: int) -> NDArray[np.float64]:
        """Return when the rows of ``values`` were logged, unix seconds."""
        begin = batch * _BATCH_ROWS
        rows = stretch.row + np.arange(begin, min(begin + _BATCH_ROWS, len(stretch)))
        return BEGIN + STEP_TIME_S * rows + DOWNTIME_S * stretch.number


def tell_story(steps: int = 830_000, rollbacks: int = 50, nested: int = 3, seed: int = 7) -> Story:
    """Return the story of a run.

    Args:
        steps: the last step, at least 20 a checkpoint (8,300).
        rollbacks: how often the job goes back in all; ``nested`` of them past the step it had gone back to just before.
        seed: everything random follows from it.
    """
    spacing = steps // CHECKPOINTS
    if spacing < 20:
        raise SystemExit(
            f"{steps} steps are too few for {CHECKPOINTS} checkpoints, expected at least {20 * CHECKPOINTS}"
        )
    random = np.random.default_rng(seed)
    sites = rollbacks - nested
    places = np.linspace(0.03, 0.97, sites) * CHECKPOINTS
    deep = {int(at) for at in np.linspace(0, sites - 1, nested + 2)[1:-1]}
    turns: list[tuple[int, int]] = []  # (last step before it goes back, step it goes back to)
    for site, place in enumerate(places):
        fork = int(place) * spacing
        turns.append((fork + int(spacing * random.uniform(0.1, 0.6)), fork))
        if site in deep:
            turns.append((fork + int(spacing * 0.4), fork - spacing))
    stretches: list[Stretch] = []
    first, row, starts = 1, 0, 0
    declared: bool | None = None
    for number, (peak, fork) in enumerate(turns):
        stretches.append(Stretch(number, first, peak, row, starts, declared))
        row += peak - first + 1
        first = fork + 1
        declared = (number + 1) % RESTART_EVERY != 0
        starts += not declared
    stretches.append(Stretch(len(turns), first, steps, row, starts, declared))
    planted = tuple(Plant(metric, _alone(stretches, int(where * steps)), value) for metric, where, value in _PLANTED)
    return Story(steps, seed, spacing, tuple(stretches), planted)


def _alone(stretches: list[Stretch], step: int) -> int:
    """Return the first step at or after ``step`` that was logged once only, so that what stands there is effective."""
    while sum(each.first <= step <= each.last for each in stretches) != 1:
        step += 1
    return step


def row_values(random: np.random.Generator, steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return what a job logs at ``steps``: float64 (metrics, steps), those from tensors with float32's precision."""
    noise = random.standard_normal((len(METRICS), len(steps)))
    progress = steps / 830_000
    base = 1.7 + 8.0 * np.exp(-progress * 40)
    out = np.empty_like(noise)
    for row, offset in enumerate((0.0, 0.15, -0.6, 0.3, 0.1)):
        out[row] = base + offset + 0.03 * noise[row]
    out[5] = np.exp(-0.7 + 0.2 * noise[5])
    out[6] = 3e-4 * np.minimum(steps / 2_000, 1.0) * (0.55 + 0.45 * np.cos(np.pi * np.minimum(progress, 1.0)))
    out[7] = 0.35 + 0.01 * noise[7]
    out[9] = STEP_TIME_S * np.exp(0.02 * noise[9])
    out[8] = TOKENS_PER_STEP / out[9]
    out[10] = steps * float(TOKENS_PER_STEP)
    out[11] = 0.41 * STEP_TIME_S / out[9]
    out[:_FROM_TENSOR] = out[:_FROM_TENSOR].astype(np.float32)
    return out


def source_of(story: Story, stretch: Stretch) -> SourceInfo:
    """Return the process that logs a stretch."""
    begin = next(each for each in story.stretches if each.start == stretch.start)
    started = float(story.times(begin, 0)[0]) - 60.0
    return SourceInfo(
        f"r0-{int(started):x}-{1000 + stretch.start}", 0, 1, 0, "n0", 1000 + stretch.start, started, stretch.start
    )


def frames(story: Story, rows_a_frame: int = MAX_FRAME_RECORDS) -> Iterator[Frame]:
    """Yield the frames of a run in the order of time.

    Args:
        rows_a_frame: what an agent that has a backlog sends is the default; one that keeps up sends 1 to a few.
    """
    seq, source = 0, SourceInfo("")
    for stretch in story.stretches:
        info = source_of(story, stretch)
        events: list[EventBlock] = []
        begin = float(story.times(stretch, 0)[0])
        if info.source != source.source:
            seq, source = 0, info
            events.append(EventBlock("start", info.started))
        if stretch.declared:
            data = {"key": f"d-{stretch.number:016x}", "to_step": stretch.first - 1, "cause": "declared"}
            data |= {"reason": "loss spike", "changes": {"lr_scale": 0.9, "skip_batches": 200}}
            events.append(EventBlock("segment", begin - DOWNTIME_S / 2, stretch.first - 1, data))
        if events:
            yield Frame(info, seq + 1, seq + len(events), list(events))
            seq += len(events)
        for batch in range(-(-len(stretch) // _BATCH_ROWS)):
            values, times = story.values(stretch, batch), story.times(stretch, batch)
            first = stretch.first + batch * _BATCH_ROWS
            steps = np.arange(first, first + len(times))
            for at in range(0, len(times), rows_a_frame):
                part = slice(at, at + rows_a_frame)
                blocks: list[PointsBlock | EventBlock] = [
                    PointsBlock(
                        list(METRICS), steps[part].tobytes(), times[part].tobytes(),
                        np.ascontiguousarray(values[:, part]).tobytes(),
                    )
                ]  # fmt: skip
                count = len(steps[part])
                last = int(steps[part][-1])
                saved = last - last % story.spacing
                if saved >= int(steps[part][0]) and saved > 0:
                    when = float(times[part][-1])
                    blocks.append(EventBlock("checkpoint", when, saved, {"path": f"/checkpoints/step_{saved}.pt"}))
                    count += 1
                yield Frame(info, seq + 1, seq + count, blocks)
                seq += count


def feed(story: Story, host: str, port: int, run_id: str, rows_a_frame: int = MAX_FRAME_RECORDS) -> float:
    """Send the whole run through the agents' door and return the seconds until the last frame was confirmed."""
    begin = time.perf_counter()
    with WireAgent(host, port, run_id, "a0", node="n0", name=f"{story.points / 1e6:.1f} M points") as agent:
        for frame in frames(story, rows_a_frame):
            agent.send(frame)
        agent.drain()
    return time.perf_counter() - begin


def main() -> int:
    """Send a run to a server that is there already, and return when its charts show all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--run-id", default="big")
    parser.add_argument("--steps", type=int, default=830_000)
    parser.add_argument("--rollbacks", type=int, default=50)
    options = parser.parse_args()
    story = tell_story(options.steps, options.rollbacks)
    address = urlsplit(options.url)
    took_s = feed(story, address.hostname or "127.0.0.1", address.port or 80, options.run_id)
    begin = time.perf_counter()
    while (httpx.get(f"{options.url}/api/v1/runs/{options.run_id}").json()["last_step"] or 0) < story.steps:
        time.sleep(0.2)
    folded_s = time.perf_counter() - begin
    print(
        f"{story.points:,} points, {story.rows:,} rows, {story.rollbacks} rollbacks, last step {story.steps:,}: "
        f"confirmed in {took_s:.1f} s ({story.points / took_s / 1e6:.2f} M points/s), folded {folded_s:.1f} s later"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
