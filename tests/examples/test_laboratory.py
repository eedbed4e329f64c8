"""The laboratory trains for real: a fault changes the job, the twin shows by how much, and a seed gives one log."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.installed import needs

pytestmark = needs("torch", "the laboratory trains with PyTorch")

_FOLDER = Path(__file__).resolve().parents[2] / "examples" / "laboratory"
Log = list[dict[str, Any]]
#: Short enough for a test: 8 rows a step, the fault after some 90 steps.
_SHORT = {"steps": 130, "rows": 8}


@pytest.fixture(scope="module")
def laboratory() -> Iterator[ModuleType]:
    """The module ``gallery``, found as ``run.py`` finds it."""
    sys.path.insert(0, str(_FOLDER))
    yield importlib.import_module("gallery")
    sys.path.remove(str(_FOLDER))


def shortened(laboratory: ModuleType, name: str, seed: int) -> Any:
    """Return a fault that acts from step 101 on, in a short job."""
    fault = laboratory.make_fault(name, seed)
    settings = replace(fault.settings(), **_SHORT)
    fault.settings = lambda: settings
    length = fault.last - fault.first
    fault.first, fault.last = 101, 101 + length
    return fault


def trained(laboratory: ModuleType, fault: Any, seed: int) -> list[dict[str, Any]]:
    return importlib.import_module("training").train(fault.settings(), seed, fault)


def told(laboratory: ModuleType, name: str, seed: int) -> tuple[Log, Log, dict[str, Any]]:
    """Return the log of a short run with a fault, that of its twin, and the truth."""
    fault = shortened(laboratory, name, seed)
    rows = trained(laboratory, fault, seed)
    twin_fault = importlib.import_module("run")._Twin(seed)
    twin_fault.settings = fault.settings
    twin = trained(laboratory, twin_fault, seed)
    return rows, twin, importlib.import_module("truth").tell_truth(fault, seed, rows, twin)


@pytest.mark.soak
def test_a_seed_gives_one_log_and_another_seed_another(laboratory: ModuleType) -> None:
    logs = [trained(laboratory, shortened(laboratory, "garbage_batches", seed), seed) for seed in (5, 5, 6)]

    assert logs[0] == logs[1]
    assert logs[0] != logs[2]


@pytest.fixture(scope="module")
def corrupt(laboratory: ModuleType) -> tuple[Log, Log, dict[str, Any]]:
    """A run with a corrupt data set."""
    return told(laboratory, "corrupt_dataset", 5)


def test_a_corrupt_data_set_spikes_alone_against_its_twin(corrupt: tuple[Log, Log, dict[str, Any]]) -> None:
    rows, twin, truth = corrupt

    (event,) = truth["events"]
    losses = ("loss/text", "loss/code", "loss/image")
    apart = [name for name in losses if rows[100][name] != twin[100][name]]
    assert (event["kind"], event["onset_step"], event["alarm"]) == ("spike", 101, True)
    assert apart == [f"loss/{event['dataset']}"]
    assert rows[100][apart[0]] > 1.5 * twin[100][apart[0]]
    assert all(twin[99][name] < 0.8 * twin[0][name] for name in losses)  # it had learnt before


def test_a_fault_without_an_effect_is_no_reason_for_an_alarm(
    laboratory: ModuleType, corrupt: tuple[Log, Log, dict[str, Any]]
) -> None:
    _, twin, _ = corrupt
    fault = shortened(laboratory, "lr_window", 5)

    (event,) = importlib.import_module("truth").tell_truth(fault, 5, twin, twin)["events"]

    assert event["alarm"] is False
    assert event["why"] == "no measurable effect against the twin"


def test_an_empty_row_leaves_no_finite_loss(laboratory: ModuleType) -> None:
    rows = trained(laboratory, shortened(laboratory, "empty_row", 5), 5)

    assert math.isfinite(rows[99]["loss"])
    assert not any(math.isfinite(row["loss"]) for row in rows[100:])


@pytest.mark.soak
def test_no_fault_acts_before_its_first_step(laboratory: ModuleType) -> None:
    faults = ("garbage_batches", "lr_window", "loss_scale")

    logs = [trained(laboratory, shortened(laboratory, name, 5), 5)[:100] for name in faults]

    assert [[row["loss"] for row in log] for log in logs] == [[row["loss"] for row in logs[0]]] * 3


@pytest.mark.soak
def test_a_run_that_goes_on_from_its_twin_is_the_one_from_the_first_step(laboratory: ModuleType) -> None:
    training, fault = importlib.import_module("training"), shortened(laboratory, "garbage_batches", 5)
    starts: list[Any] = []
    settings = replace(fault.settings(), steps=104)
    healthy = training.train(settings, 5, importlib.import_module("run")._Twin(5), starts=starts)

    gone_on = training.train(settings, 5, fault, starts[-1])

    assert [start.step for start in starts] == [100]
    assert gone_on == training.train(settings, 5, fault)
    assert gone_on[:100] == healthy[:100]
    assert gone_on[100:] != healthy[100:]


def test_the_folders_of_the_rules_are_there(laboratory: ModuleType) -> None:
    seeds = importlib.import_module("seeds")

    assert [
        folder for folder in seeds.RULES if not any((Path(__file__).resolve().parents[2] / folder).rglob("*.py"))
    ] == []


def test_report_seeds_follow_from_a_commit_and_nobody_has_looked_at_them(laboratory: ModuleType) -> None:
    seeds = importlib.import_module("seeds")

    drawn = [seeds.report_seeds(3, commit) for commit in ("a" * 40, "a" * 40, "b" * 40)]

    assert drawn[0] == drawn[1]
    assert not set(drawn[0]) & {*drawn[2], *seeds.TUNING_SEEDS, *seeds.CHECK_SEEDS}


def test_each_push_of_a_train_is_an_event_of_its_own(laboratory: ModuleType) -> None:
    fault = laboratory.make_fault("spike_train", 5)
    pushes = fault.injected()

    assert 5 <= len(pushes) <= 8
    assert all(one.sought_until == later.step - 1 for one, later in pairwise(pushes))


@pytest.mark.soak
def test_one_odd_batch_is_an_event_of_one_point(laboratory: ModuleType) -> None:
    _, _, truth = told(laboratory, "odd_batch", 5)

    (event,) = truth["events"]
    assert (event["kind"], event["points"], event["onset_step"], event["recovered_step"]) == ("spike", 1, 101, 102)
