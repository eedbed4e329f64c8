"""A board below a path: behind a real nginx and a real jupyter-server-proxy, taken off and passed on.

One job runs for all of them; its agent, and the command line, reach the server below a path too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browser.conftest import HANDLE, follow_troubles
from browser.pages.test_axe import STAGES
from support.forked_program import ForkedProgram
from support.ports import free_port
from support.processes import Ranks, Server
from support.proxies import jupyter, kept_path, nginx
from support.waiting import wait_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

JOB = str(Path(__file__).parents[1] / "jobs" / "spiking_job.py")
PROXIES = ("nginx, kept", "nginx, taken off", "jupyter, kept", "jupyter, taken off")
#: Those that each run of the tests goes through a job's page with; all others `make soak`.
OFTEN = ("nginx, kept", "jupyter, taken off")
#: Links of this host that lead out of the board, and those that are open on no host at all.
STRAY = """(board) => [...document.querySelectorAll("a[href]")].map((link) => link.href)
  .filter((href) => href.startsWith(location.origin) && !`${href}/`.startsWith(`${board}/`))"""
#: Pages of STAGES that show less of this job, which may have gone back or not yet -> an element that they have.
HERE = {"/runs/run-a": "#incidents", "/interruptions?days=all": "#lost", "/incidents": "#incidents-filter"}
#: Pages of STAGES where the browser notes that the server has no such thing.
LOUD = ("/nowhere", "/runs/none", "/runs/run-a/incidents/none", "/login")


@dataclass
class Stage:
    """A server, where each proxy serves it, and an incident of its run ``run-a``."""

    server: Server
    urls: dict[str, str]
    incident: str


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder, port = tmp_path_factory.mktemp("below"), free_port()
    job = folder / "job"
    job.mkdir()
    with (
        Server(folder / "data", port, env={"STABILITY_ROOT_PATH": kept_path(port)}) as server,
        nginx(folder / "nginx", port) as by_nginx,
        jupyter(folder / "jupyter", port) as by_jupyter,
        Ranks(
            JOB, [str(job), "200"], url=by_nginx["taken off"], folder=folder / "spool", run_id="run-a", world_size=1,
            STABILITY_DRAIN_S="10",
        ),
    ):  # fmt: skip
        urls = {f"{name}, {how}": url for name, found in (("nginx", by_nginx), ("jupyter", by_jupyter))
                for how, url in found.items()}  # fmt: skip
        rows = folder / "run-b.jsonl"
        rows.write_text("".join(f"{json.dumps({'step': step, 'loss': 2 + 1 / step})}\n" for step in range(1, 60)))
        command = ["import", str(rows), "--run-id", "run-b", "--url", by_nginx["kept"]]
        imported = ForkedProgram(command, dict(os.environ), folder / "import.log")
        assert imported.wait(90) == 0, (folder / "import.log").read_text()
        server.wait_for("/runs/run-a", lambda run: (run["last_step"] or 0) > 120, "the run is under way")
        (job / "spoil").touch()
        found = server.wait_for("/runs/run-a/incidents", lambda a: a["incidents"], "the spike is an incident")
        yield Stage(server, urls, found["incidents"][-1]["incident_id"])


class Visitor:
    """A window on a board below a path, which notes what it asks for beyond that, and what its console says."""

    def __init__(self, chromium: Browser, board: str) -> None:
        self.board = board
        self.troubles: list[str] = []
        self.frames: list[str] = []
        self.context = chromium.new_context()
        self.context.set_default_timeout(60_000)
        self.context.add_init_script(HANDLE)
        self.page: Page = self.context.new_page()
        follow_troubles(self.page, f"{board}/", self.troubles)
        self.page.on("websocket", lambda ws: ws.on("framereceived", lambda frame: self.frames.append(str(frame))))

    def open(self, path: str, there: str) -> None:
        self.page.goto(f"{self.board}{path}")
        self.page.wait_for_selector(there, state="attached")
        assert self.page.evaluate(STRAY, self.board) == [], path


@pytest.fixture
def visitor(chromium: Browser, stage: Stage, request: pytest.FixtureRequest) -> Iterator[Visitor]:
    visitor = Visitor(chromium, stage.urls[request.param])
    yield visitor
    visitor.context.close()
    assert visitor.troubles == []


def often(proxies: tuple[str, ...]) -> list[object]:
    return [one if one in proxies else pytest.param(one, marks=pytest.mark.soak) for one in PROXIES]


@pytest.mark.parametrize("visitor", often(OFTEN), indirect=True)
def test_a_run_is_followed_and_rolled_back_below_a_path_and_no_request_leaves_it(
    stage: Stage, visitor: Visitor
) -> None:
    page = visitor.page
    visitor.open("/", "#runs-body tr[data-run='run-a']")
    page.click("#runs-body tr[data-run='run-a'] a.run-link")
    wait_in(page, "window.stability?.page?.ready && stability.drawLog.first.focus > 0")
    wait_in(page, "stability.drawLog.lastDrawn?.step > 0")
    drawn = page.evaluate("stability.drawLog.lastDrawn.step")
    wait_in(page, f"stability.drawLog.lastDrawn.step > {drawn}")  # points come over the WebSocket
    assert visitor.frames

    page.click(f"a[href$='/incidents/{stage.incident}'] >> nth=0")
    page.wait_for_selector("#incident-verdict *")
    assert page.evaluate("location.href").startswith(f"{visitor.board}/runs/run-a/incidents/")
    page.reload()
    page.wait_for_selector("#incident-verdict *")
    page.click("#incident-run")
    wait_in(page, "window.stability?.page?.ready && stability.drawLog.first.focus > 0")

    page.evaluate("stability.page.dialog.show(null)")
    page.click("#rollback-confirm")
    page.wait_for_selector("#rollback-progress[data-state=done]")
    page.go_back()
    page.wait_for_selector("#incident-verdict *")
    page.click("#crumb-runs")
    page.wait_for_selector("#runs-body tr[data-run]")
    assert page.evaluate("location.href") == f"{visitor.board}/"


@pytest.mark.parametrize("visitor", often(("jupyter, taken off",)), indirect=True)
def test_no_page_asks_for_anything_beyond_its_path(stage: Stage, visitor: Visitor) -> None:
    for path, (there, _) in STAGES.items():
        if path not in ("/runs/run-a/attempts?fork=1", "/runs/run-a/attempts"):  # there may be no fork yet
            visitor.open(path.replace("INCIDENT", stage.incident), HERE.get(path, there))
        if path in LOUD:
            visitor.troubles[:] = [one for one in visitor.troubles if not one.startswith("console: ")]


@pytest.mark.parametrize("visitor", ["jupyter, taken off"], indirect=True)
def test_the_boards_own_address_without_its_last_slash_leads_to_the_list(stage: Stage, visitor: Visitor) -> None:
    visitor.page.goto(visitor.board)
    visitor.page.wait_for_selector("#runs-body tr[data-run='run-a']")
    assert visitor.page.evaluate("location.href") == f"{visitor.board}/"
    visitor.troubles.clear()  # what the first page, seen from there, did not find
