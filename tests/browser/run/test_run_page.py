"""The real stack in a real browser: points arrive, a spike is seen, a click rolls back, the curve is stitched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stabilitybackend.judging.incidents.rollback_target import GUARD_STEPS
from support.ports import free_port
from support.processes import Ranks, Server
from support.waiting import wait_in, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from browser.run.conftest import Visit

OpenPage = Callable[..., "Page"]
JOB = str(Path(__file__).parents[1] / "jobs" / "spiking_job.py")
#: An agent leaves with its test: nobody waits for what it still had to send.
QUICK = {"STABILITY_DRAIN_S": "10"}

#: What the large chart shows, read from what it drew last.
DRAWN = """() => {
  const spec = window.stability?.page?.focus?.plot.spec;
  if (!spec) return null;
  const [{ lines, yRange }] = spec.rows;
  const effective = lines.at(-1);
  const ghost = lines.find((line) => line.name === "discarded");
  return {
    x: effective.x, y: effective.y, ghostX: ghost ? ghost.x : [], ghostY: ghost ? ghost.y : [],
    flags: spec.labels.filter((label) => label.fill).map((label) => label.words),
    range: yRange,
  };
}"""
NEWEST = "() => window.stability?.drawLog.lastDrawn?.step || 0"


class Stack:
    """A server and a job."""

    def __init__(self, server: Server, folder: Path, run: str) -> None:
        self.server = server
        self.folder = folder
        self.path = f"/runs/{run}"

    def wait_for_step(self, step: int) -> None:
        """Wait until the server knows a step."""
        self.server.wait_for(self.path, lambda run: (run["last_step"] or 0) >= step, f"step {step} is there")


def started(server: Server, folder: Path, run: str, *slow_after: str, ranks: int = 2) -> Iterator[Stack]:
    """Start the job, and stop it in the end."""
    options = {"url": server.url, "folder": folder / "spool", "run_id": run, "world_size": ranks, **QUICK}
    with Ranks(JOB, [str(folder), *slow_after], **options):
        stack = Stack(server, folder, run)
        stack.wait_for_step(5)
        yield stack


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Stack]:
    """A server of one's own with a job of one rank, to kill."""
    with Server(tmp_path / "data", free_port()) as server:
        yield from started(server, tmp_path, "r-of-its-own", ranks=1)


@pytest.fixture
def spoilt(server: Server, tmp_path: Path) -> Iterator[Stack]:
    """A run of one's own, to spoil."""
    yield from started(server, tmp_path, "r-spoilt-by-file")


