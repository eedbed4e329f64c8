"""axe-core finds nothing wrong with any page, dialog or panel, in both themes, and on a phone."""

from __future__ import annotations

import asyncio
import importlib.resources
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from playwright.sync_api import Error as PlaywrightError

from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis
from stabilityclient.wire import Frame, Output, OutputLine, SourceInfo
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.server_stack import RunningServer
from support.waiting import wait_in, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


class State(NamedTuple):
    """What is done on an open page, the selector of what appears then, and the element that axe looks at."""

    do: str = ""
    there: str = ""
    within: str = ""


def _click(selector: str) -> str:
    return f"document.querySelector({json.dumps(selector)}).click()"


ROW, ROWS, ARTICLE = ".incident-row", "#runs-body tr[data-run]", "#incidents article"
MENU = "#focus-panel [popovertarget^=chart-tools]"
DIALOG = "dialog[open]"
FIND = """const field = document.querySelector("#all-filter");
  field.value = "score"; field.dispatchEvent(new Event("input")); field.scrollIntoView()"""
WALL = ".wall-numbers b, .wall-well, .wall-card"
OPENED = "[data-count=incidents].critical"

#: Address (``INCIDENT`` is an id) -> what has to be there, and the states that the open page goes through.
STAGES: dict[str, tuple[str, list[State]]] = {
    "/": (
        ROWS,
        [
            State(_click("#runs-columns-open"), ".column-list input", "#runs-columns"),
            State(_click("#runs-views-open"), "#runs-views .view-list *", "#runs-views"),
            State("document.querySelector('#runs-filter').focus()", "#runs-offers [role=option]", "main"),
            State(_click("#palette-open"), "#palette [role=option]", "#palette"),
            State(_click("#keys-open"), "#keys-dialog dt", DIALOG),
        ],
    ),
    "/?group=project&open=*&col=config.lr": ("tr.group", []),
    "/incidents": (ROW, []),
    "/interruptions?days=all": ("#lost .kpi-value", []),
    "/compare?run=run-a&run=run-b": ("#compare-table tr", []),
    "/gallery": (".pattern canvas, canvas", []),
    "/server": ("#server-receivers *", []),
    "/login": ("#login-key", [State(_click("#login-send"), "#login-error:not(:empty)")]),
    "/?wall=1&rotate=0": (WALL, []),
    "/runs/run-a?wall=1": (WALL, []),
    "/nowhere": ("main h1", []),
    "/runs/none": ("#run-empty *", []),
    "/runs/run-a/incidents/none": ("#incident-empty *", []),
    "/runs/run-a/attempts": ("#attempts-table tbody tr", []),
    "/runs/run-a/attempts?fork=1": ("#attempts-table tbody tr", []),
    "/runs/run-a/incidents/INCIDENT": (
        "#incident-verdict *",
        [State("stability.page.restart.show()", "#restart-typed", DIALOG)],
    ),
    "/runs/run-a": (
        f"{ARTICLE}, #annotations .annotation",
        [
            State(_click("#about-fold"), "#about-add-tag", "#about-panel"),
            State(_click("#about-edit"), "#about-notes", "#about-panel"),
            State(_click("#output-fold"), "#output-lines li", "#output-panel"),
            State(_click("#detectors-fold"), "#detectors-rows *", "#detectors-panel"),
            State(_click("#watched-fold"), "#watched-body *", "#watched-panel"),
            State(FIND, "#all-metrics .metric canvas", "#all-panel"),
            State(_click(MENU), ".chart-menu:popover-open", ".chart-menu:popover-open"),
            State(_click(f"{MENU} + .chart-menu button[title^='The points']"), "#chart-table-dialog td", DIALOG),
            State(_click("#layout-open"), "#layout-menu:popover-open", "#layout-menu"),
            State(_click("#annotate"), "#annotation-text", DIALOG),
            State(_click("[data-less]"), "#less-dialog", DIALOG),
            State(_click("#lineage [data-undo]"), "#confirm-yes", DIALOG),
            State("stability.page.task.show()", "#task-name", DIALOG),
            State("stability.page.dialog.show(null)", "#rollback-confirm", DIALOG),
        ],
    ),
}
#: Pages that each run of the tests looks at; all others `make soak`.
OFTEN = ["/", "/runs/run-a/incidents/INCIDENT"]
#: What a phone shows, too.
PHONE = ["/", "/incidents", "/interruptions?days=all", "/gallery", "/runs/run-a", "/runs/run-a/incidents/INCIDENT"]
#: Rules whose answer another theme changes; the elements are the same in both.
COLORS = ["color-contrast", "link-in-text-block"]
#: Looks at what a selector says, at the whole page without one.
AXE = """async ([within, rules]) => {
  const options = { resultTypes: ["violations"], ...(rules ? { runOnly: rules } : {}) };
  const { violations } = await axe.run(within ? document.querySelector(within) : document, options);
  return violations.flatMap((rule) => rule.nodes.slice(0, 4).map((node) =>
    `${rule.id}: ${node.target} ${node.failureSummary.split("\\n")[1].trim()} ${node.html.slice(0, 160)}`));
}"""
CLOSE = """() => {
  for (const one of document.querySelectorAll("dialog[open]")) one.close();
  for (const one of document.querySelectorAll(":popover-open")) one.hidePopover();
}"""


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
        lines = [OutputLine(1000.0, 0, ("out", "err")[step % 2], step, f"at {step}") for step in range(40)]
        await agent.send(Output(f"a-{run_id}", "n0", lines))
        await asyncio.to_thread(server.wait_for, f"/runs/{run_id}/output", lambda a: a["total"], "its output is kept")


