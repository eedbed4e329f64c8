"""Twelve questions of somebody woken at night, each from `/`: by two clicks and one scroll, and by keys alone.

Who only looks shares the runs of a server; who orders or changes something has a job of their own, which is gone after.
Each part of an answer has its own test elsewhere: but for the two orders, the whole walks are ``make soak``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from browser.visiting import leave
from support.night.hands import SIZE, Eyes, Keyboard, Mouse
from support.night.jobs import COMMIT, SAVED, SUSPECT
from support.night.runs import LOST_GPU_HOURS, a_job_of_ones_own, a_job_that_went_back, a_night
from support.waiting import wait_in, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from browser.conftest import OpenPage
    from support.processes import Server

METRIC = "attention/entropy/m5"
#: Of the loss by tokens on a log axis as a file: the words that are searched, what is found, the first line.
ASKED, FOUND, HEAD = "loss by tokens log csv", "loss by tokens, log, csv", "step,time,segment,state,loss,tokens"
GOOD, LATE = SAVED
#: Of the runs that somebody changes: an id is given once.
NUMBERS = count(1)


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with a_night(tmp_path_factory.mktemp("night")) as server:
        yield server


@pytest.fixture(scope="module")
def _calm(_window_of_all: tuple[Page, list[str]]) -> Iterator[None]:
    """What blinks would take a tenth of the CPU."""
    page, _ = _window_of_all
    page.emulate_media(reduced_motion="reduce")
    yield
    page.emulate_media(reduced_motion="null")


@pytest.fixture
def window(night: Server, visit: OpenPage, _calm: None) -> Iterator[Page]:
    """On the first page, with nothing clicked or pressed."""
    page = visit(f"{night.url}/", **SIZE)
    page.wait_for_selector("#runs-body [data-run=good]")
    yield page
    leave(page)  # before the run that it shows goes


@pytest.fixture
def mouse(window: Page) -> Mouse:
    return Mouse(window)


@pytest.fixture
def keys(window: Page) -> Keyboard:
    return Keyboard(window)


@pytest.fixture
def own(night: Server) -> Iterator[str]:
    """A run for somebody who changes something. Name it before the hands: it goes after its page was left."""
    with a_job_of_ones_own(night, f"own-{next(NUMBERS)}") as run:
        yield run


@pytest.fixture
def above(night: Server) -> Iterator[str]:
    """Another one, which became sick after that."""
    with a_job_of_ones_own(night, f"own-{next(NUMBERS)}") as run:
        yield run


@pytest.fixture
def went_back(night: Server) -> Iterator[str]:
    """A run that was rolled back by an order a moment ago. Name it before the hands, too."""
    with a_job_that_went_back(night, f"own-{next(NUMBERS)}") as run:
        yield run


def row(run: str) -> str:
    return f"#runs-body [data-run='{run}']"


# --- 1, 2: which run is sick, and since when -------------------------------------------------------------------------


def _the_sick_one_is_first(eyes: Eyes) -> None:
    eyes.sees("#runs-body tr[data-run]:nth-child(2) .run-link", "70b-stuck")


def _tells_since(eyes: Eyes, run: str, what: str) -> None:
    eyes.sees(f"{row(run)} [data-cell=state]", what, "for")
    assert re.search(r"for \d+ (s|min)", eyes.page.inner_text(f"{row(run)} [data-cell=state]"))


@pytest.mark.soak
def test_which_run_is_sick_and_since_when_is_told_before_a_click(mouse: Mouse) -> None:
    _the_sick_one_is_first(mouse)
    _tells_since(mouse, "hang", "Hang")
    _tells_since(mouse, "sick", "Spike")


@pytest.mark.soak
def test_by_keys_the_first_row_is_the_sick_run_since_when_it_is(keys: Keyboard) -> None:
    _the_sick_one_is_first(keys)
    keys.press("j")
    keys.sees(":focus", "70b-stuck")
    _tells_since(keys, "hang", "Hang")


# --- 3: which data set first -----------------------------------------------------------------------------------------


@pytest.mark.soak
def test_the_data_set_that_moved_first_takes_a_click(mouse: Mouse) -> None:
    mouse.click(f"{row('sick')} .pill")
    mouse.sees("#incident-verdict dl > div", "Data set\ncode")


@pytest.mark.soak
def test_by_keys_the_data_set_that_moved_first(keys: Keyboard) -> None:
    keys.down_to("7b-lr6e-4")
    keys.press("Enter")
    keys.sees("#incidents .fact-chip.dataset", "code")


# --- 4: the suspect node ---------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_the_suspect_node_takes_a_click(mouse: Mouse) -> None:
    mouse.click(f"{row('hang')} .pill")
    mouse.sees("#incident-verdict dl > div", f"rank 1 · {SUSPECT}")


@pytest.mark.soak
def test_by_keys_the_suspect_node_and_its_ranks(keys: Keyboard) -> None:
    _the_sick_one_is_first(keys)
    keys.press("j", "Enter")
    keys.sees("#run-note", f"Rank 1 (node {SUSPECT})")
    keys.search(SUSPECT, SUSPECT)
    keys.sees("#ranks .rank-node.chosen", SUSPECT, "Rank 1")


# --- 5, 6: roll back as advised, and undo it -------------------------------------------------------------------------


def _newest(night: Server, run: str) -> tuple[int, str | int]:
    """Return to which step a run went back last, and why: the segment's cause, or the branch that it returned to."""
    segment = night.get(f"/runs/{run}/segments")["segments"][-1]
    back_to = segment["returns_to"]
    return segment["fork_step"], segment["cause"] if back_to is None else back_to


