"""``integrations.deepspeed.Training``: what people order is done to the letter by a DeepSpeed engine. Real jobs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stabilityclient.agent.watch.checkpoint_kinds.inspection import inspect
from stack.fitted_runs import Fitted, Step, killed_after_rollback
from support.installed import needs
from support.ports import free_port
from support.processes import Server
from support.waiting import wait_until

pytestmark = needs("deepspeed", "the job of this test needs DeepSpeed")

JOB = "frameworks/engine_job.py"
#: First step that the jobs do not run: they are ended by an order.
NEVER = "1000000"


class Story(NamedTuple):
    """What was ordered, and what each rank did."""

    job: Fitted
    commands: list[dict[str, Any]]
    branches: list[list[list[Step]]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server") / "data", free_port()) as server:
        yield server


@pytest.fixture(
    scope="module",
    params=["1", *(pytest.param(stage, marks=pytest.mark.soak) for stage in "02")],
    ids=lambda stage: f"zero{stage}",
)
def story(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, server: Server) -> Story:
    """To step 40 as it was, again with changes, then to before the changed rate; a stop."""
    folder = tmp_path_factory.mktemp(f"zero{request.param}")
    with Fitted(folder, server, 2, request.param, NEVER, script=JOB, launcher="torchrun") as job:
        job.wait_for_run()
        job.wait_for_checkpoint(40, 0)
        wait_until(lambda: job.truth()[-1].number > 200, 60, "the first branch is long")
        commands = [job.order(to_step=40), job.order(to_step=40, lr_scale=0.5, skip_batches=3)]
        job.wait_for_checkpoint(80, 2)
        commands.append(job.order(to_step=60))
        job.wait_for_checkpoint(80, 3)
        commands.append(job.order(to_step=20))
        job.wait_for_checkpoint(80, 4)
        job.stop()
        job.wait()
        return Story(job, commands, [job.branches(rank) for rank in range(2)])


def schedule(step: int) -> float:
    """Return the rate that the job's WarmupLR gives by itself at a step: the first has its lowest one."""
    return 1e-4 + 9e-4 * max(min((step - 2) / 1000, 1), 0)


def test_each_order_is_done_with_what_was_applied(story: Story) -> None:
    print("seconds from an order to its end:", [round(one["took_s"], 2) for one in story.commands])
    assert [one["state"] for one in story.commands] == ["done"] * 4, [one["history"] for one in story.commands]
    applied = [one["ranks"]["0"]["applied"] for one in story.commands]
    told = [(one.get("lr_scale"), one.get("skip_batches")) for one in applied]
    assert told == [(None, None), (0.5, 3), (None, None), (None, None)]
    for branches in story.branches:
        assert [branch[0].number for branch in branches] == [1, 41, 41, 61, 21]


def test_a_rollback_that_changes_nothing_gives_the_same_losses_to_the_last_bit(story: Story) -> None:
    for first, again, _, _, last in story.branches:
        assert again == first[40 : 40 + len(again)]
        assert last[:180] == first[20:200]


def test_deepspeeds_schedule_has_the_scale_of_the_checkpoint_that_is_loaded(story: Story) -> None:
    for branches in story.branches:
        for branch, scale in zip(branches, [1.0, 1.0, 0.5, 0.5, 1.0], strict=True):
            assert [step.rate for step in branch] == pytest.approx([scale * schedule(one.number) for one in branch])


def test_exactly_what_was_ordered_is_left_out_of_the_data(story: Story) -> None:
    for first, _, third, fourth, _ in story.branches:
        at = {step.number: step.sample for step in first}  # the first branch has every batch
        seen = [(step.sample, at[step.number + 3]) for step in third + fourth if step.number + 3 in at]
        assert len(seen) > 60
        assert [sample for sample, _ in seen] == [sample for _, sample in seen]


def test_each_step_is_once_in_the_effective_series_with_the_loss_that_it_had(story: Story) -> None:
    last = story.branches[0][-1][-1].number
    story.job.server.wait_for(f"/runs/{story.job.run_id}", lambda run: run["status"] == "finished", "it is finished")
    told = story.job.get("/series", metric="loss", rank=0)["series"]
    rows = {step: value for entry in told for step, value in zip(entry["steps"], entry["values"], strict=True)}
    assert sum(len(entry["steps"]) for entry in told) == len(rows)
    first, *_, fifth = story.branches[0]
    assert rows == pytest.approx({step.number: step.loss for step in first[:20] + fifth})
    assert [*rows] == [*range(1, last + 1)]


