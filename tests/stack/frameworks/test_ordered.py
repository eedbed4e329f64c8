"""Jobs that a framework steps save and stop on order, all ranks at one step, without a line of theirs. Real jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stack.fitted_runs import START_S, Fitted
from support.installed import needs
from support.ports import free_port
from support.processes import Server
from support.waiting import wait_until

pytestmark = [needs("torch", "the jobs of these tests need torch"), pytest.mark.soak]

#: A period of saving that never comes.
NEVER = "100000000"


def job_of(name: str, package: str, script: str, *more: str, launcher: str = "torchrun") -> Any:
    """Return the parameters of one framework's job."""
    marks = needs(package, f"needs torch and {package}")
    return pytest.param(f"frameworks/{script}" if name != "lightning" else script, more, launcher, marks=marks, id=name)


JOBS = [
    job_of("trainer", "transformers", "trainer_job.py"),
    job_of("training", "torch", "trained_job.py", "ddp", NEVER),
    job_of("lightning", "lightning", "fitted_job.py", launcher=""),
    job_of("accelerate", "accelerate", "accelerated_job.py"),
    job_of("composer", "composer", "composed_job.py", "shuffled"),
    job_of("deepspeed", "deepspeed", "engine_job.py", "1", NEVER),
    job_of("torchtitan", "torchtitan", "titan_job.py", "plain"),
]
#: Steps that are compared behind an ordered checkpoint.
COMPARED = 10


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server") / "data", free_port()) as server:
        yield server


@pytest.mark.parametrize(("script", "more", "launcher"), JOBS)
def test_two_ranks_save_when_they_are_told_to_can_go_back_there_and_then_save_and_stop(
    script: str, more: tuple[str, ...], launcher: str, server: Server, tmp_path: Path
) -> None:
    with Fitted(tmp_path, server, 2, *more, script=script, launcher=launcher) as job:
        job.wait_for_run()
        place = f"/runs/{job.run_id}"
        able = server.wait_for(f"{place}/orders", lambda r: r["checkpoint_now"]["possible"], "it says so", START_S)
        assert able["stop"]["possible"]
        saved = job.order(kind="checkpoint_now", accept_inside_incident=False)
        assert saved["state"] == "done", saved["history"]
        step = saved["apply_at_step"] - 1
        job.wait_for_checkpoint(step, 0)
        wait_until(lambda: job.truth(0)[-1].number > step + COMPARED, START_S, "there is something to compare with")
        back = job.order(to_step=step)
        assert back["state"] == "done", back["history"]
        wait_until(lambda: job.truth(0)[-1].number > step + COMPARED, START_S, "the second branch is as long")
        stopped = job.order(kind="stop", save=True, accept_inside_incident=False)
        assert stopped["state"] == "done", stopped["history"]
        last = stopped["apply_at_step"] - 1
        job.wait_for_checkpoint(last, 1)
        job.wait()
        for rank in (0, 1):
            first, again = job.branches(rank)
            assert again[:COMPARED] == first[step : step + COMPARED]
            assert again[-1].number == last
        run = server.wait_for(place, lambda r: r["status"] == "finished", "it is over")
        assert run["state"]["word"].startswith("stopped by ")
