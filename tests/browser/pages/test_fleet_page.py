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


def test_an_interruption_comes_by_itself_is_corrected_and_leads_to_its_incident(
    server: Server, open_page: OpenPage, tmp_path: Path
) -> None:
    page = open_page(server.url, width=1000)
    page.click("#pages a[href='/fleet']")
    page.wait_for_selector("#fleet-empty:not([hidden]) h2")
    assert page.inner_text("#fleet-empty h2") == "No run trained"
    assert "Llama 3" in page.inner_text("#fleet-empty")

    plan = json.dumps({"stop": 100_000, "period_s": 0.02, "die_at": [0, 40]})
    with Ranks("job.py", [plan], url=server.url, folder=tmp_path / "spool", run_id="r-1", world_size=1):
        # Nobody asks for it: the page hears that the run's state changed.
        page.wait_for_selector("#fleet-list [data-interruption]")
        assert page.inner_text("#fleet-total-count .kpi-value") == "1"
        assert page.locator("#fleet-table tbody tr").first.inner_text().startswith("Faulty GPU")
        page.click("#fleet-list .fold")
        assert "SIGKILL" in page.inner_text(".interruption-more")

        # A person knows better; taking it back is choosing what was seen.
        page.select_option("#fleet-list select", "power_supply")
        wait_until(lambda: "set by" in page.inner_text("#fleet-list"), 20, "who set it is told")
        wait_until(
            lambda: page.inner_text("[data-category=power_supply] td:nth-of-type(1)") == "1", 20, "the table counts it"
        )
        seen = page.get_attribute("#fleet-list option:has-text('(as seen)')", "value") or ""
        page.select_option("#fleet-list select", seen)
        wait_until(lambda: "set by" not in page.inner_text("#fleet-list"), 20, "it is taken back")

        # What is chosen stands in the address; another project has nothing.
        page.select_option("#fleet-projects", "tests")
        page.click("#fleet-days [data-value=all]")
        assert page.evaluate("location.search") == "?days=all&project=tests"
        other = open_page(f"{server.url}/fleet?days=7&project=nobody's", width=390)
        other.wait_for_selector("#fleet-empty:not([hidden]) h2")
        assert "in project “nobody's”" in other.inner_text("#fleet-empty")
        assert other.get_attribute("#fleet-days [data-value='7']", "aria-pressed") == "true"

        page.click("#fleet-list .interruption-link a")
        page.wait_for_selector(".verdict-words")
        assert "Process death" in page.inner_text("#incident-head")
