"""MosaicML Composer with its integration: rollbacks that people order are carried out to the letter. Real jobs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stack.fitted_runs import RESTARTS, Fitted, killed_after_rollback, planned, trained_until
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
from support.waiting import wait_until

pytestmark = needs("composer", "the job of this test needs Composer")

JOB = "frameworks/composed_job.py"
#: Settings by which Composer goes on from its newest checkpoint.
AGAIN = ("autoresume=True", "run_name=again")
#: Composer's own launcher gives the number of the node, which autoresume asks for.
VARIABLES = RESTARTS | {"NODE_RANK": "0"}
#: Steps of the job on one rank, as its schedule counts them: 400 epochs of 2,000.
_TOTAL = 800_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server") / "data", free_port()) as server:
        yield server


class Story(NamedTuple):
    """What was ordered, and what each rank did."""

    job: Fitted
    commands: list[dict[str, Any]]
    branches: list[Branches]
    stopped_before: int


@pytest.fixture(
    scope="module",
    params=[("shuffled", 1), pytest.param(("shuffled", 2), marks=pytest.mark.soak)],
    ids=lambda param: f"{param[0]}{param[1]}",
)
def story(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, server: Server) -> Story:
    """To step 40 as it was, again with changes, to a checkpoint after that without a range of steps; then a stop."""
    kind, ranks = request.param
    launcher = "torchrun" if ranks > 1 else ""
    folder = tmp_path_factory.mktemp(kind)
    with Fitted(folder, server, ranks, kind, script=JOB, launcher=launcher) as job:
        commands = ordered(job)
        stop = job.stop()
        job.wait()
        return Story(job, commands, [job.branches(rank) for rank in range(ranks)], stop)


def schedule(step: int, ranks: int) -> float:
    """Return the rate that the job's schedule gives by itself at a step."""
    return 1e-3 * 0.5 * (1.0 + math.cos(math.pi * (step - 1) * ranks / _TOTAL))


def test_each_order_is_done_with_what_was_applied(story: Story) -> None:
    as_ordered(story.commands, story.branches)


def test_a_rollback_that_changes_nothing_gives_the_same_losses_to_the_last_bit(story: Story) -> None:
    losses_again(story.branches)


def test_the_first_step_and_all_that_follow_have_the_scaled_rate(story: Story) -> None:
    rates_scaled(story.branches, lambda step: schedule(step, len(story.branches)))


def test_exactly_what_was_ordered_is_left_out_of_the_data(story: Story) -> None:
    right_batches(story.branches)


def test_each_step_is_once_in_the_effective_series_with_the_values_that_it_had(story: Story) -> None:
    last = story.branches[0][-1][-1].number
    story.job.server.wait_for(f"/runs/{story.job.run_id}", lambda run: run["status"] == "finished", "it is finished")
    truth = truth_of(story.branches[0])
    assert _series(story, "lr") == pytest.approx({step.number: step.rate for step in truth})
    assert [*_series(story, "lr-AdamW/group0")] == [*range(1, last + 1)]
    losses = _series(story, "loss/train/total")
    assert _series(story, "loss") == losses
    assert [*losses] == [*range(1, last + 1)]
    if len(story.branches) == 1:  # of several ranks it is their mean
        assert losses == pytest.approx({step.number: step.loss for step in truth})


def test_what_composer_and_its_callbacks_log_is_there(story: Story) -> None:
    names = {"metrics/train/Mean", "l2_norm/grad/global", "grad_norm", "throughput/batches_per_sec", "time/batch"}
    assert [name for name in names if not _series(story, name)] == []
    assert min(_series(story, "throughput/batches_per_sec").values()) > 0


def test_a_stop_ends_the_job_before_its_step_as_composer_ends_one(story: Story) -> None:
    assert story.branches[0][-1][-1].number == story.stopped_before - 1
    assert (story.job.folder / "log").read_text().rstrip().endswith("delivered")


