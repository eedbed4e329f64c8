"""How a run can be looked at: parts of its tree, other x axes, smoothed, over itself, beside others; costs of forks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.processes import Ranks
from support.waiting import wait_in, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from browser.conftest import OpenPage
    from browser.run.conftest import Visit
    from support.processes import Server

JOB = str(Path(__file__).parents[1] / "jobs" / "forked_job.py")
#: Run id -> its newest step. The longest one is looked at alone.
RUNS = {"r-long": 400, "r-short": 320}
#: Lines of the large chart's upper row; the last one is the effective one.
LINES = """() => (window.stability?.page?.focus?.plot.spec?.rows[0].lines || [])
  .map(({ name, x, y, opacity }) => ({ name, x, y, opacity }))"""

COMPARED = """() => window.stability?.page?.plot?.spec?.lines.filter((one) => one.run)
  .map(({ run, x, color }) => ({ run, x, color }))"""


@pytest.fixture(scope="module", autouse=True)
def _runs(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Two forked runs."""
    folder = tmp_path_factory.mktemp("views")
    options = {"url": server.url, "world_size": 1, "STABILITY_DRAIN_S": "10"}
    with ExitStack() as jobs:
        for run, steps in RUNS.items():
            jobs.enter_context(Ranks(JOB, [str(steps)], folder=folder / run, run_id=run, **options))
        for run, steps in RUNS.items():
            server.wait_for(f"/runs/{run}", lambda facts, steps=steps: facts["last_step"] == steps, f"{run} is there")
        yield


def effective(page: Page) -> dict[str, Any]:
    """Return the effective line, once it is drawn."""
    return dict(wait_until(lambda: page.evaluate(LINES), 20, "the large chart is drawn")[-1])


def jumps(values: list[float | None]) -> float:
    """Return the way that a line goes up and down."""
    return sum(abs(b - a) for a, b in itertools.pairwise(values) if a is not None and b is not None)


def test_a_first_load_takes_few_files_little_to_send_and_one_request_for_each_chart(
    server: Server, open_page: OpenPage
) -> None:
    page = open_page("about:blank", quiet=False)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/api/" in request.url else None)
    page.goto(f"{server.url}/runs/r-long")
    wait_in(page, "window.stability?.drawLog.first.focus > 0 && window.stability.drawLog.first.grad > 0")
    assert page.evaluate("typeof window.Plotly") == "undefined"
    # The curve is really there: pixels of the line's colour, from the left edge of the plot to its right one.
    columns = page.evaluate(
        """() => {
          const canvas = document.querySelector("#chart-focus canvas");
          const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          const columns = new Set();
          for (let at = 0; at < data.length; at += 4) {
            if (data[at] === 0x6a && data[at + 1] === 0xa0 && data[at + 2] === 0xff) columns.add((at / 4) % width);
          }
          return [...columns].sort((a, b) => a - b).filter((one) => one > 66);
        }"""
    )
    assert len(columns) > 300
    series = [at for at, url in enumerate(asked) if "/series" in url]
    assert series[0] < 3, "the first series is asked for before any script of ours is there"
    assert len(series) == len({asked[at] for at in series}) <= 2, "what was asked for early is not asked for again"

    wait_in(page, "stability.page.ready && stability.page.rollbackCosts.answer && stability.page.detectors.list.length")
    sent = page.evaluate(
        """() => [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
          .map((one) => ({ name: one.name, bytes: one.encodedBodySize }))"""
    )
    assert len(sent) <= 32  # the last two are SpikeScore and that of the navigation, if they are there by then
    assert sum(one["bytes"] for one in sent) <= 900_000


