"""Ranks and GPUs on the page of a run, over a real server with real connections of simulated nodes."""

from __future__ import annotations

import asyncio
import importlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stack.processes import Server
from waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


class Running:
    """A simulated job in a thread of its own."""

    def __init__(self, url: str, run_id: str, ranks: int, trouble: str = "") -> None:
        self.job = importlib.import_module("simulated_job").SimulatedJob(
            url, run_id, ranks, health_s=0.4, gpu_every_s=1.0
        )
        self.job.trouble.switch_on(trouble)
        self.url = f"{url}/runs/{run_id}"
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"job {run_id}")

    def _run(self) -> None:
        self._loop.run_until_complete(self.job.run(self._stop))
        self._loop.close()

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server, and the simulated job within reach."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        with Server(tmp_path_factory.mktemp("ranks") / "data", port) as server:
            yield server


@pytest.fixture(scope="module")
def many(server: Server) -> Iterator[Running]:
    """Four nodes of eight ranks; one node without a GPU, one that sends garbage."""
    with Running(server.url, "many", 32, "no_gpu:2 garbage:3 hot:5 blind:1 torn:9") as job:
        server.wait_for("/runs/many", lambda run: run["agents"] == 4, "four nodes are there")
        yield job


def text(page: Page, place: str) -> str:
    return page.locator(place).inner_text()


def cells(page: Page, place: str) -> list[Any]:
    wall = "grid" if place == "ranks" else "gpus"
    return list(page.evaluate(f"window.stability?.page?.{wall}?.map?.cells.map((one) => [one.key, one.mark]) || []"))


def test_a_wall_shows_every_rank_and_follows_what_happens_to_one(many: Running, open_page: OpenPage) -> None:
    page = open_page(many.url)
    wait_until(lambda: len(cells(page, "ranks")) == 32, 20, "32 cells")
    assert [9, "question"] in cells(page, "ranks")
    page.locator("#ranks").scroll_into_view_if_needed()  # what nobody sees is not drawn

    many.job.trouble.dead.add(21)
    wait_until(lambda: [21, "cross"] in cells(page, "ranks"), 15, "rank 21 is seen to be gone")
    assert "rank 21 on gpu-003 is gone" in text(page, "#ranks-summary")
    many.job.trouble.dead.clear()
    wait_until(lambda: [21, ""] in cells(page, "ranks"), 15, "rank 21 runs again")


def test_a_rank_tells_its_story_to_the_keyboard_and_keeps_it_there(many: Running, open_page: OpenPage) -> None:
    page = open_page(many.url)
    wait_until(lambda: len(cells(page, "ranks")) == 32, 20, "32 cells")

    page.focus("#ranks canvas")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "Enter"):
        page.keyboard.press(key)

    tip = page.locator("#ranks .cell-tip.pinned")
    wait_until(lambda: "Rank 9 · gpu-002" in tip.inner_text(), 5, "the tip of rank 9")
    assert "the slot is version 9" in tip.inner_text()
    assert text(page, "#ranks .unseen") == "rank 9 on gpu-002 has a slot that can't be read"
    page.keyboard.press("Escape")
    assert not tip.is_visible()


def test_colours_and_order_are_switched_and_the_legend_says_what_they_mean(many: Running, open_page: OpenPage) -> None:
    page = open_page(many.url)
    wait_until(lambda: len(cells(page, "ranks")) == 32, 20, "32 cells")
    assert "runs" in text(page, "#ranks-legend")

    page.click("#ranks-color [data-value=phase]")
    assert any(name in text(page, "#ranks-legend") for name in ("forward", "backward"))
    page.click("#ranks-color [data-value=lag]")
    assert "at the front" in text(page, "#ranks-legend")
    page.click("#ranks-order [data-value=worst]")
    assert cells(page, "ranks")[0][0] == 9


def test_gpus_of_a_node_stand_together_and_one_without_says_why(many: Running, open_page: OpenPage) -> None:
    page = open_page(many.url)
    wait_until(lambda: len(cells(page, "gpus")) == 24, 20, "24 GPUs")

    assert ["gpu-001 5", "dash"] in cells(page, "gpus")  # too hot, and slowed: a shape and not only a colour
    assert "gpu-003 no GPU visible here: libnvidia-ml.so.1 is not installed" in text(page, "#gpus-none")
    page.click("#gpus-field [data-value=temp]")
    assert "95 °C" in text(page, "#gpus-legend")
    page.evaluate("const gpus = window.stability.page.gpus; gpus.map.point(5)")
    assert "91 °C, memory 98 °C" in text(page, "#gpus .cell-tip")


def test_what_is_not_visible_is_said_with_the_reason_and_what_to_do(many: Running, open_page: OpenPage) -> None:
    page = open_page(many.url)
    page.wait_for_selector("#blind details[data-what=kernel_log]")

    assert text(page, "#blind details[data-what=kernel_log] summary") == "kernel log · gpu-002"
    page.click("#blind details[data-what=kernel_log] summary")
    assert "permission denied" in text(page, "#blind details[data-what=kernel_log]")
    assert "To do: Run the agent as root" in text(page, "#blind details[data-what=kernel_log]")
    page.click("#blind details[data-what=slot] summary")
    assert "rank 9 on gpu-002" in text(page, "#blind details[data-what=slot]")


def test_a_few_ranks_have_words_and_not_cells(server: Server, open_page: OpenPage) -> None:
    with Running(server.url, "few", 2) as few:
        server.wait_for("/runs/few", lambda run: run["agents"] == 1, "the node is there")
        page = open_page(few.url, scheme="light")
        page.wait_for_selector(".rank-card[data-rank='1'][data-state=running]")
        assert text(page, "#ranks-summary") == "2 of 2 ranks run."
        assert not page.locator("#ranks-color").is_visible()

        few.job.trouble.dead.add(1)
        page.wait_for_selector(".rank-card[data-rank='1'][data-state=dead]")
        page.wait_for_selector("#health-lane [data-kind=process_death]")
        mark = page.locator("#health-lane [data-kind=process_death]")
        incident = next(one for one in server.get("/runs/few/incidents")["incidents"] if one["kind"] == "process_death")
        assert mark.get_attribute("href") == f"/runs/few/incidents/{incident['incident_id']}"
