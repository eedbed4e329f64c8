"""What a restart's plan becomes among Megatron's arguments, without Megatron: with it in tests/stack/frameworks."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stabilityclient.integrations.megatron import Restart

pytestmark = pytest.mark.torch


def train_of_0_16(args: Any, iteration: int) -> None:
    """Have the line by which core up to 0.16 leaves a step out."""
    if iteration in args.iterations_to_skip:
        return


def train_of_0_17(args: Any, iteration: int) -> None:
    """Have the line of later ones."""
    if (iteration + 1) in args.iterations_to_skip:
        return


class Schedule:
    """The part of ``OptimizerParamScheduler`` that is touched."""

    def __init__(self) -> None:
        self.rate = 0.0

    def get_lr(self, group: object) -> float:
        return 1e-3

    def step(self, increment: int) -> None:
        self.rate = self.get_lr({})


def set_up(
    plan: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, train: Any = train_of_0_17, loaded: int = 20
) -> tuple[Namespace, Schedule]:
    """Follow a plan with a Megatron that loads the state of step ``loaded``."""
    whole = {"version": 1, "run_id": "r", "action": "relaunch", "written": time.time()} | plan
    (tmp_path / "plan.json").write_text(json.dumps(whole))
    monkeypatch.setenv("STABILITY_PLAN", str(tmp_path / "plan.json"))
    monkeypatch.setenv("STABILITY_DIR", str(tmp_path))
    args = Namespace(
        load="elsewhere",
        ckpt_step=None,
        finetune=True,
        pretrained_checkpoint="base",
        non_persistent_ckpt_type="local",
        iterations_to_skip=[7],
        iteration=0,
    )
    schedule = Schedule()

    def setup_model_and_optimizer() -> Any:
        args.iteration = loaded
        return None, None, schedule

    run: Any = SimpleNamespace(run_id="r")
    training: Any = SimpleNamespace(train=train)
    Restart(run, training, lambda: args).set_up(setup_model_and_optimizer)
    return args, schedule


CHECKPOINT = {"checkpoint": {"step": 20, "path": "/saved/iter_0000020"}}


def test_the_checkpoint_is_loaded_whatever_the_job_was_started_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args, schedule = set_up(CHECKPOINT, tmp_path, monkeypatch)
    assert (args.load, args.ckpt_step, args.finetune, args.pretrained_checkpoint) == ("/saved", 20, False, None)
    assert (args.non_persistent_ckpt_type, args.iterations_to_skip, schedule.rate) == ("local", [7], 0.0)


@pytest.mark.parametrize(("train", "skipped"), [(train_of_0_17, [7, 21, 22, 23]), (train_of_0_16, [7, 20, 21, 22])])
def test_batches_behind_the_checkpoint_are_left_out_as_the_version_counts_them(
    train: Any, skipped: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args, _ = set_up(CHECKPOINT | {"skip_batches": 3}, tmp_path, monkeypatch, train)
    assert args.iterations_to_skip == skipped


def test_a_range_counts_before_a_number_of_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args, _ = set_up(CHECKPOINT | {"skip_batches": 9, "skip_range": [19, 22]}, tmp_path, monkeypatch)
    assert args.iterations_to_skip == [7, 21, 22]


def test_the_schedule_gives_its_rates_times_the_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, schedule = set_up(CHECKPOINT | {"lr_scale": 0.5}, tmp_path, monkeypatch)
    assert (schedule.rate, schedule.get_lr({})) == (5e-4, 5e-4)


def test_a_plan_that_megatron_can_not_follow_ends_the_start_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RuntimeError, match="Megatron loaded the state of step 0"):
        set_up(CHECKPOINT, tmp_path, monkeypatch, loaded=0)
    with pytest.raises(RuntimeError, match="expected a folder iter_<step> of step 20"):
        set_up({"checkpoint": {"step": 20, "path": "/saved/step-20"}}, tmp_path, monkeypatch)
    with pytest.raises(RuntimeError, match="no --iterations-to-skip that we know"):
        set_up(CHECKPOINT | {"skip_batches": 3}, tmp_path, monkeypatch, train=Schedule.step)