@pytest.mark.soak
def test_a_link_shows_the_same_view_and_the_controls_change_the_link(visit: Visit) -> None:
    page = visit("/runs/r-long?x=tokens&smooth=0.9&view=all&scale=log")
    wait_in(page, "window.stability?.page?.derived?.ready()")
    wait_until(lambda: any(one["name"] == "raw" for one in page.evaluate(LINES)), 20, "the smoothed line is drawn")
    line = effective(page)
    lines = page.evaluate(LINES)
    raw = next(one for one in lines if one["name"] == "raw")
    dead = [one["name"] for one in lines if one["name"] and "discarded" in one["name"]]
    # The x axis is what the run logged; the raw line stands faint behind the smoothed one; every branch has its own.
    assert (line["x"][0], line["x"][-1]) == (1000, 400_000)
    assert raw["opacity"] < 0.5
    assert jumps(line["y"]) < 0.5 * jumps(raw["y"])
    assert dead == ["R1 (discarded)", "start (discarded)"]
    assert page.inner_text("#focus-title") == "All segments"
    assert page.get_attribute("#focus-scale button.on", "data-value") == "log"
    assert page.input_value("#view-x") == "tokens"

    page.select_option("#view-x", "step")
    page.select_option("#view-part", "segment:1")
    wait_until(lambda: effective(page)["x"][:1] == [151], 10, "one segment is shown alone")
    assert effective(page)["x"][-1] == 300
    search = str(page.evaluate("location.search"))
    assert search == "?view=segment%3A1&smooth=0.9&scale=log&from=148&to=303"
    page.locator("#view-smooth").fill("0")
    page.select_option("#view-part", "effective")
    page.click("#focus-scale [data-value=linear]")
    assert page.evaluate("location.search") == ""
    wait_until(lambda: len(effective(page)["x"]) == 400, 10, "the whole line is back")


@pytest.mark.soak
def test_a_nan_is_a_mark_at_its_step_on_every_axis_and_smoothing_goes_on_over_it(visit: Visit) -> None:
    page = visit("/runs/r-long?x=time&smooth=0.9")
    wait_in(page, "window.stability?.page?.focus?.plot.spec?.axis === window.stability?.CLOCK_AXIS")
    marks = "() => stability.page.focus.plot.spec.rows[0].marks.map((one) => [one.x, one.words])"
    ((when, words),) = wait_until(lambda: page.evaluate(marks), 20, "the mark is drawn")
    assert words == "NaN at step 40, rank 0"
    line = effective(page)
    around = [y for x, y in zip(line["x"], line["y"], strict=True) if abs(x - when) < 1]
    assert len([y for y in around if y is not None]) >= 2


@pytest.mark.soak
def test_the_table_says_what_each_rollback_cost_newest_first(server: Server, visit: Visit) -> None:
    page = visit("/runs/r-long")
    page.wait_for_selector("#rollback-costs tbody tr")
    rows = [row.split("\t") for row in page.locator("#rollback-costs tbody tr").all_inner_texts()]
    assert [row[:3] for row in rows] == [["R2", "300 → 250", "50"], ["R1", "200 → 150", "50"]]
    assert [(row[6], row[7]) for row in rows] == [("40", "–")] * 2  # nobody ordered it, the job went back by itself
    assert all("LR × 0.5" in row[8] for row in rows)
    assert "spike number 2" in rows[0][9]
    assert page.inner_text("#total-steps .kpi-value") == "100"
    assert page.inner_text("#total-data .kpi-value") == "80"
    totals = server.get("/runs/r-long/rollback_costs")["totals"]
    assert page.inner_text("#total-goodput .kpi-value") == f"{100 * totals['goodput']:.1f} %"
    assert "Effective time / wall time" in str(page.get_attribute("#total-goodput", "title"))
    wait_until(lambda: "goodput" in page.inner_text("#kpi-rollbacks .kpi-note"), 10, "the strip says it too")
    page.evaluate(
        "document.getElementById('storage').parentElement.scrollIntoView()"
    )  # it is asked for when it is near
    page.wait_for_selector("#storage .gauge")
    assert "In Redis " in page.inner_text("#storage")
    page.click("#rollback-costs .flag >> nth=1")
    page.wait_for_selector("#zoom-reset:not([hidden])")
    low, high = page.evaluate("stability.page.zoom.range")
    assert low < 150 < 200 < high
    assert f"from={int(low)}" in page.evaluate("location.search")


