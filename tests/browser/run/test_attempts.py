"""One run over itself in a browser: all attempts, and the two branches of a fork with their difference and values."""

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

JOB = str(Path(__file__).parents[1] / "jobs" / "forked_job.py")
RUN = "r-attempts"


@pytest.fixture
def forked(server: Server, tmp_path: Path) -> Iterator[str]:
    """A run of 400 steps that went back twice."""
    with Ranks(JOB, ["400"], url=server.url, folder=tmp_path, run_id=RUN, world_size=1, STABILITY_DRAIN_S="10"):
        server.wait_for(f"/runs/{RUN}", lambda run: run["last_step"] == 400, "step 400 is there")
        yield f"/runs/{RUN}"


def test_from_the_lineage_to_all_attempts_and_to_the_branches_of_a_fork(forked: str, visit: Visit) -> None:
    page = visit(forked)
    page.click("#lineage a.segment-more")
    page.wait_for_selector("#attempts-table tbody tr:nth-child(3)")
    assert page.inner_text("#attempts-text") == (
        "2 attempts; each ended between 150 and 200 steps after its start, with a spike. "
        "The last one finished 150 steps after its start."
    )
    rows = [row.inner_text() for row in page.query_selector_all("#attempts-table tbody tr")]
    assert ["rolled back by the job" in row for row in rows] == [True, True, False]
    assert "spike number 1" in rows[0]
    lines = "stability.page.plot.spec.lines.map((one) => [one.name, one.x.length > 0])"
    assert page.evaluate(lines) == [["start", True], ["R1", True], ["R2", True]]
    page.go_back()
    page.click("#lineage [data-segment='1'] a.link")
    page.wait_for_selector("#attempts-table tbody tr")
    assert page.inner_text("#attempts-table th:nth-child(3)").lower() == "left by r1"
    wait_until(
        lambda: page.evaluate("stability.page.lower.spec?.lines[1]?.x.length") == 50, 20, "the difference is there"
    )
    assert page.inner_text("#attempts-table tbody tr:first-child td:nth-child(2)") == "151"
    page.set_viewport_size({"width": 390, "height": 844})
    wait_until(lambda: page.evaluate("document.documentElement.scrollWidth <= innerWidth"), 10, "it fits a phone")
