"""axe-core finds nothing wrong with any page or dialog, in both themes: contrast, names, roles, order, landmarks."""

from __future__ import annotations

import asyncio
import importlib.resources
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from stabilitybackend.redis_server.embedded import EmbeddedRedis
from stabilityclient.wire import Frame
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.server_stack import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]

#: What is opened: the address, what has to be there, and what is done then.
STAGES: dict[str, tuple[str, str, str]] = {
    "runs": ("/", "#runs-body tr", ""),
    "incidents": ("/incidents", ".incident-row", ""),
    "interruptions": ("/interruptions?days=all", "#lost .kpi-value", ""),
    "compare": ("/compare?run=run-a&run=run-b", "#compare-table tr", ""),
    "run": ("/runs/run-a", "#incidents article", ""),
    "incident": ("/runs/run-a/incidents/INCIDENT", "#incident-verdict *", ""),
    "missing": ("/nowhere", "main h1", ""),
    "no run": ("/runs/none", "#run-empty *", ""),
    "palette": ("/", "#runs-body tr", "Control+k"),
    "keys": ("/incidents", ".incident-row", "?"),
    "detectors": ("/runs/run-a", "#incidents article", "document.getElementById('detectors-open').click()"),
    "all metrics": ("/runs/run-a", "#incidents article", "document.getElementById('all-fold').click()"),
    "rollback dialog": ("/runs/run-a", "#incidents article", "stability.page.dialog.show(null)"),
}
#: What keeps axe from seeing colours as people do: nothing moves.
_STILL = "*, *::before { transition: none !important; animation: none !important; }"


def _axe() -> str:
    try:
        return importlib.resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()
    except ModuleNotFoundError:
        message = "axe-playwright-python of requirements/test.txt is not installed"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)


async def _run(server: RunningServer, run_id: str, *frames: Frame) -> None:
    async with RawAgent(server.agent_url) as agent:
        await agent.hello(run_id, agent=f"a-{run_id}", sources=[])
        for frame in frames:
            await agent.ask(frame)


def _frames(start: int) -> list[Frame]:
    """A job that dies at step 100 and goes on from step 61."""
    first, second = Job(0, start), Job(0, start + 1)
    death = {"rank": 0, "source": first.info.source, "pid": 7, "last_phase": "backward", "evidence": {"text": "gone"}}
    return [first.rows(range(1, 101)), first.event("process_death", 100, **death), second.rows(range(61, 121))]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, str]]:
    """A server with two runs that died and went on, and the id of an incident."""
    folder = tmp_path_factory.mktemp("axe")
    with EmbeddedRedis(folder) as redis, RunningServer(redis.url, folder / "data") as server:
        for at, run_id in enumerate(("run-a", "run-b")):
            with ThreadPoolExecutor(1) as thread:  # in this one Playwright's loop runs
                thread.submit(asyncio.run, _run(server, run_id, *_frames(1 + 10 * at))).result()
        server.wait_for("/rollback_costs", lambda a: a["run_count"] == 2, "what was lost is known")
        found = server.wait_for("/incidents?run=run-a", lambda a: a["incidents"], "an incident")
        yield server, found["incidents"][0]["incident_id"]


def _violations(page: Page) -> list[str]:
    page.add_style_tag(content=_STILL)
    page.evaluate(f"{_axe()}; 0")
    found: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{rule['id']}: {node['target'][0]} {node['failureSummary'].splitlines()[1].strip()}"
        for rule in found["violations"]
        for node in rule["nodes"][:4]
    ]


@pytest.mark.parametrize("scheme", ["dark", "light"])
@pytest.mark.parametrize("name", STAGES)
def test_nothing_is_wrong(stage: tuple[RunningServer, str], open_page: OpenPage, name: str, scheme: str) -> None:
    server, incident = stage
    path, there, then = STAGES[name]
    page = open_page(f"{server.url}{path.replace('INCIDENT', incident)}", scheme=scheme, quiet=False)
    page.wait_for_selector(there)
    page.wait_for_selector("[data-count=incidents].critical")
    if then and ("(" not in then):
        page.keyboard.press(then)
    elif then:
        page.evaluate(then)
    page.wait_for_load_state("networkidle")
    assert _violations(page) == []