@pytest.mark.soak
def test_runs_are_chosen_in_the_list_and_laid_over_each_other(visit: Visit) -> None:
    page = visit("/?q=forked")
    for run in RUNS:
        page.click(f"[data-choose={run}]")
    page.click("#compare-open")
    page.wait_for_selector("#compare-chart canvas")
    found = wait_until(lambda: [one for one in page.evaluate(COMPARED) or [] if one["x"]], 20, "the lines are drawn")
    assert {one["run"]: one["x"][-1] for one in found} == RUNS
    assert len({one["color"] for one in found}) == 2

    page.click("#compare-align [data-value=fork]")
    wait_until(
        lambda: {one["run"]: one["x"][-1] for one in page.evaluate(COMPARED)} == {"r-long": 150, "r-short": 70},
        10,
        "both lines have their newest fork at zero",
    )
    box = page.locator("#compare-chart").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    wait_until(lambda: page.locator("#compare-chart .tip .key").count() == 2, 10, "the pointer shows both values")
    assert "from the fork" in page.inner_text("#compare-chart .tip b >> nth=0")
    score = page.locator("#compare-table tr[data-run=r-long]")
    wait_until(lambda: "loss 0 %" in score.inner_text(), 10, "its SpikeScore")
    search = page.evaluate("location.search")
    assert search == "?run=r-long&run=r-short&metric=loss&align=fork"
    page.evaluate("document.querySelector('[data-remove=r-short]').dataset.same = 'yes'")
    page.mouse.move(box["x"] + box["width"] / 3, box["y"] + 60)
    page.mouse.move(5, 5)
    wait_until(lambda: page.inner_text("#compare-cursor") == "", 10, "the pointer has left")
    assert page.get_attribute("[data-remove=r-short]", "data-same") == "yes"  # a button that is replaced loses a click
    page.click("[data-remove=r-short]")
    assert page.evaluate("location.search") == "?run=r-long&metric=loss&align=fork"

    again = visit(f"/compare{search}")
    wait_until(lambda: len(again.evaluate(COMPARED) or []) == 2, 20, "the link shows the same")


@pytest.mark.soak
def test_from_the_lineage_to_all_attempts_and_to_the_branches_of_a_fork(visit: Visit) -> None:
    page = visit("/runs/r-long")
    page.click("#lineage a.segment-more")
    page.wait_for_selector("#attempts-table tbody tr:nth-child(3)")
    assert page.inner_text("#attempts-text") == (
        "3 attempts. 2 of them ended between 150 and 200 steps after their start, with a spike. "
        "The newest one finished 150 steps after its start."
    )
    rows = [row.inner_text() for row in page.query_selector_all("#attempts-table tbody tr")]
    assert ["rolled back by the job" in row for row in rows] == [True, True, False]
    assert "spike number 1" in rows[0]
    lines = "stability.page.plot.spec.lines.map((one) => [one.name, one.x.length > 0])"
    assert page.evaluate(lines) == [["start", True], ["R1", True], ["R2", True]]
    page.go_back()
    page.click("#lineage [data-segment='1'] a.link")
    page.wait_for_selector("#attempts-table tbody tr")
    assert page.inner_text("#attempts-table th:nth-child(3)").lower() == "left by r1"
    wait_until(
        lambda: page.evaluate("stability.page.lower.spec?.lines[1]?.x.length") == 50, 20, "the difference is there"
    )
    assert page.inner_text("#attempts-table tbody tr:first-child td:nth-child(2)") == "151"
    page.set_viewport_size({"width": 390, "height": 844})
    wait_until(lambda: page.evaluate("document.documentElement.scrollWidth <= innerWidth"), 10, "it fits a phone")
