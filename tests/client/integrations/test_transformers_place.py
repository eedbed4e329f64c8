"""After a rollback a job of Trainer's goes on with exactly the batches that were ordered, wherever its epochs end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import stabilityclient
from stabilityclient.agent.commands.downlink import Downlink
from support.agent.spooled import stored
from support.installed import needs

pytestmark = [
    needs("transformers", "the jobs of this test are Trainer's"),
    # Of transformers itself, of torch and of jobs as small as these.
    pytest.mark.filterwarnings("ignore"),
]

Start = Callable[..., stabilityclient.Run]
#: Batches of an epoch, of one sample each.
EPOCH = 10
EPOCHS = 3


class Case(NamedTuple):
    """A job and an order.

    ``every``: steps between two checkpoints, None for one at the end of each epoch.
    """

    to_step: int
    at_step: int
    skip: int
    every: int | None
    accumulate: int = 1
    loader: str = "map"
    validates: bool = False


CASES = {
    "within an epoch": Case(4, 8, 3, 2),
    "nothing is skipped": Case(4, 8, 0, 2),
    "saved at the last batch of an epoch": Case(10, 18, 2, 5),
    "saved at the end of an epoch": Case(10, 18, 2, None),
    "saved at the end of an epoch, with evaluation": Case(10, 18, 2, None, validates=True),
    "over the end of an epoch": Case(8, 9, 4, 2),
    "over more than an epoch": Case(8, 9, 13, 2),
    "with gradient accumulation": Case(4, 8, 3, 2, accumulate=2),
    "with a rest of micro-batches at the end of an epoch": Case(4, 6, 2, 2, accumulate=3),
    "a loader without length": Case(4, 8, 2, 2, loader="iterable"),
    "a loader with workers": Case(15, 18, 2, 5, loader="workers"),
}


def _order(case: Case, **more: Any) -> dict[str, Any]:
    now = time.time()
    return {
        "command_id": "c1", "kind": "rollback", "to_step": case.to_step, "lr_scale": None, "seed": None,
        "skip_batches": case.skip, "reason": "", "issuer": "", "issued": now, "expires": now + 600,
        "fence": {"segment": 0, "segment_key": ""}, "attempt": 1, "apply_at_step": case.at_step, "world_size": 1,
        "state": "pending", **more,
    }  # fmt: skip


def _trainer(case: Case, folder: Path, **more: Any) -> tuple[Any, list[tuple[int, int]]]:
    """Return a trainer, and the list to which it adds step and sample of each batch."""
    import torch
    import transformers

    seen: list[tuple[int, int]] = []
    samples = [{"input_ids": torch.tensor([number])} for number in range(EPOCH)]

    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(samples)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.at: Callable[[int], None] = lambda step: None

        def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
            if self.training:
                step = trainer.state.global_step + 1
                self.at(step)
                seen.append((step, int(input_ids[0, 0])))
            return {"loss": self.layer(input_ids.float()).square().mean()}

    saves = {"save_strategy": "epoch"} if case.every is None else {"save_strategy": "steps", "save_steps": case.every}
    stream = case.loader == "iterable"
    settings = {
        "max_steps": EPOCH * EPOCHS if stream else -1, "num_train_epochs": EPOCHS, "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": case.accumulate, "learning_rate": 1e-3, "report_to": [], "disable_tqdm": True,
        "eval_strategy": "epoch" if case.validates else "no", "dataloader_pin_memory": False, "use_cpu": True,
        "dataloader_num_workers": 2 if case.loader == "workers" else 0, "logging_steps": 5,
    }  # fmt: skip
    arguments = transformers.TrainingArguments(str(folder), **{**settings, **saves, **more})  # type: ignore[arg-type]
    data: Any = Stream() if stream else samples
    trainer = transformers.Trainer(Model(), arguments, train_dataset=data, eval_dataset=samples)
    return trainer, seen


def _trained(
    run: stabilityclient.Run, case: Case, folder: Path, order: dict[str, Any] | None = None, **more: Any
) -> list[tuple[int, int]]:
    """Train with an order; return step and sample of each batch."""
    from stabilityclient.integrations.transformers import train

    trainer, seen = _trainer(case, folder, **more)
    command = _order(case, **{"checkpoint": str(folder / f"checkpoint-{case.to_step}"), **(order or {})})

    def deliver(step: int) -> None:
        if step == case.at_step - 1 and not any(number == step for number, _ in seen):
            problems: list[str] = []
            Downlink(Path(str(run.folder)), problems.append).take(command, 0.0)

    trainer.model.at = deliver
    train(trainer, run=run)
    run.finish()
    return seen


def _by_trainer_alone(case: Case, folder: Path) -> list[tuple[int, int]]:
    trainer, seen = _trainer(case, folder, num_train_epochs=EPOCHS + 2, save_strategy="no")
    trainer.train()
    return seen


def _answers(run: stabilityclient.Run) -> list[tuple[str, Any]]:
    return [(one.data["state"], one.data.get("applied")) for one in stored(run.folder).events("command")]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_after_a_rollback_exactly_the_ordered_batches_are_left_out(case: Case, start: Start, tmp_path: Path) -> None:
    plain = _by_trainer_alone(case, tmp_path / "alone")
    run = start()
    seen = _trained(run, case, tmp_path / "saved")
    steps = [step for step, _ in plain]
    last = EPOCHS * -(-EPOCH // case.accumulate) if case.loader != "iterable" else EPOCH * EPOCHS
    before = [row for row in plain if row[0] < case.at_step]
    kept, end = steps.index(case.to_step + 1), sum(step <= last for step in steps)
    samples = [sample for _, sample in plain[kept + case.skip : end + case.skip]]
    expected = [*before, *zip(steps[kept:end], samples, strict=False)]
    assert seen[: len(expected)] == expected
    assert seen[-1][0] == last
    assert _answers(run) == [("ready", None), ("acted", {"skip_batches": case.skip})]


def test_a_later_checkpoint_remembers_what_was_left_out_before_it(start: Start, tmp_path: Path) -> None:
    from stabilityclient.integrations.transformers import train

    case = Case(4, 8, 3, 2)
    first = _trained(start(), case, tmp_path / "saved")
    trainer, seen = _trainer(case, tmp_path / "saved")
    train(trainer, str(tmp_path / "saved" / "checkpoint-14"), run=start(run_id="r2"))
    assert seen == [row for row in first[7:] if row[0] > 14]


def test_a_job_that_starts_again_never_takes_a_checkpoint_that_a_rollback_left(start: Start, tmp_path: Path) -> None:
    from stabilityclient.integrations.transformers import train

    case, saved = Case(4, 8, 3, 2), tmp_path / "saved"
    trainer, _ = _trainer(case, saved, save_total_limit=None)
    run = start()
    ended: list[int] = []

    def fail(step: int) -> None:
        ended.append(step)
        if step == 7 and len(ended) == 7:
            problems: list[str] = []
            order = _order(case, checkpoint=str(saved / "checkpoint-4"))
            Downlink(Path(str(run.folder)), problems.append).take(order, 0.0)
        if step == 5 and len(ended) > 7:
            raise ArithmeticError

    trainer.model.at = fail
    with pytest.raises(ArithmeticError):
        train(trainer, run=run)
    assert (saved / "checkpoint-6").exists()
    trainer, seen = _trainer(case, saved)
    train(trainer, True, run=start(run_id="r2"))
    assert [step for step, _ in seen] == [*range(5, EPOCH * EPOCHS + 1)]


@pytest.mark.parametrize("why", ["ignore_data_skip", "by length"])
def test_a_loader_whose_order_may_change_is_not_offered_to_skip_and_an_order_to_is_refused(
    why: str, start: Start, tmp_path: Path
) -> None:
    from transformers import TrainingArguments

    run, more = start(), {why: True}
    if why == "by length":
        old = hasattr(TrainingArguments, "group_by_length")
        more = {"group_by_length": True} if old else {"train_sampling_strategy": "group_by_length"}
    seen = _trained(run, Case(4, 8, 3, 2), tmp_path / "saved", **more)
    assert [step for step, _ in seen] == [*range(1, EPOCH * EPOCHS + 1)]
    assert [event.data for event in stored(run.folder).events("handler")] == [{"can": ["lr_scale"]}]
    last = stored(run.folder).events("command")[-1].data
    assert (last["state"], last["detail"]) == ("failed", "the job refused: this job can't change skip_batches")


def test_a_rollback_without_a_checkpoint_is_refused_and_training_goes_on(start: Start, tmp_path: Path) -> None:
    run = start()
    seen = _trained(run, Case(4, 8, 0, 2), tmp_path / "saved", {"checkpoint": None})
    assert [step for step, _ in seen] == [*range(1, EPOCH * EPOCHS + 1)]
    assert [state for state, _ in _answers(run)] == ["ready", "failed"]


def test_a_checkpoint_of_another_step_has_failed_and_the_timeline_says_where_the_job_is(
    start: Start, tmp_path: Path
) -> None:
    run = start()
    other = str(tmp_path / "saved" / "checkpoint-2")
    seen = _trained(run, Case(4, 8, 0, 2), tmp_path / "saved", {"checkpoint": other})
    assert [step for step, _ in seen] == [*range(1, 8), *range(3, EPOCH * EPOCHS + 1)]
    assert [state for state, _ in _answers(run)] == ["ready", "failed"]
    assert [(e.step, e.data["cause"]) for e in stored(run.folder).events("segment")] == [(2, "declared")]


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant_with_warmup", "inverse_sqrt", "polynomial"])
def test_each_step_after_a_rollback_has_the_scaled_rate_of_the_schedule(
    schedule: str, start: Start, tmp_path: Path
) -> None:
    case, more = Case(4, 8, 0, 2), {"lr_scheduler_type": schedule, "warmup_steps": 3}
    alone = start(run_id="alone")
    _trained(alone, case, tmp_path / "alone", {"to_step": 99}, **more)
    run = start()
    _trained(run, case, tmp_path / "saved", {"lr_scale": 0.5}, **more)
    expected, rates = _series(alone, "learning_rate"), _series(run, "learning_rate")
    assert rates == pytest.approx({step: rate * (0.5 if step > 4 else 1.0) for step, rate in expected.items()})


def _series(run: stabilityclient.Run, metric: str) -> dict[int, float]:
    """Return the newest value of each step."""
    return {step: values[metric] for step, _, values in stored(run.folder).rows() if metric in values}


def test_rows_phases_and_checkpoints_are_those_of_the_job(start: Start, tmp_path: Path) -> None:
    run = start()
    assert run._components is not None
    phases = run._components.slot.phases
    _trained(run, Case(4, 8, 3, 2, validates=True), tmp_path / "saved")
    assert {*phases.known} >= {"data", "forward", "backward", "optimizer", "checkpoint", "eval", "rollback"}
    saved = {(event.step, Path(event.data["path"]).exists()) for event in stored(run.folder).events("checkpoint")}
    assert saved == {(step, True) for step in range(2, EPOCH * EPOCHS + 1, 2)}


def test_the_loss_of_the_steps_is_what_trainer_logs_of_them(start: Start, tmp_path: Path) -> None:
    from stabilityclient.integrations.transformers import train

    run = start()
    trainer, _ = _trainer(Case(4, 8, 0, None, accumulate=2), tmp_path, logging_steps=5)
    train(trainer, run=run)
    run.finish()
    losses = _series(run, "loss")
    logged = {row["step"]: row["loss"] for row in trainer.state.log_history if "loss" in row}
    means = {step: sum(losses[one] for one in range(step - 4, step + 1)) / 5 for step in logged}
    assert means == pytest.approx(logged, abs=1e-4)
    assert [*losses] == [*range(1, 16)]


def test_the_trainer_is_left_as_it_was(start: Start, tmp_path: Path) -> None:
    from stabilityclient.integrations.transformers import train

    trainer, _ = _trainer(Case(4, 8, 0, 5), tmp_path)
    before = {*vars(trainer)}, {*vars(trainer.accelerator)}, [*trainer.callback_handler.callbacks]
    train(trainer, run=start())
    assert {*vars(trainer.accelerator)} == before[1]
    assert {"training_step", "evaluate", "get_batch_samples"}.isdisjoint(vars(trainer))
    assert [*trainer.callback_handler.callbacks] == before[2]
