"""A server with two thousand runs: the list leaves none out, and what needs somebody stands first."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
import redis

from stabilitybackend.keys import RUNS, RunKeys
from support.ports import free_port
from support.processes import Server
from support.waiting import wait_in, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]
RUNS_THERE = 2_000
#: By run: how many incidents are open, and its status. All others are finished.
SPECIAL = {0: (1, "crashed"), 7: (2, "finished"), 1_500: (0, "running")}
#: Curves are of no interest here, and reading one would make the server look for the frames of a run that has none.
NO_CURVES = """const real = window.fetch;
window.fetch = (url, options) => String(url).includes("/series?")
  ? Promise.resolve(new Response('{"series": [], "cursor": null}')) : real(url, options);"""
NAMES = "() => [...document.querySelectorAll('#runs-body tr')].map((row) => row.dataset.run)"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with 2,000 runs, as it finds them in its Redis: number 0 is the oldest."""
    folder = tmp_path_factory.mktemp("many")
    with Server(folder / "data", free_port()) as server:
        store = redis.Redis(unix_socket_path=str(folder / "data" / "redis.sock"))
        pipe = store.pipeline(transaction=False)
        for number in range(RUNS_THERE):
            run, created = f"r-{number:04d}", 1.7e9 + number
            incidents, status = SPECIAL.get(number, (0, "finished"))
            view = {"status": status, "open_incidents": incidents, "metrics": ["loss"], "latest": {"loss": 2.0}}
            pipe.hset(RunKeys(run).meta, mapping={"created": created, "updated": created, "view": json.dumps(view)})
            pipe.zadd(RUNS, {run: created})
        pipe.execute()
        store.close()
        yield server


def opened(server: Server, open_page: OpenPage) -> Page:
    page = open_page(server.url, before=NO_CURVES)
    wait_in(page, f"document.querySelector('#runs-count')?.textContent === '{RUNS_THERE:,}'")
    words = f"100 of {RUNS_THERE:,} runs shown"
    wait_until(lambda: page.inner_text("#runs-shown") == words, 60, "all of them are known")
    return page


def test_the_list_says_how_many_there_are_and_shows_them_all(server: Server, open_page: OpenPage) -> None:
    page = opened(server, open_page)
    # What is open, critical first; then what runs; then the newest.
    assert page.evaluate(NAMES)[:5] == ["r-0000", "r-0007", "r-1500", "r-1999", "r-1998"]
    page.click("#runs-more-open")
    wait_in(page, "document.querySelectorAll('#runs-body tr').length === 200")
    page.evaluate("() => { while (!document.querySelector('#runs-more').hidden) stability.page.showMore(); }")
    assert sorted(page.evaluate(NAMES)) == [f"r-{number:04d}" for number in range(RUNS_THERE)]


def test_the_search_goes_through_all_of_them(server: Server, open_page: OpenPage) -> None:
    page = opened(server, open_page)
    page.fill("#runs-filter", "r-0042")
    assert page.evaluate(NAMES) == ["r-0042"]
    page.fill("#runs-filter", "r-00")
    assert page.evaluate(NAMES)[:3] == ["r-0000", "r-0007", "r-0099"]
    assert len(page.evaluate(NAMES)) == 100


def test_a_second_of_a_list_that_nothing_changes_costs_hardly_any_work(server: Server, open_page: OpenPage) -> None:
    page = opened(server, open_page)
    # Neither sorts nor makes rows: only ages that are another word now.
    work = """() => {
      const list = stability.page;
      list.draw();
      const [rows, order] = [[...document.querySelectorAll("#runs-body tr td:last-child")], list.shown()];
      list.onTick();
      const same = rows.filter((one, at) => one === document.querySelectorAll("#runs-body tr td:last-child")[at]);
      return [same.length, order === list.shown()];
    }"""
    assert page.evaluate(work) == [100, True]
