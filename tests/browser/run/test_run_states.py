"""States of a run that are seldom seen: one that the server fails at, one whose job was started again and went on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from redis import Redis

from stabilitybackend.base.keys import RunKeys
from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis
from support.gateway_stack import log_frames
from support.job_frames import Job
from support.server_stack import RunningServer

if TYPE_CHECKING:
    from browser.conftest import OpenPage
    from browser.run.conftest import Visit
    from support.processes import Server


@pytest.mark.soak
def test_a_run_that_the_server_fails_at_is_listed_as_failed_and_its_page_says_why(
    tmp_path: Path, open_page: OpenPage
) -> None:
    with EmbeddedRedis(tmp_path) as embedded:
        with RunningServer(embedded.url, tmp_path / "data") as server:
            log_frames(server.url, Job().rows(range(1, 60)))
            server.wait_for("/runs/run-1", lambda run: run["last_step"] == 59, "it is there")
        with Redis.from_url(embedded.url) as redis:
            redis.set(RunKeys("run-1").undone, "no set")  # no version can read it
        with RunningServer(embedded.url, tmp_path / "data") as server:
            failed = lambda answer: answer["runs"][0]["status"] == "failed"  # noqa: E731
            server.wait_for("/runs", failed, "it has failed", 30)
            page = open_page(server.url, quiet=False)  # its curve is refused
            page.wait_for_selector("tr[data-run] .pill.critical")
            assert page.inner_text("tr[data-run] .pill") == "server error"
            page.click("tr[data-run] a.run-link")
            page.wait_for_selector("#run-empty h2")
            assert page.inner_text("#run-empty h2") == "This run can't be shown"
            assert "The server fails at following run run-1. See the server's log." in page.inner_text("#run-empty")
            assert page.is_hidden("#run-main")
            page.context.close()  # before its server goes


def test_a_job_that_was_started_again_and_went_on_has_a_segment_and_no_fork(server: Server, visit: Visit) -> None:
    old, new = [Job(rank, 1, 2) for rank in (0, 1)], [Job(rank, 2, 2) for rank in (0, 1)]
    for frame in [*(job.rows(range(1, 101)) for job in old), *(job.rows(range(101, 141)) for job in new)]:
        log_frames(server.url, frame, run_id="r-went-on")
    server.wait_for("/runs/r-went-on", lambda run: run["last_step"] == 140, "both launches are there")
    page = visit("/runs/r-went-on")
    page.wait_for_selector("#lineage .segment.head")
    assert page.locator("#lineage .segment b").all_inner_texts() == ["Start", "Started again"]
    assert page.locator("#lineage .segment.discarded").count() == 0
    assert page.inner_text("#run-segment") == "segment 2 of 2"
    assert page.evaluate("stability.page.forkList") == []
