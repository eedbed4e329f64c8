"""Times are those of the data, also where they are older than the server's first sight of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.waiting import wait_in, wait_until

if TYPE_CHECKING:
    from browser.run.conftest import Imported, Visit

#: Some time ago; a row a minute. After step 99 the job comes back at step 50.
BEGAN = 1_600_000_000.0
STEPS = [*range(100), *range(50, 151)]
#: Where the large chart has the fork: its flag and its line, as the server's clock tells it.
FORK = """() => {
  const spec = window.stability?.page?.focus?.plot.spec;
  const onClock = spec?.axis === window.stability?.CLOCK_AXIS;
  const flag = onClock && spec?.labels.find((one) => one.words.split(" ")[0] === "S1");
  return flag ? [flag.x, spec.rules[0].x] : null;
}"""


@pytest.fixture(scope="module", autouse=True)
def _run(imported: Imported) -> None:
    """A run that was imported long after it was made."""
    times = [{"t": BEGAN + 60 * row} for row in range(len(STEPS))]
    imported(
        "r-old", [{"step": step, "loss": 2.0 + 0.01 * (step % 3), **t} for step, t in zip(STEPS, times, strict=True)]
    )


def test_an_imported_run_took_as_long_as_its_log_says(visit: Visit) -> None:
    page = visit("/runs/r-old")
    wait_in(page, "document.querySelector('#run-elapsed')?.textContent === '3 h 20 min'")
    page = visit("/?q=r-old")
    age = page.locator("#runs-body [data-run=r-old] td[data-cell=progress]")
    days = int(wait_until(lambda: age.count() and age.inner_text(), 30, "listed").split(" d ago")[0])
    assert days > 1_000


def test_on_a_clock_a_fork_stands_where_the_job_came_back(visit: Visit) -> None:
    page = visit("/runs/r-old?x=time")
    page.locator("#chart-focus").hover()
    places = wait_until(lambda: page.evaluate(FORK), 60, "the fork is drawn on a clock")
    back = page.evaluate("(seconds) => window.stability.clockMs(seconds)", BEGAN + 60 * 100)
    assert places == [pytest.approx(back), pytest.approx(back)]


def test_of_a_log_without_times_no_moment_is_shown(visit: Visit, imported: Imported) -> None:
    losses = [(step, 2.0 + 0.01 * (step % 3)) for step in range(200)]
    again = [(step, 2.0 + 0.01 * (step % 3) + (1.0 if step < 130 else 0.0)) for step in range(100, 260)]
    imported("r-untimed", [{"step": step, "loss": loss} for step, loss in [*losses, *again]])
    page = visit("/runs/r-untimed")
    page.wait_for_selector("#incidents article .incident-head")
    assert page.locator("#incidents time").count() == 0
    page.wait_for_selector("#resumes [data-resume]")
    assert page.locator("#resumes time").count() == 0
    page.click("#incidents a:has-text('Details')")
    page.wait_for_selector("#incident-timeline .timeline li")
    assert page.locator("#incident-timeline time").count() == 0
    assert page.inner_text(".incident-age") == ""
    page = visit("/?q=r-untimed")
    age = page.locator("#runs-body [data-run=r-untimed] td[data-cell=progress]")
    assert wait_until(lambda: age.count() and age.inner_text(), 30, "listed") == "–"
    assert "since" not in page.inner_text("#runs-body [data-run=r-untimed]")
