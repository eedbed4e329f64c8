"""What people note on a run's charts: by key and button, on every page that is open, as text and never as markup."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from support.gateway_stack import log_frames
from support.job_frames import Job
from support.waiting import wait_until

if TYPE_CHECKING:
    from browser.conftest import OpenPage
    from browser.run.conftest import Visit
    from support.processes import Server

RUN = "r-noted"

READY = "Boolean(stability.page && stability.page.ready && stability.page.focus.hasLine())"
FLAGS = "(stability.page.focus.plot.spec?.labels || []).map((one) => one.words).filter((one) => one.startsWith('✎'))"
RULES = "(stability.page.focus.plot.spec?.rules || []).filter((one) => one.words).map((one) => [one.x, one.to])"
MARKUP = "shard <img src=x onerror=\"document.title='hacked'\"> 42"


@pytest.fixture(scope="module", autouse=True)
def _run(server: Server) -> None:
    """A run of 80 steps."""
    job, steps = Job(), range(1, 81)
    rows = job.rows(steps, {"loss": [2.0 + 1.0 / step for step in steps]})
    log_frames(server.url, rows, job.event("finish"), run_id=RUN)
    server.wait_for(f"/runs/{RUN}", lambda run: run["last_step"] == 80, "step 80 is there")


def test_a_note_at_the_cursor_is_on_every_open_page_and_goes_from_all_when_it_is_deleted(
    server: Server, visit: Visit, open_page: OpenPage
) -> None:
    mine, other = visit(f"/runs/{RUN}"), open_page(f"{server.url}/runs/{RUN}")
    for page in (mine, other):
        wait_until(lambda page=page: page.evaluate(READY), 30, "the chart is there")
    mine.focus("#chart-focus")
    for _ in range(3):
        mine.keyboard.press("ArrowLeft")
    mine.keyboard.press("a")
    at = int(mine.input_value("#annotation-first"))
    assert mine.input_value("#annotation-last") == str(at)
    mine.fill("#annotation-text", MARKUP)
    mine.click("#annotation-save")
    for page in (mine, other):
        page.wait_for_selector("#annotations .annotation")
        assert page.inner_text("#annotations .annotation p") == MARKUP
        assert page.query_selector("#annotations img") is None
        wait_until(lambda page=page: page.evaluate(FLAGS) == ["✎"], 20, "its flag is on the chart")
        assert page.evaluate(RULES) == [[at, at]]
        assert "hacked" not in page.title()

    other.click("#annotations .annotation-foot button:first-child")
    other.fill("#annotation-last", str(at + 5))
    other.fill("#annotation-text", "shard 42")
    other.click("#annotation-save")
    wait_until(lambda: mine.inner_text("#annotations .annotation p") == "shard 42", 20, "the first page follows")
    wait_until(lambda: mine.evaluate(RULES) == [[at, at + 5]], 20, "and its band")

    mine.click("#annotations .annotation-foot button:last-child")
    mine.click("#confirm-yes")
    for page in (mine, other):
        page.wait_for_selector("#annotations-panel", state="hidden")
        wait_until(lambda page=page: page.evaluate(FLAGS) == [], 20, "no flag is left")
    assert server.get(f"/runs/{RUN}/annotations")["annotations"] == []


@pytest.mark.soak
def test_a_note_that_could_not_be_stored_stays_in_the_form_until_it_is(server: Server, visit: Visit) -> None:
    page = visit(f"/runs/{RUN}", quiet=False)
    wait_until(lambda: page.evaluate(READY), 30, "the chart is there")
    page.route("**/annotations/*", lambda route: (route.fetch(), route.abort()), times=1)  # stored, and no answer
    page.click("#annotate")
    page.fill("#annotation-text", "written while Redis stood still")
    page.click("#annotation-save")
    told = page.wait_for_selector("#annotation-dialog [role=alert]:not([hidden])").inner_text()
    assert told == "No answer from the server. What you sent may not be stored: look, then send it again."
    assert page.input_value("#annotation-text") == "written while Redis stood still"
    page.click("#annotation-save")
    page.wait_for_selector("#annotation-dialog", state="detached")
    (kept,) = server.get(f"/runs/{RUN}/annotations")["annotations"]
    assert (kept["text"], kept["edited"]) == ("written while Redis stood still", None)
    httpx.delete(f"{server.url}/api/v1/runs/{RUN}/annotations/{kept['annotation_id']}")


@pytest.mark.soak
def test_a_zoomed_range_is_noted_by_the_button_and_a_wrong_one_is_not_sent(server: Server, visit: Visit) -> None:
    page = visit(f"/runs/{RUN}?from=20&to=40")
    wait_until(lambda: page.evaluate(READY), 30, "the chart is there")
    page.click("#annotate")
    assert [page.input_value(f"#annotation-{name}") for name in ("first", "last")] == ["20", "40"]
    page.click("#annotation-save")
    assert page.inner_text("#annotation-dialog [role=alert]") == "Say what is to be seen there."
    page.fill("#annotation-text", "plateau")
    page.fill("#annotation-first", "41")
    page.click("#annotation-save")
    assert page.inner_text("#annotation-dialog [role=alert]") == "The last step is before the first."
    page.fill("#annotation-first", "20")
    page.select_option("#annotation-metric", "loss")
    page.click("#annotation-save")
    page.wait_for_selector("#annotations .annotation")
    (kept,) = server.get(f"/runs/{RUN}/annotations")["annotations"]
    assert (kept["first_step"], kept["last_step"], kept["text"], kept["metric"]) == (20, 40, "plateau", "loss")
    page.click("#annotations .annotation-foot button:last-child")
    page.click("#confirm-yes")
    page.wait_for_selector("#annotations-panel", state="hidden")
