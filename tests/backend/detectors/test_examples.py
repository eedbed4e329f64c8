"""The examples in the detectors' docstrings are run as they stand."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = [
    "stats.baseline",
    "stats.before_fork",
    "stats.blocks",
    "data_mix_drift",
    "divergence",
    "stats.fingerprint",
    "grad_norm",
    "level_shift",
    "stats.levels",
    "nonfinite",
    "plateau",
    "repeat_data",
    "resume_artifact",
    "stats.robust",
    "spike.detector",
    "straggler",
    "stats.tail",
    "throughput",
    "stats.wander",
]


@pytest.mark.parametrize("name", MODULES)
def test_the_example_of_a_detector_runs(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"stabilitybackend.detectors.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
