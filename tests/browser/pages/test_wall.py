"""The screen on the wall: the sickest run first, views that go round, and a band when it can't be believed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from support.gateway_stack import log_frames
from support.job_frames import Job
from support.ports import free_port
from support.processes import Server
from support.waiting import wait_in

if TYPE_CHECKING:
    from playwright.sync_api import Page

Visit = Callable[..., "Page"]
BAND = "document.querySelector('.wall-stale:not([hidden])')"
#: Moves the wall's clock: what it does after so many seconds without a touch.
LATER = "(seconds) => stability.page.onTick(Date.now(), stability.page.shownAt + 1000 * seconds)"
SMALLEST = """() => Math.min(...[...document.querySelectorAll('#wall *')]
  .filter((one) => one.checkVisibility() && [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
  .map((one) => Number.parseFloat(getComputedStyle(one).fontSize)))"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with one run whose loss is NaN, and one that is well."""
    with Server(tmp_path_factory.mktemp("wall") / "data", free_port()) as server:
        losses = [3.0 - step / 100 if step < 80 else math.nan for step in range(1, 121)]
        log_frames(server.url, Job().rows(range(1, 121), {"loss": losses}), run_id="sick")
        log_frames(server.url, Job().rows(range(1, 121), {"loss": [2.0] * 120}), run_id="well")
        server.wait_for("/runs/sick", lambda run: run["open_incidents"], "the NaN is found")
        yield server


def test_a_wall_says_which_run_is_sick_why_and_what_to_do_and_has_nothing_to_press(
    server: Server, visit: Visit
) -> None:
    page = visit(f"{server.url}/?wall=1", width=3840, height=2160)
    page.wait_for_selector(".wall-card[data-run=sick] .wall-do")
    assert "needs attention" in page.inner_text(".wall-head h1")
    assert page.get_attribute(".wall-card", "data-run") == "sick"
    assert "NaN" in page.inner_text(".wall-card[data-run=sick] .wall-word")
    assert "step 80" in page.inner_text(".wall-card[data-run=sick] .wall-why")
    assert page.locator(".wall-card[data-run=sick] .wall-mark.shape-octagon").count() == 1
    assert page.locator("a:visible, button:visible, input:visible").count() == 0
    assert page.evaluate(SMALLEST) >= 28
    assert page.evaluate("document.documentElement.scrollWidth") == 3840


@pytest.mark.soak
def test_views_go_round_by_themselves_and_wait_while_somebody_is_there(server: Server, visit: Visit) -> None:
    page = visit(f"{server.url}/?wall=1&rotate=10s")
    page.wait_for_selector(".wall-card[data-run=sick]")
    page.evaluate(LATER, 9)
    assert page.get_attribute("#wall", "data-view") == "fleet"
    page.evaluate(LATER, 11)
    assert page.get_attribute("#wall", "data-view") == "run"
    assert page.get_attribute(".wall-place", "data-curve") == "sick"
    assert page.inner_text(".wall-numbers [data-number=step] b") == "120"
    page.keyboard.press("Shift")
    page.evaluate(LATER, 11)
    assert page.get_attribute("#wall", "data-view") == "run"
    assert "paused" in page.inner_text(".wall-foot")
    page.keyboard.press("ArrowLeft")
    assert page.get_attribute("#wall", "data-view") == "fleet"


@pytest.mark.soak
def test_the_wall_says_loudly_that_the_server_is_away_and_goes_on_when_it_is_back(server: Server, visit: Visit) -> None:
    page = visit(f"{server.url}/runs/sick?wall=1", quiet=False)
    page.wait_for_selector(".wall-numbers [data-number=step]")
    assert page.evaluate(f"{BAND} === null")
    server.kill()
    wait_in(page, f"{BAND} !== null")
    assert "no word from the server for" in page.inner_text(".wall-stale")
    assert page.evaluate(f"{BAND}.getBoundingClientRect().width >= innerWidth - 1")
    assert page.inner_text(".wall-numbers [data-number=step] b") == "120"
    server.start()
    wait_in(page, f"{BAND} === null")


@pytest.mark.soak
def test_the_button_leads_to_the_wall_and_escape_leads_back(server: Server, visit: Visit) -> None:
    page = visit(f"{server.url}/runs/sick")
    page.click("#wall-open")
    page.wait_for_selector("#wall[data-view=run]")
    page.keyboard.press("Escape")
    page.wait_for_selector("#run-main")
    assert page.locator("#wall").count() == 0


@pytest.mark.soak
def test_an_incident_leads_to_its_pattern_in_the_gallery(server: Server, visit: Visit) -> None:
    page = visit(f"{server.url}/runs/sick")
    page.click("#incidents a[data-looks=nan]")
    page.wait_for_selector("#nan.wanted canvas")
    wait_in(page, "Math.abs(document.querySelector('#nan').getBoundingClientRect().top - 68) < 200")
    drawn = "stability.page.plots.get(document.querySelector('[data-curve=nan]')).spec"
    wait_in(page, f"{drawn}?.rows[0].marks.length > 20")
    assert page.evaluate(f"{drawn}.bands.length") == 1


SMALL = """() => [...document.querySelectorAll(
    'button, select, input:not([type=checkbox]), .checks label, a.button, a.pill, a.chip')]
  .filter((one) => one.checkVisibility() && one.getBoundingClientRect().height > 0)
  .filter((one) => one.getBoundingClientRect().height < 40)
  .map((one) => `${one.id || one.className}: ${one.textContent.slice(0, 20)}`)"""


@pytest.mark.soak
def test_on_a_phone_nothing_scrolls_sideways_and_all_that_is_pressed_is_large_enough(
    server: Server, visit: Visit
) -> None:
    (incident, *_) = [one["incident_id"] for one in server.get("/runs/sick/incidents")["incidents"]]
    page = visit(server.url, width=390, height=844)
    for path, ready in {
        "/": "#runs-body tr[data-run]",
        "/runs/sick": "#incidents .incident",
        f"/runs/sick/incidents/{incident}": "#incident-verdict .verdict-words",
        "/incidents": ".incident-row",
        "/interruptions": "main",
        "/gallery": "main canvas",
    }.items():
        page.goto(f"{server.url}{path}")
        page.wait_for_selector(ready)
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") == 390, path
        assert page.evaluate(SMALL) == [], path


def test_on_a_phone_the_incident_stands_before_the_charts(server: Server, visit: Visit) -> None:
    page = visit(f"{server.url}/runs/sick", width=390, height=844)
    page.wait_for_selector("#incidents .incident")
    top = "(id) => document.getElementById(id).getBoundingClientRect().top"
    assert page.evaluate(top, "incidents") < page.evaluate(top, "kpis")
    assert page.evaluate(top, "incidents") < page.evaluate(top, "focus-panel")
