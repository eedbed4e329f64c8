"""Ranks and GPUs on the page of a run, over a real server with real connections of simulated nodes."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from browser.run.conftest import Visit
    from support.processes import Server

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


#: How many cells are painted when a wall is told one thing after another.
DRAWN = """() => {
  const place = document.createElement("div");
  place.style.width = "900px";
  document.body.append(place);
  const map = new stability.CellMap(place, { label: "", describe: () => ({ title: "", lines: [] }), name: () => "" });
  const colors = { text: "#ffffff", muted: "#888888", critical: "#ff0000" };
  const state = Array.from({ length: 16 }, (_, key) => ({ key, fill: "#224422", mark: "", hollow: false, ring: "", text: "" }));
  const paint = map.cell;
  let count = 0;
  map.cell = function (...all) { count += 1; paint.apply(this, all); };
  const tell = (cells) => {
    count = 0;
    const groups = [];
    for (let at = 0; at < cells.length; at += 8) groups.push({ label: "n" + at, tone: "", cells: cells.slice(at, at + 8).map((one) => ({ ...one })) });
    map.set(groups, colors, "sans-serif");
    return count;
  };
  const said = [tell(state)];
  state[3].fill = "#aa2222";
  said.push(tell(state), tell(state));
  state[4].ring = "critical"; state[5].mark = "cross";
  said.push(tell(state));
  state[3].fill = "#224422";
  said.push(tell(state));
  said.push(tell([...state, ...state.slice(0, 8)]));
  map.close();
  return said;
}"""  # noqa: E501  one script, read as one


#: Cells painted from now on, on both walls.
COUNT = """() => {
  window.painted = 0;
  for (const wall of [stability.page.grid, stability.page.gpus]) {
    const { map } = wall;
    const paint = map.cell;
    map.cell = function (...all) { window.painted += 1; paint.apply(this, all); };
  }
}"""
#: What two ticks in one moment write into the page, each with every region due: the second has nothing to say.
WRITES = """() => {
  const { page } = stability;
  const now = page.now();
  const { now: clock } = page.live;
  page.live.now = () => now;
  const seen = new MutationObserver(() => {});
  seen.observe(document.body, { subtree: true, childList: true, attributes: true, characterData: true });
  const tick = () => {
    page.dirtyAll();
    page.wallsDrawn = { ranks: -Infinity, gpus: -Infinity };
    page.onTick();
    return seen.takeRecords().map((one) => `${one.type} ${one.attributeName || ""} of ${one.target.id || one.target.className}`);
  };
  const writes = [tick(), tick()];
  seen.disconnect();
  page.live.now = clock;
  return writes[1];
}"""  # noqa: E501  one script, read as one


class Running:
    """A simulated job in a thread of its own."""

    def __init__(self, url: str, run_id: str, ranks: int, trouble: str = "") -> None:
        self.job = importlib.import_module("simulated_job").SimulatedJob(
            url, run_id, ranks, health_s=0.4, gpu_every_s=1.0
        )
        self.job.trouble.switch_on(trouble)
        self.path = f"/runs/{run_id}"
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


@pytest.fixture(scope="module", autouse=True)
def _simulated() -> Iterator[None]:
    """The simulated job within reach."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield


@pytest.fixture(scope="module")
def many(server: Server) -> Iterator[Running]:
    """Four nodes of eight ranks; one node without a GPU, one that sends garbage."""
    with Running(server.url, "r-many-ranks", 32, "no_gpu:2 garbage:3 hot:5 blind:1 torn:9") as job:
        server.wait_for("/runs/r-many-ranks", lambda run: run["agents"] == 4, "four nodes are there")
        yield job


def text(page: Page, place: str) -> str:
    return page.locator(place).inner_text()


def cells(page: Page, place: str) -> list[Any]:
    """Return what is drawn of each: scrolled to, as what loads above moves it, and the first step puts charts there."""
    page.locator(f"#{place}-panel").scroll_into_view_if_needed()
    wall = "grid" if place == "ranks" else "gpus"
    return list(page.evaluate(f"window.stability?.page?.{wall}?.map?.cells.map((one) => [one.key, one.mark]) || []"))


@pytest.fixture
def wall(many: Running, visit: Visit) -> Page:
    """The page of ``many`` with every rank and every GPU, ranks in sight: what nobody sees is not drawn."""
    page = visit(many.path)
    for place, count in (("gpus", 24), ("ranks", 32)):
        wait_until(lambda: len(cells(page, place)) == count, 60, f"all cells of {place} are there")  # noqa: B023
    return page


@pytest.mark.soak
def test_a_wall_shows_every_rank_and_follows_what_happens_to_one(many: Running, wall: Page) -> None:
    wait_until(lambda: [9, "question"] in cells(wall, "ranks"), 30, "rank 9 can't be read")

    many.job.trouble.behind.add(21)
    try:
        wait_until(lambda: [21, "down"] in cells(wall, "ranks"), 30, "rank 21 is seen to be behind")
        assert "behind 1" in text(wall, "#ranks-legend")
    finally:
        many.job.trouble.behind.clear()
    wait_until(lambda: [21, ""] in cells(wall, "ranks"), 30, "rank 21 has caught up")


