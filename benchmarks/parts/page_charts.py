"""Figures of a run's page: its first chart, detail after a zoom, twenty live charts, a page at rest."""

from __future__ import annotations

import statistics
import time

from parts.chromium import DESK, bare_page_ms, chromium_cpu_s, heap_mib, launched, slow_line, with_handle
from parts.page_bench import BIG, CHARTS, LIVE, WIDE, Bench, live_job
from parts.page_figure import Figure
from playwright.sync_api import Browser, BrowserContext, Page

__all__ = ["first_charts", "first_charts_slow", "live_charts", "resting", "zooms"]

#: Aims, milliseconds from the navigation to the first chart: with a warm cache, with an empty one.
WARM_MS, COLD_MS = 1000, 1500
SLOW_WARM_MS, SLOW_COLD_MS = 1500, 2500
#: The slow line: ms until an answer begins, Mbit/s.
SLOW = (50.0, 20.0)
ZOOM_MS = 300
#: A page of twenty charts at 5 Hz, and one at rest: percent of a core, of all of Chromium. MiB that the heap may grow.
LIVE_PERCENT, REST_PERCENT, GROWTH_MIB = 25, 2, 5
#: A window in which twenty charts are in sight.
WALL = (1920, 2900)
TIMEOUT_MS = 60_000
#: CPU is read in slices of these many seconds.
SLICE_S = 5

_READ = """() => {
  const page = window.stability.page;
  const inSight = [...page.board.charts.values()].filter((chart) => chart.visible && chart.hasLine && chart.hasLine());
  const first = window.stability.drawLog.first;
  const [asked, files] = [true, false].map((api) => [
    ...performance.getEntriesByType("resource"), ...performance.getEntriesByType("navigation"),
  ].filter((one) => one.name.includes("/api/") === api));
  return {
    "first chart": first.focus,
    "all charts in sight": Math.max(...inSight.map((chart) => first[chart.id])),
    asked: asked.length,
    "asked KiB": asked.reduce((sum, one) => sum + one.encodedBodySize, 0) / 1024,
    files: files.length,
    "files KiB": files.reduce((sum, one) => sum + one.encodedBodySize, 0) / 1024,
  };
}"""
_DONE = """() => {
  const charts = window.stability?.page?.board?.charts;
  if (!charts || !window.stability.page.ready) return false;
  const first = window.stability.drawLog.first;
  const inSight = [...charts.values()].filter((chart) => chart.visible && chart.hasLine && chart.hasLine());
  return "focus" in first && inSight.every((chart) => chart.id in first);
}"""
#: From the release of the pointer to the frame in which the large chart shows the window in full detail.
_WATCH_ZOOM = """() => {
  const { page } = window.stability;
  window.zoomed = null;
  window.addEventListener("pointerup", () => {
    const begin = performance.now();
    let here = null;
    const look = () => {
      const { range } = page.zoom;
      const detail = range && page.store.details.get(page.metric());
      if (here === null && detail && detail.start <= range[0] && detail.stop >= range[1]) here = performance.now();
      if (here !== null && page.focus.drawn >= here - 20 && !page.focus.dirty)
        requestAnimationFrame(() => (window.zoomed = performance.now() - begin));
      else if (performance.now() - begin < 20000) requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
  }, { capture: true, once: true });
}"""
#: The answer that such a zoom needs, fetched by the page and not drawn.
_BARE_ZOOM = """async ([run, start, stop]) => {
  const begin = performance.now();
  const query = new URLSearchParams({ metric: "loss", view: "all", start, stop, points: "2000" });
  await (await fetch(`/api/v1/runs/${run}/series?${query}`)).json();
  return performance.now() - begin;
}"""


def first_charts(bench: Bench) -> list[Figure]:
    """Return when the first chart of 10 M points is drawn, with a warm and an empty browser cache."""
    return _first(bench, None, WARM_MS, COLD_MS, "first chart")


def first_charts_slow(bench: Bench) -> list[Figure]:
    """Return the same at 50 ms and 20 Mbit/s."""
    return _first(bench, SLOW, SLOW_WARM_MS, SLOW_COLD_MS, "50 ms, 20 Mbit: first chart")


def _first(bench: Bench, line: tuple[float, float] | None, warm_ms: float, cold_ms: float, what: str) -> list[Figure]:
    bench.make_big()
    times = bench.times(3, 9)
    cold, warm, floor, bare_cold = [], [], [], []
    with launched(bench.chromium) as browser:
        for _ in range(times):
            context = with_handle(browser)
            bare = browser.new_context()
            bare_cold.append(bare_page_ms(bare, bench.url, line))
            bare.close()
            cold.append(_open(context, bench.url, line))
            context.close()
        context = with_handle(browser)
        for number in range(times + 1):
            found = _open(context, bench.url, line)
            bare_ms = bare_page_ms(context, bench.url, line)
            if number:  # the first one fills the cache
                warm.append(found)
                floor.append(bare_ms)
    base = (statistics.median(floor), statistics.median(bare_cold))
    found = [
        Figure(f"{what}, warm", [one["first chart"] for one in warm], aim=warm_ms, floor=base[0]),
        Figure(f"{what}, cold", [one["first chart"] for one in cold], aim=cold_ms, floor=base[1]),
    ]
    if line is None:
        found.append(Figure("all charts in sight, warm", [one["all charts in sight"] for one in warm], floor=base[0]))
        found.append(Figure("all charts in sight, cold", [one["all charts in sight"] for one in cold], floor=base[1]))
        found.append(Figure("the API's answers to a first load", [one["asked KiB"] for one in warm], "KiB"))
        found.append(Figure("files with an empty cache", [one["files KiB"] for one in cold], "KiB"))
    return found


