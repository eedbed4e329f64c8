"""Healthy but odd jobs of the benchmark give no suspicion, and each of its faults is found; with seeds of its own."""

from __future__ import annotations

import importlib
from itertools import islice
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
HEALTHY = (
    "plain", "dropout_and_ema", "datasets", "mixture", "phases", "elastic", "other_steps", "some_metrics", "kernels",
    "heavy_tails", "stretches", "warm_up", "counts", "spikes", "decades", "shards",
)  # fmt: skip
#: Steps of a healthy job: two changes of its data, or of its ranks.
STEPS = 640


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("ranks_apart")


def test_each_healthy_job_of_the_benchmark_has_its_law(jobs: ModuleType) -> None:
    assert tuple(jobs.HEALTHY) == HEALTHY


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_but_odd_job_has_no_suspect(jobs: ModuleType, name: str) -> None:
    found, count = jobs.found_in(islice(jobs.HEALTHY[name](np.random.default_rng(7), 5), STEPS))
    assert found == []
    assert count > STEPS


def test_a_checksum_that_differs_is_found_at_once_and_its_rank_is_right(jobs: ModuleType) -> None:
    every, job = jobs.FAULTS["checksum, each 10"]
    (found, *_), _ = jobs.found_in(job(np.random.default_rng(5), 4, 3))
    assert (found.rank, found.step, found.severity) == (3, jobs.ONSET, "critical")
    assert every == 10
