"""How a fork that was only inferred is taken back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.processes import Ranks
from support.waiting import wait_until

if TYPE_CHECKING:
    from browser.run.conftest import Visit
    from support.processes import Server

JOB = str(Path(__file__).parents[1] / "jobs" / "stuttering_job.py")
RUN = "r-stutter"

FLAGS = "(stability.page.focus.plot.spec?.labels || []).map((one) => one.words.split(' ')[0])"
STEPS = "stability.page.store.effective('loss').flatMap((l) => l.pieces.flatMap((p) => p.steps.slice(p.from, p.to)))"


@pytest.fixture
def stuttered(server: Server, tmp_path: Path) -> Iterator[Server]:
    """A server that knows the whole run of the stuttering job."""
    with Ranks(JOB, [], url=server.url, folder=tmp_path, run_id=RUN, world_size=1, STABILITY_DRAIN_S="10"):
        server.wait_for(f"/runs/{RUN}", lambda run: run["last_step"] == 80, "step 80 is there")
        yield server


@pytest.mark.soak
def test_a_restart_that_was_none_is_taken_back_by_a_click(stuttered: Server, visit: Visit) -> None:
    page = visit(f"/runs/{RUN}")
    page.wait_for_selector("#lineage [data-undo]")
    wait_until(lambda: "S1" in page.evaluate(FLAGS), 20, "the restart has its flag")
    assert page.inner_text("#kpi-rollbacks .kpi-value") == "1"

    page.click("#lineage [data-undo]")
    page.click("#confirm-dialog .button:not(.primary)")
    page.wait_for_selector("#confirm-dialog", state="detached")
    assert stuttered.get(f"/runs/{RUN}")["rollbacks"] == 1

    page.click("#lineage [data-undo]")
    page.click("#confirm-yes")
    wait_until(lambda: "Taken back" in page.inner_text("#lineage"), 20, "the lineage says so")
    wait_until(lambda: page.inner_text("#kpi-rollbacks .kpi-value") == "0", 10, "it is not counted")
    wait_until(lambda: "S1" not in page.evaluate(FLAGS), 10, "its flag is gone")
    assert page.query_selector("#lineage [data-undo]") is None
    wait_until(lambda: page.evaluate(STEPS) == [*range(1, 81)], 20, "each step is there once")
    assert stuttered.get(f"/runs/{RUN}")["rollbacks"] == 0
