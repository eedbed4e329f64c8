"""The rank that waits least for the others is the slow one, by samples of where loops are; chance and evals are not."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from stabilitybackend.judging.detectors.engine.base import Finding
from support.jobs.watched_job import START, Job

#: Seconds between two samples of a rank.
SAMPLE_S = 0.25


@dataclass
class Samples:
    """What a client counts of one rank: the share of waiting in each step that was sampled."""

    rng: random.Random
    steps: int = 0
    waited: float = 0.0
    squares: float = 0.0
    due: float = 0.0
    of_step: list[bool] = field(default_factory=list)

    def step(self, begin: float, own_s: float, took_s: float) -> None:
        """Pass a step: first own work, then waiting."""
        seen = []
        while self.due < begin + took_s:
            seen.append(self.due >= begin + own_s)
            self.due += SAMPLE_S * (0.5 + self.rng.random())
        if seen:
            share = sum(seen) / len(seen)
            self.steps, self.waited, self.squares = self.steps + 1, self.waited + share, self.squares + share * share


def watched(ranks: int, seed: int, own_s: Callable[[random.Random, int, int], float], seconds: int = 240) -> Job:
    """Return a job without phases that was watched for so long; ``own_s``: (rng, step, rank) -> own work of a step."""
    rng = random.Random(seed)
    job = Job(nodes={"n0": list(range(ranks))}, more={"phase": "", "phases": {}})
    samples = [Samples(random.Random(seed + rank)) for rank in range(ranks)]
    now, step = 0.0, 0
    for _ in range(seconds):
        while now < job.now - START + 1:
            times = [own_s(rng, step, rank) for rank in range(ranks)]
            took_s = max(times) + 0.005
            for rank, one in enumerate(samples):
                one.step(now, times[rank], took_s)
            now, step = now + took_s, step + 1
        job.step = step
        for rank, one in enumerate(samples):
            job.stuck[rank] = {"waits": [one.steps, one.waited, one.squares], "step": step}
        job.run(1, moving=False)
    return job


def slow(job: Job) -> list[Finding]:
    return [finding for finding in job.said if finding.kind == "straggler"]


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize(("base_s", "more_s"), [(0.1, 0.08), (0.3, 0.1), (1.0, 0.5)])
@pytest.mark.parametrize("seed", [5, 6])
def test_the_rank_that_waits_least_is_named_with_its_own_work_and_where_it_began(
    ranks: int, base_s: float, more_s: float, seed: int
) -> None:
    began = int(120 / base_s)
    job = watched(
        ranks,
        seed,
        lambda rng, step, rank: base_s * rng.lognormvariate(0, 0.02) + more_s * (rank == 1 and step >= began),
        seconds=400,
    )
    found = slow(job)
    assert {(one.key, one.rank) for one in found} == {("straggler:liveness:1", 1)}
    assert found[-1].severity == "warning"
    assert found[0].evidence["level_after"] == pytest.approx(base_s + more_s, rel=0.25)
    assert abs(found[0].onset_step - began) * base_s <= 45


_ODD: dict[str, Callable[[random.Random, int, int], float]] = {
    "equal": lambda rng, step, rank: 0.1 * rng.lognormvariate(0, 0.02),
    "lengths": lambda rng, step, rank: 0.1 * rng.lognormvariate(0, 0.5),
    "heavy tails": lambda rng, step, rank: 0.09 + 0.01 * min(rng.paretovariate(1.3), 100.0),
    "rank 0 evaluates": lambda rng, step, rank: 0.1 + (3.0 if rank == 0 and step % 50 == 49 else 0.0),
    "rank 0 logs": lambda rng, step, rank: 0.1 * rng.lognormvariate(0, 0.02) + (0.03 if rank == 0 else 0.0),
    "uneven": lambda rng, step, rank: 0.1 * rng.lognormvariate(0, 0.3) * (1.3 if rank == 1 else 1.0),
}


@pytest.mark.parametrize("odd", _ODD)
@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_healthy_job_with_odd_data_has_no_alarm(odd: str, ranks: int, seed: int) -> None:
    assert {one.severity for one in slow(watched(ranks, seed, _ODD[odd]))} <= {"info"}
