"""Pages and panels from a file, in a running server: seen, in place when they fail, with their viewer's rights."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stabilitybackend.plugins import load
from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis
from support.gateway_stack import log_frames
from support.job_frames import Job
from support.ports import free_port
from support.processes import Server
from support.server_stack import RunningServer
from support.waiting import wait_in

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]

EXAMPLE = Path(__file__).parents[2] / "examples" / "extending" / "lost_steps.py"
#: What goes wrong in a panel, and a page that wants more than a reader may.
TROUBLE = """
import time
from dash import html
from stabilityfrontend.extend import Api, page, panel

@panel(page="/runs/{run}", title="Broken")
def broken(run: str) -> html.P:
    return html.P(1 / 0)

@panel(page="/runs/{run}", title="No component")
def wrong() -> object:
    return html.Div([{"not": "shown"}])

@panel(page="/runs/{run}", title="Query")
def fine(run: str, query: dict) -> str:
    return f"{run} with {query}"

@page("/mischief", name="Mischief")
def mischief(api: Api) -> list:
    api.get("/runs")
    return api.put("/runs/{run}/detectors", {"settings": {}}, run="r-1")

from stabilitybackend.hooks import hook

@hook
def pages():
    return [broken, wrong, fine, mischief]
"""
LISTEN = """() => { window.forbidden = []; document.addEventListener("securitypolicyviolation", (event) =>
    window.forbidden.push(`${event.effectiveDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));
}"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("extend")
    (trouble := folder / "trouble.py").write_text(TROUBLE)
    pages = load({"STABILITY_PLUGINS": f"{trouble}{os.pathsep}{EXAMPLE}"})
    with EmbeddedRedis(folder) as redis, RunningServer(redis.url, folder / "data", plugins=pages) as server:
        log_frames(server.url, Job().rows(range(1, 60)))
        server.wait_for("/runs", lambda found: found["runs"], "the run is there")
        yield server


@pytest.mark.parametrize("scheme", ["dark", pytest.param("light", marks=pytest.mark.soak)])
@pytest.mark.soak
def test_the_example_adds_a_page_and_a_panel_in_either_theme(
    server: RunningServer, open_page: OpenPage, scheme: str
) -> None:
    page = open_page(server.url, scheme=scheme, before=f"({LISTEN})()")
    page.click("#pages a[href='/interruptions']")
    page.wait_for_selector("#fleet-empty")
    page.click("#pages a[href='/lost-steps']")
    page.wait_for_selector(".ag-row .cell a")
    assert page.title() == "Lost steps · Stabilityboard"
    assert page.inner_text("#pages a[aria-current]") == "Lost steps"
    shown, panel = page.evaluate("""() => [".ag-row", ":root"].map((one) => getComputedStyle(
      document.querySelector(one)).getPropertyValue(one === ":root" ? "--panel" : "background-color"))""")
    red = int(panel.strip()[1:3], 16)
    assert f"rgb({red}," in shown
    page.click(".ag-row .cell a")
    bars = "[...document.querySelectorAll('.added .bars path')].map((one) => one.style.fill)"
    wait_in(page, f"{bars}.length > 0")
    before = page.evaluate(bars)
    page.click("#theme-toggle")
    wait_in(page, f"{bars}.join() && {bars}.join() !== '{','.join(before)}'")
    assert page.evaluate("window.forbidden") == []


@pytest.mark.soak
def test_a_panel_that_fails_says_so_in_its_place_and_the_page_stays(server: RunningServer, open_page: OpenPage) -> None:
    page = open_page(f"{server.url}/runs/run-1?x=time")
    page.wait_for_selector(".added:has-text('Query') .part:has-text('run-1 with')")
    assert "{'x': 'time'}" in page.inner_text(".added:has-text('Query') .part")
    page.wait_for_selector(".added:has-text('Broken') [role=alert]:has-text('ZeroDivisionError: division by zero')")
    assert "trouble.py, line 8" in page.inner_text(".added:has-text('Broken')")
    page.wait_for_selector(".added:has-text('No component') [role=alert]:has-text('among its components')")
    page.wait_for_selector("#chart-focus canvas")
    loaded = "performance.getEntriesByType('resource').filter((one) => one.name.includes('ag_grid')).length"
    assert page.evaluate(loaded) == 0, "the scripts of tables are for pages that have one"


@pytest.mark.soak
def test_a_page_may_what_its_viewer_may_and_nobody_draws_without_a_key(tmp_path: Path, open_page: OpenPage) -> None:
    pages = tmp_path / "trouble.py"
    pages.write_text(TROUBLE)
    data = tmp_path / "data"
    create = [sys.executable, "-m", "stabilitybackend.cli", "keys", "create", "reader", "--scope", "read"]
    command = [*create, "--data-dir", str(data)]
    key = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()[0]
    environment = {"STABILITY_HOST": "0.0.0.0", "STABILITY_PLUGINS": str(pages)}
    with Server(data, free_port(), env=environment) as server:
        page = open_page(f"{server.url}/login?next=/mischief", quiet=False)
        asked = "async () => (await fetch('/_dash-update-component', { method: 'POST', body: '{}' })).status"
        assert page.evaluate(asked) == 401
        page.fill("#login-key", key)
        page.click("#login-send")
        page.wait_for_selector("main [role=alert]:has-text('command')")
        assert page.evaluate(asked) == 422
