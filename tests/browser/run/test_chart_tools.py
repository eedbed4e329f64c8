"""What people do with a chart: by wheel, pointer and keys, its menu, and what they take with them."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.waiting import wait_in, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import FloatRect, Page

    from browser.run.conftest import Imported, Visit

RUN = "r-tools"
STEPS = 3000
#: One step of NaN and one peak, far above the rest.
NAN_AT, PEAK_AT = 1000, 2000
#: The options of the panel of losses, as they would be kept.
CHART = "stability.page.board.charts.get('datasets')"
OPTIONS = f"{CHART}.options()"
RANGE = "stability.page.zoom.range"


@pytest.fixture(scope="module", autouse=True)
def _run(imported: Imported) -> None:
    """A run of 3,000 steps that is over."""
    imported(
        RUN,
        [
            {
                "step": step,
                "loss": math.nan if step == NAN_AT else 2.0 + math.sin(step) / 4 + 50.0 * (step == PEAK_AT),
                "loss/code": 1.0 + math.cos(step) / 4,
                "loss/web": 3.0 + math.cos(step) / 4,
                "tokens": 512.0 * step,
                "tokens_per_s": 9e4,
            }
            for step in range(1, STEPS + 1)
        ],
    )


@pytest.fixture
def page(visit: Visit) -> Page:
    """The page of the run, its charts drawn."""
    return drawn(visit)


def drawn(visit: Visit, **look: Any) -> Page:
    page = visit(f"/runs/{RUN}", height=1800, **look)
    wait_in(page, f"stability.page.ready && {CHART}?.plot?.spec?.lines.length && stability.page.focus.hasLine()")
    return page


def box(page: Page, selector: str) -> FloatRect:
    """Return where an element is."""
    found = page.locator(selector).bounding_box()
    assert found is not None
    return found


@pytest.mark.soak
def test_the_wheel_scrolls_the_page_and_with_ctrl_zooms_where_the_pointer_is(page: Page) -> None:
    page.set_viewport_size({"width": 1280, "height": 700})
    chart = box(page, "#chart-focus")
    page.mouse.move(chart["x"] + 400, chart["y"] + 150)
    at = page.evaluate("stability.page.focus.plot.pointer.cursor")
    page.keyboard.down("Control")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    low, high = wait_until(lambda: page.evaluate(RANGE), 10, "it is zoomed")
    assert low < at < high
    assert high - low < 0.6 * STEPS
    page.mouse.wheel(0, 300)
    wait_until(lambda: page.evaluate("scrollY") > 100, 10, "the page scrolls")
    assert page.evaluate(RANGE) == [low, high]


@pytest.mark.soak
def test_shift_and_drag_move_what_is_seen_and_keep_its_width(page: Page) -> None:
    page.evaluate("stability.page.zoom.set([1000, 1500])")
    chart = box(page, "#chart-focus")
    wait_in(page, "stability.page.focus.plot.spec.xRange[0] === 1000")
    page.mouse.move(chart["x"] + 400, chart["y"] + 150)
    page.keyboard.down("Shift")
    page.mouse.down()
    page.mouse.move(chart["x"] + 300, chart["y"] + 150, steps=4)
    page.mouse.up()
    page.keyboard.up("Shift")
    wait_in(page, "stability.page.zoom.range[0] > 1010")
    low, high = page.evaluate(RANGE)
    assert high - low == pytest.approx(500)


@pytest.mark.soak
def test_a_drag_on_the_y_axis_zooms_it_and_a_double_click_there_ends_that(page: Page) -> None:
    chart = box(page, "#chart-datasets")
    page.mouse.move(chart["x"] + 15, chart["y"] + 120)
    page.mouse.down()
    page.mouse.move(chart["x"] + 15, chart["y"] + 60, steps=4)
    page.mouse.up()
    low, high = page.evaluate(OPTIONS)["yRange"]
    assert 0 < low < high < 4
    wait_until(
        lambda: page.evaluate(f"{CHART}.shownRange()") == [low, high],
        10,
        "it is drawn",
    )
    chart = box(page, "#chart-datasets")  # what loads above may have moved it
    page.mouse.dblclick(chart["x"] + 15, chart["y"] + 100)
    assert page.evaluate(OPTIONS) == {}


def test_a_chart_is_read_zoomed_and_shown_whole_again_by_keys_alone(page: Page) -> None:
    page.focus("#chart-tokens")
    page.keyboard.press("End")
    tip = page.locator("#chart-tokens .tip:not(.at-cursor)")
    wait_until(lambda: "step 3,000" in tip.inner_text(), 10, "the newest point is read")
    page.keyboard.press("Shift+ArrowLeft")
    wait_until(lambda: "step 3,000" not in tip.inner_text(), 10, "an older one is read")
    # The same step stands in the other charts, too.
    wait_until(lambda: page.locator(".tip.at-cursor:visible").count() >= 2, 10, "the others show it")
    page.keyboard.press("+")
    wait_in(page, "stability.page.zoom.range !== null")
    page.keyboard.press("0")
    wait_in(page, "stability.page.zoom.range === null")
    # For those who do not see it, it has a name and is in words.
    chart = page.locator("#chart-tokens")
    assert chart.get_attribute("aria-label").startswith("Chart tokens_per_s: arrows")  # type: ignore[union-attr]
    words = page.locator(f"#{chart.get_attribute('aria-describedby')}").text_content()
    assert words is not None
    assert "tokens_per_s: newest 90,000 at step 3,000" in words


def test_a_legend_hides_a_line_or_all_others_and_the_chart_remembers_it(page: Page) -> None:
    drawn = f"{CHART}.plot.spec.lines.map((one) => one.name).join()"
    page.click("#legend-datasets [data-line=code]")
    wait_until(lambda: page.evaluate(drawn) == "web", 10, "one line is left")
    assert page.evaluate(OPTIONS) == {"hidden": ["code"]}
    page.click("#legend-datasets [data-line=code]", modifiers=["Alt"])
    wait_until(lambda: page.evaluate(drawn) == "code", 10, "the other line is left")
    page.focus("#legend-datasets [data-line=web]")
    page.keyboard.press("Enter")
    wait_until(lambda: page.evaluate(drawn) == "code,web", 10, "both are there")
    assert page.evaluate(OPTIONS) == {}


@pytest.mark.soak
def test_charts_that_wish_the_same_of_the_server_share_one_request(page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "x=tokens" in request.url else None)
    page.evaluate(
        """() => stability.page.panels.filter(({ panel }) => ["datasets", "tokens"].includes(panel.id))
          .map(({ chart }) => chart.setOptions({ x: "tokens", smooth: 0.9, colour: "red", yRange: "all" }))"""
    )
    ends = """() => ["datasets", "tokens"].map((id) => stability.page.board.charts.get(id).plot.spec.lines)
      .map((lines) => lines.at(-1)?.x.at(-1))"""
    wait_until(lambda: page.evaluate(ends) == [512.0 * STEPS] * 2, 20, "both are drawn by tokens")
    assert len(asked) == 1
    assert page.evaluate(OPTIONS) == {"smooth": 0.9, "x": "tokens"}
    assert [one["name"] for one in page.evaluate(f"{CHART}.plot.spec.lines")] == [
        "raw", "raw", "code", "web",
    ]  # fmt: skip


@pytest.mark.soak
def test_an_x_axis_that_the_run_does_not_log_leaves_the_steps_and_says_so(visit: Visit) -> None:
    page = drawn(visit, quiet=False)  # the browser tells its console of the 422
    page.evaluate(f"{CHART}.setOptions({{ x: 'epochs' }})")
    note = page.locator("#legend-datasets .chart-trouble")
    note.wait_for()
    assert "epochs" in (note.get_attribute("title") or "")
    assert page.evaluate(f"{CHART}.plot.spec.lines[0].x.at(-1)") == STEPS


def test_a_thinned_line_is_its_mean_in_a_band_that_has_the_peak_and_the_nan(page: Page) -> None:
    row = page.evaluate(
        """() => { const { lines, marks } = stability.page.focus.plot.rows[0]; const line = lines.at(-1);
          return { y: line.y, high: line.band.high, highX: line.band.highX, marks: marks.map((one) => one.x) }; }"""
    )
    assert row["marks"] == [NAN_AT]
    peak = max(range(len(row["high"])), key=lambda at: row["high"][at] or 0)
    assert row["highX"][peak] == PEAK_AT
    assert row["high"][peak] > 50
    means = [value for at, value in enumerate(row["y"]) if abs(at - peak) > 1 and value is not None]
    assert all(1.7 < value < 2.3 for value in means)


@pytest.mark.soak
@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_a_picture_of_a_chart_has_its_theme_and_twice_its_pixels(visit: Visit, scheme: str) -> None:
    page = drawn(visit, scheme=scheme)
    page.click("#panel-datasets .chart-tool >> nth=1")
    with page.expect_download() as download:
        page.click("#panel-datasets .chart-files button:text-is('PNG')")
    assert download.value.suggested_filename == f"{RUN}-loss.png"
    data = Path(download.value.path()).read_bytes()
    assert data.startswith(b"\x89PNG")
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    chart = box(page, "#chart-datasets")
    assert width == 2 * round(chart["width"])
    assert height > 2 * chart["height"]
    corner = """(bytes) => createImageBitmap(new Blob([new Uint8Array(bytes)])).then((image) => {
      const context = new OffscreenCanvas(9, 9).getContext("2d");
      context.drawImage(image, 0, 0);
      return [...context.getImageData(1, 1, 1, 1).data.slice(0, 3)];
    })"""
    panel = "stability.page.focus.plot.spec.colors.panel"
    assert "#" + bytes(page.evaluate(corner, list(data))).hex() == page.evaluate(panel)


def test_a_csv_has_every_row_in_sight_at_its_time(page: Page) -> None:
    page.evaluate("stability.page.zoom.set([990, 1010])")
    page.click("#focus-panel .chart-tool")
    with page.expect_download() as download:
        page.click("#focus-panel .chart-files button:text-is('CSV')")
    with Path(download.value.path()).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(range(990, 1011))
    assert {(row["segment"], row["state"]) for row in rows} == {("0", "effective")}
    assert [row["step"] for row in rows if row["loss"] == "NaN"] == [str(NAN_AT)]
    assert all(row["time"].endswith("Z") for row in rows)


@pytest.mark.soak
def test_the_points_of_a_chart_are_a_table_that_keys_turn(page: Page) -> None:
    page.focus("#panel-datasets .chart-tool >> nth=1")
    page.keyboard.press("Enter")
    page.click("#panel-datasets .chart-files button:text-is('Data table')")
    dialog = page.locator("#chart-table-dialog")
    assert dialog.locator("thead th").all_inner_texts() == ["At", "code", "web"]
    assert "step 3,000" in dialog.locator("tbody tr").last.inner_text()
    before = dialog.locator("tbody th").first.inner_text()
    dialog.locator("button:text-is('Earlier')").focus()
    page.keyboard.press("Enter")
    assert dialog.locator("tbody th").first.inner_text() != before
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
