"""A server with two thousand runs: the table leaves none out, the sick stand first, and the page holds what is seen."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import redis

from stabilitybackend.base.keys import RUNS, RUNS_ACTIVE, RunKeys
from stabilitybackend.schema.pages.run_table import RunDigest
from support.ports import free_port
from support.processes import Server
from support.waiting import wait_in, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

Visit = Callable[..., "Page"]
RUNS_THERE = 2_000
#: By run: the severity of what is open, and its status. All others are finished and well.
SPECIAL = {0: ("critical", "crashed"), 7: ("warning", "unreachable"), 1_500: ("", "crashed")}
CONDITIONS = {"sick": 1, "crashed": 2, "well": 0, "empty": 0, "over": RUNS_THERE - len(SPECIAL)}
#: By run: a name that must not break a page.
NAMES = {1_990: "<img src=x onerror=alert(1)>", 1_991: "\u202eevil\u202c مرحبا", 1_992: "x" * 300}
SHOWN = "() => [...document.querySelectorAll('#runs-body tr[data-run]')].map((row) => row.dataset.run)"


def stored(number: int, **more: Any) -> tuple[str, dict[str, Any]]:
    """Return the id of a run and what Redis has of it."""
    run, created = f"r-{number:04d}", 1.7e9 + number
    severity, status = SPECIAL.get(number, ("", "finished"))
    worst = {"incident_id": "i", "kind": "hang", "severity": severity, "title": "Hang"} if severity else None
    view = {
        "status": status, "open_incidents": int(bool(severity)), "worst_incident": worst, "metric_count": 1,
        "latest": {"loss": 2.0 + number}, "loss_metric": "loss", "last_step": number, "logged": created,
        "state": {"phase": "training"},
    } | more  # fmt: skip
    # Nothing is left to be worked out: these runs have no points.
    digest = RunDigest(step=number, head=0, status=status, made=created, goodput=0.9, tokens_why="not counted")
    config = {"lr": number / 1000, "optimizer": {"name": "adamw" if number % 2 else "lion"}}
    return run, {
        "created": created, "updated": created, "view": json.dumps(view), "digest": msgspec.json.encode(digest),
        "name": NAMES.get(number, f"run number {number}"), "project": "llm" if number % 4 else "vlm",
        "config": json.dumps(config),
    }  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tmp_path_factory.mktemp("many")


@pytest.fixture
def crash(server: Server, folder: Any) -> Iterator[Callable[[int], str]]:
    """Lets a run that is over be one that crashed, and after the test as it was."""
    numbers = list[int]()
    with redis.Redis(unix_socket_path=str(folder / "data" / "redis.sock")) as client:

        def put(number: int, **more: Any) -> str:
            run, meta = stored(number, **more)
            client.hset(RunKeys(run).meta, mapping=meta)
            client.zadd(RUNS_ACTIVE, {run: 4e9})
            return run

        yield lambda number: numbers.append(number) or put(number, status="crashed")
        for number in numbers:
            put(number)
        server.wait_for("/run_table", lambda answer: answer["conditions"] == CONDITIONS, "it is as it was", 30)


@pytest.fixture(scope="module")
def server(folder: Any) -> Iterator[Server]:
    """A server with 2,000 runs, as it finds them in its Redis: number 0 is the oldest."""
    with Server(folder / "data", free_port()) as server:
        with redis.Redis(unix_socket_path=str(folder / "data" / "redis.sock")) as client:
            pipe = client.pipeline(transaction=False)
            for number in range(RUNS_THERE):
                run, meta = stored(number)
                pipe.hset(RunKeys(run).meta, mapping=meta)
                pipe.zadd(RUNS, {run: meta["created"]})
                pipe.zadd(RUNS_ACTIVE, {run: meta["created"]})
            pipe.execute()
        server.wait_for("/run_table", lambda answer: answer["total"] == RUNS_THERE, "all are known", 60)
        yield server


def opened(server: Server, visit: Visit, search: str = "", **how: Any) -> Page:
    page = visit(f"{server.url}/{search}", **how)
    wait_in(page, "stability.page?.ready && document.querySelectorAll('#runs-body tr').length > 2")
    return page


def first(page: Page, *runs: str) -> None:
    """Wait until the table begins with these."""
    wait_until(lambda: page.evaluate(SHOWN)[: len(runs)] == list(runs), 20, f"{runs} stand first")


def test_the_sick_stand_first_and_the_last_run_is_reached_by_scrolling(server: Server, visit: Visit) -> None:
    page = opened(server, visit)
    assert page.inner_text("#runs-count") == "2,000"
    assert page.inner_text("#runs-shown") == "All 2,000 runs"
    # Critical, a crash, a warning; then the newest.
    first(page, "r-0000", "r-1500", "r-0007", "r-1999")
    chips = page.locator("#runs-states button").all_inner_texts()
    assert [chip.split(maxsplit=1) for chip in chips] == [["1", "needs attention"], ["2", "crashed"], ["1,997", "over"]]
    assert len(page.evaluate(SHOWN)) < 60  # of 2,000
    page.evaluate(
        "() => { const place = document.querySelector('#runs-scroll'); place.scrollTop = place.scrollHeight; }"
    )
    wait_until(lambda: page.evaluate(SHOWN)[-1:] == ["r-0001"], 20, "the oldest stands last")


def test_the_filter_goes_through_all_runs_and_is_in_the_address(server: Server, visit: Visit) -> None:
    page = opened(server, visit, quiet=False)  # the browser itself writes a refused filter to the console
    page.fill("#runs-filter", "project:vlm step<10")
    first(page, "r-0000", "r-0008", "r-0004")
    assert len(page.evaluate(SHOWN)) == 3
    page.fill("#runs-filter", "step>many")
    wait_in(page, "document.querySelector('#runs-trouble')?.textContent.includes('many')")
    assert len(page.evaluate(SHOWN)) == 3  # what was there stays
    page.fill("#runs-filter", "nothing fits this")
    page.click("#runs-clear")
    first(page, "r-0000", "r-1500")
    again = opened(server, visit, "?q=state:sick,crashed")
    assert (again.evaluate(SHOWN), again.input_value("#runs-filter")) == (
        ["r-0000", "r-1500", "r-0007"],
        "state:sick,crashed",
    )


def test_keys_and_values_of_a_filter_are_completed(server: Server, visit: Visit) -> None:
    page = opened(server, visit)
    page.click("#runs-filter")
    page.keyboard.type("optim")
    page.wait_for_selector("#runs-offers [role=option]:has-text('optimizer.name')")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector("#runs-offers [role=option]:has-text('lion')")
    page.keyboard.type("li")
    wait_in(page, "document.querySelectorAll('#runs-offers [role=option]').length === 1")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    wait_in(page, "document.querySelector('#runs-shown')?.textContent === '1,000 of 2,000 runs'")
    assert page.input_value("#runs-filter") == "optimizer.name:lion "


def test_a_head_sorts_by_click_and_by_key(server: Server, visit: Visit) -> None:
    page = opened(server, visit)
    page.click("[data-sort=step]")
    first(page, "r-1999", "r-1998")
    page.focus("[data-sort=step]")
    page.keyboard.press("Enter")
    first(page, "r-0000", "r-0001")
    assert page.get_attribute("th[data-column=step]", "aria-sort") == "ascending"
    assert page.evaluate("location.search") == "?sort=step"


def test_groups_are_folded_and_say_how_many_they_hold(server: Server, visit: Visit) -> None:
    page = opened(server, visit)
    page.select_option("#runs-group", "project")
    page.wait_for_selector("tr.group")
    words = [" ".join(line.split()) for line in page.locator("tr.group").all_inner_texts()]
    assert words == ["llm 1,500 runs 1 needs attention", "vlm 500 runs 2 crashed"]
    assert page.evaluate(SHOWN) == []
    page.click("tr.group[data-group=vlm] button")
    first(page, "r-0000", "r-1500", "r-1996")
    assert page.evaluate("location.search") == "?group=project&open=vlm"


@pytest.mark.soak
def test_a_key_of_the_config_becomes_a_column_of_a_saved_view(server: Server, visit: Visit) -> None:
    page = opened(server, visit)
    page.click("#runs-columns-open")
    page.fill("#runs-columns-search", "optim")
    page.click(".column-list label[data-column='config.optimizer.name'] input")
    cell = "tr[data-run=r-0000] td[data-cell='config.optimizer.name']"
    wait_until(lambda: page.locator(cell).count() and page.inner_text(cell) == "lion", 20, "the column has values")
    page.keyboard.press("Escape")
    page.click("#runs-views-open")
    page.fill("#runs-views-name", "by <b>optimizer</b>")
    page.click("#runs-views-save")
    page.wait_for_selector(".view")
    page = opened(server, visit)
    page.click("#runs-views-open")
    page.click(".view .link:has-text('by <b>optimizer</b>')")
    page.wait_for_selector(cell)
    page.click("#runs-views-open")
    page.click(".view [aria-label^=Delete]")
    page.wait_for_selector(".view-list:has-text('No saved views yet')")


@pytest.mark.soak
def test_a_view_with_a_column_that_is_gone_opens_and_says_so(server: Server, visit: Visit) -> None:
    page = opened(server, visit, "?col=step&col=config.was.there&sort=config.was.there")
    wait_in(page, "document.querySelector('#runs-notes')?.textContent.includes('was.there')")
    first(page, "r-1999")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_odd_names_are_text_and_nothing_lies_beside_the_page(
    server: Server, visit: Visit, width: int, scheme: str
) -> None:
    page = opened(server, visit, "?q=step>1985 step<1995".replace(" ", "+"), width=width, scheme=scheme)
    assert page.inner_text("tr[data-run=r-1990] .run-link") == NAMES[1_990]
    assert page.evaluate("document.querySelectorAll('#runs-body img').length") == 0
    assert page.evaluate("document.documentElement.scrollWidth") == width
    heights = "[...new Set([...document.querySelectorAll('#runs-body tr[data-run]')].map((row) => row.offsetHeight))]"
    assert len(page.evaluate(heights)) == 1


@pytest.mark.soak
def test_the_order_waits_while_somebody_points_at_the_table(
    server: Server, visit: Visit, crash: Callable[[int], str]
) -> None:
    page = opened(server, visit, "?q=step>1985".replace(" ", "+"))
    before = page.evaluate(SHOWN)
    page.hover(f"tr[data-run={before[3]}]")
    run = crash(1_988)
    state = f"tr[data-run={run}] .pill"
    page.evaluate("stability.page.refresh()")
    wait_until(lambda: page.inner_text(state) == "crashed", 20, "its state is the new one")
    assert page.evaluate(SHOWN) == before
    page.hover("#home")
    page.evaluate("stability.page.refresh()")
    first(page, run)


def test_a_second_of_a_table_that_nothing_changes_makes_no_row_anew(server: Server, visit: Visit) -> None:
    page = opened(server, visit)
    work = """() => {
      const rows = () => [...document.querySelectorAll("#runs-body tr[data-run] td:last-child")];
      stability.page.onTick(); // what the window's size changed since the first rows
      const before = rows();
      stability.page.onTick();
      return rows().every((one, at) => one === before[at]);
    }"""
    assert page.evaluate(work)
