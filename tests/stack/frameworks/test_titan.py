"""torchtitan with its integration: rollbacks that people order are carried out to the letter. Real jobs."""

from __future__ import annotations

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

pytestmark = needs("torchtitan", "the job of this test needs torchtitan")

JOB = "frameworks/titan_job.py"
#: Steps of the job, as its schedule counts them: two of warm-up, a fifth of the others without decay.
_TOTAL, _WARM_UP = 100_000, 2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server") / "data", free_port()) as server:
        yield server


class Story(NamedTuple):
    """What was ordered, and what each rank did."""

    job: Fitted
    kind: str
    commands: list[dict[str, Any]]
    branches: list[Branches]
    stopped_before: int


@pytest.fixture(
    scope="module",
    params=[
        ("plain", 1),
        pytest.param(("plain", 2), marks=pytest.mark.soak),
        pytest.param(("accumulated", 1), marks=pytest.mark.soak),
    ],
    ids=lambda param: f"{param[0]}{param[1]}",
)
def story(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, server: Server) -> Story:
    """To step 40 as it was, again with changes, to a checkpoint after that without a range of steps; then a stop."""
    kind, ranks = request.param
    launcher = "torchrun" if ranks > 1 else ""
    folder = tmp_path_factory.mktemp(kind)
    with Fitted(folder, server, ranks, kind, script=JOB, launcher=launcher) as job:
        commands = ordered(job, within_s=120)
        stop = job.stop(steps=50)  # it makes some in a second
        job.wait()
        return Story(job, kind, commands, [job.branches(rank) for rank in range(ranks)], stop)


def schedule(step: int) -> float:
    """Return the rate that the job's schedule gives by itself at one of its first steps."""
    return 8e-4 * min(step / _WARM_UP, 1.0)


def test_each_order_is_done_with_what_was_applied(story: Story) -> None:
    as_ordered(story.commands, story.branches)


def test_a_rollback_that_changes_nothing_gives_the_same_losses_to_the_last_bit(story: Story) -> None:
    losses_again(story.branches)


def test_the_first_step_and_all_that_follow_have_the_scaled_rate(story: Story) -> None:
    rates_scaled(story.branches, schedule)


def test_exactly_what_was_ordered_is_left_out_of_the_data(story: Story) -> None:
    right_batches(story.branches)


def test_each_step_is_once_in_the_effective_series_with_the_values_that_it_had(story: Story) -> None:
    last = story.branches[0][-1][-1].number
    story.job.server.wait_for(f"/runs/{story.job.run_id}", lambda run: run["status"] == "finished", "it is finished")
    truth = truth_of(story.branches[0])
    assert _series(story, "lr") == pytest.approx({step.number: step.rate for step in truth})
    losses = _series(story, "loss")
    assert [*losses] == [*_series(story, "grad_norm")] == [*range(1, last + 1)]
    if story.kind == "plain":  # with several micro-batches it is their mean
        assert losses == pytest.approx({step.number: step.loss for step in truth})


def test_what_torchtitan_logs_is_there_at_its_steps(story: Story) -> None:
    last = story.branches[0][-1][-1].number
    logged = [1, *range(5, last + 1, 5)]
    for name in ("loss_metrics/global_avg_loss", "throughput(tps)", "n_tokens_seen", "lr/AdamW"):
        assert [*_series(story, name)] == logged
    if len(story.branches) == 1:
        losses = _series(story, "loss")
        averages = _series(story, "loss_metrics/global_avg_loss")
        assert averages == pytest.approx({step: losses[step] for step in logged})


def test_a_stop_ends_the_job_before_its_step(story: Story) -> None:
    assert story.branches[0][-1][-1].number == story.stopped_before - 1
    assert (story.job.folder / "log").read_text().rstrip().endswith("delivered")


