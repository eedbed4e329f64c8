"""Twelve questions of somebody woken at night, each from `/`: by two clicks and one scroll, and by keys alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.night.hands import SIZE, Keyboard, Mouse
from support.night.runs import COMMIT, SUSPECT, a_night
from support.waiting import wait_in, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from support.processes import Server

#: Of jobs that train and hang: some minutes. And not all of them are answered yet in whatever order they are asked.
pytestmark = pytest.mark.soak
METRIC = "attention/entropy/m5"


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with a_night(tmp_path_factory.mktemp("night")) as server:
        yield server


@pytest.fixture(scope="module")
def window(chromium: Browser) -> Iterator[Page]:
    """One window for all questions; what it threw fails the last of them."""
    context = chromium.new_context(viewport=SIZE, color_scheme="dark")
    context.set_default_timeout(30_000)
    context.add_init_script(Path(__file__).with_name("handle.js").read_text())
    page = context.new_page()
    thrown: list[str] = []
    page.on("pageerror", lambda error: thrown.append(f"{error} {error.stack}"))
    yield page
    context.close()
    assert thrown == []


def begin(night: Server, window: Page) -> None:
    window.goto(night.url)
    window.wait_for_selector("#runs-body [data-run=good]")


@pytest.fixture
def mouse(night: Server, window: Page) -> Mouse:
    """On the first page, with nothing clicked."""
    begin(night, window)
    return Mouse(window)


@pytest.fixture
def keys(night: Server, window: Page) -> Keyboard:
    """On the first page, with nothing pressed."""
    begin(night, window)
    return Keyboard(window)


def row(run: str) -> str:
    return f"#runs-body [data-run='{run}']"


def rolled_back(night: Server, how: str) -> Any:
    """Wait until the sick run trains on a segment that began by a ``command`` or by an ``undo``; return the segment."""

    def so(answer: Any) -> bool:
        newest = answer["segments"][-1]
        began = "undo" if newest["returns_to"] is not None else newest["cause"]
        return began == how and newest["first_step"] is not None

    return night.wait_for("/runs/sick/segments", so, f"it went on by {how}", 60)["segments"][-1]


def advised(night: Server) -> None:
    """Wait until the sick run is advised to roll back."""
    night.wait_for("/runs/sick", lambda run: (run["worst_incident"] or {}).get("advice") == "roll_back", "advice", 60)


# --- by two clicks and one scroll --------------------------------------------------------------------------------


def test_which_run_is_sick_and_since_when_is_told_before_a_click(mouse: Mouse) -> None:
    first = "#runs-body tr[data-run]:nth-child(2)"
    mouse.sees(f"{first} .run-link", "70b-stuck")
    mouse.sees(f"{first} [data-cell=state]", "Hang", "since")
    mouse.sees(f"{row('sick')} [data-cell=state]", "Spike", "since")


def test_the_data_set_that_moved_first_takes_a_click(mouse: Mouse) -> None:
    mouse.click(f"{row('sick')} .pill")
    mouse.sees("#incident-verdict dl > div", "Data set\ncode")


def test_the_suspect_node_takes_a_click(mouse: Mouse) -> None:
    mouse.click(f"{row('hang')} .pill")
    mouse.sees("#incident-verdict dl > div", f"rank 1 · {SUSPECT}")


def test_what_changed_since_the_last_good_run_takes_two_clicks_and_a_scroll(mouse: Mouse) -> None:
    mouse.click(f"{row('sick')} .run-link")
    mouse.place("#run-name", "7b-lr6e-4")
    mouse.scroll()
    mouse.click("#about-fold")
    mouse.sees(".about-diff tr[data-name='commit']", COMMIT)
    mouse.sees(".about-diff tr", "optimizer.lr")


def test_the_chart_of_one_metric_of_600_takes_two_clicks_and_its_name(mouse: Mouse) -> None:
    mouse.click(f"{row('600-metrics')} .run-link")
    mouse.place("#run-name", "moe-probe")
    wait_in(mouse.page, "window.stability?.page?.names.length >= 600")
    mouse.click("#palette-open")
    mouse.page.keyboard.type(METRIC)
    mouse.place("#palette-list [aria-selected=true]", METRIC)
    mouse.page.keyboard.press("Enter")
    mouse.sees(".full-chart h2", METRIC)
    mouse.sees(".full-chart .chart canvas")


def _saved(page: Page, ask: Any) -> list[str]:
    with page.expect_download() as download:
        ask()
    return Path(download.value.path()).read_text().splitlines()


def test_the_loss_by_tokens_on_a_log_axis_as_csv_takes_two_clicks_and_some_words(mouse: Mouse) -> None:
    mouse.click(f"{row('sick')} .run-link")
    mouse.place("#run-name", "7b-lr6e-4")
    wait_in(mouse.page, "window.stability?.page?.names.includes('tokens')")
    mouse.click("#palette-open")
    mouse.page.keyboard.type("loss by tokens log csv")
    mouse.place("#palette-list [aria-selected=true]", "loss by tokens, log, csv")
    head, first, *_ = _saved(mouse.page, lambda: mouse.page.keyboard.press("Enter"))
    assert head == "step,time,segment,state,loss,tokens"
    assert first.split(",")[-1] == "4200000"
    mouse.sees(".full-chart h2", "loss")
    mouse.sees(".full-chart .chart-tool.on", "log")
    charts = "[...stability.page.board.charts.values()].find((one) => one.id.startsWith('full'))"
    wait_until(lambda: mouse.page.evaluate(f"{charts}.plot.spec?.lines.at(-1)?.x[0]") == 4.2e6, 20, "tokens are x")


def test_a_quieter_detector_takes_two_clicks(mouse: Mouse, night: Server) -> None:
    mouse.click(f"{row('sick')} .pill")
    mouse.click("#quieter-half")
    mouse.sees(".toast", "sensitivity 0.5, from now on")
    mouse.sees(".quieter", "Sensitivity 0.5")
    assert night.get("/runs/sick/detectors")["settings"] == {"spike": {"sensitivity": 0.5}}
    mouse.page.keyboard.press("Tab")
    mouse.page.click("#offer-do")  # beside the question: back for the next one
    wait_until(lambda: night.get("/runs/sick/detectors")["settings"] == {}, 20, "it is undone")


def test_all_open_incidents_take_a_click(mouse: Mouse) -> None:
    mouse.click("#pages a", "Incidents")
    mouse.sees(".incident-row .row-title", "The job hangs", "Loss spike")


def test_the_advised_rollback_and_its_undo_take_two_clicks_each_and_their_gpu_hours_one(
    mouse: Mouse, night: Server, window: Page
) -> None:
    advised(night)
    mouse.click(f"{row('sick')} [data-do=rollback]", "Roll back")
    mouse.click("#rollback-confirm", "Roll back to 200")
    mouse.sees("#rollback-progress[data-state=done]")
    rolled_back(night, "command")

    begin(night, window)
    mouse = Mouse(window)
    mouse.click(f"{row('sick')} [data-do=undo]", "Undo rollback")
    mouse.click("#rollback-confirm", "Go back to 250")
    mouse.sees("#rollback-progress[data-state=done]")
    assert rolled_back(night, "undo")["fork_step"] == 250

    begin(night, window)
    mouse = Mouse(window)
    mouse.click("#pages a", "Interruptions")
    mouse.sees("#lost", "GPU-hours this month", "2 rollbacks")


# --- by the keyboard alone -----------------------------------------------------------------------------------------


def test_by_keys_the_first_row_is_the_sick_run_and_enter_tells_its_suspect(keys: Keyboard) -> None:
    keys.press("j")
    keys.sees(f"{row('hang')} [data-cell=state]", "Hang", "since")
    keys.sees(":focus", "70b-stuck")
    keys.press("Enter")
    keys.sees("#run-note", f"Rank 1 (node {SUSPECT})")


def test_by_keys_a_node_that_is_searched_for_is_shown_with_its_ranks(keys: Keyboard) -> None:
    keys.search(SUSPECT, SUSPECT)
    keys.sees("#ranks .rank-node.chosen", SUSPECT, "Rank 1")


def test_by_keys_the_data_set_that_moved_first(keys: Keyboard) -> None:
    keys.press("j", "j", "Enter")
    keys.sees("#incidents .fact-chip.dataset", "code")


def test_by_keys_what_changed_since_the_last_good_run(keys: Keyboard) -> None:
    keys.press("j", "j", "Enter")
    keys.page.wait_for_selector("#about-line code")
    keys.search("what changed", "What changed since the last good run")
    keys.sees(".about-diff tr[data-name='commit']", COMMIT)


def test_by_keys_the_chart_of_one_metric_of_600(keys: Keyboard) -> None:
    keys.search("moe-probe", "moe-probe")
    wait_in(keys.page, "window.stability?.page?.names?.length >= 600")
    keys.search(METRIC, METRIC)
    keys.sees(".full-chart h2", METRIC)
    keys.press("Escape")
    keys.page.wait_for_selector(".full-chart", state="detached")


def test_by_keys_the_loss_by_tokens_on_a_log_axis_as_csv(keys: Keyboard) -> None:
    keys.press("j", "j", "Enter")
    wait_in(keys.page, "window.stability?.page?.names?.includes('tokens')")
    words = "loss by tokens log csv"
    head, *_ = _saved(keys.page, lambda: keys.search(words, "loss by tokens, log, csv"))
    assert head == "step,time,segment,state,loss,tokens"


def test_by_keys_all_open_incidents_and_a_quieter_detector(keys: Keyboard, night: Server) -> None:
    keys.press("g", "i")
    keys.sees(".incident-row .row-title", "The job hangs", "Loss spike")
    keys.press("j", "j", "Enter")
    keys.place("#quieter-half")
    keys.search("half as", "Half as sensitive")
    keys.sees(".toast", "sensitivity 0.5, from now on")
    assert night.get("/runs/sick/detectors")["settings"] == {"spike": {"sensitivity": 0.5}}


def test_by_keys_the_advised_rollback_its_undo_and_their_gpu_hours(keys: Keyboard, night: Server, window: Page) -> None:
    advised(night)
    begin(night, window)
    keys.place(f"{row('sick')} [data-do=rollback]")
    keys.search("roll back", "Roll back")
    keys.place("#rollback-confirm", "Roll back to 200")
    keys.press("Enter")
    keys.sees("#rollback-progress[data-state=done]")
    rolled_back(night, "command")

    begin(night, window)
    keys.place(f"{row('sick')} [data-do=undo]")
    keys.search("undo", "Undo the newest rollback")
    keys.place("#rollback-confirm", "Go back to 250")
    keys.press("Enter")
    keys.sees("#rollback-progress[data-state=done]")
    rolled_back(night, "undo")
    keys.press("Escape", "g", "f")
    keys.sees("#lost", "GPU-hours this month", "rollbacks, since")