def _frames(start: int) -> list[Frame]:
    """A job that spikes and dies at step 400 and goes on from step 301, from another commit."""
    first, second, agent = Job(0, start), Job(0, start + 1), Job()
    agent.info = SourceInfo(f"a-h0-{start}", node="h0")  # a run without one is an import, which no figure counts
    death = {"rank": 0, "source": first.info.source, "pid": 7, "last_phase": "backward", "evidence": {"text": "gone"}}
    git = {"commit": f"{start:040d}", "branch": "main", "dirty": True, "changed": 1, "files": ["train.py"]}
    facts = {"source": first.info.source, "host": "h0", "command": ["python", "train.py"], "git": git}
    loss = [2.0 + 0.01 * (step % 3) + 4.0 * (150 <= step < 158) for step in range(1, 401)]
    values = {"loss": loss, "grad_norm": loss, "lr": [1e-4] * 400, "loss/web": loss, "eval/score": loss}
    again = {name: value[300:] for name, value in values.items()}
    return [
        agent.event("launch", **facts),
        first.rows(range(1, 401), values),
        first.event("checkpoint", 300, path="/ckpt/300"),
        first.event("process_death", 400, **death),
        second.rows(range(301, 401), again),
    ]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, str]]:
    """A server with two runs that died and went on, a note, and the id of an incident."""
    folder = tmp_path_factory.mktemp("axe")
    with EmbeddedRedis(folder) as redis, RunningServer(redis.url, folder / "data") as server:
        for at, run_id in enumerate(("run-a", "run-b")):
            with ThreadPoolExecutor(1) as thread:  # in this one Playwright's loop runs
                thread.submit(asyncio.run, _run(server, run_id, *_frames(1 + 10 * at))).result()
        note = {"first_step": 20, "last_step": 40, "text": "plateau"}
        server.client.post("/api/v1/runs/run-a/annotations", json=note).raise_for_status()
        server.wait_for("/rollback_costs", lambda a: a["run_count"] == 2, "what was lost is known")
        died = lambda a: [one for one in a["incidents"] if one["kind"] == "process_death"]  # noqa: E731
        yield server, died(server.wait_for("/incidents?run=run-a", died, "an incident"))[0]["incident_id"]


@pytest.fixture(scope="module")
def page(chromium: Browser) -> Iterator[Page]:
    """The one window of this file, where nothing moves: axe sees colours as people do."""
    context = chromium.new_context(reduced_motion="reduce", bypass_csp=True, color_scheme="dark")
    context.set_default_timeout(60_000)
    for script in (_axe(), (Path(__file__).parents[1] / "handle.js").read_text()):
        context.add_init_script(script)
    yield context.new_page()
    context.close()


def _violations(page: Page, state: str, within: str) -> list[str]:
    """Return what axe finds in both themes."""
    found = []
    for scheme, rules in (("dark", None), ("light", COLORS)):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        wait_in(page, f"document.documentElement.dataset.theme === '{scheme}'")
        found += [f"{state}, {scheme}: {one}" for one in page.evaluate(AXE, [within, rules])]
    page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    return found


def _open(page: Page, stage: tuple[RunningServer, str], path: str, there: str) -> None:
    server, incident = stage
    page.goto(f"{server.url}{path.replace('INCIDENT', incident)}")
    page.wait_for_selector(there)
    if "wall=" not in path and path != "/login":
        page.wait_for_selector(OPENED, state="attached")
    page.add_style_tag(content="*, *::before, *::after { transition: none !important; animation: none !important; }")


@pytest.mark.parametrize(
    "path", [path if path in OFTEN else pytest.param(path, marks=pytest.mark.soak) for path in STAGES]
)
def test_nothing_is_wrong_with_a_page_and_what_it_opens(
    stage: tuple[RunningServer, str], page: Page, path: str
) -> None:
    there, states = STAGES[path]
    page.set_viewport_size({"width": 1280, "height": 800})
    _open(page, stage, path, there)
    found = _violations(page, path, "")
    for state in states:
        try:
            page.evaluate(f"() => {{ {state.do}; }}")
        except PlaywrightError as error:
            raise AssertionError(f"{state.do}: {error.message}; before: {found}") from error
        page.wait_for_selector(state.there)
        found += _violations(page, state.there, state.within)
        page.evaluate(CLOSE)
    assert not found, "\n".join(found)


@pytest.mark.soak
@pytest.mark.parametrize("path", PHONE)
def test_nothing_is_wrong_with_a_page_on_a_phone(stage: tuple[RunningServer, str], page: Page, path: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    _open(page, stage, path, STAGES[path][0])
    assert not (found := _violations(page, path, "")), "\n".join(found)
    wait_until(lambda: page.evaluate("document.documentElement.scrollWidth") == 390, 10, "nothing lies beside it")
