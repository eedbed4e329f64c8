"""The judge of detectors counts as its page says, and the rules in use do what their sources say."""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks" / "laboratory"


@pytest.fixture
def score(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("detection_score")


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("detection_rules")


def a_log(score: ModuleType, *events: Any) -> Any:
    rows = [{"step": step, "loss": 1.0} for step in range(0, 10_000, 10)]
    return score.Labelled("log", "cluster", rows, 10, events)


def noise(count: int) -> list[dict[str, Any]]:
    dice = random.Random(3)
    return [{"step": i, "loss": 2 + dice.gauss(0, 0.05), "grad_norm": 1 + dice.gauss(0, 0.05)} for i in range(count)]


@pytest.mark.parametrize(("step", "found"), [(480, 0), (490, 1), (600, 1), (610, 0)])
def test_a_spike_is_found_from_one_point_before_to_ten_after(score: ModuleType, step: int, found: int) -> None:
    log = a_log(score, score.Event("spike", 500, 1000, "slow"))

    judged = score.judge(log, [score.Alarm(step, "spike", "slow")])

    assert judged.found.get("spike", 0) == found


def test_a_later_alarm_in_an_event_is_neither_a_hit_nor_false(score: ModuleType) -> None:
    log = a_log(score, score.Event("spike", 500, 1000, "slow"))

    judged = score.judge(log, [score.Alarm(1_100, "spike", "slow")])

    assert (judged.found, judged.false_alarms) == ({}, [])


def test_an_alarm_on_a_quiet_event_is_false_and_named_so(score: ModuleType) -> None:
    log = a_log(score, score.Event("lr_drop", 500, 600, alarm=False))

    judged = score.judge(log, [score.Alarm(510, "level_shift")])

    assert judged.false_alarms == judged.quiet_violations == ["log: level_shift at 510"]


def test_alarms_of_a_rule_without_kinds_are_merged_when_close(score: ModuleType) -> None:
    judged = score.judge(a_log(score), [score.Alarm(step) for step in (100, 110, 300, 5_000)])

    assert judged.false_alarms == ["log: alarm at 100", "log: alarm at 5000"]


def test_info_is_no_alarm_but_is_told_of_a_missed_event(score: ModuleType) -> None:
    log = a_log(score, score.Event("level_shift", 500))

    judged = score.judge(log, [score.Alarm(510, "level_shift", loud=False)])

    assert (judged.found, judged.told_quietly, judged.false_alarms) == ({}, 1, [])


def test_a_slow_machine_is_not_found_by_a_word_about_the_loss(score: ModuleType) -> None:
    log = a_log(score, score.Event("throughput", 500))

    judged = score.judge(log, [score.Alarm(510, "spike", "fast")])

    assert judged.missed == ["log: throughput at 500"]


def test_precision_recall_and_f1_come_from_the_same_counts(score: ModuleType) -> None:
    log = a_log(score, score.Event("spike", 500, 600, "fast"), score.Event("spike", 3_000, 3_100, "fast"))

    judged = score.judge(log, [score.Alarm(500, "spike", "slow"), score.Alarm(7_000, "spike", "fast")])

    assert (judged.precision(), judged.recall(), judged.f1()) == (0.5, 0.5, 0.5)
    assert (judged.share("kind"), judged.share("recovery")) == ("1 of 1", "0 of 1")
    assert judged.false_per_10k() == 10.0


@pytest.mark.parametrize("name", ["llmc", "foundry", "olmo"])
def test_a_rule_in_use_is_silent_on_gaussian_noise(rules: ModuleType, name: str) -> None:
    assert getattr(rules, name)(noise(2_000)) == []


@pytest.mark.parametrize(("sigmas", "found"), [(9, []), (30, [1_000])])
def test_llm_c_measures_a_value_by_a_window_that_holds_it(rules: ModuleType, sigmas: float, found: list[int]) -> None:
    rows = noise(1_100)
    rows[1_000]["loss"] = 2 + sigmas * 0.05

    assert rules.llmc(rows) == found
    assert rules.llmc(rows, own_window=False) == [1_000]


def test_kill_loss_spike_speaks_at_the_fifth_outlier_in_a_row(rules: ModuleType) -> None:
    rows = noise(400)
    for row in rows[300:310]:
        row["loss"] = 5.0

    assert rules.foundry(rows) == list(range(304, 310))


def test_olmo_core_looks_both_ways_and_at_the_gradient_norm(rules: ModuleType) -> None:
    rows = noise(600)
    rows[300]["loss"], rows[500]["grad_norm"] = 1.0, 9.0

    assert rules.olmo(rows) == [300, 500]
    assert rules.olmo_loss_only(rows) == [300]


def test_zclip_learns_from_the_clipped_norm(rules: ModuleType) -> None:
    rows = noise(400)
    for row in rows[300:]:
        row["grad_norm"] = 9.0

    assert len([step for step in rules.zclip(rows) if step >= 300]) > 20


@pytest.mark.parametrize(("cause", "right"), [("learning_rate", 1), (None, 0)])
def test_a_fault_of_the_rate_may_be_named_by_its_cause(score: ModuleType, cause: str | None, right: int) -> None:
    log = a_log(score, score.Event("spike", 500, 1000, "slow", cause=cause))

    judged = score.judge(log, [score.Alarm(510, "learning_rate")])

    assert (judged.found, judged.right["kind"], judged.right["effect"]) == ({"spike": 1}, right, 0)
