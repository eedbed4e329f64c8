"""How long after a navigation the first charts of a run's page are drawn, with an empty and with a warm browser cache.

    python benchmarks/page_open.py --url http://127.0.0.1:8080 --run-id big [--times 9]
    python benchmarks/page_open.py [--steps 830000]      # starts a server and makes the run of big_run.py first

The page notes when the frame with a chart's first line was on the screen (``drawLog.first``, milliseconds since the
navigation began). Cold: a browser context of its own for each navigation, so that every script comes from the server.
Warm: one context, so that the browser has them. A line of its own for a bare page of the same server (the login page,
whose frame is the same): what Dash itself takes, the floor.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from parts.server_process import HANDLE, ServerProcess
from playwright.sync_api import Browser, BrowserContext, sync_playwright

CHROMIUM = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
#: The promise: first charts after this, milliseconds.
AIM_MS = 1500
VIEWPORT = {"width": 1280, "height": 860}
#: A navigation without a chart after this is a failure.
TIMEOUT_MS = 30_000

READ = """() => {
  const page = window.stability.page;
  const inSight = [...page.board.charts.values()].filter((chart) => chart.visible && chart.hasLine && chart.hasLine());
  const first = window.stability.drawLog.first;
  const [asked, files] = [true, false].map((api) => [
    ...performance.getEntriesByType("resource"), ...performance.getEntriesByType("navigation"),
  ].filter((one) => one.name.includes("/api/") === api));
  return {
    "large chart": first.focus,
    "all charts in sight": Math.max(...inSight.map((chart) => first[chart.id])),
    bytes: asked.reduce((sum, one) => sum + one.encodedBodySize, 0),
    asked: asked.length,
    files: files.length,
    "bytes of files": files.reduce((sum, one) => sum + one.encodedBodySize, 0),
  };
}"""
DONE = """() => {
  const charts = window.stability?.page?.board?.charts;
  if (!charts || !window.stability.page.ready) return false;
  const first = window.stability.drawLog.first;
  const inSight = [...charts.values()].filter((chart) => chart.visible && chart.hasLine && chart.hasLine());
  return "focus" in first && inSight.every((chart) => chart.id in first);
}"""
FRAME = """() => new Promise((resolve) => requestAnimationFrame(() => resolve(performance.now())))"""


def main() -> int:
    """Measure, print a table, return 0 when the aim is met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--url", help="a server that is up; without it one is started and fed")
    parser.add_argument("--run-id", default="big")
    parser.add_argument("--steps", type=int, default=830_000, help="steps of the run that is made")
    parser.add_argument("--times", type=int, default=9, help="navigations of each kind, at least 7 for a median")
    parser.add_argument("--chromium", default=os.environ.get("STABILITY_CHROMIUM", "/usr/bin/chromium"))
    options = parser.parse_args()
    with _server(options) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=CHROMIUM)
        try:
            return _measure(browser, url, options)
        finally:
            browser.close()


@contextlib.contextmanager
def _server(options: argparse.Namespace) -> Iterator[str]:
    if options.url:
        yield options.url.rstrip("/")
        return
    with tempfile.TemporaryDirectory() as folder, ServerProcess(Path(folder)) as server:
        feeder = [sys.executable, str(Path(__file__).with_name("big_run.py")), "--url", server.url]
        subprocess.run([*feeder, "--steps", str(options.steps), "--run-id", options.run_id], check=True)
        yield server.url


def _measure(browser: Browser, url: str, options: argparse.Namespace) -> int:
    page_url = f"{url}/runs/{options.run_id}"
    cold, warm, floor = [], [], []
    for _ in range(options.times):
        context = browser.new_context(viewport=VIEWPORT, bypass_csp=True)
        cold.append(_open(context, page_url))
        context.close()
    context = browser.new_context(viewport=VIEWPORT, bypass_csp=True)
    for number in range(options.times + 1):
        found = _open(context, page_url)
        bare = _open_bare(context, f"{url}/login")
        if number:  # the first one fills the cache
            warm.append(found)
            floor.append(bare)
    size = f"{VIEWPORT['width']} x {VIEWPORT['height']}"
    print(f"{options.times} navigations of each kind, {size}, ms from the navigation")
    print(f"{'cache':<7}{'':<28}{'median':>8}{'lowest':>8}{'highest':>9}{'stdev':>8}{'x floor':>9}")
    base = statistics.median(floor)
    _line("warm", "a page without charts", floor, base)
    for name, measured in (("cold", cold), ("warm", warm)):
        for key in ("large chart", "all charts in sight"):
            _line(name, key, [one[key] for one in measured], base)
    print(f"API: {warm[-1]['asked']:.0f} requests, {warm[-1]['bytes'] / 1024:.0f} KiB before the page was complete")
    print(f"files with an empty cache: {cold[-1]['files']:.0f} requests, {cold[-1]['bytes of files'] / 1024:.0f} KiB")
    slowest = max(statistics.median(one["all charts in sight"] for one in measured) for measured in (cold, warm))
    print(f"aim: first charts after {AIM_MS} ms at the median: {'met' if slowest <= AIM_MS else 'MISSED'}")
    return 0 if slowest <= AIM_MS else 1


def _open(context: BrowserContext, url: str) -> dict[str, float]:
    page = context.new_page()
    page.add_init_script(path=HANDLE)
    try:
        page.goto(url)
        page.wait_for_function(DONE, timeout=TIMEOUT_MS)
        return dict(page.evaluate(READ))
    finally:
        page.close()


def _open_bare(context: BrowserContext, url: str) -> float:
    page = context.new_page()
    try:
        page.goto(url)
        page.wait_for_selector("#login-key")
        return float(page.evaluate(FRAME))
    finally:
        page.close()


def _line(cache: str, what: str, values: list[float], base: float) -> None:
    middle = statistics.median(values)
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    numbers = f"{middle:>8.0f}{min(values):>8.0f}{max(values):>9.0f}{spread:>8.0f}{middle / base:>9.2f}"
    print(f"{cache:<7}{what:<28}{numbers}")


if __name__ == "__main__":
    raise SystemExit(main())
