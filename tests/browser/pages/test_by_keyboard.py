"""By the keyboard alone: from page to page, from row to row, an incident found and acknowledged, a metric's chart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stabilityclient.wire import Hello
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.server_stack import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]

EVIL = "<b>bold</b> " + "long " * 60


async def _run(server: RunningServer, run_id: str, name: str, start: int) -> None:
    job = Job(0, start)
    death = {"rank": 0, "source": job.info.source, "pid": 7, "last_phase": "backward", "evidence": {"text": "gone"}}
    async with RawAgent(server.agent_url) as agent:
        await agent.ask(Hello(run_id, f"a-{run_id}", f"gpu-{start:03d}", "0.1.0", project="llm", name=name))
        await agent.ask(job.rows(range(1, 101)))
        await agent.ask(job.event("process_death", 100, **death))


@pytest.fixture
def server(redis_url: str, tmp_path: Path) -> Iterator[RunningServer]:
    """A server with two runs whose job died."""
    with RunningServer(redis_url, tmp_path / "data") as server:
        for start, name in ((1, "seven-b"), (20, EVIL)):
            with ThreadPoolExecutor(1) as thread:  # in this one Playwright's loop runs
                thread.submit(asyncio.run, _run(server, f"run-{start}", name, start)).result()
        server.wait_for("/incidents?state=open", lambda a: a["total"] == 2, "two incidents")
        yield server


def _press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def _path(page: Page) -> Any:
    return page.evaluate("location.pathname")


@pytest.mark.soak
def test_incidents_are_gone_through_acknowledged_and_opened_without_a_pointer(
    server: RunningServer, open_page: OpenPage
) -> None:
    page = open_page(server.url)
    page.wait_for_selector("[data-count=incidents]:text-is('2')")
    _press(page, "g", "i")
    page.wait_for_selector(".incident-row")
    assert _path(page) == "/incidents"
    _press(page, "j", "j", "k")
    first = page.evaluate("document.activeElement.dataset.row")
    assert first == page.get_attribute(".incident-row", "data-row-of")
    _press(page, "x")
    assert page.inner_text("#incidents-ack") == "Acknowledge 1"
    _press(page, "a")
    page.wait_for_selector(".incident-row .row-do:has-text('just now')")
    assert server.get("/incidents", limit=0)["counts"]["unacknowledged"] == 1
    _press(page, "/")
    page.keyboard.type("bold g i j")  # letters in a field are letters
    page.wait_for_selector("#incidents-empty:has-text('No incident fits')")
    assert _path(page) == "/incidents"
    assert page.evaluate("new URLSearchParams(location.search).get('q')") == "bold g i j"
    page.keyboard.press("Control+a")
    page.keyboard.type("bold")
    page.wait_for_selector(".row-run a:has-text('<b>bold</b>')")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    _press(page, "Escape", "j")
    assert page.input_value("#incidents-search input") == "bold"  # out of the field, not out of the search
    _press(page, "Enter")
    page.wait_for_selector("#incident-verdict .verdict-words")
    _press(page, "u")
    page.wait_for_selector("#run-name:has-text('bold')")
    _press(page, "g", "f")
    page.wait_for_selector("#down-now:has-text('2 runs that stopped over a day ago')")  # by the job's clock


@pytest.mark.soak
def test_the_search_finds_run_metric_incident_node_page_and_command_and_remembers(
    server: RunningServer, open_page: OpenPage
) -> None:
    page = open_page(server.url)
    page.wait_for_selector("#runs-body tr, #runs-table, main")
    _press(page, "Control+k")
    page.keyboard.type("seven")
    page.wait_for_selector("[data-choice=run-run-1]")
    assert page.get_attribute("#palette-input", "aria-activedescendant") == "palette-0"
    _press(page, "ArrowDown", "ArrowUp", "Enter")
    page.wait_for_selector("#run-name:text-is('seven-b')")
    page.wait_for_selector("#incidents article")
    _press(page, "Control+k")
    assert "seven-b" in page.inner_text("#palette-list [role=group]")  # chosen lately
    page.keyboard.type("loss")
    page.wait_for_selector("[data-choice='metric-loss']")
    _press(page, "Escape")
    page.wait_for_selector("#palette", state="detached")
    _press(page, "Control+k")
    page.keyboard.type("gpu-020")
    page.wait_for_selector("[data-choice='machine-gpu-020-'] .sub:has-text('bold')")
    page.keyboard.press("Control+a")
    page.keyboard.type("died")
    page.wait_for_selector("[data-choice^=incident]")
    page.keyboard.press("Control+a")
    page.keyboard.type("dark and light")
    page.wait_for_selector("[data-choice^=command][aria-selected=true]")
    before = page.evaluate("document.documentElement.dataset.theme")
    _press(page, "Enter")
    assert page.evaluate("document.documentElement.dataset.theme") != before
    _press(page, "?")
    page.wait_for_selector("#keys-dialog dt:has-text('g')")
    _press(page, "Escape", "g", "c")
    page.wait_for_selector("#compare-empty:has-text('No run is chosen')")
    assert _path(page) == "/compare"


@pytest.mark.soak
def test_on_an_incidents_page_j_goes_to_the_next_open_one_of_all_runs(
    server: RunningServer, open_page: OpenPage
) -> None:
    first, second = (
        f"/runs/{one['run_id']}/incidents/{one['incident_id']}" for one in server.get("/incidents")["incidents"]
    )
    page = open_page(f"{server.url}{first}")
    for key, path in (("j", second), ("k", first)):
        page.wait_for_selector("#incident-verdict .verdict-words")
        _press(page, key)
        page.wait_for_function("path => location.pathname === path", arg=path)
        page.wait_for_function("path => path.endsWith(stability.page?.incidentId)", arg=path)