@pytest.mark.soak
def test_a_resume_after_a_rollback_finds_the_place_with_what_was_left_out(tmp_path: Path, server: Server) -> None:
    with Fitted(tmp_path, server, 1, "shuffled", script=JOB) as job:
        job.wait_for_run()
        job.wait_for_checkpoint(40, 0)
        wait_until(lambda: job.truth()[-1].number > 120, 60, "the first branch is long")
        assert job.order(to_step=40, lr_scale=0.5, skip_batches=3)["state"] == "done"
        wait_until(lambda: job.truth()[-1].number > 75, 60, "a checkpoint of the new branch is there")
        job.process.kill()
        job.process.wait()
    before = {step.number: step for step in job.branches()[-1]}
    latest = (tmp_path / "checkpoints/latest-rank0.pt").resolve()
    assert latest.name in ("ep0-ba60-rank0.pt", "ep0-ba80-rank0.pt")
    begin = len(job.truth())
    with Fitted(tmp_path, server, 1, "shuffled", "load_path=checkpoints/latest-rank0.pt", script=JOB) as again:
        wait_until(lambda: len(again.truth()) > begin + 20, 120, "the resumed job trains")
        again.stop(steps=50)
        again.wait()
    more = again.truth()[begin:]
    assert more[0].number == int(latest.name.split("-")[1].removeprefix("ba")) + 1
    common = [step for step in more if step.number in before]
    assert common
    assert common == [before[step.number] for step in common]


@pytest.mark.soak
def test_a_job_killed_before_its_next_save_goes_on_with_what_the_rollback_ordered_once(
    tmp_path: Path, server: Server
) -> None:
    def begin(**more: str) -> Fitted:
        return Fitted(tmp_path, server, 1, "shuffled", *AGAIN, script=JOB, **more)

    first = killed_after_rollback(begin(KILLED_AT="45"), 40, lr_scale=0.5, skip_batches=3)
    again = trained_until(begin(), 85)
    later = trained_until(begin(), 125)
    assert later[0].number in (81, 101, 121)  # behind its newest checkpoint
    for more, begun in ((again, 41), (later, later[0].number)):
        assert [step.number for step in more] == [*range(begun, more[-1].number + 1)]
        assert [step.rate for step in more] == pytest.approx([0.5 * schedule(step.number, 1) for step in more])
        assert [step.sample for step in more] == [first[step.number + 3] for step in more]


@pytest.mark.soak
def test_a_plan_that_can_not_be_followed_ends_the_job_with_the_reason(tmp_path: Path, server: Server) -> None:
    planned(tmp_path, 40, tmp_path / "elsewhere/ep0-ba40-rank0.pt")
    with Fitted(tmp_path, server, 1, "shuffled", script=JOB) as job:
        assert job.ended() != 0
    assert "the plan of the restart can't be followed: " in (job.folder / "log").read_text()
    assert "is not there" in (job.folder / "log").read_text()


@pytest.mark.soak
@pytest.mark.parametrize("more", [(), AGAIN], ids=["from_scratch", "autoresume"])
def test_a_restart_by_plan_goes_on_where_the_plan_says_with_what_it_orders(
    more: tuple[str, ...], tmp_path: Path, server: Server
) -> None:
    with Fitted(tmp_path, server, 2, "shuffled", *more, script=JOB, launcher="torchrun", **VARIABLES) as job:
        job.wait_for_run()
        job.wait_for_checkpoint(80, 0)
        command = job.order(kind="restart", to_step=40, lr_scale=0.5, skip_batches=3, grace_s=5, within_s=240)
        assert command["state"] == "done", command["history"]
        job.wait_for_checkpoint(80, 1)
    for rank in range(2):
        first, again = job.branches(rank)
        at = {step.number: step.sample for step in first}
        seen = [step for step in again if step.number + 3 in at]
        assert [step.number for step in seen][:35] == [*range(41, 76)]
        assert [step.rate for step in seen] == pytest.approx([0.5 * schedule(step.number, 2) for step in seen])
        assert [step.sample for step in seen] == [at[step.number + 3] for step in seen]


def _series(story: Story, metric: str) -> dict[int, float]:
    told = story.job.get("/series", metric=metric, rank=0)["series"]
    rows = {step: value for entry in told for step, value in zip(entry["steps"], entry["values"], strict=True)}
    assert sum(len(entry["steps"]) for entry in told) == len(rows)
    return rows
