"""Takes the pictures of the documentation from real jobs and a simulated one: ``make screenshots``.

Not a test of anything by itself: it runs only where STABILITY_SCREENSHOTS names the folder to write to.
"""

from __future__ import annotations

import asyncio
import importlib
import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from support.processes import Server
from support.recorded_runs import import_recorded
from support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]
ROOT = Path(__file__).resolve().parents[3]
FOLDER = os.environ.get("STABILITY_SCREENSHOTS", "")
#: Of a picture in the documentation.
COLORS = 128
#: Runs of the laboratory: sick ones, one that went back, one that is well.
RECORDED = ("killed_by_lr", "corrupt_dataset", "healthy_rollback", "healthy_smooth")

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
    keep(page.screenshot(), name)


def keep(picture: bytes, name: str) -> None:
    """Write a picture with few colours: it is a fourth as large, and nobody sees it."""
    few = Image.open(io.BytesIO(picture)).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    few.save(Path(FOLDER) / f"{name}.png", optimize=True)


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
    page.wait_for_selector("#rollback-progress[data-state=done]")
    take(page, "progress-dark")
    page.click("#rollback-close")
    forked = last_step(page)
    wait_until(lambda: last_step(page) > forked + 60, 120, "the new branch has some length")
    page.wait_for_selector("#command-strip", state="hidden")
    take(page, "run-dark")
    page.locator("#rollback-costs").scroll_into_view_if_needed()
    take(page, "rollback-costs-dark")
    attempts = open_page(f"{server.url}/runs/{run_id}/attempts", scheme="dark", width=1280, height=800)
    attempts.wait_for_selector("#attempts-table tr")
    take(attempts, "attempts-dark")
    light = open_page(f"{server.url}/runs/{run_id}", scheme="light", width=1440, height=1700)
    wait_until(lambda: light.evaluate("(window.stability?.drawLog.drawn.length || 0) > 30"), 60, "the charts are drawn")
    take(light, "run-light")
    wall = open_page(f"{server.url}/runs/{run_id}", scheme="dark", width=2560, height=1440)
    wait_until(lambda: wall.evaluate("(window.stability?.drawLog.drawn.length || 0) > 30"), 60, "the charts are drawn")
    take(wall, "wall-dark")


def test_screenshots_of_recorded_runs(server: Server, open_page: OpenPage, tmp_path: Path) -> None:
    import_recorded(server, tmp_path, RECORDED)
    for path, there, name in (
        ("/", "tr[data-run] .run-curve", "runs-dark"),
        ("/incidents", "[data-row]", "incidents-dark"),
        ("/compare?run=killed_by_lr&run=corrupt_dataset", "#compare-table tr", "compare-dark"),
        ("/gallery", "[data-curve] canvas", "gallery-dark"),
        ("/runs/killed_by_lr?wall=1", ".wall-do", "wall-run-dark"),
    ):
        page = open_page(server.url + path, scheme="dark", width=1280, height=800)
        page.wait_for_selector(there)
        time.sleep(2)
        take(page, name)


def incident(server: Server, run_id: str, kind: str, when: Callable[[dict[str, Any]], Any]) -> str:
    """Return the id of a run's incident of a kind, as soon as it is as asked for."""

    def fitting(answer: dict[str, Any]) -> list[dict[str, Any]]:
        return [one for one in answer["incidents"] if one["kind"] == kind and when(one)]

    found = fitting(server.wait_for(f"/runs/{run_id}/incidents", fitting, f"the {kind} is told", 90))
    return str(found[0]["incident_id"])


def test_screenshot_of_a_hang(
    server: Server, open_page: OpenPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two real processes with torch; one waits for a batch that never comes. Then one that died."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "faults"))
    stage, catalog = importlib.import_module("stage"), importlib.import_module("catalog")
    faults = {fault.name: fault for fault in catalog.FAULTS}

    def job(name: str, run_id: str) -> Any:
        folder = tmp_path / run_id
        folder.mkdir()
        return stage.FaultyJob(faults[name], url=server.url, run_id=run_id, folder=folder, torch=True)

    with job("segfault", "vision-7b"), job("data_loader", "llm-70b"):
        verdict = lambda one: one["evidence"].get("verdict", {})  # noqa: E731
        incident(server, "vision-7b", "process_death", verdict)
        found = incident(server, "llm-70b", "hang", lambda one: verdict(one).get("confidence") == "high")
        page = open_page(f"{server.url}/runs/llm-70b/incidents/{found}", scheme="dark", width=1440, height=1220)
        page.wait_for_selector("#incident-stacks .stack-group.odd")
        take(page, "hang-dark")
        fleet = open_page(f"{server.url}/interruptions", scheme="dark", width=1440, height=1180)
        fleet.wait_for_selector("#fleet-list .ag-row")
        take(fleet, "fleet-dark")


def test_screenshot_of_many_ranks_and_gpus(
    server: Server, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulated job of 512 ranks: one stands, a node is silent, some GPUs are sick."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    job = importlib.import_module("simulated_job").SimulatedJob(server.url, "llm-405b", 512)
    job.trouble.switch_on("hot:75 hot:400 lost:203 ecc:310 torn:460 blind:9")
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(job.run(stop)))
    thread.start()
    try:
        server.wait_for("/runs/llm-405b", lambda run: (run.get("last_step") or 0) >= 40, "it trains", 120)
        job.trouble.switch_on("data:133 silent:28")
        incident(server, "llm-405b", "hang", lambda one: one["evidence"].get("verdict", {}).get("culprits"))
        page = open_page(f"{server.url}/runs/llm-405b", scheme="dark", width=1440, height=900)
        for place, picture in (("ranks", "ranks-dark"), ("gpus", "gpus-dark")):
            page.wait_for_selector(f"#{place} canvas")
            page.evaluate(f"document.getElementById('{place}-panel').scrollIntoView({{ block: 'center' }})")
            if place == "gpus":
                page.click("#gpus-field [data-value=temp]")
            page.mouse.move(2, 2)
            time.sleep(2)
            keep(page.locator(f"#{place}-panel").screenshot(), picture)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()
