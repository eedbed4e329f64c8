"""The fleet's page beside a job that dies: empty before, a line after, corrected by a person, kept in the address."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.ports import free_port
from support.processes import Ranks, Server
from support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    port = free_port()
    with Server(tmp_path / "data", port) as server:
        yield server


@pytest.mark.soak
def test_an_interruption_comes_by_itself_is_corrected_and_leads_to_its_incident(
    server: Server, open_page: OpenPage, tmp_path: Path
) -> None:
    page = open_page(server.url, width=1000)
    page.click("#pages a[href='/interruptions']")
    page.wait_for_selector("#fleet-empty h2")
    assert page.inner_text("#fleet-empty h2") == "No run trained"
    assert "Llama 3" in page.inner_text("#fleet-empty")

    plan = json.dumps({"stop": 100_000, "period_s": 0.02, "die_at": [0, 40]})
    with Ranks("job.py", [plan], url=server.url, folder=tmp_path / "spool", run_id="r-1", world_size=1):
        # Nobody asks for it: the page hears that the run's state changed.
        page.wait_for_selector("#fleet-list .ag-row")
        assert page.inner_text("#fleet-total-count .kpi-value") == "1"
        # What happened stands alone; categories without a case are folded.
        (row,) = page.locator("#fleet-table tbody tr:visible").all_inner_texts()
        assert row.split("\t")[:3] == ["Unknown", "1", "100 %"]
        assert page.is_visible("summary:has-text('categories without a case')")
        page.click("#fleet-list .ag-row [col-id=since] a")
        page.wait_for_selector("#fleet-open:has-text('SIGKILL')")

        # A person knows better; taking it back is choosing what was seen.
        page.select_option("#fleet-category", "power_supply")
        page.wait_for_selector("#fleet-open:has-text('Set by')")
        page.wait_for_selector("[data-category=power_supply] td:nth-of-type(1):text-is('1')")
        page.select_option("#fleet-category", label=page.inner_text("#fleet-category option:has-text('(as seen)')"))
        wait_until(lambda: "Set by" not in page.inner_text("#fleet-open"), 20, "it is taken back")

        # What is chosen stands in the address; another project has nothing.
        page.click("#fleet-open a:text-is('Close')")
        page.select_option("#fleet-projects", "tests")
        page.click("#fleet-days a:text-is('All')")
        page.wait_for_selector("#fleet-days .on:text-is('All')")
        assert page.evaluate("location.search") == "?project=tests&days=all"
        other = open_page(f"{server.url}/interruptions?days=7&project=nobody's", width=390)
        other.wait_for_selector("#fleet-empty h2")
        assert "in project “nobody's”" in other.inner_text("#fleet-empty")
        assert other.inner_text("#fleet-days [aria-current]") == "7 days"

        page.click("#fleet-list .ag-row [col-id=incident] a")
        page.wait_for_selector(".verdict-words")
        assert "Process death" in page.inner_text("#incident-head")
