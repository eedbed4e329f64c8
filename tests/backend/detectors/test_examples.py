"""The examples in the detectors' docstrings are run as they stand."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = [
    "curve.detector",
    "engine.row_blocks",
    "stats.before_fork",
    "data_mix_drift",
    "stats.fingerprint",
    "stats.levels",
    "nonfinite",
    "repeat_data",
    "resume_artifact",
    "stats.robust",
    "straggler",
    "throughput",
]


@pytest.mark.parametrize("name", MODULES)
def test_the_example_of_a_detector_runs(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"stabilitybackend.judging.detectors.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
