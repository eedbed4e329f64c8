"""``integrations.megatron.watched``: Megatron's own loop is watched, and comes back from a plan. Real jobs on the CPU.

Of Megatron nothing is replaced; what it asks of CUDA is answered by ``megatron_on_cpu.py``.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stabilityclient.agent.watch.checkpoint_kinds.inspection import inspect
from stack import fitted_runs
from stack.fitted_runs import Fitted
from support.installed import needs
from support.ports import free_port
from support.processes import Server
from support.waiting import wait_until

pytestmark = needs("megatron", "the job of this test needs Megatron-LM")

JOB = "frameworks/megatron_job.py"
#: A start imports Megatron in each rank, and its first save in a process more, seconds.
START_S = 180.0
_PRINTED = re.compile(
    r"iteration +(\d+)/ .*learning rate: (\S+) .*lm loss: (\S+) .*loss scale: (\S+) .*grad norm: (\S+) "
)
_VALIDATED = re.compile(r"validation loss at iteration (\d+) \| lm loss value: (\S+) ")


class Printed(NamedTuple):
    """What Megatron itself printed of a step."""

    step: int
    lr: float
    loss: float
    loss_scale: float
    grad_norm: float


def printed(folder: Path) -> list[list[Printed]]:
    """Return what was printed of each step, of each start of the job."""
    found: list[list[Printed]] = []
    for match in _PRINTED.finditer((folder / "log").read_text(errors="replace")):
        row = Printed(int(match[1]), *map(float, match.groups()[1:]))
        if not found or row.step <= found[-1][-1].step:
            found.append([])
        found[-1].append(row)
    for start in (one for one in found if len(one) > 1):
        # Megatron adds the first loss of a start to the second one, and prints their mean.
        start[1] = start[1]._replace(loss=2 * start[1].loss - start[0].loss)
    return found


def batches(folder: Path, rank: int) -> list[dict[int, int]]:
    """Return which batch a rank was trained on in each step, of each start."""
    found: list[dict[int, int]] = [{}]
    for line in (folder / f"truth.{rank}").read_text().splitlines():
        step, batch = map(int, line.split())
        if found[-1] and step <= max(found[-1]):
            found.append({})
        found[-1][step] = batch
    return found


class Story(NamedTuple):
    """What was ordered, and what Megatron did in each start."""

    job: Fitted
    command: dict[str, Any]
    stop: int
    starts: list[list[Printed]]
    batches: list[list[dict[int, int]]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server") / "data", free_port()) as server:
        yield server


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Iterator[Story]:
    """To before step 60 and back to 20 by a plan with changes; a rank is killed behind the next save; a stop."""
    folder = tmp_path_factory.mktemp("megatron")
    with (
        pytest.MonkeyPatch.context() as patch,
        Fitted(folder, server, 2, script=JOB, launcher="torchrun", **fitted_runs.RESTARTS) as job,
    ):
        patch.setattr(fitted_runs, "START_S", START_S)
        patch.setattr(fitted_runs, "STOP_STEPS", 30)
        job.wait_for_run()
        job.wait_for_checkpoint(40, 0)
        wait_until(lambda: printed(folder)[-1][-1].step > 50, START_S, "the first start is long")
        command = job.order(kind="restart", to_step=20, lr_scale=0.5, skip_batches=3, grace_s=5, within_s=START_S)
        job.wait_for_checkpoint(40, 1)
        wait_until(lambda: printed(folder)[-1][-1].step > 50, START_S, "the second start is long")
        os.kill(_pid(job, 1), signal.SIGKILL)
        wait_until(lambda: len(printed(folder)) > 2 and printed(folder)[-1][-1].step > 60, START_S, "it is back")
        stop = job.stop(last=printed(folder)[-1][-1].step)
        assert job.process.wait(START_S) == 0
        yield Story(job, command, stop, printed(folder), [batches(folder, rank) for rank in range(2)])


def _pid(job: Fitted, rank: int) -> int:
    """Return the process of a rank in the newest start."""
    sources = (job.folder / "spool" / job.run_id / "sources").glob(f"r{rank}-*")
    return int(max(sources, key=lambda one: one.stat().st_mtime_ns).name.rpartition("-")[2])


def _series(story: Story, metric: str) -> dict[int, float]:
    """Return a metric of the effective curve, each step of which is there once."""
    story.job.server.wait_for(f"/runs/{story.job.run_id}", lambda run: run["status"] == "finished", "it is finished")
    told = story.job.get("/series", metric=metric, rank=0)["series"]
    rows = {step: value for entry in told for step, value in zip(entry["steps"], entry["values"], strict=True)}
    assert sum(len(entry["steps"]) for entry in told) == len(rows)
    return rows


def _effective(story: Story) -> list[Printed]:
    first, second, third = story.starts
    return [*first[:20], *(row for row in second if row.step < third[0].step), *third]


def test_the_restart_is_done_from_the_plan(story: Story) -> None:
    print("seconds from the order to the first step after it:", round(story.command["took_s"], 1))
    assert story.command["state"] == "done", story.command["history"]
    assert (story.starts[0][0].step, story.starts[1][0].step) == (1, 24)
    assert [one["fork_step"] for one in story.job.get("/segments")["segments"]] == [None, 20, 40]


@pytest.mark.parametrize("metric", ["loss", "lr", "grad_norm", "loss_scale"])
def test_each_step_is_once_in_the_effective_series_with_the_value_that_megatron_printed(
    story: Story, metric: str
) -> None:
    expected = {row.step: getattr(row, metric) for row in _effective(story)}
    close = {"grad_norm": 6e-4, "loss": 3e-6}.get(metric, 0)  # it is printed with so many digits
    assert _series(story, metric) == pytest.approx(expected, rel=1e-6, abs=close)


def test_samples_and_tokens_are_counted_and_left_out_steps_are_marked(story: Story) -> None:
    rows = _effective(story)
    steps = range(1, rows[-1].step + 1)
    assert _series(story, "consumed_samples") == {step: step * 8 for step in steps}
    assert _series(story, "consumed_tokens") == {step: step * 8 * 32 for step in steps}
    assert [*_series(story, "step_time_s")] == [*steps]
    assert _series(story, "skipped_batches") == dict.fromkeys((21, 22, 23), 1)
    for metric in ("skipped_iterations", "nan_iterations"):
        assert _series(story, metric) == dict.fromkeys((row.step for row in rows), 0)
    for metric in ("tokens_per_s", "tflops_per_gpu"):
        assert [*_series(story, metric)] == [row.step for row in rows]


def test_validations_are_those_that_megatron_printed(story: Story) -> None:
    log = (story.job.folder / "log").read_text(errors="replace")
    told = {int(match[1]): float(match[2]) for match in _VALIDATED.finditer(log)}
    assert _series(story, "val_loss") == pytest.approx(told, rel=1e-5)
    assert {30, 60} <= told.keys()


def test_the_rate_is_that_of_the_schedule_times_the_scale_from_the_first_step_on(story: Story) -> None:
    first, second, _ = story.starts
    unscaled = {row.step: row.lr for row in first}
    # Megatron's schedule stands still while batches are left out.
    pairs = [(row.lr, 0.5 * unscaled[row.step - 3]) for row in second if row.step - 3 in unscaled]
    assert len(pairs) > 20
    assert [rate for rate, _ in pairs] == pytest.approx([half for _, half in pairs], rel=1e-5)


def test_exactly_what_was_ordered_is_left_out_of_the_data(story: Story) -> None:
    for first, second, _ in story.batches:
        assert {21, 22, 23} <= first.keys()
        assert min(second) == 24
        both = first.keys() & second.keys()
        assert len(both) > 20
        assert {step: second[step] for step in both} == {step: first[step] for step in both}


def test_a_start_without_a_plan_goes_on_with_the_scale_that_its_checkpoint_has(story: Story) -> None:
    _, second, third = story.starts
    assert third[0].step == 41
    again = {row.step: row for row in second}
    both = [row for row in third if row.step in again]
    assert len(both) > 5
    assert [row.lr for row in both] == [again[row.step].lr for row in both]
    assert [row.loss for row in both] == pytest.approx([again[row.step].loss for row in both], rel=1e-6)


def test_a_stop_is_obeyed_at_its_step_with_the_state_saved(story: Story) -> None:
    last = story.stop - 1
    assert story.starts[-1][-1].step == last
    assert (story.job.folder / "checkpoints/latest_checkpointed_iteration.txt").read_text() == str(last)


def test_checkpoints_are_known_with_step_kind_and_ranks(story: Story) -> None:
    (saved,) = [one for one in story.job.get("/checkpoints")["checkpoints"] if (one["step"], one["segment"]) == (40, 1)]
    path = str(story.job.folder / "checkpoints/iter_0000040")
    assert (saved["path"], saved["kind"], saved["available"]) == (path, "megatron", True)


def test_a_checkpoint_with_any_file_missing_or_cut_off_is_not_whole(story: Story, tmp_path: Path) -> None:
    saved = story.job.folder / "checkpoints/iter_0000020"
    whole = inspect(str(saved), 2)
    assert whole is not None
    assert (whole.kind, whole.complete, whole.world_size) == ("megatron", True, 2)
    for name in sorted(one.name for one in saved.iterdir()):
        torn = Path(shutil.copytree(saved, tmp_path / name))
        for share in (0.99, 0.5, 0.0):
            os.truncate(torn / name, int((saved / name).stat().st_size * share))
            look = inspect(str(torn), 2)
            assert look is not None
            assert (look.complete, look.bad) == (False, (name,))
        (torn / name).unlink()
        look = inspect(str(torn), 2)
        assert look is not None
        assert (look.complete, look.bad) == (False, (name,))


@pytest.mark.soak
def test_it_saves_on_order_off_its_interval_and_comes_back_there(server: Server, tmp_path: Path) -> None:
    with Fitted(tmp_path, server, 2, script=JOB, launcher="torchrun", **fitted_runs.RESTARTS) as job:
        job.wait_for_run()
        place = f"/runs/{job.run_id}/orders"
        server.wait_for(place, lambda r: r["checkpoint_now"]["possible"], "it says that it saves", START_S)
        saved = job.order(kind="checkpoint_now", accept_inside_incident=False, within_s=START_S)
        assert saved["state"] == "done", saved["history"]
        step = saved["apply_at_step"] - 1
        job.wait_for_checkpoint(step, 0)
        wait_until(lambda: max(batches(tmp_path, 0)[0]) > step + 10, START_S, "there is something to compare with")
        back = job.order(kind="restart", to_step=step, seed=3, grace_s=5, within_s=START_S)
        assert back["state"] == "done", back["history"]
        wait_until(lambda: max(batches(tmp_path, 0)[-1]) > step + 10, START_S, "the second start is as long")
        for rank in (0, 1):
            first, again = batches(tmp_path, rank)
            assert {at: again[at] for at in range(step + 1, step + 11)} == {
                at: first[at] for at in range(step + 1, step + 11)
            }
        assert "seed 3 is ordered, and this job can take none" in (tmp_path / "log").read_text()


@pytest.mark.soak
def test_where_it_can_save_none_that_is_one_to_go_back_to_the_offer_says_why(server: Server, tmp_path: Path) -> None:
    with Fitted(tmp_path, server, 2, "--no-save-optim", script=JOB, launcher="torchrun") as job:
        job.wait_for_run()
        place = f"/runs/{job.run_id}/orders"
        able = server.wait_for(place, lambda r: r["stop"]["possible"], "it says what it can", START_S)["checkpoint_now"]
        assert (able["possible"], able["why"][:15]) == (False, "--no-save-optim")
