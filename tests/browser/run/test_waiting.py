"""The page of a run whose job is just starting: it says what it waits for, and turns into the run by itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from support.processes import Ranks
from support.waiting import wait_in

if TYPE_CHECKING:
    from browser.run.conftest import Visit
    from support.processes import Server

JOB = str(Path(__file__).parents[1] / "jobs" / "forked_job.py")
RUN = "r-starting"


def test_a_page_that_is_opened_before_its_job_waits_and_turns_into_the_run(
    server: Server, visit: Visit, tmp_path: Path
) -> None:
    # A browser writes each answer of 404 to the console by itself.
    page = visit(f"/runs/{RUN}", quiet=False)
    page.wait_for_selector("#run-empty .waiting")
    words = page.inner_text("#run-empty")
    assert "Waiting for the job" in words
    assert f"Run {RUN} has not begun here yet" in words
    assert page.locator("#run-empty .waits li.now").count() == 1
    assert page.title() == f"{RUN} · waiting"
    page.evaluate("() => { window.unloaded = false; }")
    with Ranks(JOB, ["120"], url=server.url, folder=tmp_path, run_id=RUN, world_size=1, STABILITY_DRAIN_S="10"):
        wait_in(page, "document.querySelector('#run-step')?.textContent === '120'")
    wait_in(page, "stability.page.state === 'live'")
    assert page.is_hidden("#run-empty")
    assert page.is_visible("#chart-focus")
    assert page.evaluate("window.unloaded") is False


def test_an_address_that_can_be_no_run_is_said_to_be_none_as_text(visit: Visit) -> None:
    page = visit("/runs/nobody%3Cb%3E", quiet=False)
    page.wait_for_selector("#run-empty:not([hidden])")
    assert "This run can't be shown" in page.inner_text("#run-empty")
    assert "nobody<b>" in page.inner_text("#run-empty")


def test_a_page_that_waited_for_two_minutes_says_what_to_look_at(server: Server, visit: Visit) -> None:
    page = visit("/runs/nobody", quiet=False)
    page.wait_for_selector("#run-empty .waiting")
    page.evaluate("() => { window.realNow = Date.now; Date.now = () => realNow.call(Date) + 125_000; }")
    try:
        wait_in(page, "document.querySelector('#run-empty')?.textContent.includes('stabilityboard doctor')")
    finally:
        page.evaluate("() => { Date.now = window.realNow; }")
    assert f"STABILITY_URL={server.url}" in page.inner_text("#run-empty")