@pytest.fixture(scope="module")
def watched(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack for tests that only look."""
    yield from started(server, tmp_path_factory.mktemp("watched"), "r-browser", "100")


def steps_of(drawn: dict[str, Any]) -> list[int]:
    return [int(step) for step in drawn["x"]]


def newest(page: Page) -> int:
    return int(page.evaluate(NEWEST))


def test_a_spike_is_seen_and_a_click_stitches_the_curve(spoilt: Stack, visit: Visit) -> None:
    page = visit(spoilt.path)
    page.evaluate("() => { window.unloaded = false; }")

    # Points arrive, without a reload.
    wait_until(lambda: newest(page) > 20, 30, "points are drawn")
    seen = newest(page)
    wait_until(lambda: newest(page) > seen + 20, 20, "newer points are drawn")
    assert page.evaluate("window.unloaded") is False
    spoilt.wait_for_step(130)

    # The loss goes wrong; an incident says so.
    (spoilt.folder / "spoil").touch()
    spikes = wait_until(
        lambda: [one for one in spoilt.server.get(f"{spoilt.path}/incidents")["incidents"] if one["kind"] == "spike"],
        30,
        "the spike is an incident",
    )
    onset = spikes[-1]["onset_step"]
    page.click(f'#incidents [data-rollback="{spikes[-1]["incident_id"]}"]')

    # The dialog offers the newest checkpoint before the onset and says what will happen.
    chosen = int(page.get_attribute(".choice input:checked", "value") or -1)
    assert chosen == 20 * ((onset - GUARD_STEPS) // 20)
    page.focus("#rollback-skip")
    offered = page.input_value("#rollback-skip")
    at = newest(page)
    wait_until(lambda: newest(page) > at + 3, 20, "training goes on")
    assert page.input_value("#rollback-skip") == offered  # it follows the run, but not under somebody's hands
    page.fill("#rollback-lr", "0.5")
    page.fill("#rollback-seed", "7")
    page.fill("#rollback-skip", "40")
    sentence = page.inner_text("#rollback-sentence")
    assert sentence.startswith(f"Both ranks stop at the next common step boundary, load checkpoint {chosen}, discard")
    assert "reseed with 7, skip 40 batches and go on with the LR of its schedule × 0.5." in sentence
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/series" in request.url else None)
    page.click("#rollback-confirm")

    # Its progress goes on to the first new point.
    page.wait_for_selector("#rollback-progress[data-state=done]")
    stages = page.locator(".stages li.done").all_inner_texts()
    assert len(stages) == 5
    assert "Ranks ready: 2 of 2" in stages[2]
    assert "Ranks acted: 2 of 2" in stages[3]
    assert f"First new point: step {chosen + 1}" in stages[4]
    page.click("#rollback-close")

    # The news of the fork regrouped what was here: nobody fetched the history again.
    assert [url for url in asked if "cursor=" not in url] == []

    # The effective line is stitched: each step once, calm after the fork; the spike is a ghost and sets no scale.
    wait_until(lambda: max(steps_of(page.evaluate(DRAWN))) > chosen + 10, 20, "the new branch is drawn")
    dead = [
        one
        for one in spoilt.server.get(f"{spoilt.path}/series", metric="loss", view="all")["series"]
        if one["dead"] and one["rank"] == 0
    ]
    # Whole: the other rank may have forked before the last of these steps came.
    wait_until(lambda: page.evaluate(DRAWN)["ghostX"] == dead[0]["steps"], 10, "the ghost is drawn")
    drawn = page.evaluate(DRAWN)
    steps = steps_of(drawn)
    assert steps == list(range(1, steps[-1] + 1))
    assert max(value for value in drawn["y"][chosen:] if value is not None) < 3
    assert drawn["y"][59] is None
    assert drawn["ghostX"][0] == chosen + 1
    assert max(value for value in drawn["ghostY"] if value is not None) > 5
    assert [flag for flag in drawn["flags"] if flag.startswith("R1")]
    assert page.inner_text("#kpi-rollbacks .kpi-value") == "1"

    # The change stands in the lineage; nobody's text became markup.
    assert "LR × 0.5, seed 7, 40 batches skipped" in page.inner_text("#lineage")
    assert "<img src=x" in page.inner_text("#run-name")
    assert page.evaluate("window.pwned") is None
    assert page.evaluate("window.unloaded") is False


@pytest.mark.soak
def test_the_theme_follows_the_system_then_the_button_and_is_kept(watched: Stack, open_page: OpenPage) -> None:
    page = open_page(watched.server.url + watched.path, scheme="light")
    name = "document.documentElement.dataset.theme"
    paper = "window.stability?.page?.focus?.plot.spec?.colors.panel"
    assert page.evaluate(name) == "light"
    light = wait_until(lambda: page.evaluate(paper), 20, "the chart is drawn")
    page.emulate_media(color_scheme="dark")
    wait_until(lambda: page.evaluate(paper) != light, 10, "the chart changes with the system")
    assert page.evaluate(name) == "dark"
    page.click("#theme-toggle")
    assert page.evaluate(name) == "light"
    wait_until(lambda: page.evaluate(paper) == light, 10, "the chart changes with the button")
    page.reload()
    assert page.evaluate(name) == "light"


@pytest.mark.soak
def test_a_server_that_goes_away_is_named_and_nothing_is_missing_afterwards(mortal: Stack, open_page: OpenPage) -> None:
    # A browser writes failed connections to the console by itself; the page can't keep it from that.
    page = open_page(mortal.server.url + mortal.path, quiet=False)
    wait_until(lambda: newest(page) > 20, 30, "points are drawn")
    mortal.server.kill()
    page.wait_for_selector("#banner:not([hidden])")
    assert "No answer from the server since" in page.inner_text("#banner")
    gone_at = newest(page)
    answers: list[Any] = []
    page.on("response", lambda response: answers.append(response) if "/series?" in response.url else None)
    mortal.server.start()
    page.wait_for_selector("#banner", state="hidden")
    wait_until(lambda: newest(page) > gone_at + 40, 30, "points go on")
    steps = steps_of(wait_until(lambda: page.evaluate(DRAWN), 30, "the large chart is drawn"))
    assert steps == list(range(1, steps[-1] + 1))
    # What was here is not fetched again: only what came since.
    assert answers
    for response in answers:
        answer = response.json()
        assert "cursor=" in response.url
        assert answer["complete"] is False
        assert all(step > gone_at - 20 for one in answer["series"] for step in one["steps"])


@pytest.mark.soak
def test_a_zoom_is_shared_by_all_charts_and_double_click_ends_it(watched: Stack, visit: Visit) -> None:
    watched.wait_for_step(100)
    page = visit(watched.path, height=1800)
    ranges = """() => [...stability.page.board.charts.values()].filter((chart) => chart.visible && chart.born)
      .map((chart) => chart.plot.spec.xRange)"""
    wait_in(page, "window.stability && window.stability.page && window.stability.page.ready")
    wait_until(lambda: len(page.evaluate(ranges)) >= 6, 30, "the charts are drawn")
    box = page.locator("#chart-focus").bounding_box()
    assert box is not None
    y = box["y"] + 150
    page.mouse.move(box["x"] + 250, y)
    page.mouse.down()
    page.mouse.move(box["x"] + 350, y, steps=5)
    page.mouse.move(box["x"] + 450, y, steps=5)
    page.mouse.up()
    page.wait_for_selector("#zoom-reset:not([hidden])")
    zoomed = page.evaluate("stability.page.zoom.range")
    wait_until(lambda: all(one == zoomed for one in page.evaluate(ranges)), 10, "all charts show the same steps")
    page.mouse.dblclick(box["x"] + 400, y)
    page.wait_for_selector("#zoom-reset", state="hidden")

    # The same from a small chart, and its crosshair stands in all of them.
    small = page.locator("#chart-tokens").bounding_box()
    assert small is not None
    page.mouse.move(small["x"] + 150, small["y"] + 80)
    crosses = "document.querySelectorAll('.cross:not([hidden])').length"
    wait_until(lambda: page.evaluate(crosses) >= 5, 10, "the crosshair is shared")
    page.mouse.down()
    page.mouse.move(small["x"] + 250, small["y"] + 80, steps=5)
    page.mouse.up()
    page.wait_for_selector("#zoom-reset:not([hidden])")
    wait_until(lambda: len({tuple(one) for one in page.evaluate(ranges)}) == 1, 10, "all charts show the same steps")


def test_the_list_shows_the_run_live_and_leads_to_it(watched: Stack, visit: Visit) -> None:
    page = visit("/?q=spiking")
    row = page.locator("tr[data-run='r-browser']")
    row.wait_for()
    step = row.locator("td[data-cell=step]")
    first = step.inner_text()
    wait_until(lambda: step.inner_text() != first, 10, "the step in the list goes on")
    row.locator("a.run-link").click()
    page.wait_for_selector("#run-main")
    assert page.evaluate("location.pathname") == watched.path
    wait_in(page, "stability.page.focus?.hasLine()")
    page.go_back()
    page.wait_for_selector("#runs-table")
    assert page.evaluate("window.pwned") is None
