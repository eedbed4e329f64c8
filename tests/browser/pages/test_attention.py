"""What a page says to people who look elsewhere: the tab's title and icon, and notifications on request."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest

from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis
from support.gateway_stack import log_frames
from support.job_frames import Job
from support.server_stack import RunningServer
from support.waiting import wait_in, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]
ICON = "document.querySelector('link[rel=icon]').href"
#: Writes notifications down instead of showing them; permission is given when it is asked for.
RECORDED = """
  window.notified = [];
  window.asked = 0;
  window.Notification = class {
    constructor(title, options) { window.notified.push([title, options.body, options.tag]); }
    close() {}
    static requestPermission() { window.asked += 1; window.Notification.permission = "granted"; return "granted"; }
  };
  window.Notification.permission = "default";
"""


@dataclass
class Stage:
    """A server with one run."""

    server: RunningServer
    job: Job

    def alert(self, title: str, severity: str = "warning") -> None:
        """Let the job raise an alert."""
        log_frames(self.server.url, self.job.event("alert", 59, title=title, text="", severity=severity))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with EmbeddedRedis(tmp_path) as redis, RunningServer(redis.url, tmp_path / "data") as server:
        job = Job()
        job.wait(time.time() - 1_100.0)  # what happened long ago is no news
        log_frames(server.url, job.rows(range(1, 60)))
        server.wait_for("/runs/run-1", lambda run: run["last_step"] == 59, "it is there")
        yield Stage(server, job)


@pytest.mark.soak
def test_the_tab_of_a_run_counts_its_open_incidents_and_names_the_worst(stage: Stage, open_page: OpenPage) -> None:
    page = open_page(f"{stage.server.url}/runs/run-1")
    page.wait_for_selector("#chart-focus canvas")
    wait_until(lambda: page.title().startswith("n · "), 20, "the run is named")
    mark = page.evaluate(ICON)
    stage.alert("Disk is nearly full")
    wait_until(lambda: page.title().startswith("(1) n · User alert since "), 20, "the title says it")
    icon = unquote(page.evaluate(ICON))
    assert icon != mark
    assert ">1<" in icon
    wait_in(page, "document.querySelector('#run-status').textContent === 'User alert'")
    assert page.get_attribute("#run-status", "href").startswith("/runs/run-1/incidents/i-")  # type: ignore[union-attr]
    page.click("#incidents button:has-text('Acknowledge and close')")
    wait_until(lambda: page.evaluate(ICON) == mark, 20, "nothing is open, the icon is the product's mark")
    assert not page.title().startswith("(")


def test_the_tab_of_the_list_names_the_run_that_is_worst(stage: Stage, open_page: OpenPage) -> None:
    page = open_page(stage.server.url)
    page.wait_for_selector("tr[data-run]")
    assert page.title() == "Stabilityboard"
    stage.alert("Disk is nearly full", "critical")
    wait_until(lambda: page.title().startswith("(1) Stabilityboard · User alert in n since "), 20, "the title says it")


@pytest.mark.soak
def test_notifications_begin_with_a_click_and_tell_each_incident_of_any_run_once(
    stage: Stage, open_page: OpenPage
) -> None:
    page = open_page(f"{stage.server.url}/interruptions", before=RECORDED)
    page.wait_for_selector("#notify:not([hidden])")
    assert page.evaluate("[window.asked, window.notified.length]") == [0, 0]
    assert page.get_attribute("#notify", "aria-pressed") == "false"
    page.click("#notify")
    wait_in(page, "document.querySelector('#notify').getAttribute('aria-pressed') === 'true'")
    assert page.evaluate("window.asked") == 1
    page.wait_for_function("stability.notifying()")
    stage.alert("Disk is nearly full")
    stage.alert("A note", "info")
    wait_in(page, "window.notified.length >= 2")
    incidents = stage.server.get("/runs/run-1/incidents")["incidents"]
    told = [["User alert · n", one["title"], one["incident_id"]] for one in incidents]
    assert sorted(page.evaluate("window.notified")) == sorted(told)
    page.click("#notify")
    wait_in(page, "document.querySelector('#notify').getAttribute('aria-pressed') === 'false'")
    stage.alert("Another")
    stage.server.wait_for("/runs/run-1/incidents", lambda found: len(found["incidents"]) == 3, "it is there")
    assert len(page.evaluate("window.notified")) == 2
