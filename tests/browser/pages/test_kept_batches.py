"""The batch behind a NaN is on the page of its incident, as text whatever it holds; later it says that it left."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.processes import Ranks, Server

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]


@pytest.fixture
def server(tmp_path: Path, free_port: int) -> Iterator[Server]:
    """A server with a job of two ranks, of which one gets a bad batch."""
    with (
        Server(tmp_path / "data", free_port) as server,
        Ranks("keeping_rank.py", [str(tmp_path)], url=server.url, folder=tmp_path / "spool", run_id="keep"),
    ):
        yield server


def test_the_batch_behind_a_nan_is_on_the_page_of_its_incident_and_a_later_one_says_that_it_left(
    server: Server, open_page: OpenPage
) -> None:
    answered = server.wait_for(
        "/runs/keep/commands", lambda a: any(one["state"] == "done" for one in a["commands"]), "the ranks answered"
    )
    page = open_page(f"{server.url}/runs/keep/incidents/{answered['commands'][0]['incident_id']}")

    # What the server asked for by itself: the bad sample first, its step marked, its text no markup.
    page.wait_for_selector("#incident-batches .samples tr.within")
    first = page.locator("#incident-batches .samples tbody tr").first
    assert first.locator("td").all_inner_texts()[:6] == ["60", "1", "NaN", "100 %", "web", "60-b"]
    assert "3 × 32 × 32" in first.inner_text()
    first.locator("summary").click()
    assert "onerror='window.pwned=1'> ␀? ␛[31mbuy now" in first.locator("pre").inner_text()
    assert page.evaluate("window.pwned") is None
    bars = "#incident-batches .batch-bars i"
    assert page.locator(f"{bars}.nonfinite").evaluate_all("all => all.map((one) => one.dataset.step)") == ["60"]
    assert page.get_attribute(f"{bars}.before", "data-step") == "59"
    assert page.locator("#incident-batches tr.within").evaluate_all(
        "all => [...new Set(all.map((one) => one.dataset.step))]"
    ) == ["60"]
    assert "All 128 samples" in page.inner_text("#incident-batches .group-foot")
    assert "asked when it was found" in page.inner_text("#batches-note")
    if folder := os.environ.get("STABILITY_LOOK"):  # for people who want to see it
        page.screenshot(path=f"{folder}/batches.png", full_page=True)

    # Somebody asks later: the ring is 40 steps on.
    page.click("#incident-show-batches:not([disabled])")
    page.wait_for_selector("#incident-batches .batch-left")
    assert "this began at 60, so its batch had left" in page.inner_text(".batch-left")
    assert page.locator("#batches-choose option").count() == 2
    assert "Batches shown by 2 of 2 ranks." in page.inner_text("#incident-actions")