def test_the_advised_rollback_takes_two_clicks(night: Server, own: str, mouse: Mouse) -> None:
    mouse.click(f"{row(own)} [data-do=rollback]", "Roll back")
    mouse.click("#rollback-confirm", f"Roll back to {GOOD}")
    mouse.sees("#rollback-progress[data-state=done]")
    assert _newest(night, own) == (GOOD, "command")


@pytest.mark.soak
def test_by_keys_the_advised_rollback_of_the_run_in_whose_row_the_focus_is(
    night: Server, own: str, above: str, keys: Keyboard
) -> None:
    keys.place(f"{row(above)} [data-do=rollback]")
    keys.down_to(own)
    keys.search("roll back", own)
    keys.place("#rollback-confirm", f"Roll back to {GOOD}")
    keys.press("Enter")
    keys.sees("#rollback-progress[data-state=done]")
    assert _newest(night, own) == (GOOD, "command")


@pytest.mark.soak
def test_to_undo_a_rollback_takes_two_clicks(night: Server, went_back: str, mouse: Mouse) -> None:
    mouse.click(f"{row(went_back)} [data-do=undo]", "Undo rollback")
    mouse.click("#rollback-confirm", f"Go back to {LATE}")
    mouse.sees("#rollback-progress[data-state=done]")
    assert _newest(night, went_back) == (LATE, 0)


@pytest.mark.soak
def test_by_keys_the_undo_of_a_rollback(night: Server, went_back: str, keys: Keyboard) -> None:
    keys.down_to(went_back)
    keys.press("Tab")
    keys.sees(f"{row(went_back)} [data-do=undo]:focus")
    keys.press("Enter")
    keys.place("#rollback-confirm", f"Go back to {LATE}")
    keys.press("Enter")
    keys.sees("#rollback-progress[data-state=done]")
    assert _newest(night, went_back) == (LATE, 0)


# --- 7: GPU-hours lost this month ------------------------------------------------------------------------------------


@pytest.mark.soak
def test_the_gpu_hours_lost_this_month_take_a_click(mouse: Mouse) -> None:
    mouse.click("#pages a", "Interruptions")
    mouse.sees("#lost-month", "GPU-hours this month", str(LOST_GPU_HOURS))


@pytest.mark.soak
def test_by_keys_the_gpu_hours_lost_this_month(keys: Keyboard) -> None:
    keys.press("g", "f")
    keys.sees("#lost-month", "GPU-hours this month", str(LOST_GPU_HOURS))


# --- 8: what changed to the last good run ----------------------------------------------------------------------------


@pytest.mark.soak
def test_what_changed_since_the_last_good_run_takes_two_clicks_and_a_scroll(mouse: Mouse) -> None:
    mouse.click(f"{row('sick')} .run-link")
    mouse.place("#run-name", "7b-lr6e-4")
    mouse.scroll()
    mouse.click("#about-fold")
    mouse.sees(".about-diff tr[data-name='commit']", COMMIT)
    mouse.sees(".about-diff tr", "optimizer.lr")


@pytest.mark.soak
def test_by_keys_what_changed_since_the_last_good_run(keys: Keyboard) -> None:
    keys.down_to("7b-lr6e-4")
    keys.press("Enter")
    keys.page.wait_for_selector("#about-line code")
    keys.search("what changed", "What changed since the last good run")
    keys.sees(".about-diff tr[data-name='commit']", COMMIT)