@pytest.mark.soak
def test_a_job_started_again_goes_on_with_the_changes_and_not_from_what_was_left(
    tmp_path: Path, server: Server
) -> None:
    with Fitted(tmp_path, server, 1, "plain", script=JOB) as job:
        job.wait_for_run()
        job.wait_for_checkpoint(40, 0)
        wait_until(lambda: job.truth()[-1].number > 85, 120, "the first branch is long")
        assert job.order(to_step=20, lr_scale=0.5, skip_batches=3)["state"] == "done"
        job.wait_for_checkpoint(40, 1)
        wait_until(lambda: job.truth()[-1].number > 47, 120, "it goes on")
        job.process.kill()
        job.process.wait()
    before = {step.number: step for step in job.branches()[-1]}
    begin = len(job.truth())
    with Fitted(tmp_path, server, 1, "plain", script=JOB) as again:
        wait_until(lambda: len(again.truth()) > begin + 5, 240, "the resumed job trains")
        again.process.kill()
        again.process.wait()
    more = again.truth()[begin:]
    assert more[0].number == 41
    common = [step for step in more if step.number in before]
    assert common
    assert common == [before[step.number] for step in common]


@pytest.mark.soak
def test_a_job_killed_before_its_next_save_goes_on_with_what_the_rollback_ordered_once(
    tmp_path: Path, server: Server
) -> None:
    def begin(**more: str) -> Fitted:
        return Fitted(tmp_path, server, 1, "plain", script=JOB, **more)

    first = killed_after_rollback(begin(KILLED_AT="25"), 20, lr_scale=0.5, skip_batches=3)
    again = trained_until(begin(), 45)
    later = trained_until(begin(), 85)
    assert later[0].number in (41, 61)  # behind its newest checkpoint
    for more, begun in ((again, 21), (later, later[0].number)):
        assert [step.number for step in more] == [*range(begun, more[-1].number + 1)]
        assert [step.rate for step in more] == pytest.approx([0.5 * schedule(step.number) for step in more])
        assert [step.sample for step in more] == [first[step.number + 3] for step in more]


@pytest.mark.soak
def test_a_plan_that_can_not_be_followed_ends_the_job_with_the_reason(tmp_path: Path, server: Server) -> None:
    planned(tmp_path, 40, tmp_path / "elsewhere/step-40")
    with Fitted(tmp_path, server, 1, "plain", script=JOB) as job:
        assert job.ended() != 0
    assert "the plan of the restart can't be followed: " in (job.folder / "log").read_text()
    assert "torchtitan loads from its own folder only" in (job.folder / "log").read_text()


@pytest.mark.soak
def test_a_restart_by_plan_goes_on_where_the_plan_says_with_what_it_orders(tmp_path: Path, server: Server) -> None:
    with Fitted(tmp_path, server, 2, "plain", script=JOB, launcher="torchrun", **RESTARTS) as job:
        job.wait_for_run()
        job.wait_for_checkpoint(60, 0)
        command = job.order(kind="restart", to_step=20, lr_scale=0.5, skip_batches=3, grace_s=5, within_s=240)
        assert command["state"] == "done", command["history"]
        job.wait_for_checkpoint(40, 1)
        job.wait_for_checkpoint(60, 1)
    for rank in range(2):
        first, more = job.branches(rank)
        at = {step.number: step.sample for step in first}
        seen = [step for step in more if step.number + 3 in at]
        assert [step.number for step in seen] == [*range(21, first[-1].number - 2)]
        assert [step.rate for step in seen] == pytest.approx([0.5 * schedule(step.number) for step in seen])
        assert [step.sample for step in seen] == [at[step.number + 3] for step in seen]
    # torchtitan would go on from one of them.
    assert not [path for path in tmp_path.glob("outputs/checkpoint/step-*/.metadata") if _step(path) > more[-1].number]


def _step(path: Path) -> int:
    return int(path.parent.name.removeprefix("step-"))


def _series(story: Story, metric: str) -> dict[int, float]:
    told = story.job.get("/series", metric=metric, rank=0)["series"]
    rows = {step: value for entry in told for step, value in zip(entry["steps"], entry["values"], strict=True)}
    assert sum(len(entry["steps"]) for entry in told) == len(rows)
    return rows
