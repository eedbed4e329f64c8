"""``integrations.torch.Training``: what people order is done to the letter, and a resume loses nothing. Real jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stack.fitted_runs import Fitted, Step, killed_after_rollback
from support.installed import needs
from support.ports import free_port
from support.processes import Server
from support.waiting import wait_until

pytestmark = needs("torch", "the job of this test needs torch")

#: First step that the jobs do not run: they are ended by an order.
NEVER = "1000000"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server") / "data", free_port()) as server:
        yield server


class Story(NamedTuple):
    """What was ordered, and what each rank did."""

    job: Fitted
    commands: list[dict[str, Any]]
    branches: list[list[list[Step]]]


@pytest.fixture(
    scope="module",
    params=[
        ("plain", 1),
        pytest.param(("fsdp", 2), marks=pytest.mark.soak),
        pytest.param(("ddp", 2), marks=pytest.mark.soak),
        pytest.param(("drawn", 1), marks=pytest.mark.soak),
    ],
    ids=lambda param: param[0],
)
def story(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, server: Server) -> Story:
    """To step 40 as it was, again with changes, to a checkpoint after that without a range of steps; then a stop."""
    kind, ranks = request.param
    launcher = "torchrun" if ranks > 1 else ""
    folder = tmp_path_factory.mktemp(kind)
    with Fitted(folder, server, ranks, kind, NEVER, script="frameworks/trained_job.py", launcher=launcher) as job:
        job.wait_for_run()
        job.wait_for_checkpoint(40, 0)
        wait_until(lambda: job.truth()[-1].number > 200, 60, "the first branch is long")
        commands = [job.order(to_step=40), job.order(to_step=40, lr_scale=0.5, skip_batches=3)]
        job.wait_for_checkpoint(80, 2)
        commands.append(job.order(to_step=60, skip_range=[70, 72]))
        job.wait_for_checkpoint(80, 3)
        job.stop()
        job.wait()
        return Story(job, commands, [job.branches(rank) for rank in range(ranks)])


def schedule(step: int) -> float:
    """Return the rate that the job's schedule gives by itself at a step."""
    return 1e-3 / (1.0 + (step - 1) / 1000)


def test_each_order_is_done_with_what_was_applied(story: Story) -> None:
    print("seconds from an order to its end:", [round(one["took_s"], 2) for one in story.commands])
    assert [one["state"] for one in story.commands] == ["done"] * 3, [one["history"] for one in story.commands]
    applied = [one["ranks"]["0"]["applied"] for one in story.commands]
    told = [(one.get("lr_scale"), one.get("skip_batches"), one.get("skip_range")) for one in applied]
    assert told == [(None, None, None), (0.5, 3, None), (None, None, [70, 72])]
    for branches in story.branches:
        assert [branch[0].number for branch in branches] == [1, 41, 41, 61]


def test_a_rollback_that_changes_nothing_gives_the_same_losses_to_the_last_bit(story: Story) -> None:
    for first, again, *_ in story.branches:
        assert again == first[40 : 40 + len(again)]


def test_the_first_step_and_all_that_follow_have_the_scaled_rate(story: Story) -> None:
    for branches in story.branches:
        for branch, scale in zip(branches, [1.0, 1.0, 0.5, 0.5], strict=True):
            assert [step.rate for step in branch] == pytest.approx([scale * schedule(one.number) for one in branch])


def test_exactly_what_was_ordered_is_left_out_of_the_data(story: Story) -> None:
    for first, _, third, fourth in story.branches:
        at = {step.number: step.sample for step in first}  # the first branch has every batch
        moved = [(step, step.number + 3) for step in third]
        moved += [(step, step.number + 3 + 3 * (step.number >= 70)) for step in fourth]
        seen = [(step.sample, at[place]) for step, place in moved if place in at]
        assert len(seen) > 60
        assert [sample for sample, _ in seen] == [sample for _, sample in seen]


def test_each_step_is_once_in_the_effective_series_with_the_loss_that_it_had(story: Story) -> None:
    last = story.branches[0][-1][-1].number
    story.job.server.wait_for(f"/runs/{story.job.run_id}", lambda run: run["status"] == "finished", "it is finished")
    told = story.job.get("/series", metric="loss", rank=0)["series"]
    rows = {step: value for entry in told for step, value in zip(entry["steps"], entry["values"], strict=True)}
    assert sum(len(entry["steps"]) for entry in told) == len(rows)
    first, _, third, fourth = story.branches[0]
    assert rows == pytest.approx({step.number: step.loss for step in first[:40] + third[:20] + fourth})
    assert [*rows] == [*range(1, last + 1)]


@pytest.mark.parametrize("kind", ["plain", pytest.param("fsdp", marks=pytest.mark.soak)])
def test_a_job_killed_before_its_next_save_goes_on_with_what_the_rollback_ordered_once(
    kind: str, tmp_path: Path, server: Server
) -> None:
    ranks, launcher = (2, "torchrun") if kind == "fsdp" else (1, "")

    def begin(stop: str, **more: str) -> Fitted:
        script = "frameworks/trained_job.py"
        return Fitted(tmp_path, server, ranks, kind, stop, script=script, launcher=launcher, **more)

    first = killed_after_rollback(begin(NEVER, KILLED_AT="25"), 20, lr_scale=0.5, skip_batches=3)
    assert (tmp_path / "checkpoints" / "latest").read_text() == "step-20"  # not the newest
    for stop, steps in (("31", range(21, 31)), ("61", range(31, 61))):  # the first one saves step 30 as its last
        with begin(stop) as again:
            again.wait()
        for rank in range(ranks):
            more = again.truth(rank)[-len(steps) :]
            assert [step.number for step in more] == [*steps]
            assert [step.rate for step in more] == pytest.approx([0.5 * schedule(step) for step in steps])
        assert [step.sample for step in again.truth()[-len(steps) :]] == [first[step + 3] for step in steps]
