"""A job of ``torch.Training`` that dies and starts again is where the last order put it, whoever gave it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import stabilityclient
from stabilityclient.plan import write_plan
from support.agent.ordered import answers, deliver, rollback_order
from support.installed import needs

pytestmark = needs("torch", "the jobs of this test are torch's")

Start = Callable[..., stabilityclient.Run]
RATE = 1e-3
#: Steps between two checkpoints.
EVERY = 10


class Row(NamedTuple):
    """A step that was trained; each has one batch, and without anything left out step N has batch N."""

    step: int
    batch: int
    scale: float


class Job:
    """A process of a job: a model of one weight."""

    def __init__(self, run: stabilityclient.Run, folder: Path, **more: Any) -> None:
        import torch

        from stabilityclient.integrations.torch import Training

        self.run, self.folder = run, folder
        self._model = torch.nn.Linear(1, 1)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=RATE)
        self._orders = 0
        loader = [torch.tensor([number]) for number in range(1, 1000)]
        parts = {"model": self._model, "optimizer": self._optimizer}
        self.training = Training(run, folder, loader=loader, **{"save_every": EVERY, **parts, **more})

    def train(self, *orders: dict[str, Any], until: int) -> list[Row]:
        """Train up to a step, where the process dies; each order comes when ``at_step - 1`` is trained, in turn."""
        rows, waiting = [], [*orders]
        for step in self.training.steps():
            if waiting and step == waiting[0]["apply_at_step"] - 1:
                deliver(self.run, waiting.pop(0))
            batch = int(self.training.batch()[0])
            rows.append(Row(step, batch, round(self._optimizer.param_groups[0]["lr"] / RATE, 9)))
            if step == until and not waiting:
                return rows
        raise AssertionError("the steps ended")

    def order(self, to_step: int, at_step: int, **more: Any) -> dict[str, Any]:
        self._orders += 1
        name, at = f"{self.run.run_id}-{self._orders}", str(self.folder / f"step-{to_step}")
        fence = {"segment": 0, "segment_key": self.run._lineage.key or more.pop("after", "")}
        given = {"command_id": name, "checkpoint": at, "fence": fence, **more}
        return rollback_order(to_step, at_step, **given)


@pytest.fixture
def begin(start: Start, tmp_path: Path) -> Callable[..., Job]:
    """Start a process of the job: ``begin(run_id)``."""
    return lambda run_id="r1", **more: Job(start(run_id=run_id), tmp_path / "checkpoints", **more)


Begin = Callable[..., Job]


def rows(first: int, last: int, scale: float = 1.0, skipped: int = 0) -> list[Row]:
    return [Row(step, step + skipped, scale) for step in range(first, last + 1)]


def test_a_job_that_dies_before_it_saves_does_what_a_rollback_ordered_again_and_once(begin: Begin) -> None:
    job = begin()
    seen = job.train(job.order(10, 26, lr_scale=0.5, skip_batches=3), until=15)
    assert seen == rows(1, 25) + rows(11, 15, 0.5, 3)
    assert begin("r2").train(until=12) == rows(11, 12, 0.5, 3)
    assert begin("r3").train(until=23) == rows(11, 23, 0.5, 3)  # saves at step 20
    assert begin("r4").train(until=35) == rows(21, 35, 0.5, 3)
    assert not (job.folder / "unsaved-rollback.json").exists()


def test_a_save_right_after_the_rollback_has_it_once(begin: Begin) -> None:
    job = begin()
    job.train(job.order(10, 16, lr_scale=0.5, skip_batches=3), until=11)
    begin("r2").training.save()
    assert begin("r3").train(until=12) == rows(11, 12, 0.5, 3)


def test_of_several_rollbacks_the_last_one_holds_as_it_does_in_one_process(begin: Begin) -> None:
    job = begin()
    first = job.order(10, 26, lr_scale=0.5, skip_batches=3)
    second = job.order(10, 19, lr_scale=0.25, skip_range=[14, 15], after=first["command_id"])
    seen = job.train(first, second, until=16)
    # Steps 14 and 15 had the batches 17 and 18 then.
    left = rows(11, 16, 0.25)
    assert seen == rows(1, 25) + rows(11, 18, 0.5, 3) + left
    assert begin("r2").train(until=19) == rows(11, 16, 0.25) + rows(17, 19, 0.25, 2)


def test_a_rollback_after_such_a_start_begins_from_the_checkpoint_as_it_was(begin: Begin) -> None:
    job = begin()
    job.train(job.order(10, 26, lr_scale=0.5), until=12)
    again = begin("r2")
    assert again.train(again.order(10, 16, lr_scale=0.25), until=13) == rows(11, 15, 0.5) + rows(11, 13, 0.25)
    last = begin("r3")
    assert last.train(last.order(10, 14), until=12) == rows(11, 13, 0.25) + rows(11, 12)
    assert begin("r4").train(until=12) == rows(11, 12)


def _plan(job: Job, step: int, **more: Any) -> dict[str, Any]:
    now = time.time()
    plan = {"version": 1, "run_id": job.run.run_id, "written": now, "received": now, "action": "relaunch"}
    plan |= {"checkpoint": {"step": step, "path": str(job.folder / f"step-{step}")}, "command_id": "p1", **more}
    write_plan(str(job.run.folder), plan)
    return plan


def test_a_plan_that_changes_something_replaces_what_was_ordered_before_it(begin: Begin) -> None:
    job = begin()
    job.train(job.order(10, 26, lr_scale=0.5, skip_batches=3), until=12)
    _plan(job, 10, lr_scale=0.1, skip_batches=1, skip_range=[11, 11])
    assert begin().train(until=13) == rows(11, 13, 0.1, 1)
    assert begin().train(until=13) == rows(11, 13, 0.1, 1)


def test_a_plan_that_only_says_where_keeps_what_was_ordered(begin: Begin) -> None:
    job = begin()
    job.train(job.order(10, 26, lr_scale=0.5, skip_batches=3), until=12)
    _plan(job, 10)
    assert begin().train(until=13) == rows(11, 13, 0.5, 3)


def test_a_rollback_of_a_process_that_came_up_by_a_plan_holds_although_the_plan_has_not_served(begin: Begin) -> None:
    job = begin()
    job.train(until=25)
    _plan(job, 20, lr_scale=0.1)
    planned = begin()
    assert planned.train(planned.order(10, 24, lr_scale=0.5), until=12) == rows(21, 23, 0.1) + rows(11, 12, 0.5)
    assert begin().train(until=13) == rows(11, 13, 0.5)


def test_what_a_plan_changed_and_a_checkpoint_has_is_not_changed_again(begin: Begin) -> None:
    job = begin()
    job.train(until=12)
    _plan(job, 10, lr_scale=0.1, skip_batches=1)
    begin().training.save()  # the agent, which would note that the plan has served, is dead
    assert begin().train(until=13) == rows(11, 13, 0.1, 1)


def test_a_plan_that_knows_no_path_means_the_jobs_own_checkpoint_of_its_step(begin: Begin) -> None:
    job = begin()
    job.train(until=25)
    _plan(job, 10, checkpoint={"step": 10, "path": None}, lr_scale=0.1)
    assert begin().train(until=13) == rows(11, 13, 0.1)
    _plan(job, 15, checkpoint={"step": 15, "path": None})
    with pytest.raises(ValueError, match="step-15"):
        begin()


def test_a_start_from_scratch_does_nothing_of_it(begin: Begin) -> None:
    job = begin()
    job.train(job.order(10, 16, lr_scale=0.5), until=12)
    assert begin("r2", resume=False).train(until=12) == rows(1, 12)
    assert begin("r3").train(until=12) == rows(11, 12)


def test_a_checkpoint_of_another_step_is_where_the_job_stands_on_its_next_start_too(begin: Begin) -> None:
    job = begin()
    order = job.order(15, 26, lr_scale=0.5, checkpoint=str(job.folder / "step-10"))
    assert job.train(order, until=12) == rows(1, 25) + rows(11, 12)
    assert [state for state, _ in answers(job.run)] == ["ready", "failed"]
    assert begin("r2").train(until=12) == rows(11, 12)


@pytest.mark.parametrize("name", ["save_every", "keep", "batches_per_step"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "8"])
def test_a_number_that_is_none_from_1_on_is_refused_by_name(name: str, value: Any, begin: Begin) -> None:
    with pytest.raises(ValueError, match=f"{name} is .*, expected a whole number from 1 on"):
        begin(**{name: value})
