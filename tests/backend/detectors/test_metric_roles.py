"""One table says what a metric is, for live runs, imports and backtests; no other number is taken for the loss."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from stabilitybackend.judging.detectors.engine.base import Point
from stabilitybackend.judging.detectors.throughput import ThroughputDetector
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.metric_roles import (
    GRAD_NORM,
    LOSS,
    LR,
    OTHERS,
    SPEED,
    STEP_TIME,
    dataset_of,
    loss_of,
    role_of,
)
from stabilityplugins.importers.names import usual_names
from support.cli_program import program_in
from support.job_frames import Job

LOSSES = (
    "loss", "train/loss", "train_loss", "Loss/train", "loss/train/total", "loss_metrics/global_avg_loss",
    "metrics/train/LanguageCrossEntropy", "lm loss", "reduced_train_loss", "Train/Samples/train_loss", "Train/Loss",
)  # fmt: skip
NO_LOSSES = (
    "eval/loss", "val_loss", "validation/loss", "Loss/validation", "loss_metrics/global_max_loss", "loss_scale",
    "metrics/eval/LanguageCrossEntropy", "lm loss vs samples", "aux_loss", "kl_loss", "reward", "gpu/0/clock_mhz",
    "loss/code", "train/ppl",
)  # fmt: skip


#: torchtitan, Composer, OLMo, Megatron-LM, Megatron-DeepSpeed, NeMo, GPT-NeoX, Lightning, Hugging Face, MaxText.
SPEEDS = [
    *((name, "tokens_per_s") for name in (
        "tokens_per_s", "throughput(tps)", "mfu(%)", "throughput/tokens_per_sec", "throughput/device/tokens_per_sec",
        "throughput/device/tokens_per_second", "throughput/device/TPS", "throughput", "mfu", "train_tokens_per_second",
        "iteration-time/tokens per second", "runtime/samples_per_sec", "train|device/samples_per_sec",
        "train/train_samples_per_second", "perf/per_device_tokens_per_sec",
    )),
    *((name, "step_time_s") for name in (
        "step_time_s", "time_metrics/end_to_end(s)", "iteration-time", "iteration-time/iteration-time",
        "train_step_timing in s", "runtime/iteration_time", "perf/step_time_seconds", "train/step_time", "iter_time",
        "step_time_ms",
    )),
]  # fmt: skip
NO_SPEEDS = (
    "throughput/total_tokens", "eval/tokens_per_second", "eval_samples_per_second", "time/total", "time/train",
    "data_time_s", "time_metrics/data_loading(s)", "consumed_samples", "batch_size", "train_backward_timing in s",
)  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_each_framework_s_training_loss_is_one(name: str) -> None:
    assert (role_of(name), dataset_of(name)) == (LOSS, None)


@pytest.mark.parametrize("name", NO_LOSSES)
def test_no_other_number_is_the_training_loss(name: str) -> None:
    assert role_of(name) != LOSS


@pytest.mark.parametrize(("name", "role"), SPEEDS)
def test_each_framework_s_speed_is_judged_as_ours_is(name: str, role: str) -> None:
    def judged(metric: str) -> list[tuple[int, str, float]]:
        detector = ThroughputDetector()
        values = [(0.7 if role == SPEED else 1.5) ** (160 <= step < 210) * (100 + step % 3) for step in range(240)]
        points = [Point(step, metric, value, 10.0 * step) for step, value in enumerate(values)]
        return [(f.onset_step, f.state, f.evidence["level_after"]) for point in points for f in detector.update(point)]

    assert role_of(name) == role
    assert judged(name)[0][:2] == (160, "open")
    assert {entry[1] for entry in judged(name)} == {entry[1] for entry in judged(role)}


@pytest.mark.parametrize("name", NO_SPEEDS)
def test_no_other_number_is_the_speed_of_the_job(name: str) -> None:
    assert role_of(name) not in (SPEED, STEP_TIME)


def test_a_step_time_of_an_unknown_unit_loses_no_more_than_the_time_that_passed() -> None:
    detector = ThroughputDetector()
    values = [1500.0 if step >= 200 else 1000.0 + step % 3 for step in range(280)]  # milliseconds
    found = [
        f for step, value in enumerate(values) for f in detector.update(Point(step, "iter_time", value, 1.0 * step))
    ]
    assert 0 < found[-1].evidence["lost_s"] < 80


def test_what_an_import_renames_is_what_a_live_run_would_judge() -> None:
    for role, names in OTHERS.items():
        assert {role_of(name) for name in names} == {role}
        assert {tuple(usual_names([name]).items()) for name in names} == {((name, role),) for name in names}


@pytest.mark.parametrize(("name", "role"), [("lr-AdamW", LR), ("l2_norm/grad/global", GRAD_NORM)])
def test_rates_and_gradients_are_known_too(name: str, role: str) -> None:
    assert role_of(name) == role


def test_of_several_losses_our_own_name_is_the_runs_loss_then_the_usual_ones() -> None:
    assert loss_of(["train/loss", "loss"]) == "loss"
    assert loss_of(["total_loss", "train/loss", "lm_loss"]) == "train/loss"
    assert loss_of(["eval/loss", "reward"]) is None


def spiking(name: str) -> list[float]:
    rng = random.Random(3)
    return [2.0 + rng.gauss(0, 0.01) + (4.0 if 220 <= step < 250 else 0.0) for step in range(1, 270)]


@pytest.mark.parametrize("name", ["loss_metrics/global_avg_loss", "Loss/train", "loss/train/total"])
def test_a_live_spike_is_told_whatever_framework_logs_it(name: str) -> None:
    state = RunState("run", lambda: 5_000.0)
    state.apply(Job().rows(range(1, 270), {name: spiking(name)}), replayed=False)
    assert [(i.kind, i.metric) for i in state.incidents.all() if i.kind == "spike"] == [("spike", name)]
    assert (state.view().loss_metric, state.view().unwatched) == (name, "")


def test_a_run_whose_loss_nobody_watches_says_so() -> None:
    state = RunState("run", lambda: 5_000.0)
    state.apply(Job().rows(range(1, 270), {"reward": spiking("reward")}), replayed=False)
    view = state.view()
    assert view.loss_metric is None
    assert view.unwatched.startswith("Nothing watches the loss of this run: none of what it logs (reward) is")


def test_a_run_that_has_logged_nothing_yet_is_not_blamed() -> None:
    assert RunState("run", lambda: 5_000.0).view().unwatched == ""


@pytest.mark.parametrize(("rename", "kinds"), [([], set()), (["--rename", "reward=loss"], {"spike"})])
def test_a_backtest_judges_a_metric_under_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, rename: list[str], kinds: set[str]
) -> None:
    lines = [json.dumps({"step": step + 1, "reward": value}) for step, value in enumerate(spiking(""))]
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(lines))
    code, out, _ = program_in(tmp_path, monkeypatch, capsys)("backtest", log, "--json", *rename)
    assert code == 0
    assert {json.loads(line)["kind"] for line in out.splitlines()} >= kinds
    assert bool(out) == bool(kinds)