def test_the_ledger_has_what_was_trained_in_vain(story: Story) -> None:
    job = story.job
    book = job.server.wait_for(f"/runs/{job.run_id}/ledger", lambda one: one["totals"]["rollbacks"] == 4, "the ledger")
    ends = [branch[-1].number for branch in story.branches[0][:-1]]
    lost = [end - to_step for end, to_step in zip(ends, [40, 40, 60, 20], strict=True)]
    assert [entry["steps_lost"] for entry in book["rollbacks"]] == lost


def test_a_tag_with_any_file_missing_or_cut_off_is_not_whole(story: Story, tmp_path: Path) -> None:
    tag = story.job.folder / "checkpoints/step-40"
    whole = inspect(str(tag), 2)
    assert whole is not None
    assert (whole.kind, whole.complete, whole.problem, whole.world_size) == ("deepspeed", True, "", 2)
    names = [path.name for path in tag.iterdir()]
    assert len(names) == whole.files
    for name in names:
        for share in (0.0, 0.5, 0.99):
            torn = Path(shutil.copytree(tag, tmp_path / f"{name}-{share}"))
            os.truncate(torn / name, int((tag / name).stat().st_size * share))
            look = inspect(str(torn), 2)
            assert look is not None
            assert (look.complete, look.bad) == (False, (name,))
    for name in names if len(names) > 1 else ():  # of none nothing can be said
        torn = Path(shutil.copytree(tag, tmp_path / name))
        (torn / name).unlink()
        look = inspect(str(torn), 2)
        assert look is not None
        assert (look.complete, look.bad) == (False, (name,))


def test_on_another_number_of_ranks_or_without_a_shard_the_resume_says_why_it_can_not_be(
    story: Story, server: Server, tmp_path: Path
) -> None:
    if "zero1" not in story.job.folder.name:
        pytest.skip("is shown with ZeRO-1")
    shutil.copytree(story.job.folder / "checkpoints", tmp_path / "checkpoints")
    with Fitted(tmp_path, server, 1, "1", NEVER, script=JOB, launcher="torchrun") as job:
        assert job.ended() != 0
        log = (tmp_path / "log").read_text()
        assert "was written by 2 data-parallel ranks and there are 1: ZeRO loads with as many only" in log
    latest = tmp_path / "checkpoints" / (tmp_path / "checkpoints/latest").read_text()
    (latest / "zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    with Fitted(tmp_path, server, 2, "1", NEVER, script=JOB, launcher="torchrun") as job:
        assert job.ended() != 0
        assert "is not whole: optimizer states of data-parallel rank 1" in (tmp_path / "log").read_text()


def test_a_resume_by_deepspeeds_launcher_goes_on_as_if_nothing_had_been(
    story: Story, server: Server, tmp_path: Path
) -> None:
    if "zero1" not in story.job.folder.name:
        pytest.skip("is shown with ZeRO-1")
    shutil.copytree(story.job.folder / "checkpoints", tmp_path / "checkpoints")
    (tmp_path / "checkpoints/latest").write_text("step-100")
    with Fitted(tmp_path, server, 2, "1", "131", script=JOB, launcher="deepspeed") as job:
        job.wait()
        for rank in range(2):
            assert job.truth(rank) == story.branches[rank][-1][80:110]


@pytest.mark.soak
def test_a_job_killed_before_its_next_save_goes_on_with_what_the_rollback_ordered_once(
    tmp_path: Path, server: Server
) -> None:
    def begin(stop: str, **more: str) -> Fitted:
        return Fitted(tmp_path, server, 2, "1", stop, script=JOB, launcher="torchrun", **more)

    first = killed_after_rollback(begin(NEVER, KILLED_AT="25"), 20, lr_scale=0.5, skip_batches=3)
    for stop, steps in (("31", range(21, 31)), ("61", range(31, 61))):  # the first one saves step 30 as its last
        with begin(stop) as again:
            again.wait()
        for rank in range(2):
            more = again.truth(rank)[-len(steps) :]
            assert [step.number for step in more] == [*steps]
            assert [step.rate for step in more] == pytest.approx([0.5 * schedule(step) for step in steps])
        assert [step.sample for step in again.truth()[-len(steps) :]] == [first[step + 3] for step in steps]
