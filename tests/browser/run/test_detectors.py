"""The panel of detectors: from a noisy incident to fewer of them and back, trying settings, saving them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from support.gateway_stack import log_frames
from support.job_frames import Job
from support.waiting import wait_until

if TYPE_CHECKING:
    from browser.conftest import OpenPage
    from browser.run.conftest import Visit
    from support.processes import Server

RUN = "r-noisy"
#: First steps of the spikes of the run that is looked at.
SPIKES = (200, 300, 400)


@pytest.fixture(scope="module", autouse=True)
def _run(server: Server) -> None:
    """A run of three spikes."""
    steps = range(1, 501)
    noise = random.Random(1)
    level = {s: 9.0 if any(at <= s < at + 6 for at in SPIKES) else 2.0 for s in steps}
    losses = [level[s] * (1 + noise.gauss(0, 0.005)) for s in steps]
    log_frames(server.url, Job().rows(steps, {"loss": losses}), run_id=RUN)
    found = lambda answer: len(answer["incidents"]) == len(SPIKES)  # noqa: E731
    server.wait_for(f"/runs/{RUN}/incidents", found, "all are found")


def settings(server: Server) -> Any:
    return server.get(f"/runs/{RUN}/detectors")["settings"]


def test_a_noisy_incident_is_made_quieter_in_two_clicks_and_one_takes_it_back(server: Server, visit: Visit) -> None:
    page = visit(f"/runs/{RUN}")
    page.locator("[data-less]").first.click()
    page.keyboard.press("Enter")  # the first choice has the focus
    page.wait_for_selector("#detectors-badge:has-text('1 detector tuned')")
    assert settings(server) == {"curve": {"sensitivity": 0.5}}
    page.click("#offer-do")
    page.wait_for_selector("#detectors-badge", state="hidden")
    assert settings(server) == {}


@pytest.mark.soak
def test_settings_are_tried_on_the_run_and_then_saved_and_another_page_sees_it(
    server: Server, visit: Visit, open_page: OpenPage
) -> None:
    page, other = visit(f"/runs/{RUN}"), open_page(f"{server.url}/runs/{RUN}", scheme="light", width=390)
    other.wait_for_selector("#detectors-panel:not([hidden])")
    page.click("#detectors-open")
    page.click('[data-detector=curve] [data-value="0"]')
    assert page.is_enabled("#detectors-save")
    page.click("#detectors-try")
    page.wait_for_selector(".found-then")
    assert (page.inner_text(".found-now"), page.inner_text(".found-then")) == ("3", "0")
    assert page.evaluate("stability.page.view().incidents.length") == 0  # what the chart shows
    assert settings(server) == {}
    page.click("#detectors-save")
    other.wait_for_selector("#detectors-badge:has-text('curve muted')")
    assert settings(server) == {"curve": {"sensitivity": 0.0}}
    # Its own answer may come after the other page's news.
    wait_until(lambda: page.evaluate("stability.page.view().incidents.length") == len(SPIKES), 20, "the trial is over")
    page.fill('[data-detector=curve] [data-parameter="sensitivity"]', "9")
    assert page.is_disabled("#detectors-save")  # out of range: as it was
    page.click("#detectors-reset")
    other.wait_for_selector("#detectors-badge", state="hidden")
    assert settings(server) == {}