@pytest.mark.soak
def test_a_wall_out_of_sight_is_not_drawn_and_its_rows_go_on(many: Running, wall: Page) -> None:
    wait_until(lambda: [9, "question"] in cells(wall, "ranks"), 30, "rank 9 can't be read")
    # A low window: how far down the ranks lie depends on what the job has logged so far.
    wall.set_viewport_size({"width": 1280, "height": 300})
    wall.evaluate("window.scrollTo(0, 0)")
    wait_until(lambda: wall.evaluate("!stability.page.grid.visible"), 30, "the ranks are out of sight")
    wall.evaluate(COUNT)

    many.job.trouble.behind.add(21)
    try:
        wait_until(lambda: wall.evaluate("stability.page.grid.rows[21].state") == "behind", 30, "rank 21 is behind")
        assert wall.evaluate("window.painted") == 0
        wall.locator("#ranks").scroll_into_view_if_needed()
        wait_until(lambda: [21, "down"] in cells(wall, "ranks"), 30, "in sight it is drawn")
    finally:
        many.job.trouble.behind.clear()


@pytest.mark.soak
def test_a_tick_that_changes_nothing_writes_nothing_into_the_page(wall: Page) -> None:
    wait_until(lambda: [9, "question"] in cells(wall, "ranks"), 30, "rank 9 can't be read")

    assert wall.evaluate(WRITES) == []


@pytest.mark.soak
def test_a_wall_is_read_with_the_keyboard_and_coloured_and_ordered_as_asked(wall: Page) -> None:
    wait_until(lambda: "unreadable" in text(wall, "#ranks-legend"), 30, "the legend says what the marks mean")
    wall.focus("#ranks canvas")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "Enter"):
        wall.keyboard.press(key)
    tip = wall.locator("#ranks .cell-tip.pinned")
    assert "Rank 9 · gpu-002" in tip.inner_text()
    assert "the slot is version 9" in tip.inner_text()
    assert text(wall, "#ranks .unseen") == "rank 9 on gpu-002 has a slot that can't be read"
    wall.keyboard.press("Escape")
    assert not tip.is_visible()

    wall.click("#ranks-color [data-value=phase]")
    assert any(name in text(wall, "#ranks-legend") for name in ("data", "forward", "backward", "optimizer"))
    wall.click("#ranks-color [data-value=lag]")
    assert "at the front" in text(wall, "#ranks-legend")
    wall.click("#ranks-order [data-value=worst]")
    assert cells(wall, "ranks")[0][1] in ("question", "hatch", "cross")


@pytest.mark.soak
def test_gpus_stand_together_one_without_says_why_and_so_does_what_is_not_visible(wall: Page) -> None:
    # Too hot, and slowed: a shape and not only a colour.
    wait_until(lambda: ["gpu-001 5", "dash"] in cells(wall, "gpus"), 30, "GPU 5 is to be watched")
    assert "gpu-003 no GPU visible here: libnvidia-ml.so.1 is not installed" in text(wall, "#gpus-none")
    wall.click("#gpus-field [data-value=temp]")
    assert "95 °C" in text(wall, "#gpus-legend")
    wall.evaluate("stability.page.gpus.map.point(5)")
    assert "91 °C, memory 98 °C" in text(wall, "#gpus .cell-tip")

    assert text(wall, "#blind details[data-what=kernel_log] summary") == "kernel log · gpu-002"
    wall.click("#blind details[data-what=kernel_log] summary")
    assert "permission denied" in text(wall, "#blind details[data-what=kernel_log]")
    assert "To do: Run the agent as root" in text(wall, "#blind details[data-what=kernel_log]")
    wall.click("#blind details[data-what=slot] summary")
    assert "rank 9 on gpu-002" in text(wall, "#blind details[data-what=slot]")


#: The states of the rows by rank, as the page has them.
SHOWN = "Object.fromEntries((window.stability?.page?.grid?.rows ?? []).map((row) => [row.rank, row.state]))"


def test_the_wall_shows_of_each_rank_what_the_server_judges(many: Running, server: Server, wall: Page) -> None:
    def judged() -> dict[str, str]:
        agents = server.get("/runs/r-many-ranks/health")["agents"]
        return {str(rank["rank"]): rank["status"] for agent in agents for rank in agent["ranks"] if rank["status"]}

    many.job.trouble.behind.add(21)
    try:
        wait_until(lambda: judged().get("21") == "behind", 30, "the server judges rank 21 to be behind")
        assert judged()["9"] == "unread"
        wait_until(lambda: wall.evaluate(SHOWN) == judged(), 30, "the page shows the same")
    finally:
        many.job.trouble.behind.clear()


def test_only_cells_that_look_different_are_drawn_again(scripts: Page) -> None:
    drawn = scripts.evaluate(DRAWN)

    # All at first; one whose colour changed; nothing where nothing did; a ring beside a changed cell; another layout.
    assert drawn == [16, 1, 0, 2, 2, 24]


def test_a_few_ranks_have_words_and_not_cells(server: Server, visit: Visit) -> None:
    with Running(server.url, "r-few-ranks", 2) as few:
        server.wait_for("/runs/r-few-ranks", lambda run: run["agents"] == 1, "the node is there")
        page = visit(few.path, scheme="light")
        page.wait_for_selector(".rank-card[data-rank='1'][data-state=running]")
        assert text(page, "#ranks-summary") == "2 of 2 ranks run."
        assert not page.locator("#ranks-color").is_visible()

        few.job.trouble.dead.add(1)
        page.wait_for_selector(".rank-card[data-rank='1'][data-state=dead]")
        page.wait_for_selector("#health-lane [data-kind=process_death]")
        mark = page.locator("#health-lane [data-kind=process_death]")
        incident = next(
            one for one in server.get("/runs/r-few-ranks/incidents")["incidents"] if one["kind"] == "process_death"
        )
        assert mark.get_attribute("href") == f"/runs/r-few-ranks/incidents/{incident['incident_id']}"
