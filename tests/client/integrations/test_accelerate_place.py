"""After a rollback a loop over Accelerate's loader goes on with exactly the batches that were ordered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import stabilityclient
from support.agent.ordered import answers, deliver, rollback_order
from support.agent.spooled import stored
from support.installed import needs

pytestmark = [
    needs("accelerate", "the jobs of this test are Accelerate's"),
    # Of Accelerate itself, of torch and of jobs as small as these.
    pytest.mark.filterwarnings("ignore"),
]

Start = Callable[..., stabilityclient.Run]
#: Batches of an epoch, of one sample each.
EPOCH = 10
EPOCHS = 3


class Case(NamedTuple):
    """A job and an order; ``every``: steps between two checkpoints."""

    to_step: int
    at_step: int
    skip: int
    every: int
    accumulate: int = 1
    loader: str = "map"


CASES = {
    "within an epoch": Case(4, 8, 3, 2),
    "nothing is skipped": Case(4, 8, 0, 2),
    "saved at the last batch of an epoch": Case(10, 18, 2, 5),
    "over the end of an epoch": Case(8, 9, 4, 2),
    "over more than an epoch": Case(8, 9, 13, 2),
    "with gradient accumulation, over the end of an epoch": Case(4, 8, 3, 2, accumulate=2),
    "with a rest of micro-batches at the end of an epoch": Case(4, 6, 2, 2, accumulate=3),
    "shuffled": Case(4, 8, 3, 2, loader="shuffled"),
    "shuffled, over the end of an epoch": Case(14, 18, 7, 2, loader="shuffled"),
    "shuffled, saved at the last batch of an epoch": Case(10, 18, 2, 5, loader="shuffled"),
    "shuffled by a seed": Case(14, 18, 3, 2, loader="seedable"),
    "shuffled, with workers": Case(4, 8, 3, 2, loader="shuffled workers"),
    "a loader without length": Case(12, 18, 2, 3, loader="iterable"),
}


def _order(case: Case, **more: Any) -> dict[str, Any]:
    given = {"to_step": case.to_step, "at_step": case.at_step, "skip_batches": case.skip}
    return rollback_order(**{**given, **more})


class Job(NamedTuple):
    """What was prepared."""

    accelerator: Any
    model: Any
    optimizer: Any
    schedule: Any
    loader: Any


def _job(case: Case, run: stabilityclient.Run | None = None, *, prepared: bool = True) -> Job:
    import torch
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState
    from accelerate.utils import DataLoaderConfiguration

    from stabilityclient.integrations.accelerate import tracker

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    torch.manual_seed(0)
    samples = [torch.tensor([float(number)]) for number in range(EPOCH)]

    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(samples)

    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=case.accumulate, log_with=[] if run is None else tracker(run),
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=case.loader == "seedable"),
    )  # fmt: skip
    accelerator.init_trackers("llm")
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    data: Any = Stream() if case.loader == "iterable" else samples
    shuffle = "shuffled" in case.loader or case.loader == "seedable"
    loader = torch.utils.data.DataLoader(data, shuffle=shuffle, num_workers=2 if "workers" in case.loader else 0)
    ready = accelerator.prepare(model, optimizer, loader)
    return Job(
        accelerator, *ready[:2], accelerator.prepare(schedule) if prepared else schedule, ready[2]
    )  # fmt: skip


def _train(job: Job, batch: Any) -> float:
    """Train a batch and return the rate that it had."""
    rate = float(job.optimizer.param_groups[0]["lr"])
    with job.accelerator.accumulate(job.model):
        job.accelerator.backward(job.model(batch).square().mean())
        job.optimizer.step()
        job.schedule.step()
        job.optimizer.zero_grad()
    return rate


def _trained(
    run: stabilityclient.Run,
    case: Case,
    folder: Path,
    order: dict[str, Any] | None = None,
    dies_at: int | None = None,
    **more: Any,
) -> list[tuple[int, int, float]]:
    """Train with an order; return step, sample and rate of each batch.

    Args:
        dies_at: the step that is the last one after the rollback.
    """
    from stabilityclient.integrations.accelerate import steps

    prepared = more.pop("prepared", True)
    job, seen = _job(case, run, prepared=prepared), []
    command = _order(case, **{"checkpoint": str(folder / f"{case.to_step}"), **(order or {})})
    for step, batch in steps(job.accelerator, job.loader, run=run, epochs=EPOCHS, **more):
        if step == case.at_step - 1 and not any(row[0] == step for row in seen):
            deliver(run, command)
        seen.append((step, int(batch[0]), _train(job, batch)))
        if step == dies_at and any(row[0] > step for row in seen):
            return seen
        if job.accelerator.sync_gradients:
            job.accelerator.log({"loss": float(step), "phase": "train"})
            if step % case.every == 0:
                job.accelerator.save_state(str(folder / f"{step}"))
    run.finish()
    return seen


def _alone(case: Case) -> list[tuple[int, int, float]]:
    """Return the same of a loop without us."""
    job, seen, step = _job(case), [], 1
    for _ in range(EPOCHS):
        for batch in job.loader:
            seen.append((step, int(batch[0]), _train(job, batch)))
            step += job.accelerator.sync_gradients
    return seen


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_after_a_rollback_exactly_the_ordered_batches_are_left_out(case: Case, start: Start, tmp_path: Path) -> None:
    plain = [(step, sample) for step, sample, _ in _alone(case)]
    run = start()
    seen = [(step, sample) for step, sample, _ in _trained(run, case, tmp_path)]
    before = [row for row in plain if row[0] < case.at_step]
    kept = [row for row in plain if row[0] > case.to_step]
    assert seen[: len(before)] == before
    after = seen[len(before) :]
    assert [sample for _, sample in after] == [sample for _, sample in kept[case.skip :]]
    assert after[0][0] == case.to_step + 1
    assert sorted({step for step, _ in after}) == [*range(case.to_step + 1, after[-1][0] + 1)]
    assert answers(run) == [("ready", None), ("acted", {"skip_batches": case.skip})]


@pytest.mark.parametrize("loader", ["map", "shuffled"])
def test_a_folder_is_taken_up_behind_what_was_left_out_before_it(loader: str, start: Start, tmp_path: Path) -> None:
    case = Case(4, 8, 3, 2, loader=loader)
    first = _trained(start(), case, tmp_path)
    again = _trained(start(run_id="r2"), case, tmp_path, {"to_step": 99}, resume_from=tmp_path / "14")
    assert again == [row for row in first[7:] if row[0] > 14]


def test_a_job_that_dies_before_it_saves_does_what_a_rollback_ordered_again_and_once(
    start: Start, tmp_path: Path
) -> None:
    case, order = Case(4, 8, 3, 2), {"lr_scale": 0.5}
    whole = _trained(start(), case, tmp_path / "whole", order)[7:]
    died = _trained(start(run_id="r2"), case, tmp_path / "saved", order, dies_at=5)[7:]
    again = _trained(start(run_id="r3"), case, tmp_path / "saved", {"to_step": 99}, resume_from=tmp_path / "saved/4")
    later = _trained(start(run_id="r4"), case, tmp_path / "saved", {"to_step": 99}, resume_from=tmp_path / "saved/14")
    back = _trained(start(run_id="r5"), case, tmp_path / "saved", {"to_step": 99}, resume_from=tmp_path / "saved/4")
    assert (died, again) == (whole[:1], whole)
    assert later == [row for row in whole if row[0] > 14]
    assert (back[0], len(back)) == (_alone(case)[4], EPOCH * EPOCHS - 4)  # as it was: a later checkpoint has it


def test_each_step_after_a_rollback_has_the_scaled_rate_of_the_schedule(start: Start, tmp_path: Path) -> None:
    case = Case(4, 8, 0, 2)
    rates = {step: rate for step, _, rate in _trained(start(), case, tmp_path, {"lr_scale": 0.5})}
    expected = {step: rate * (0.5 if step > 4 else 1.0) for step, _, rate in _alone(case)}
    assert rates == pytest.approx(expected)


def test_a_schedule_that_was_not_prepared_is_not_offered_to_scale(start: Start, tmp_path: Path) -> None:
    run = start()
    seen = _trained(run, Case(4, 8, 3, 2), tmp_path, {"lr_scale": 0.5}, prepared=False)
    assert [step for step, _, _ in seen] == [*range(1, EPOCH * EPOCHS + 1)]
    assert [event.data for event in stored(run.folder).events("handler")] == [
        {"can": ["skip_batches"], "branches": True}
    ]
    last = stored(run.folder).events("command")[-1].data
    assert (last["state"], last["detail"]) == ("failed", "the job refused: this job can't change lr_scale")


def test_what_is_logged_arrives_at_its_step_and_texts_are_no_metrics(start: Start, tmp_path: Path) -> None:
    run = start()
    _trained(run, Case(4, 8, 0, 5, accumulate=2), tmp_path, {"to_step": 99})
    rows = stored(run.folder).rows()
    assert [(step, values) for step, _, values in rows] == [(step, {"loss": float(step)}) for step in range(1, 16)]


def test_phases_and_checkpoints_are_those_of_the_job(start: Start, tmp_path: Path) -> None:
    run = start()
    assert run._components is not None
    phases = run._components.slot.phases
    _trained(run, Case(4, 8, 3, 2), tmp_path)
    assert {*phases.known} >= {"data", "forward", "backward", "checkpoint", "rollback"}
    saved = {(event.step, Path(event.data["path"]).exists()) for event in stored(run.folder).events("checkpoint")}
    assert saved == {(step, True) for step in range(2, EPOCH * EPOCHS - 2, 2)}
