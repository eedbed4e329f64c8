"""``integrations.torch.Training``: what people order is done to the letter, and a resume loses nothing. Real jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stack.fitted_runs import Fitted, killed_after_rollback
from stack.frameworks.three_orders import (
    Branches,
    as_ordered,
    losses_again,
    ordered,
    rates_scaled,
    right_batches,
    truth_of,
)
from support.installed import needs
from support.ports import free_port
from support.processes import Server

pytestmark = [needs("torch", "the job of this test needs torch"), pytest.mark.soak]

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
    branches: list[Branches]


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
        commands = ordered(job, long=200)
        job.stop()
        job.wait()
        return Story(job, commands, [job.branches(rank) for rank in range(ranks)])


def schedule(step: int) -> float:
    """Return the rate that the job's schedule gives by itself at a step."""
    return 1e-3 / (1.0 + (step - 1) / 1000)


def test_each_order_is_done_with_what_was_applied(story: Story) -> None:
    as_ordered(story.commands, story.branches)


def test_a_rollback_that_changes_nothing_gives_the_same_losses_to_the_last_bit(story: Story) -> None:
    losses_again(story.branches)


def test_the_first_step_and_all_that_follow_have_the_scaled_rate(story: Story) -> None:
    rates_scaled(story.branches, schedule)


def test_exactly_what_was_ordered_is_left_out_of_the_data(story: Story) -> None:
    right_batches(story.branches)


def test_each_step_is_once_in_the_effective_series_with_the_loss_that_it_had(story: Story) -> None:
    last = story.branches[0][-1][-1].number
    story.job.server.wait_for(f"/runs/{story.job.run_id}", lambda run: run["status"] == "finished", "it is finished")
    told = story.job.get("/series", metric="loss", rank=0)["series"]
    rows = {step: value for entry in told for step, value in zip(entry["steps"], entry["values"], strict=True)}
    assert sum(len(entry["steps"]) for entry in told) == len(rows)
    assert rows == pytest.approx({step.number: step.loss for step in truth_of(story.branches[0])})
    assert [*rows] == [*range(1, last + 1)]


@pytest.mark.parametrize("kind", ["plain", pytest.param("fsdp", marks=pytest.mark.soak)])
@pytest.mark.soak
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
