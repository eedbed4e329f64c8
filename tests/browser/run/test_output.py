"""The panel of what a rank printed: it follows the pointer over the curve, and is there only for who may read it."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import httpx
import pytest

from stabilityclient.wire import Output, OutputLine
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.waiting import wait_until

if TYPE_CHECKING:
    from browser.run.conftest import Visit
    from support.processes import Server


@pytest.fixture(scope="module", autouse=True)
def _runs(server: Server) -> None:
    """A run of 600 steps whose rank prints each of them, and one that prints nothing."""

    async def send() -> None:
        job = Job()
        lines = [OutputLine(1000.0, 0, "out", step, f"at {step} <b>&") for step in range(600)]
        lines[300] = OutputLine(1000.0, 0, "err", 300, "ValueError: it broke")
        async with RawAgent(f"{server.url.replace('http', 'ws')}/api/v1/agent") as agent:
            await agent.begin(job.rows(range(600)), job.event("finish"), run_id="r-printing")
            await agent.send(Output("a1", "n0", lines))
            await asyncio.to_thread(wait_until, lambda: total() == 600, 20, "the lines are kept")
        async with RawAgent(f"{server.url.replace('http', 'ws')}/api/v1/agent") as agent:
            quiet = Job()
            await agent.begin(quiet.rows(range(50)), quiet.event("finish"), run_id="r-quiet")

    def total() -> int:
        return int(httpx.get(f"{server.url}/api/v1/runs/r-printing/output").json()["total"])

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, send()).result()


def test_the_newest_lines_come_first_and_the_pointer_brings_those_of_its_step(visit: Visit) -> None:
    page = visit("/runs/r-printing", height=2400)  # chart and lines in sight together, whatever loads between them
    page.click("#output-fold")
    page.wait_for_selector("#output-lines li:has-text('at 599 <b>&')")

    def pointed() -> bool:
        """Point at the middle of the chart, wherever what loads above has moved it; say whether its lines are there."""
        chart = page.locator("#chart-focus").bounding_box()
        assert chart is not None
        page.mouse.move(chart["x"] + chart["width"] / 2, chart["y"] + chart["height"] / 2)
        page.mouse.move(chart["x"] + chart["width"] / 2, chart["y"] + chart["height"] / 2 + 3)
        return page.locator("#output-lines li.error:has-text('ValueError: it broke')").count() > 0

    wait_until(pointed, 60, "the lines of the step under the pointer")
    assert "at step" in page.inner_text("#output-note")
    page.click("#output-live")
    page.wait_for_selector("#output-lines li:has-text('at 599')")


@pytest.mark.soak
def test_where_more_is_printed_than_one_answer_holds_the_newest_lines_are_shown(server: Server, visit: Visit) -> None:
    page = visit("/runs/r-printing")
    page.click("#output-fold")
    page.wait_for_selector("#output-lines li:has-text('at 599 <b>&')")

    async def flood() -> None:
        lines = [OutputLine(1001.0, 0, "out", 599, f"flood {line}") for line in range(3_000)]
        async with RawAgent(f"{server.url.replace('http', 'ws')}/api/v1/agent") as agent:
            await agent.begin(Job(start=5).event("start"), run_id="r-printing")
            await agent.send(Output("a2", "n0", lines))
            await asyncio.to_thread(page_shows.wait, 60)

    page_shows = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        sending = thread.submit(asyncio.run, flood())
        try:
            page.wait_for_selector("#output-lines li:has-text('flood 2999')", timeout=20_000)
        finally:
            page_shows.set()
            sending.result()


def test_a_run_that_printed_nothing_has_no_such_panel(visit: Visit) -> None:
    page = visit("/runs/r-quiet")
    page.wait_for_selector("#detectors-panel:not([hidden])")
    assert page.is_hidden("#output-panel")