# --- 9: the chart of one metric of 600 -------------------------------------------------------------------------------


@pytest.mark.soak
def test_the_chart_of_one_metric_of_600_takes_two_clicks_and_its_name(mouse: Mouse) -> None:
    mouse.click(f"{row('600-metrics')} .run-link")
    mouse.place("#run-name", "moe-probe")
    wait_in(mouse.page, "window.stability?.page?.names?.length >= 600")
    mouse.click("#palette-open")
    mouse.page.keyboard.type(METRIC)
    mouse.place("#palette-list [aria-selected=true]", METRIC)
    mouse.page.keyboard.press("Enter")
    mouse.sees(".full-chart h2", METRIC)
    mouse.sees(".full-chart .chart canvas")


@pytest.mark.soak
def test_by_keys_the_chart_of_one_metric_of_600(keys: Keyboard) -> None:
    keys.search("moe-probe", "moe-probe")
    wait_in(keys.page, "window.stability?.page?.names?.length >= 600")
    keys.search(METRIC, METRIC)
    keys.sees(".full-chart h2", METRIC)
    keys.press("Escape")
    keys.page.wait_for_selector(".full-chart", state="detached")


# --- 10: the loss by tokens on a log axis, as a file -----------------------------------------------------------------


def _saved(page: Page, ask: Any) -> list[str]:
    with page.expect_download() as download:
        ask()
    return Path(download.value.path()).read_text().splitlines()


@pytest.mark.soak
def test_the_loss_by_tokens_on_a_log_axis_as_csv_takes_two_clicks_and_some_words(mouse: Mouse) -> None:
    mouse.click(f"{row('sick')} .run-link")
    mouse.place("#run-name", "7b-lr6e-4")
    wait_in(mouse.page, "window.stability?.page?.names?.includes('tokens')")
    mouse.click("#palette-open")
    mouse.page.keyboard.type(ASKED)
    mouse.place("#palette-list [aria-selected=true]", FOUND)
    head, first, *_ = _saved(mouse.page, lambda: mouse.page.keyboard.press("Enter"))
    assert (head, first.split(",")[-1]) == (HEAD, "4200000")
    mouse.sees(".full-chart h2", "loss")
    mouse.sees(".full-chart .chart-tool.on", "log")
    charts = "[...stability.page.board.charts.values()].find((one) => one.id.startsWith('full'))"
    wait_until(lambda: mouse.page.evaluate(f"{charts}.plot.spec?.lines.at(-1)?.x[0]") == 4.2e6, 20, "tokens are x")


@pytest.mark.soak
def test_by_keys_the_loss_by_tokens_on_a_log_axis_as_csv(keys: Keyboard) -> None:
    keys.down_to("7b-lr6e-4")
    keys.press("Enter")
    wait_in(keys.page, "window.stability?.page?.names?.includes('tokens')")
    head, first, *_ = _saved(keys.page, lambda: keys.search(ASKED, FOUND))
    assert (head, first.split(",")[-1]) == (HEAD, "4200000")
    keys.sees(".full-chart .chart-tool.on", "log")


# --- 11: a quieter detector ------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_a_quieter_detector_takes_two_clicks(night: Server, own: str, mouse: Mouse) -> None:
    mouse.click(f"{row(own)} .pill")
    mouse.click("#quieter-half")
    mouse.sees(".toast", "sensitivity 0.5, from now on")
    mouse.sees(".quieter", "Sensitivity 0.5")
    assert night.get(f"/runs/{own}/detectors")["settings"] == {"curve": {"sensitivity": 0.5}}


@pytest.mark.soak
def test_by_keys_a_quieter_detector(night: Server, own: str, keys: Keyboard) -> None:
    keys.press("g", "i")
    keys.down_to(own)
    keys.press("Enter")
    keys.place("#quieter-half")
    keys.search("half as", "Half as sensitive")
    keys.sees(".toast", "sensitivity 0.5, from now on")
    keys.sees(".quieter", "Sensitivity 0.5")
    assert night.get(f"/runs/{own}/detectors")["settings"] == {"curve": {"sensitivity": 0.5}}


# --- 12: all open incidents ------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_all_open_incidents_take_a_click(mouse: Mouse) -> None:
    mouse.click("#pages a", "Incidents")
    mouse.sees(".incident-row .row-title", "The job hangs", "Loss spike")


@pytest.mark.soak
def test_by_keys_all_open_incidents(keys: Keyboard) -> None:
    keys.press("g", "i")
    keys.sees(".incident-row .row-title", "The job hangs", "Loss spike")
