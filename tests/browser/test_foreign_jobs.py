"""Ten jobs that log nothing like the demo's, and bad input: pages are at home with them, in both themes, on a phone.

Other lines of the list of bad input have their law elsewhere: a server that is restarted with the page open in
``run/test_run_page.py``, an annotation with HTML in ``run/test_annotations.py``, a layout that names a metric which is
gone in ``run/test_metrics.py``, a view of the table with such a column in ``pages/test_many_runs.py``.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from browser.visiting import go_to
from support.foreign_jobs import FOREIGN, LONG, MARKUP, RTL, ForeignJob, around, before_the_first_step, send, send_all
from support.ports import free_port
from support.processes import Server
from support.waiting import wait_in, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

#: Folder for a picture of each page in each look (``make screenshots``); none is taken without it.
WRITTEN = os.environ.get("STABILITY_PICTURES", "")
HANDLE = Path(__file__).with_name("handle.js").read_text()
#: Jobs whose pages each run of the tests looks at; those of all others `make soak`.
OFTEN = ("nan-only", "names-long")
#: How each page is looked at.
LOOKS: tuple[tuple[Literal["dark", "light"], int], ...] = (
    ("dark", 2560),
    ("dark", 1280),
    ("light", 1280),
    ("dark", 820),
    ("light", 390),
)
#: Cells of the strip: fewer look lost, more are not read.
CELLS = range(4, 9)
HOUR_S = 3600.0
#: What is wrong with what a page shows, in words; nothing on a good page.
WRONG = """(phone) => {
  const wrong = [], seen = (one) => one.checkVisibility() && one.getBoundingClientRect().width > 0;
  const html = document.documentElement;
  if (html.scrollWidth > innerWidth) wrong.push(`scrolls sideways: ${html.scrollWidth} px in ${innerWidth}`);
  if (document.querySelector('img[src="x"]')) wrong.push("a name became an image");
  for (const bold of document.querySelectorAll("b"))
    if (bold.textContent === "bold") wrong.push("a name became bold");
  for (const head of document.querySelectorAll("h1, h2, h3, h4"))
    if (seen(head) && !head.textContent.trim()) wrong.push(`an empty heading: ${head.id || head.className}`);
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const { data, parentElement: of } = texts.currentNode;
    if (!data.trim() || of.closest("script, style") || !seen(of)) continue;
    const words = data.trim();
    if (/\\bundefined\\b|\\[object |Infinity ?%|NaN ?[%x×]|^null$/.test(words)) wrong.push(`says ${words}`);
    if (/[\\u0590-\\u05ff]/.test(data) && !of.closest("bdi, [dir=auto], select, title, textarea"))
      wrong.push(`written from the right among its neighbours: ${of.className || of.tagName} ${words.slice(0, 30)}`);
    const cut = of.scrollWidth > of.clientWidth + 1 && getComputedStyle(of).textOverflow === "ellipsis";
    if (cut && !phone && !of.closest("[title], #wall"))
      wrong.push(`cut without a title: ${of.className} ${words.slice(0, 30)}`);
  }
  return wrong;
}"""
STRIP = """() => [...document.querySelectorAll("#kpis .kpi")].map((cell) => ({
  id: cell.id, metric: cell.dataset.metric,
  label: cell.querySelector(".kpi-label").textContent, value: cell.querySelector(".kpi-value").textContent,
}))"""
CHARTS = """() => [...document.querySelectorAll("#all-metrics .metric")].map((one) => [
  one.dataset.metric, one.querySelector("h3").textContent])"""
READY = "Boolean(window.stability?.page?.ready && stability.page.headline.known)"
TILES = "() => document.querySelectorAll('#all-metrics .metric').length"


class Screen:
    """One window for all pages, which writes down what goes wrong in it."""

    def __init__(self, page: Page, server: Server) -> None:
        self.page, self.server = page, server
        self.troubles: list[str] = []
        page.on("pageerror", lambda error: self.troubles.append(f"threw {error} {error.stack}"))
        page.on("console", lambda said: self.troubles.append(said.text) if said.type in ("error", "warning") else None)

    def open(self, path: str, ready: str) -> Page:
        """Open a page on a desk, in the dark."""
        self.page.set_viewport_size({"width": 1280, "height": 800})
        self.page.emulate_media(color_scheme="dark")
        go_to(self.page, self.server.url + path)
        wait_in(self.page, ready)
        return self.page

    def looks_right(self) -> None:
        """Fail where the page shows something wrong in a theme, on a desk or on a phone."""
        for scheme, width in LOOKS:
            self.page.set_viewport_size({"width": width, "height": 800})
            self.page.emulate_media(color_scheme=scheme)
            self.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            assert self.page.evaluate(WRONG, width < 1280) == [], f"{scheme}, {width} px"
            if WRITTEN:
                name = re.sub(r"\W+", "-", self.page.url.removeprefix(self.server.url)).strip("-") or "runs"
                self.page.screenshot(path=Path(WRITTEN) / f"foreign-{name[:60]}-{width}-{scheme}.png")
        # A page that is left while its socket opens is no trouble.
        assert [one for one in self.troubles if "before the connection is established" not in one] == []

    def opens_run(self, run: str) -> Page:
        """Open the page of a run and wait until its strip has numbers."""
        page = self.open(f"/runs/{run}", READY)
        wait_in(page, f"({STRIP})().length >= 4 && ({STRIP})().every((cell) => cell.value)")
        return page


@pytest.fixture(scope="module")
def screen(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Screen]:
    """A window on a server that has had all the jobs."""
    with Server(tmp_path_factory.mktemp("foreign") / "data", free_port()) as server:
        send_all(server.url, time.time())
        for job in FOREIGN:
            server.wait_for(f"/runs/{job.run_id}", lambda run, job=job: run["last_step"] == job.steps, "it is there")
        context = chromium.new_context()
        context.set_default_timeout(90_000)
        context.add_init_script(HANDLE)
        yield Screen(context.new_page(), server)
        context.close()


@pytest.mark.parametrize(
    "job",
    [pytest.param(job, marks=() if job.run_id in OFTEN else pytest.mark.soak, id=job.run_id) for job in FOREIGN],
)
def test_a_run_page_has_no_empty_cell_and_calls_every_metric_by_its_name(screen: Screen, job: ForeignJob) -> None:
    page = screen.opens_run(job.run_id)
    cells, run = page.evaluate(STRIP), screen.server.get(f"/runs/{job.run_id}")
    assert len(cells) in CELLS
    assert [cell for cell in cells if cell["value"] in ("", "–") or "not logged" in cell["value"]] == []
    assert [cell["label"] for cell in cells if cell["metric"]] == [cell["metric"] for cell in cells if cell["metric"]]
    assert {cell["metric"] for cell in cells if cell["metric"]} <= set(run["metrics"])
    assert [cell["metric"] for cell in cells if cell["id"] == "kpi-loss"] in ([], [run["loss_metric"]])
    assert set(page.evaluate("stability.page.focus.metrics()")) <= set(run["metrics"])
    page.locator("#all-panel").scroll_into_view_if_needed()
    assert [pair for pair in page.evaluate(CHARTS) if pair[0] != pair[1]] == []
    screen.looks_right()


def test_a_run_without_a_loss_shows_its_reward_and_no_cell_is_called_loss(screen: Screen) -> None:
    page = screen.opens_run("rl")
    assert page.evaluate("stability.page.focus.metrics()") == ["reward/mean"]
    assert "loss" not in [cell["label"] for cell in page.evaluate(STRIP)]


def test_a_metric_that_is_nan_at_every_point_says_so_and_has_no_axis(screen: Screen) -> None:
    page = screen.opens_run("nan-only")
    rows = "stability.page.focus.plot.rows"
    wait_in(page, f"{rows}.length === 2 && {rows}.every((row) => row.none)")
    assert page.evaluate(f"{rows}.map((row) => row.none)") == ["NaN at all 300 points"] * 2


@pytest.mark.soak
def test_one_value_of_a_billion_does_not_flatten_the_curve(screen: Screen) -> None:
    page = screen.opens_run("outlier")
    wait_in(page, "stability.page.focus.hasLine()")
    low, high = page.evaluate("stability.page.focus.plot.rows[0].yRange")
    assert 0 < low < 1
    assert 3 < high < 10


@pytest.mark.soak
def test_three_points_are_a_line_of_three_points(screen: Screen) -> None:
    page = screen.opens_run("three-points")
    wait_in(page, "stability.page.focus.hasLine()")
    assert page.evaluate("stability.page.focus.plot.rows[0].lines.at(-1).x") == [1, 2, 3]


@pytest.mark.soak
def test_names_are_text_where_they_stand_and_whole_under_the_pointer(screen: Screen) -> None:
    page = screen.opens_run("names-rtl")
    assert page.inner_text("#run-name") == f"{RTL} {MARKUP}"
    assert MARKUP in [cell["label"] for cell in page.evaluate(STRIP)]
    page = screen.opens_run("names-long")
    assert LONG in str(page.get_attribute("#run-name", "title"))


def test_the_list_of_foreign_jobs_looks_right_and_names_no_other_number_a_loss(screen: Screen) -> None:
    page = screen.open("/", f"document.querySelectorAll('#runs-body tr[data-run]').length >= {len(FOREIGN)}")
    assert page.inner_text("#runs-body [data-run=rl] td[data-cell=loss]") == "–"
    assert page.inner_text("#runs-body [data-run=nan-only] td[data-cell=loss]") == "NaN"
    screen.looks_right()


@pytest.mark.soak
@pytest.mark.parametrize("run", ["nan-only", "outlier"])
def test_the_page_of_an_incident_looks_right(screen: Screen, run: str) -> None:
    (incident, *_) = screen.server.get(f"/runs/{run}/incidents")["incidents"]
    screen.open(f"/runs/{run}/incidents/{incident['incident_id']}", "document.querySelector('.verdict-words') !== null")
    screen.looks_right()


@pytest.mark.soak
@pytest.mark.parametrize("path", ["/?wall=1&rotate=0", *(f"/runs/{job.run_id}?wall=1" for job in FOREIGN)])
def test_the_wall_has_no_empty_number(screen: Screen, path: str) -> None:
    page = screen.open(path, "document.querySelector('.wall-head h1') !== null")
    numbers = page.evaluate("[...document.querySelectorAll('.wall-numbers b')].map((one) => one.textContent)")
    assert [one for one in numbers if one in ("", "–")] == []
    screen.looks_right()


@pytest.mark.soak
def test_before_the_first_step_the_ranks_come_first_and_there_is_no_empty_chart(screen: Screen) -> None:
    with before_the_first_step(screen.server.url) as run:
        screen.server.wait_for(f"/runs/{run}", lambda facts: facts["state"]["phase"] == "starting", "it starts")
        page = screen.opens_run(run)
        page.wait_for_selector("#ranks canvas")
        # The first agents may have reported after the page asked for the run; the feed brings it then.
        ranks = lambda: {cell["label"]: cell["value"] for cell in page.evaluate(STRIP)}.get("Ranks")  # noqa: E731
        wait_until(lambda: ranks() == "512", 10, "all ranks are counted")
        wait_in(page, "document.querySelector('#ranks-summary').textContent === 'All 512 ranks are in compile.'")
        top = "(id) => document.getElementById(id).getBoundingClientRect().top"
        assert page.evaluate(top, "ranks-panel") < page.evaluate(top, "focus-panel")
        assert not page.is_visible("#all-panel")
        assert page.inner_text("#run-status") == "starting"
        screen.looks_right()
        wall = screen.open(f"/runs/{run}?wall=1", "document.querySelector('.wall-numbers b') !== null")
        assert wall.locator(".wall-chart").count() == 0
        assert wall.inner_text("[data-number=ranks] b") == "512"
        screen.looks_right()


@pytest.mark.soak
def test_a_clock_an_hour_ahead_makes_no_age_negative(screen: Screen) -> None:
    ahead = ForeignJob("ahead", "an hour ahead", 120, {"loss": (1, around(2.0))})
    send(screen.server.url, ahead, time.time() + HOUR_S)
    screen.server.wait_for("/runs/ahead", lambda run: run["last_step"] == 120, "it is there")
    negative = "/[-−]\\d[\\d.]* ?(s|min|h|d)\\b/.test(document.body.innerText)"
    page = screen.opens_run("ahead")
    assert not page.evaluate(negative)
    assert page.evaluate("stability.page.lastStep()") == 120
    screen.looks_right()
    page = screen.open("/", "document.querySelector('#runs-body [data-run=ahead]') !== null")
    assert not page.evaluate(negative)


@pytest.mark.soak
def test_ten_thousand_metrics_cost_what_is_in_sight(screen: Screen) -> None:
    curve = lambda step, rng: math.sin(step)  # noqa: E731
    metrics: dict[str, Any] = {f"layer{number // 100:03}/w{number:05}": (1, curve) for number in range(10_000)}
    send(screen.server.url, ForeignJob("10k", "10,000 metrics", 20, metrics), time.time())
    screen.server.wait_for("/runs/10k", lambda run: run["last_step"] == 20, "it is there", 90)
    page = screen.opens_run("10k")
    wait_in(page, "stability.page.focus.hasLine()")
    assert page.evaluate("document.querySelectorAll('*').length") < 6000
    assert page.evaluate("document.querySelectorAll('canvas').length") < 60
    page.fill("#all-filter", "w09999")
    wait_until(lambda: page.evaluate(TILES) == 1, 30, "the search finds it")
    screen.looks_right()