def _open(context: BrowserContext, url: str, line: tuple[float, float] | None) -> dict[str, float]:
    page = context.new_page()
    try:
        if line is not None:
            slow_line(page, *line)
        page.goto(f"{url}/runs/{BIG}", timeout=TIMEOUT_MS)
        page.wait_for_function(_DONE, timeout=TIMEOUT_MS)
        return dict(page.evaluate(_READ))
    finally:
        page.close()


def zooms(bench: Bench) -> list[Figure]:
    """Return how long after a drag over the large chart it shows the window in full detail."""
    bench.make_big()
    taken, bare = [], []
    with launched(bench.chromium) as browser:
        page = with_handle(browser).new_page()
        page.goto(f"{bench.url}/runs/{BIG}", timeout=TIMEOUT_MS)
        page.wait_for_function(_DONE, timeout=TIMEOUT_MS)
        box = page.evaluate("""() => {
          const { plot, element } = window.stability.page.focus;
          const place = element.getBoundingClientRect();
          return [place.x + plot.inner.left, place.y + (plot.inner.top + plot.inner.bottom) / 2,
                  plot.inner.right - plot.inner.left];
        }""")
        for number in range(bench.times(20, 60)):
            taken.append(_zoom(page, box, number))
            start, stop = page.evaluate("window.stability.page.zoom.range.map(Math.round)")
            # Another window of the same width: none that somebody has asked for.
            bare.append(float(page.evaluate(_BARE_ZOOM, [BIG, start + 1, stop + 1])))
            page.evaluate(
                "() => { const { page } = window.stability; page.zoom.set(null); page.store.details.clear(); }"
            )
            page.wait_for_timeout(300)
    return [Figure("true detail after a zoom", taken, aim=ZOOM_MS, judged="p95", floor=statistics.median(bare))]


def _zoom(page: Page, box: list[float], number: int) -> float:
    left, middle, width = box
    # From places all over the run, from a tenth of it to a fiftieth.
    begin = left + width * ((number * 0.37) % 0.85 + 0.02)
    end = begin + width * (0.1 if number % 2 else 0.02)
    page.mouse.move(begin, middle)
    page.mouse.down()
    page.mouse.move((begin + end) / 2, middle)
    page.mouse.move(end, middle)
    page.evaluate(_WATCH_ZOOM)
    page.mouse.up()
    page.wait_for_function("window.zoomed !== null", timeout=TIMEOUT_MS)
    return float(page.evaluate("window.zoomed"))


def live_charts(bench: Bench) -> list[Figure]:
    """Return what a page with twenty charts at 5 Hz takes of a core, all of Chromium, and how its heap grows."""
    seconds = bench.times(50, 600)
    with live_job(bench), launched(bench.chromium) as browser:
        page = with_handle(browser, WALL).new_page()
        page.goto(f"{bench.url}/runs/{LIVE}", timeout=TIMEOUT_MS)
        page.wait_for_function(_DONE, timeout=TIMEOUT_MS)
        in_sight = (
            "[...window.stability.page.board.charts.values()].filter((one) => one.visible && one.hasLine?.()).length"
        )
        page.wait_for_function(f"{in_sight} >= {CHARTS}", timeout=TIMEOUT_MS)
        charts = page.evaluate(in_sight)
        # What a page has after its first minute it has for good: records of drawings, a full window of points.
        page.wait_for_timeout(1000 * bench.times(5, 60))
        before = heap_mib(page)
        drawn = "window.stability.drawLog.frames"
        frames, begin = page.evaluate(drawn), time.monotonic()
        shares, main = _shares(browser, seconds)
        rate = (page.evaluate(drawn) - frames) / (time.monotonic() - begin)
        growth = heap_mib(page) - before
        page.goto("about:blank")
        page.wait_for_timeout(1000 * SLICE_S)  # the process of the page that was left ends, and takes its time with it
        nothing, _ = _shares(browser, SLICE_S)
    what = f"{charts} charts at 5 Hz for {seconds} s"
    return [
        Figure(f"{what}, all of Chromium", shares, "% of a core", LIVE_PERCENT, floor=statistics.median(nothing)),
        Figure("its main thread", main, "% of a core"),
        Figure("frames in which charts are drawn", [rate], "a second"),
        Figure(f"heap growth ({before:.1f} before)", [growth], "MiB", GROWTH_MIB),
    ]


def _shares(browser: Browser, seconds: float) -> tuple[list[float], list[float]]:
    """Return the percent of a core that all of Chromium, and pages' main threads, take, of each slice of time."""
    session = browser.new_browser_cdp_session()
    everything, main = [], []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        before, begin = chromium_cpu_s(browser, session), time.monotonic()
        time.sleep(SLICE_S)
        after, took = chromium_cpu_s(browser, session), time.monotonic() - begin
        main.append(100 * (after[0] - before[0]) / took)
        everything.append(100 * (after[1] - before[1]) / took)
    return everything, main


def resting(bench: Bench) -> list[Figure]:
    """Return what a page takes of a core when nothing happens: a run that is over, and the list of runs."""
    bench.make_big()
    bench.make_wide()
    figures = []
    for what, path in (("a run that is over", f"/runs/{WIDE}"), ("the list of runs", "/")):
        with launched(bench.chromium) as browser:
            page = with_handle(browser, DESK).new_page()
            page.goto("about:blank")
            nothing, _ = _shares(browser, SLICE_S)
            page.goto(bench.url + path, timeout=TIMEOUT_MS)
            page.wait_for_function("window.stability?.page?.ready", timeout=TIMEOUT_MS)
            page.wait_for_timeout(5_000)
            shares, _ = _shares(browser, bench.times(10, 60))
        words = f"at rest: {what}"
        figures.append(Figure(words, shares, "% of a core", REST_PERCENT, floor=statistics.median(nothing)))
    return figures
