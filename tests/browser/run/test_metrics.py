"""All metrics of a run as charts: found, pinned, moved, sized, computed, saved; each is called by its own name."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from support.waiting import scroll_to, wait_in, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from browser.run.conftest import Imported, Visit

#: The first one by alphabet is no loss.
METRICS = ["clock_mhz", "policy/kl_loss", *(f"part/{number:02d}" for number in range(59))]
STEPS = 120
#: What the charts show: by metric, how many points are drawn and how large the chart is.
DRAWN = """() => Object.fromEntries([...stability.page.board.charts.values()]
  .filter((chart) => chart.plot?.spec?.lines?.length)
  .map((chart) => [chart.id.replace("metric ", ""), {
    points: chart.plot.spec.lines[0].x.length,
    seen: chart.element.clientWidth > 200 && chart.element.clientHeight > 100,
  }]))"""


@pytest.fixture(scope="module", autouse=True)
def _runs(imported: Imported) -> None:
    """One run of 61 metrics, none of which has a panel of its own, and one with a loss."""
    values = {name: 0.1 * place for place, name in enumerate(METRICS)}
    rows = [{name: value + math.sin(step) for name, value in values.items()} for step in range(STEPS)]
    imported("r-many", [{"step": step, **row} for step, row in enumerate(rows)])
    imported("r-loss", [{"step": step, "loss": 2.0, "clock_mhz": 1755.0} for step in range(9)])


def test_every_metric_has_a_chart_and_one_far_from_sight_costs_nothing(visit: Visit) -> None:
    page = visit("/runs/r-many")
    page.click('[data-section="part/"]')
    chunk = "document.querySelectorAll('[data-prefix=\"part/\"] .metric-chunk')[2]"
    wait_in(page, f"Boolean({chunk})")
    page.evaluate(f"{chunk}.scrollIntoView()")
    wait_in(page, "document.querySelector('[data-metric=\"part/30\"]')")
    scroll_to(page, '[data-metric="part/30"]')
    drawn = wait_until(lambda: page.evaluate(DRAWN).get("part/30"), 30, "it is drawn")
    assert drawn == {"points": STEPS, "seen": True}
    page.evaluate("window.scrollTo(0, 0)")
    wait_in(page, "!document.querySelector('[data-metric=\"part/30\"]')")
    assert "part/30" not in page.evaluate(DRAWN)


def test_words_and_patterns_find_metrics_and_a_bad_pattern_keeps_what_the_last_one_found(visit: Visit) -> None:
    page = visit("/runs/r-many")
    page.wait_for_selector('[data-section="part/"]')
    page.fill("#all-filter", "part 07")
    wait_in(page, "document.querySelectorAll('.metric').length === 1")
    page.fill("#all-filter", "/^part.0[1-3]$/")
    wait_in(page, "document.querySelectorAll('.metric').length === 3")
    page.fill("#all-filter", "/^part.0[1-/")
    assert page.inner_text("#all-trouble").startswith("Not a regular expression")
    assert page.locator(".metric").count() == 3
    wait_in(page, "new URLSearchParams(location.search).get('find') === '/^part.0[1-3]$/'")
    again = visit(page.evaluate("location.pathname + location.search"))
    wait_in(again, "document.querySelectorAll('.metric').length === 3")


def pointed_at(page: Page, name: str) -> None:
    """Point at a chart until its tools are there: what loads above moves it away from under the pointer."""
    selector = f'#all-metrics [data-metric="{name}"]'

    def tools() -> bool:
        scroll_to(page, selector)
        if (box := page.locator(selector).first.bounding_box()) is None:
            return False  # made anew meanwhile
        for share in (0.3, 0.4):
            page.mouse.move(box["x"] + box["width"] * share, box["y"] + box["height"] * share)
        return page.locator(f'[data-pin="{name}"]').count() > 0

    wait_until(tools, 30, f"the tools of {name}")


@pytest.mark.soak
def test_a_pinned_chart_stands_on_top_and_a_link_shows_it(visit: Visit) -> None:
    page = visit("/runs/r-many")
    page.wait_for_selector('[data-section="part/"]')
    page.fill("#all-filter", "part/58")
    wait_in(page, "document.querySelectorAll('#all-metrics [data-metric]').length === 1")
    pointed_at(page, "part/58")
    page.click('[data-pin="part/58"]')
    pointed_at(page, "part/58")
    page.click('[data-size="part/58"]')
    wait_in(page, "location.search.includes('charts=')")
    page.fill("#all-filter", "")
    wait_in(page, "!location.search.includes('find=')")
    other = visit(page.evaluate("location.pathname + location.search"))
    wait_in(other, "document.querySelector('#all-metrics .metric')?.className.includes('size-L')")
    assert other.get_attribute("#all-metrics .metric", "data-metric") == "part/58"
    pointed_at(other, "part/58")
    other.click('[data-pin="part/58"]')
    wait_in(other, "!location.search.includes('chart=')")


def test_a_chart_is_moved_by_the_keyboard_and_keeps_the_focus(visit: Visit) -> None:
    page = visit("/runs/r-many?open=part/")
    scroll_to(page, '[data-metric="part/00"]')
    tiles = "[...document.querySelectorAll('[data-prefix=\"part/\"] .metric')]"
    order = f"{tiles}.slice(0, 3).map((one) => one.dataset.metric)"
    wait_in(page, f"{order}.join() === 'part/00,part/01,part/02'")
    page.focus('[data-metric="part/00"] .grip')
    page.evaluate("document.querySelectorAll('[data-prefix=\"part/\"] .metric-chunk')[2].scrollIntoView()")
    wait_in(page, "document.querySelector('[data-metric=\"part/30\"]')")  # by now the first charts are far from sight
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    wait_in(page, f"{order}.join() === 'part/01,part/02,part/00'")
    assert page.evaluate("document.activeElement.closest('.metric').dataset.metric") == "part/00"


@pytest.mark.soak
def test_a_chart_in_full_screen_ends_with_escape(visit: Visit) -> None:
    page = visit("/runs/r-many?chart=part/03")
    pointed_at(page, "part/03")
    page.click('[data-full="part/03"]')
    wait_until(lambda: page.evaluate(DRAWN).get("full part/03"), 30, "it is drawn")
    page.keyboard.press("Escape")
    wait_in(page, "!document.querySelector('.full-chart')")
    assert page.evaluate("location.pathname") == "/runs/r-many"


def test_an_expression_is_a_chart_of_what_the_server_computes(visit: Visit) -> None:
    page = visit("/runs/r-many", quiet=False)
    page.wait_for_selector('[data-section="part/"]')
    page.fill("#all-filter", "= part/01 -")
    page.press("#all-filter", "Enter")
    wait_in(page, "document.querySelector('#all-trouble').textContent.includes('at character 10')")
    page.fill("#all-filter", "= part/01 - part/00")
    page.press("#all-filter", "Enter")
    name = "expr:part/01 - part/00"
    scroll_to(page, f'[data-metric="{name}"]')
    drawn = wait_until(lambda: page.evaluate(DRAWN).get(name), 30, "it is drawn")
    assert drawn == {"points": STEPS, "seen": True}
    values = f"stability.page.store.effective('{name}')[0].pieces[0].values"
    assert {round(value, 6) for value in page.evaluate(values)} == {0.1}


@pytest.mark.soak
def test_a_layout_is_saved_for_the_project_and_opens_where_a_metric_is_gone(visit: Visit) -> None:
    page = visit("/runs/r-many?chart=part/05&chart=clock_mhz&open=part/")
    page.wait_for_selector('[data-metric="part/05"]')
    page.click("#layout-open")
    page.fill("#layout-name", "<b>night</b>")
    page.click("#layout-save")
    page.wait_for_selector(".layout-row")
    other = visit("/runs/r-loss")
    other.click("#layout-open")
    other.click(".layout-row .layout-name")
    wait_in(other, "document.querySelector('#all-missing')?.textContent.includes('part/05')")
    assert other.get_attribute("#all-metrics .metric", "data-metric") == "clock_mhz"
    other.click("#layout-open")
    other.click(".layout-row .icon-button")
    wait_in(other, "document.querySelector('.layout-list').textContent.startsWith('No layout')")


@pytest.mark.soak
def test_what_is_no_loss_is_called_by_its_name(visit: Visit) -> None:
    page = visit("/runs/r-many")
    shown = "['.kpi-label', '.kpi-value'].map((one) => document.querySelector('#kpi-main ' + one)?.textContent)"
    last = METRICS.index("policy/kl_loss") * 0.1 + math.sin(STEPS - 1)
    wait_in(page, f"String({shown}) === 'policy/kl_loss,{last:.4f}'.replace('-', '−')")
    page = visit("/runs/r-loss")
    wait_in(page, f"String({shown.replace('kpi-main', 'kpi-loss')}) === 'loss,2.000'")


def test_the_list_shows_no_other_number_as_a_loss(visit: Visit) -> None:
    page = visit("/")
    cell = "#runs-body [data-run={run}] td[data-cell=loss]"
    wait_until(lambda: page.inner_text(cell.format(run="r-loss")) == "2.000", 30, "the loss is shown")
    assert page.inner_text(cell.format(run="r-many")) == "–"
    page.wait_for_selector("#runs-body [data-run=r-many] .spark-name:has-text('policy/kl_loss')")


def test_a_metric_that_counts_its_own_steps_is_drawn_on_an_axis_of_its_own(visit: Visit, imported: Imported) -> None:
    rows = []
    for epoch in range(6):
        rows += [{"step": 50 * epoch + step, "loss": 3.0 - 0.1 * epoch + 0.01 * (step % 3)} for step in range(50)]
        rows += [{"step": epoch + 1, "val/loss": 3.1 - 0.1 * epoch}]
    imported("r-own-steps", [*rows, {"step": 300, "loss": 2.4}])
    page = visit("/runs/r-own-steps")
    page.wait_for_selector("#log-notes:has-text('val/loss counts its own steps')", state="attached")
    scroll_to(page, "#panels")
    shown = """[...stability.page.board.charts.values()]
      .filter((chart) => chart.metrics().includes("val/loss") && chart.plot.spec?.lines?.[0]?.x.length)
      .map((chart) => [[...chart.plot.spec.lines[0].x], ...chart.plot.spec.xRange])"""
    [[steps, low, high], *_] = wait_until(lambda: page.evaluate(shown), 30, "it is drawn")
    assert steps == [1, 2, 3, 4, 5, 6]
    assert (0 < low < 1, 6 < high < 7) == (True, True)
