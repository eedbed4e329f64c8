"""A task of the nodes is ordered on the page of the run, and what each node answered is told in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.processes import Ranks

if TYPE_CHECKING:
    from browser.run.conftest import Visit
    from support.processes import Server

TASK = Path(__file__).parents[3] / "examples" / "extending" / "node" / "disk_space.py"


@pytest.fixture
def training(server: Server, tmp_path: Path) -> Iterator[Server]:
    """A server with a run that trains, on a node that has a task."""
    plan = json.dumps({"stop": 100_000, "period_s": 0.05})
    where = {"url": server.url, "folder": tmp_path, "run_id": "r-task", "world_size": 1}
    with Ranks("job.py", [plan], **where, STABILITY_AGENT_PLUGINS=str(TASK)):
        server.wait_for("/runs/r-task", lambda run: run["agents"] == 1 and run["last_step"], "the job trains")
        yield server


@pytest.mark.soak
def test_a_task_is_run_by_its_name_and_its_answer_is_told_a_wrong_name_is_refused_in_words(
    training: Server, visit: Visit
) -> None:
    page = visit("/runs/r-task")
    page.click("#orders-open")
    page.click("#task-open:not([disabled])")
    assert page.is_disabled("#task-confirm")
    page.fill("#task-name", "rm_rf")
    page.click("#task-confirm")
    page.wait_for_selector("#task-progress .problem:has-text(\"There is no task 'rm_rf' on this node\")")
    page.click("#task-close")

    page.click("#orders-open")
    page.click("#task-open")
    page.fill("#task-name", "disk_space")
    page.fill("#task-reason", "before the long run")
    page.click("#task-confirm")
    page.wait_for_selector("#task-progress[data-state='done'] .sentence.good")
    assert "Task disk_space: done on 1 of 1 node." in page.inner_text("#task-progress")
    assert "GiB free" in page.inner_text("#task-progress .stages")

    (newest, _) = training.get("/runs/r-task/commands")["commands"]
    assert (newest["task"], newest["reason"]) == ("disk_space", "before the long run")
