"""Jobs that a framework steps save and stop on order, all ranks at one step, without a line of theirs. Real jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stack.fitted_runs import START_S, Fitted
from support.installed import needs
from support.ports import free_port
from support.processes import Server

pytestmark = [needs("torch", "the jobs of these tests need torch"), pytest.mark.soak]

TRAINER = pytest.param(
    "frameworks/trainer_job.py", (), marks=needs("transformers", "needs torch and transformers"), id="trainer"
)
#: A period of saving that never comes.
NEVER = "100000000"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server") / "data", free_port()) as server:
        yield server


@pytest.mark.parametrize(
    ("script", "more"), [TRAINER, pytest.param("frameworks/trained_job.py", ("ddp", NEVER), id="training")]
)
def test_two_ranks_save_when_they_are_told_to_and_then_save_and_stop(
    script: str, more: tuple[str, ...], server: Server, tmp_path: Path
) -> None:
    with Fitted(tmp_path, server, 2, *more, script=script, launcher="torchrun") as job:
        job.wait_for_run()
        place = f"/runs/{job.run_id}"
        able = server.wait_for(f"{place}/orders", lambda r: r["checkpoint_now"]["possible"], "it says so", START_S)
        assert able["stop"]["possible"]
        saved = job.order(kind="checkpoint_now", accept_inside_incident=False)
        assert saved["state"] == "done", saved["history"]
        job.wait_for_checkpoint(saved["apply_at_step"] - 1, 0)
        stopped = job.order(kind="stop", save=True, accept_inside_incident=False)
        assert stopped["state"] == "done", stopped["history"]
        last = stopped["apply_at_step"] - 1
        job.wait_for_checkpoint(last, 0)
        job.wait()
        assert [job.truth(rank)[-1].number for rank in (0, 1)] == [last, last]
        assert len(job.branches()) == 1
        run = server.wait_for(place, lambda r: r["status"] == "finished", "it is over")
        assert run["state"]["word"].startswith("stopped by ")
