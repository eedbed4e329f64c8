"""What the job says of its data: new samples as bars, data sets, and what came again, in both themes."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stabilityclient.data.recorder import event_data
from stabilityclient.data.samples import taken
from stabilityclient.wire import Frame
from support.gateway_stack import log_frames
from support.job_frames import Job
from support.ports import free_port
from support.processes import Server

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]
#: Where pictures go, where somebody wants to see the pages.
FOLDER = os.environ.get("STABILITY_SCREENSHOTS")
STEPS, BATCH = 300, 48


def steps_of(job: Job, first: int, order: list[int], begin: int = 0) -> Iterator[Frame]:
    """Two data sets, one of them small: it comes again and again."""
    for step in range(first, first + STEPS):
        at = begin + (step - first) * BATCH
        ids = {"web": order[at : at + BATCH], "code": [(8 * step + one) % 400 for one in range(8)]}
        yield job.event("batch", step, **event_data(taken(ids)), tokens=56 * 2_048)
        yield job.rows([step], {"loss": [3.0 - 0.001 * step]})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    order = list(range(2 * STEPS * BATCH))
    random.Random(1).shuffle(order)
    other = order.copy()
    random.Random(2).shuffle(other)
    several = [
        *steps_of(Job(), 0, order), *steps_of(Job(start=2), STEPS, order),
        *steps_of(Job(start=3), 2 * STEPS, other), *steps_of(Job(start=4), 3 * STEPS, other, STEPS * BATCH),
    ]  # fmt: skip
    silent = [Job().rows([step], {"loss": [2.0]}) for step in range(1)]
    with Server(tmp_path_factory.mktemp("data") / "data", free_port()) as server:
        log_frames(server.url, *several, run_id="several")
        log_frames(server.url, *silent, run_id="silent")
        server.wait_for("/runs/several", lambda run: run["last_step"] == 4 * STEPS - 1, "the run is there")
        yield server


def shown(page: Page, name: str) -> None:
    if FOLDER:
        page.locator("#data-repeats, .part:has-text('does not say')").last.scroll_into_view_if_needed()
        page.wait_for_timeout(600)
        page.screenshot(path=str(Path(FOLDER) / f"{name}.png"))


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_what_came_again_stands_beside_what_is_new(server: Server, open_page: OpenPage, scheme: str) -> None:
    page = open_page(f"{server.url}/runs/several", scheme=scheme, width=1440, height=1000)
    page.wait_for_selector("#data-repeats tbody tr")

    whats = [row.get_attribute("data-what") for row in page.locator("#data-repeats tr[data-repeat]").all()]
    assert "again" in whats
    assert "samples" in whats
    assert page.locator("#new-samples i[data-new]").count() > 50
    names = [row.get_attribute("data-dataset") for row in page.locator("#data-datasets tr[data-dataset]").all()]
    assert names == ["web", "code"]
    shown(page, f"data-{scheme}")


@pytest.mark.parametrize("path", ["/", "/runs/several"])
def test_on_a_phone_nothing_lies_beside_the_page(server: Server, open_page: OpenPage, path: str) -> None:
    """Long words of an incident in the list, and the hidden words of the resumes in their wide table."""
    page = open_page(f"{server.url}{path}", width=390, height=844)
    page.wait_for_selector("#runs-body .pill:has-text('repeated data')" if path == "/" else ".panel-head")
    if path != "/":
        page.locator("#more-panels").scroll_into_view_if_needed()
        page.wait_for_selector("#resumes .unseen", state="attached")
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_without_ids_the_panel_says_what_will_be_there(server: Server, open_page: OpenPage) -> None:
    page = open_page(f"{server.url}/runs/silent", scheme="light", width=1440, height=900)
    page.wait_for_selector(".part:has-text('does not say what its steps see')")
    shown(page, "data-none")
