"""Takes the pictures of the documentation from the real demo job: ``make screenshots``.

Not a test of anything by itself: it runs only where STABILITY_SCREENSHOTS names the folder to write to.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stack.processes import Server
from waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]
FOLDER = os.environ.get("STABILITY_SCREENSHOTS", "")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not FOLDER, reason="STABILITY_SCREENSHOTS names no folder for the pictures"),
]


@pytest.fixture
def server(tmp_path: Path, free_port: int) -> Iterator[Server]:
    with Server(tmp_path / "data", free_port) as server:
        yield server


@pytest.fixture
def run_id(server: Server, tmp_path: Path) -> Iterator[str]:
    """The demo's job, watched by nobody but us."""
    arguments = ["demo", "--url", server.url, "--data-dir", str(tmp_path / "demo")]
    with (tmp_path / "demo.log").open("wb") as log:
        demo = subprocess.Popen([sys.executable, "-m", "stabilitybackend.cli", *arguments], stdout=log, stderr=log)
    try:
        named = lambda answer: [run["run_id"] for run in answer["runs"] if run.get("last_step")]  # noqa: E731
        yield str(named(server.wait_for("/runs", named, "the demo's run is there", 120))[0])
    finally:
        demo.terminate()
        demo.wait(30)


def take(page: Page, name: str) -> None:
    """Write a picture; the pointer is away and the charts have caught up."""
    page.mouse.move(2, 2)
    time.sleep(0.6)
    page.screenshot(path=str(Path(FOLDER) / f"{name}.png"))


def last_step(page: Page) -> int:
    """Return the newest step that the page knows."""
    return int(page.evaluate("stability.page.lastStep() || 0"))


def test_screenshots_of_the_demo(server: Server, run_id: str, open_page: OpenPage) -> None:
    page = open_page(f"{server.url}/runs/{run_id}", scheme="dark", width=1440, height=900)
    wait_until(lambda: page.evaluate("Boolean(window.stability?.page?.ready)"), 60, "the page is ready")
    page.wait_for_selector("#incidents .incident.critical [data-rollback]", timeout=240_000)
    take(page, "incident-dark")
    page.click("#incidents [data-rollback]")
    page.fill("#rollback-seed", "7")
    take(page, "rollback-dark")
    page.click("#rollback-confirm")
    page.wait_for_selector("#rollback-progress[data-state=done]", timeout=60_000)
    take(page, "progress-dark")
    page.click("#rollback-close")
    forked = last_step(page)
    wait_until(lambda: last_step(page) > forked + 60, 120, "the new branch has some length")
    page.wait_for_selector("#command-strip", state="hidden", timeout=60_000)
    take(page, "run-dark")
    page.locator("#ledger-panel").scroll_into_view_if_needed()
    take(page, "ledger-dark")
    light = open_page(f"{server.url}/runs/{run_id}", scheme="light", width=1440, height=1700)
    wait_until(lambda: light.evaluate("(window.__stability?.drawn.length || 0) > 30"), 60, "the charts are drawn")
    take(light, "run-light")
    wall = open_page(f"{server.url}/runs/{run_id}", scheme="dark", width=2560, height=1440)
    wait_until(lambda: wall.evaluate("(window.__stability?.drawn.length || 0) > 30"), 60, "the charts are drawn")
    take(wall, "wall-dark")
    runs = open_page(server.url, scheme="light", width=1440, height=420)
    runs.wait_for_selector("tr[data-run] .spark")
    take(runs, "runs-light")
