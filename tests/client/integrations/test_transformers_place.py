"""After a rollback a job of Trainer's goes on with exactly the batches that were ordered, wherever its epochs end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import stabilityclient
from support.agent.ordered import answers, deliver, rollback_order
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
    given = {"to_step": case.to_step, "at_step": case.at_step, "skip_batches": case.skip}
    return rollback_order(**{**given, **more})


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
    run: stabilityclient.Run,
    case: Case,
    folder: Path,
    order: dict[str, Any] | None = None,
    dies_at: int | None = None,
    resume: Any = None,
    **more: Any,
) -> list[tuple[int, int]]:
    """Train with an order; return step and sample of each batch.

    Args:
        dies_at: the step after the rollback in which the job dies.
    """
    from stabilityclient.integrations.transformers import train

    trainer, seen = _trainer(case, folder, **more)
    command = _order(case, **{"checkpoint": str(folder / f"checkpoint-{case.to_step}"), **(order or {})})

    def each(step: int) -> None:
        if step == case.at_step - 1 and not any(number == step for number, _ in seen):
            deliver(run, command)
        if step == dies_at and any(number > step for number, _ in seen):
            raise ArithmeticError

    trainer.model.at = each
    with pytest.raises(ArithmeticError) if dies_at is not None else nullcontext():
        train(trainer, resume, run=run)
    run.finish()
    return seen


def _by_trainer_alone(case: Case, folder: Path) -> list[tuple[int, int]]:
    trainer, seen = _trainer(case, folder, num_train_epochs=EPOCHS + 2, save_strategy="no")
    trainer.train()
    return seen


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
    assert answers(run) == [("ready", None), ("acted", {"skip_batches": case.skip})]


def test_a_later_checkpoint_remembers_what_was_left_out_before_it(start: Start, tmp_path: Path) -> None:
    from stabilityclient.integrations.transformers import train

    case = Case(4, 8, 3, 2)
    first = _trained(start(), case, tmp_path / "saved")
    trainer, seen = _trainer(case, tmp_path / "saved")
    train(trainer, str(tmp_path / "saved" / "checkpoint-14"), run=start(run_id="r2"))
    assert seen == [row for row in first[7:] if row[0] > 14]


@pytest.mark.parametrize("loader", ["map", "iterable"])
def test_a_job_that_dies_before_it_saves_does_what_a_rollback_ordered_again_and_once(
    loader: str, start: Start, tmp_path: Path
) -> None:
    case, order, saved = Case(4, 8, 3, 2, loader=loader), {"lr_scale": 0.5}, tmp_path / "saved"
    runs: list[stabilityclient.Run] = []

    def begin() -> stabilityclient.Run:
        runs.append(start(run_id=f"r{len(runs)}"))  # a process has one open run at a time
        return runs[-1]

    whole = _trained(begin(), case, tmp_path / "whole", order)[7:]
    assert _trained(begin(), case, saved, order, dies_at=5)[7:] == []
    assert _trained(begin(), case, saved, {"to_step": 99}, resume=True) == whole
    later = _trained(begin(), case, saved, {"to_step": 99}, resume=str(saved / "checkpoint-6"))
    assert later == [row for row in whole if row[0] > 6]
    back = _trained(begin(), case, saved, {"to_step": 99}, resume=str(saved / "checkpoint-4"))
    assert back[0] == (5, 4)  # as it was: a later checkpoint has it
    rates = [_series(run, "learning_rate") for run in runs]
    scaled = {step: rate for step, rate in rates[0].items() if step > 4}
    assert rates[2] == pytest.approx(scaled)
    assert rates[3] == pytest.approx({step: rate for step, rate in scaled.items() if step > 6})
    assert rates[4] == pytest.approx({step: 2 * rate for step, rate in scaled.items()})


def test_a_job_that_starts_again_never_takes_a_checkpoint_that_a_rollback_left(start: Start, tmp_path: Path) -> None:
    from stabilityclient.integrations.transformers import train

    case, saved = Case(4, 8, 3, 2), tmp_path / "saved"
    trainer, _ = _trainer(case, saved, save_total_limit=None)
    run = start()
    ended: list[int] = []

    def fail(step: int) -> None:
        ended.append(step)
        if step == 7 and len(ended) == 7:
            deliver(run, _order(case, checkpoint=str(saved / "checkpoint-4")))
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
    assert [event.data for event in stored(run.folder).events("handler")] == [{"can": ["lr_scale"], "branches": True}]
    last = stored(run.folder).events("command")[-1].data
    assert (last["state"], last["detail"]) == ("failed", "the job refused: this job can't change skip_batches")


def test_a_rollback_without_a_checkpoint_is_refused_and_training_goes_on(start: Start, tmp_path: Path) -> None:
    run = start()
    seen = _trained(run, Case(4, 8, 0, 2), tmp_path / "saved", {"checkpoint": None})
    assert [step for step, _ in seen] == [*range(1, EPOCH * EPOCHS + 1)]
    assert [state for state, _ in answers(run)] == ["ready", "failed"]


def test_a_checkpoint_of_another_step_has_failed_and_the_timeline_says_where_the_job_is(
    start: Start, tmp_path: Path
) -> None:
    run = start()
    other = str(tmp_path / "saved" / "checkpoint-2")
    seen = _trained(run, Case(4, 8, 0, 2), tmp_path / "saved", {"checkpoint": other})
    assert [step for step, _ in seen] == [*range(1, 8), *range(3, EPOCH * EPOCHS + 1)]
    assert [state for state, _ in answers(run)] == ["ready", "failed"]
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
