"""A run that logs none of the usual names: its metrics are called by their own, and each card opens a chart."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.ports import free_port
from support.processes import Server
from support.waiting import wait_in, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]
#: The first one by alphabet is no loss.
METRICS = ["clock_mhz", "policy/kl_loss", *(f"part/{number:02d}" for number in range(59))]
STEPS = 120
#: What the opened charts show: by metric, how many points are drawn and how large the chart is.
OPENED = """() => Object.fromEntries([...stability.page.board.charts.values()]
  .filter((chart) => chart.id.startsWith("added ") && chart.plot.spec && chart.plot.spec.lines.length)
  .map((chart) => [chart.id.slice(6), {
    points: chart.plot.spec.lines[0].x.length,
    seen: chart.element.clientWidth > 200 && chart.element.clientHeight > 100,
  }]))"""


def imported(server: Server, folder: Path, run: str, rows: list[dict[str, Any]]) -> None:
    """Put rows into a run of a server."""
    file = folder / f"{run}.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    command = [sys.executable, "-m", "stabilitybackend.cli", "import", str(file), "--run-id", run, "--url", server.url]
    subprocess.run(command, check=True, capture_output=True, timeout=90)
    server.wait_for(f"/runs/{run}", lambda facts: facts["last_step"] == rows[-1]["step"], f"{run} is there")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with one run of 61 metrics, none of which has a panel of its own, and one with a loss."""
    folder = tmp_path_factory.mktemp("cards")
    with Server(folder / "data", free_port()) as server:
        values = {name: 0.1 * place for place, name in enumerate(METRICS)}
        rows = [{name: value + math.sin(step) for name, value in values.items()} for step in range(STEPS)]
        imported(server, folder, "r-many", [{"step": step, **row} for step, row in enumerate(rows)])
        imported(server, folder, "r-loss", [{"step": step, "loss": 2.0, "clock_mhz": 1755.0} for step in range(9)])
        yield server


def test_a_card_opens_a_chart_that_can_be_read_and_closes_it_again(server: Server, open_page: OpenPage) -> None:
    page = open_page(f"{server.url}/runs/r-many")
    page.click("#all-fold")
    names = METRICS[2:14]
    for name in names:
        page.click(f'.card[data-metric="{name}"]')
    page.wait_for_selector("#panels")
    for name in names:
        page.locator(f'[data-added="{name}"]').scroll_into_view_if_needed()
        drawn = wait_until(lambda name=name: page.evaluate(OPENED).get(name), 30, f"{name} is drawn")
        assert drawn == {"points": STEPS, "seen": True}

    # The address says which are open: another page shows the same, without a click.
    assert page.locator('.card[aria-pressed="true"]').count() == len(names)
    again = open_page(page.evaluate("location.href"))
    wait_in(again, f"document.querySelectorAll('[data-added]').length === {len(names)}")
    again.locator(f'[data-added="{names[-1]}"]').scroll_into_view_if_needed()
    assert wait_until(lambda: again.evaluate(OPENED).get(names[-1]), 30, "drawn")["points"] == STEPS

    for name in names[1:]:
        page.click(f'.card[data-metric="{name}"]')
    assert sorted(page.evaluate(OPENED)) == [names[0]]
    page.click(f'[data-added="{names[0]}"] button')
    page.wait_for_selector("#panels", state="hidden")
    assert "chart=" not in page.evaluate("location.search")


def test_what_is_no_loss_is_called_by_its_name(server: Server, open_page: OpenPage) -> None:
    page = open_page(f"{server.url}/runs/r-many")
    shown = "['.kpi-label', '.kpi-value'].map((one) => document.querySelector('#kpi-loss ' + one)?.textContent)"
    last = METRICS.index("policy/kl_loss") * 0.1 + math.sin(STEPS - 1)
    wait_in(page, f"String({shown}) === 'policy/kl_loss,{last:.4f}'.replace('-', '−')")
    page.goto(f"{server.url}/runs/r-loss")
    wait_in(page, f"String({shown}) === 'Loss,2.000'")


def test_the_list_shows_no_other_number_as_a_loss(server: Server, open_page: OpenPage) -> None:
    page = open_page(server.url)
    cell = "#runs-body [data-run={run}] td[data-cell=loss]"
    wait_until(lambda: page.inner_text(cell.format(run="r-loss")) == "2.000", 30, "the loss is shown")
    assert page.inner_text(cell.format(run="r-many")) == "–"
    page.wait_for_selector("#runs-body [data-run=r-many] .spark-name:has-text('policy/kl_loss')")
