"""The demo starts its job again when people order a restart, once for each, however the ranks ended."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stabilityplugins.demo import job as demo_job
from stabilityplugins.demo.job import TrainingJob
from stabilityplugins.demo.options import parse_options
from support.waiting import wait_until


class Ordered:
    """A run with these commands."""

    run_id = "demo-1"

    def __init__(self) -> None:
        self.restarts: list[Any] = []

    def commands(self) -> list[Any]:
        return self.restarts


class Restart:
    kind = "restart"

    def __init__(self, command_id: str, state: str = "acted") -> None:
        self.command_id, self.state = command_id, state


Make = Callable[[int], tuple[TrainingJob, Ordered]]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    def starts(code: int) -> tuple[TrainingJob, Ordered]:
        monkeypatch.setattr(demo_job, "training_command", lambda *_: [sys.executable, "-S", "-c", f"exit({code})"])
        run = Ordered()
        options = parse_options(["--data-dir", str(tmp_path), "--fault", "none"])
        return TrainingJob(options, Path("train.py"), run, "http://127.0.0.1:1"), run  # type: ignore[arg-type]

    return starts


@pytest.mark.parametrize("code", [0, 1])
def test_ranks_that_a_restart_ended_are_started_again_once(code: int, make: Make) -> None:
    job, run = make(code)
    run.restarts = [Restart("c-1"), Restart("c-0", "done")]
    wait_until(lambda: not job.running, 30, "it is over")
    assert job.starts == 2
    run.restarts = [Restart("c-2"), Restart("c-1", "done")]
    wait_until(lambda: not job.running, 30, "it is over again")
    assert job.starts == 3
    job.end()
    run.restarts = [Restart("c-3")]
    assert (job.running, job.starts) == (False, 3)


@pytest.mark.parametrize("code", [0, 1])
def test_a_job_that_ends_by_itself_is_not_started_again(code: int, make: Make) -> None:
    job, _ = make(code)
    wait_until(lambda: not job.running, 30, "it is over")
    assert job.starts == 1
