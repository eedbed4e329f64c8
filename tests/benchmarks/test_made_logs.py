"""Logs are made of seeds alone, with labels of what was planted; a rule of the table finds what it is made to find."""

from __future__ import annotations

import importlib
import math
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks" / "laboratory"


@pytest.fixture
def made_logs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("made_logs")


@pytest.fixture
def rules(made_logs: ModuleType) -> dict[str, Any]:
    return {rule.name: rule.alarms for rule in importlib.import_module("detection_rules").RULES}


def noise(seed: int = 1) -> list[dict[str, float]]:
    dice = random.Random(seed)
    return [{"step": at, "loss": 2 * math.exp(dice.gauss(0, 0.01))} for at in range(600)]


def test_logs_of_a_seed_are_the_same_again_and_those_of_another_differ(made_logs: ModuleType) -> None:
    logs = [repr(list(made_logs.made([seed]))) for seed in (7, 7, 8)]

    assert logs[0] == logs[1] != logs[2]


def test_a_label_is_a_step_of_its_log(made_logs: ModuleType) -> None:
    logs = list(made_logs.made([7]))

    assert all(event.onset in log.steps for log in logs for event in log.events)
    assert sum(len(log.events) for log in logs) > 15


def test_the_sketch_speaks_once_of_a_spike_and_not_of_a_lone_point(rules: dict[str, Any]) -> None:
    spike, lone = noise(), noise()
    for row in spike[400:420]:
        row["loss"] *= 1.5
    lone[400]["loss"] *= 1.5

    assert (rules["robust sketch"](spike), rules["robust sketch"](lone)) == ([401], [])


def test_the_sketch_speaks_of_a_climb_and_of_a_loss_that_is_no_number(rules: dict[str, Any]) -> None:
    climb, broken = noise(), noise()
    for at, row in enumerate(climb[200:]):
        row["loss"] *= 1 + 0.001 * at
    broken[300]["loss"] = math.nan

    assert (len(rules["robust sketch"](climb)), rules["robust sketch"](broken)) == (1, [300])
