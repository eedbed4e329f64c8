"""An ordered rollback is undone on the page: from the lineage, with a real job that goes back to the branch it left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from support.processes import Ranks
from support.waiting import wait_until

if TYPE_CHECKING:
    from browser.run.conftest import Visit
    from support.processes import Server

JOB = str(Path(__file__).parents[2] / "stack" / "job.py")
RUN = "r-undone"
STEPS = "stability.page.store.effective('loss').flatMap((l) => l.pieces.flatMap((p) => p.steps.slice(p.from, p.to)))"


@pytest.fixture
def rolled_back(server: Server, tmp_path: Path) -> Iterator[Server]:
    """A job of two ranks that was rolled back from beyond step 50 to step 20."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "together").mkdir()
    enough = tmp_path / "enough"
    plan = {
        "stop": 100_000, "period_s": 0.05, "enough": str(enough), "apart": True,
        "checkpoints": str(tmp_path / "checkpoints"), "together": str(tmp_path / "together"),
    }  # fmt: skip
    with Ranks(JOB, [json.dumps(plan)], url=server.url, folder=tmp_path / "spool", run_id=RUN) as ranks:
        server.wait_for(f"/runs/{RUN}", lambda run: (run["last_step"] or 0) > 55, "step 55 is there", 60)
        order = {"kind": "rollback", "to_step": 20, "reason": "a test"}
        answer = httpx.post(f"{server.url}/api/v1/runs/{RUN}/commands", json=order)
        assert answer.status_code == 201, answer.text
        path = f"/runs/{RUN}/commands/{answer.json()['command_id']}"
        server.wait_for(path, lambda one: one["state"] == "done", "it is rolled back", 60)
        yield server
        enough.touch()
        ranks.outputs()


@pytest.mark.soak  # dear; that it can be undone is in tests/backend/api/test_server.py
def test_the_branch_that_was_left_is_the_one_that_counts_again_by_two_clicks(rolled_back: Server, visit: Visit) -> None:
    page = visit(f"/runs/{RUN}")
    page.wait_for_selector("#lineage [data-return='0']")
    page.click("#lineage [data-return='0']")
    page.wait_for_selector("#rollback-confirm")
    assert page.inner_text("#rollback-title").startswith("Undo the rollback")
    assert "was left at step" in page.inner_text("#rollback-why")
    assert page.is_disabled("#rollback-skip")
    words = page.inner_text("#rollback-sentence")
    assert "Both ranks stop" in words
    assert "of that branch count again" in words
    to_step = int(page.evaluate("stability.page.dialog.chosen"))
    page.click("#rollback-confirm")
    page.wait_for_selector("#rollback-progress[data-state=done]")
    assert f"Return to step {to_step:,} of the discarded branch done" in page.inner_text("#rollback-progress")
    page.click("#rollback-close")
    segments = rolled_back.get(f"/runs/{RUN}/segments")["segments"]
    assert [(one["parent"], one["fork_step"], one["returns_to"]) for one in segments] == [
        (None, None, None),
        (0, 20, None),
        (0, to_step, 0),
    ]
    wait_until(lambda: max(page.evaluate(STEPS)) > to_step + 3, 30, "new steps follow")
    steps = page.evaluate(STEPS)
    assert sorted(set(steps)) == list(range(1, max(steps) + 1))
