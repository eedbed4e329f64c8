"""Lightning with its integration: rollbacks that people order are carried out to the letter. Real jobs."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stack.fitted_runs import BATCH, Fitted, Step, killed_after_rollback, places, trained_until
from support.installed import needs
from support.ports import free_port
from support.processes import Server

pytestmark = [needs("lightning", "the job of this test needs torch and lightning"), pytest.mark.soak]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server") / "data", free_port()) as server:
        yield server


class Story(NamedTuple):
    """What was ordered, what became of it, and what the job did."""

    job: Fitted
    commands: list[dict[str, Any]]
    branches: list[list[Step]]
    stopped_before: int


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Story:
    """Three rollbacks and a stop: to step 40 with changes, to a checkpoint after that, and to one before it."""
    with Fitted(tmp_path_factory.mktemp("fitted"), server) as job:
        job.wait_for_run()
        job.wait_for_checkpoint(40, 0)
        commands = [job.order(to_step=40, lr_scale=0.5, skip_batches=3)]
        job.wait_for_checkpoint(60, 1)
        commands.append(job.order(to_step=60, lr_scale=0.5))
        commands.append(job.order(to_step=20, skip_batches=1))
        stop = job.stop()
        job.wait()
        return Story(job, commands, job.branches(), stop)


def schedule(step: int) -> float:
    """Return the rate that the job's schedule gives by itself at a step."""
    return 1e-3 / (1.0 + (step - 1) / 1000)


def test_each_order_is_done_with_what_was_applied(story: Story) -> None:
    print("seconds from an order to its first new point:", [round(one["took_s"], 2) for one in story.commands])
    assert [one["state"] for one in story.commands] == ["done"] * 3, [one["history"] for one in story.commands]
    applied = [one["ranks"]["0"]["applied"] for one in story.commands]
    assert [(one.get("lr_scale"), one.get("skip_batches")) for one in applied] == [(0.5, 3), (0.5, None), (None, 1)]
    assert [branch[0].number for branch in story.branches] == [1, 41, 61, 21]


def test_the_first_step_after_a_rollback_and_all_that_follow_have_the_scaled_rate(story: Story) -> None:
    for branch, scale in zip(story.branches, [1.0, 0.5, 0.25, 1.0], strict=True):
        assert [step.rate for step in branch] == pytest.approx([scale * schedule(step.number) for step in branch])


def test_exactly_the_batches_that_were_ordered_are_skipped_and_a_later_checkpoint_remembers_it(story: Story) -> None:
    for branch, skipped in zip(story.branches, [0, 3, 3, 1], strict=True):
        assert [step.sample for step in branch] == [BATCH * (step.number - 1 + skipped) for step in branch]


def test_each_step_is_once_in_the_effective_series_with_the_rate_that_it_had(story: Story) -> None:
    last = story.branches[-1][-1].number
    story.job.server.wait_for(f"/runs/{story.job.run_id}", lambda run: run["status"] == "finished", "it is finished")
    told = story.job.get("/series", metric="lr")["series"]
    steps = [step for entry in told for step in entry["steps"]]
    rates = [rate for entry in told for rate in entry["values"]]
    assert steps == [*range(1, last + 1)]
    truth = story.branches[0][:20] + story.branches[-1]
    assert rates == pytest.approx([step.rate for step in truth])


def test_what_the_module_logs_is_there_at_each_step(story: Story) -> None:
    values = {
        metric: [value for entry in story.job.get("/series", metric=metric)["series"] for value in entry["values"]]
        for metric in ("loss", "train_loss")
    }
    assert len(values["loss"]) > 100
    assert values["loss"] == values["train_loss"]


def test_a_stop_ends_the_job_before_its_step_as_lightning_ends_one(story: Story) -> None:
    assert story.branches[-1][-1].number == story.stopped_before - 1
    assert (story.job.folder / "log").read_text().endswith("delivered\n")


@pytest.mark.parametrize(("orders", "launcher"), [(1, ""), (100, ""), (5, "torchrun")])
def test_two_ranks_go_back_together_or_not_at_all(orders: int, launcher: str, tmp_path: Path, server: Server) -> None:
    draw, ended = random.Random(orders), []
    with Fitted(tmp_path, server, devices=2, launcher=launcher) as job:
        job.wait_for_run()
        job.wait_for_checkpoint(40, 0)
        for _ in range(orders):
            time.sleep(draw.uniform(0.0, 0.5))  # a random moment: nothing is waited for
            usable = [one for one in job.get("/checkpoints")["checkpoints"] if one["available"] and not one["dead"]]
            ended.append(job.order(to_step=draw.choice(usable)["step"], lr_scale=0.9, skip_batches=3))
        job.stop()
        job.wait()
    done = [one["to_step"] for one in ended if one["state"] == "done"]
    print(f"{len(done)} of {orders} done, seconds: {[round(one['took_s'], 2) for one in ended]}")
    both = job.branches(0), job.branches(1)
    assert [branch[0].number - 1 for branch in both[0]] == [0, *done]
    assert done
    of_ranks = [[(step.number, step.rate) for branch in of_rank for step in branch] for of_rank in both]
    assert of_ranks[0] == of_ranks[1]
    for of_rank in both:
        order = places(of_rank, 3)
        assert [len(samples) for samples in order.values()] == [1] * len(order)
        assert len(set.union(*order.values())) == len(order)


def test_a_job_killed_before_its_next_save_goes_on_with_what_the_rollback_ordered_once(
    tmp_path: Path, server: Server
) -> None:
    def begin(**more: str) -> Fitted:
        return Fitted(tmp_path, server, **more)

    first = killed_after_rollback(begin(KILLED_AT="45"), 40, lr_scale=0.5, skip_batches=3)
    again = trained_until(begin(RESUME="checkpoints/epoch=0-step=40.ckpt"), 85)
    later = trained_until(begin(RESUME="checkpoints/epoch=0-step=60-v1.ckpt"), 125)
    for more, begun in ((again, 41), (later, 61)):
        assert [step.number for step in more] == [*range(begun, more[-1].number + 1)]
        assert [step.rate for step in more] == pytest.approx([0.5 * schedule(step.number) for step in more])
        assert [step.sample for step in more] == [first[step.number + 3] for step in more]
