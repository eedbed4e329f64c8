"""Bands of incidents on the large chart, as the real Plotly draws them in a real Chromium."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import plotly
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"

#: Draws the bands of incidents [severity, onset, end] and returns how many of them lie over each of some steps.
DEPTHS = """async ([bands, steps]) => {
  const S = window.stability;
  document.body.innerHTML = '<div id="chart" style="width: 800px; height: 300px"></div>';
  const incidents = bands.map(([severity, onset_step, recovered_step]) => (
    { severity, onset_step, recovered_step, step: onset_step, kind: "spike", state: "resolved", segment: 0 }
  ));
  const view = { incidents, forks: [], segments: new Map(), lastStep: 100 };
  const shapes = S.mergeShapes(S.shapes(view, { critical: "#f00", warning: "#fa0" }, true));
  const layout = { shapes, xaxis: { range: [0, 100] }, yaxis: { range: [0, 1] }, margin: { l: 0, r: 0, t: 0, b: 0 } };
  await Plotly.newPlot("chart", [{ x: [0, 100], y: [0, 1] }], layout);
  const svg = document.querySelector("#chart svg.main-svg");
  const paths = [...svg.querySelectorAll(".shapelayer path")].filter((path) => path.style.fillOpacity !== "0");
  const over = (step) => {
    const point = Object.assign(svg.createSVGPoint(), { x: 8 * step, y: 150 });
    return paths.filter((path) => path.isPointInFill(point)).length;
  };
  return steps.map(over);
}"""


@pytest.fixture
def plotted(scripts: Page) -> Page:
    """An empty page with our scripts and plotly.js."""
    scripts.add_script_tag(path=PLOTLY)
    return scripts


def depths(page: Page, bands: list[tuple[str, int, int]], steps: list[int]) -> Any:
    return page.evaluate(DEPTHS, [bands, steps])


def test_bands_that_overlap_add_up(plotted: Page) -> None:
    alike = [("critical", 10, 40), ("critical", 20, 60), ("critical", 30, 50)]
    assert depths(plotted, alike, [5, 15, 25, 35, 45, 55, 65]) == [0, 1, 2, 3, 2, 1, 0]


def test_bands_that_do_not_touch_are_one_path(plotted: Page) -> None:
    assert depths(plotted, [("warning", 10 * one, 10 * one + 5) for one in range(9)], [2, 7, 82]) == [1, 0, 1]
    assert plotted.locator("#chart .shapelayer path").count() == 1


def test_of_many_bands_over_each_other_the_curve_can_still_be_seen(plotted: Page) -> None:
    assert depths(plotted, [("critical", one, 99) for one in range(40)], [2, 50]) == [3, 4]
