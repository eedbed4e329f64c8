"""What the job says of its data: new samples as bars, data sets, and what came again."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from stabilityclient.data.samples import event_data, taken
from stabilityclient.wire import Frame
from support.gateway_stack import log_frames
from support.job_frames import Job
from support.waiting import wait_in

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from browser.run.conftest import Visit
    from support.processes import Server

#: Where pictures go, where somebody wants to see the pages.
FOLDER = os.environ.get("STABILITY_SCREENSHOTS")
STEPS, BATCH = 100, 48
WIDTH = "document.documentElement.scrollWidth"


def steps_of(job: Job, first: int, order: list[int], begin: int = 0) -> Iterator[Frame]:
    """Two data sets, one of them small: it comes again and again."""
    for step in range(first, first + STEPS):
        at = begin + (step - first) * BATCH
        ids = {"web": order[at : at + BATCH], "code": [(8 * step + one) % 400 for one in range(8)]}
        yield job.event("batch", step, **event_data(taken(ids)), tokens=56 * 2_048)
        if step % 10 == 9:
            steps = range(step - 9, step + 1)
            yield job.rows(steps, {"loss": [3.0 - 0.001 * step for step in steps]})


@pytest.fixture(scope="module", autouse=True)
def _runs(server: Server) -> None:
    order = list(range(2 * STEPS * BATCH))
    random.Random(1).shuffle(order)
    other = order.copy()
    random.Random(2).shuffle(other)
    several = [
        *steps_of(Job(), 0, order), *steps_of(Job(start=2), STEPS, order),
        *steps_of(Job(start=3), 2 * STEPS, other), *steps_of(Job(start=4), 3 * STEPS, other, STEPS * BATCH),
    ]  # fmt: skip
    silent = [Job().rows([step], {"loss": [2.0]}) for step in range(1)]
    log_frames(server.url, *several, run_id="r-repeating", project="data")
    log_frames(server.url, *silent, run_id="r-silent", project="data")
    server.wait_for("/runs/r-repeating", lambda run: run["last_step"] == 4 * STEPS - 1, "the run is there")


def shown(page: Page, name: str, *schemes: Literal["dark", "light"]) -> None:
    if FOLDER:
        for scheme in schemes:
            page.emulate_media(color_scheme=scheme)
            page.locator("#data-repeats, .part:has-text('does not say')").last.scroll_into_view_if_needed()
            page.wait_for_timeout(600)
            page.screenshot(path=str(Path(FOLDER) / f"{name}-{scheme}.png"))


def test_what_came_again_stands_beside_what_is_new(visit: Visit) -> None:
    page = visit("/runs/r-repeating", width=1440, height=1000)
    page.wait_for_selector("#data-repeats tbody tr")

    whats = [row.get_attribute("data-what") for row in page.locator("#data-repeats tr[data-repeat]").all()]
    assert "again" in whats
    assert "samples" in whats
    assert page.locator("#new-samples i[data-new]").count() > 50
    names = [row.get_attribute("data-dataset") for row in page.locator("#data-datasets tr[data-dataset]").all()]
    assert names == ["web", "code"]
    shown(page, "data", "dark", "light")
    # On a phone nothing lies beside the page, not even the hidden words of the resumes in their wide table.
    page.set_viewport_size({"width": 390, "height": 844})
    page.locator("#more-panels").scroll_into_view_if_needed()
    page.wait_for_selector("#resumes .unseen", state="attached")
    wait_in(page, f"{WIDTH} === 390")


@pytest.mark.soak
def test_on_a_phone_the_long_words_of_an_incident_in_the_list_lie_in_the_page(visit: Visit) -> None:
    page = visit("/?q=r-repeating", width=390, height=844)
    page.wait_for_selector("#runs-body .pill:has-text('repeated data')")
    assert page.evaluate(WIDTH) == 390


def test_without_ids_the_panel_says_what_will_be_there(visit: Visit) -> None:
    page = visit("/runs/r-silent", width=1440, height=900)
    page.wait_for_selector(".part:has-text('does not say what its steps see')")
    shown(page, "data-none", "light")
