"""The panel of watched metrics: what is watched as what and why, and what is not; charts show a role under any name."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from stabilityclient.wire import Frame
from support.gateway_stack import log_frames
from support.job_frames import Job
from support.waiting import wait_until

if TYPE_CHECKING:
    from browser.run.conftest import Visit
    from support.processes import Server


@pytest.fixture(scope="module", autouse=True)
def _runs(server: Server) -> None:
    """A run whose names are its own, and one of eight data sets."""
    steps, job = range(1, 301), Job()
    metrics = {
        "objective": [2.0 + 0.01 * math.sin(s) for s in steps],
        "opt/gradient_norm": [1.0 + 0.2 * math.sin(s) for s in steps],
        "mix/web": [0.7 + 0.02 * math.sin(s) for s in steps],
        "mix/code": [0.3 - 0.02 * math.sin(s) for s in steps],
        "reward": [math.cos(s) for s in steps],
    }
    declared = job.event("names", roles={"loss": "objective", "lr": "rate"})
    log_frames(server.url, declared, job.rows(steps, metrics), run_id="r-named")
    log_frames(server.url, *mixture(), run_id="r-mixture")


def mixture() -> list[Frame]:
    """A job of eight data sets that went back and takes one of them in place of another since."""
    names = [f"a_data_set_with_a_long_name_{number}" for number in range(8)]
    job, again = Job(), Job(start=2)
    usual = dict(zip(names, (30, 10, 10, 10, 10, 10, 10, 10), strict=True))
    wrong = usual | {names[0]: 10, names[6]: 30}

    def rows(shares: dict[str, int], first: int, last: int) -> dict[str, list[float]]:
        return {f"tokens/{name}": [100.0 * share] * (last - first) for name, share in shares.items()}

    declared = {"shares": {name: share / 100 for name, share in usual.items()}, "unit": "tokens"}
    return [
        job.event("mixture", None, **declared),
        job.rows(range(1, 220), {"loss": [2.0] * 219, **rows(usual, 1, 220)}),
        again.event("mixture", None, **declared),
        again.rows(range(161, 260), {"loss": [2.0] * 99, **rows(wrong, 161, 260)}),
    ]


def test_a_role_is_shown_under_the_name_that_the_run_has_and_the_panel_says_why(visit: Visit) -> None:
    page = visit("/runs/r-named")
    page.wait_for_selector("#panel-grad:visible")
    page.wait_for_selector("#legend-ratio:has-text('web')")
    wait_until(lambda: page.inner_text("#kpi-grad .kpi-value") != "–", 20, "the strip has the gradient norm")
    page.click("#watched-fold")
    page.wait_for_selector("#watched-body tr[data-metric='mix/web']")
    rows = {
        one.split("\t")[0]: one.split("\t")[1:3] for one in page.locator(".watched-table tbody tr").all_inner_texts()
    }
    assert rows == {
        "objective": ["loss", "declared by run.names()"],
        "opt/gradient_norm": ["gradient norm", "by its values"],
        "mix/web": ["share of web", "known name"],
        "mix/code": ["share of code", "known name"],
        "reward": ["other metric (a note where it leaves its own past by far)", "by its values"],
    }
    assert "'rate' as lr, which none of the 300 rows since then has" in page.inner_text(".watched-warning")
    # On a phone every word of it is in sight, too.
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.eval_on_selector("#watched-body", "(one) => one.scrollWidth - one.clientWidth") <= 0


def test_the_chart_of_a_mixture_names_every_set_and_draws_what_the_discarded_branch_took(
    visit: Visit,
) -> None:
    page = visit("/runs/r-mixture")
    page.locator("#panel-ratio").scroll_into_view_if_needed()
    page.wait_for_selector("#legend-ratio .key:nth-child(8)")
    assert page.inner_text("#note-ratio") == "share of tokens"
    hidden = "(one) => one.scrollHeight - one.clientHeight > 1 || one.scrollWidth - one.clientWidth > 1"
    assert [page.eval_on_selector(f"#panel-ratio {part}", hidden) for part in (".legend", "h3")] == [False, False]
    # Names that begin alike lose their middle: where each ends is in sight.
    end = """(one) => {
      const letters = document.createRange();
      letters.selectNodeContents(one.querySelector(".cut-name").lastChild);
      return [letters.toString(), letters.getBoundingClientRect().right <= one.getBoundingClientRect().right + 1];
    }"""
    ends = page.locator("#legend-ratio .key").evaluate_all(f"(all) => all.map({end})")
    assert sorted(ends) == [[f"g_name_{number}", True] for number in range(8)]
    drawn = "() => window.stability.page.panels.find((one) => one.panel.id === 'ratio').chart.plot.spec.lines.length"
    assert page.evaluate(drawn) == 8 * 3
    page.click("#focus-ghosts")  # above: only charts in sight are drawn
    page.locator("#panel-ratio").scroll_into_view_if_needed()
    wait_until(lambda: page.evaluate(drawn) == 8 * 2, 20, "the discarded branch is not drawn any more")


def test_a_long_name_is_cut_only_where_there_is_no_place_for_it(server: Server, visit: Visit) -> None:
    [found] = server.wait_for(
        "/runs/r-mixture/incidents",
        lambda answer: [one for one in answer["incidents"] if one["kind"] == "data_mix_drift"],
        "the mixture is off",
    )["incidents"]
    page = visit(f"/runs/r-mixture/incidents/{found['incident_id']}")
    page.wait_for_selector(".shares .cut-name")
    cut = "(all) => all.map((name) => name.firstChild.scrollWidth > name.firstChild.clientWidth)"
    assert page.locator(".shares .cut-name").evaluate_all(cut) == [False] * 8
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.locator(".shares .cut-name").evaluate_all(cut) == [True] * 8
    assert page.evaluate("document.documentElement.scrollWidth") == 390
