"""What seeing every rank costs: a simulated job, the whole server, a bare live feed and, if wanted, a page in Chromium.

    python benchmarks/health_feed.py [--ranks 2048] [--seconds 15] [--row-metrics 3] [--trouble "data:517"] [--page]

Prints the server's CPU (without any browser too: that is the floor), bytes a second of the live feed by message type,
and what the page costs its browser: CPU time of its main thread and of all of Chromium as the kernel counts it, and the
wall time of Chromium's own counters, which on a busy machine holds the time in which others ran. Then, apart because
asking for every frame is work too, tasks over 50 ms and frames later than 50 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from parts.chromium import CHROMIUM, chromium_cpu_s
from parts.server_process import HANDLE, ServerProcess, usage
from playwright.sync_api import Page, sync_playwright
from websockets.asyncio.client import connect

RUN = "simulated"
#: Seconds until agents, baselines and pages are there and nothing is new any more.
SETTLE_S = 8.0
WATCH = """() => {
  window.__late = []; window.__long = [];
  new PerformanceObserver((list) => list.getEntries().forEach((one) => window.__long.push(one.duration))).observe({ entryTypes: ["longtask"] });
  let before = performance.now();
  const frame = (now) => { window.__late.push(now - before); before = now; window.__asked = requestAnimationFrame(frame); };
  window.__asked = requestAnimationFrame(frame);
}"""  # noqa: E501  one script, read as one
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
COUNTERS = ("TaskDuration", "ScriptDuration", "LayoutDuration", "RecalcStyleDuration")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2048)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--trouble", default="")
    parser.add_argument("--row-metrics", type=int, default=0, help="metrics that every rank logs once a second, too")
    parser.add_argument("--page", action="store_true", help="open the run's page in Chromium too")
    parser.add_argument("--chromium", default=CHROMIUM)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ServerProcess(Path(folder) / "data") as server:
        job = subprocess.Popen(
            [
                *(sys.executable, str(Path(__file__).with_name("simulated_job.py")), "--url", server.url),
                *("--ranks", str(options.ranks), "--trouble", options.trouble),
                *("--row-metrics", str(options.row_metrics)),
            ]
        )
        try:
            _measure(server, options)
        finally:
            job.terminate()
            job.wait()


def _measure(server: ServerProcess, options: argparse.Namespace) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        answer = server.try_ask(f"/runs/{RUN}")
        if answer is not None and answer.json().get("agents") == -(-options.ranks // 8):
            break
        time.sleep(0.2)
    time.sleep(SETTLE_S)
    rows = f"{options.row_metrics} metrics of each rank a second, " if options.row_metrics else ""
    trouble = f"trouble: {options.trouble or 'none'}"
    print(f"{options.ranks} ranks, {rows}{trouble}, {options.seconds:g} s each")
    print(f"server without a browser   {_cores(server, lambda: time.sleep(options.seconds)):6.2f} cores")
    sizes: Counter[str] = Counter()
    cores = _cores(server, lambda: asyncio.run(_listen(server.port, options.seconds, sizes)))
    print(f"server with one live feed  {cores:6.2f} cores")
    for kind, size in sizes.most_common():
        print(f"live feed, {kind:<15} {size / options.seconds / 1000:6.1f} kB/s")
    if options.page:
        _browse(server, options)


def _cores(server: ServerProcess, act: object) -> float:
    before, begin = usage(server.pid).cpu_s, time.monotonic()
    act()  # type: ignore[operator]
    return (usage(server.pid).cpu_s - before) / (time.monotonic() - begin)


async def _listen(port: int, seconds: float, sizes: Counter[str]) -> None:
    async with connect(f"ws://127.0.0.1:{port}/api/v1/live", max_size=None, open_timeout=60) as socket:
        await socket.send(json.dumps({"type": "subscribe", "run_id": RUN, "cursor": None}))
        # The first message after somebody came has every column.
        end = time.monotonic() + 3
        while time.monotonic() < end:
            await socket.recv()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            text = await socket.recv()
            sizes[json.loads(text)["type"]] += len(text)


def _browse(server: ServerProcess, options: argparse.Namespace) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=FLAGS)
        page = browser.new_page(bypass_csp=True, viewport={"width": 1920, "height": 1080})
        page.add_init_script(path=HANDLE)
        page.goto(f"{server.url}/runs/{RUN}", timeout=120_000)
        page.wait_for_function("window.stability?.page?.ready", timeout=120_000)
        for name, place in (("charts in sight", "focus-panel"), ("ranks and GPUs in sight", "ranks-panel")):
            page.evaluate(f"document.getElementById('{place}').scrollIntoView()")
            _watch(page, name, options.seconds)
        browser.close()


def _watch(page: Page, name: str, seconds: float) -> None:
    page.wait_for_timeout(4_000)
    browser = page.context.browser
    assert browser is not None
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    before, cpu = _counters(session.send("Performance.getMetrics")), chromium_cpu_s(browser)
    page.wait_for_timeout(1_000 * seconds)
    after, cpu_after = _counters(session.send("Performance.getMetrics")), chromium_cpu_s(browser)
    main, everything = (1000 * (now - then) / seconds for now, then in zip(cpu_after, cpu, strict=True))
    words = ", ".join(f"{key[:-8].lower()} {1000 * (after[key] - before[key]) / seconds:.0f}" for key in COUNTERS)
    print(f"page, {name}: main thread {main:.0f} ms of CPU each second, all of Chromium {everything:.0f};", end=" ")
    print(f"wall, ms: {words};", end=" ", flush=True)
    page.evaluate(WATCH)
    page.wait_for_timeout(1_000 * seconds)
    late = [one for one in page.evaluate("window.__late") if one > 50]
    long = page.evaluate("window.__long")
    page.evaluate("cancelAnimationFrame(window.__asked)")
    print(f"{len(late)} frames over 50 ms (worst {max(late, default=0):.0f} ms),", end=" ")
    print(f"{len(long)} tasks over 50 ms (worst {max(long, default=0):.0f} ms)")


def _counters(answer: dict[str, list[dict[str, float]]]) -> dict[str, float]:
    return {str(one["name"]): float(one["value"]) for one in answer["metrics"]}


if __name__ == "__main__":
    main()
