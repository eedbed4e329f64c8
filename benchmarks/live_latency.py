"""From ``log()`` to the changed pixel in Chromium: 8 charts at 5 Hz, the whole real path.

Starts a server with its embedded Redis, a training process that logs 8 metrics five times a second through the real
client and agent, and headless Chromium on the run's page. The page notes when the frame with a point was painted; the
same points are taken from the live feed by a bare WebSocket client in the same run: that is the floor, the rest is
drawing.

    python benchmarks/live_latency.py [--seconds 40] [--rate-hz 5] [--charts 8]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
from parts.server_process import HANDLE, free_port
from playwright.sync_api import sync_playwright
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

JOB = """
import sys, time, stabilityclient
charts, rate = int(sys.argv[1]), float(sys.argv[2])
names = ["loss", "loss/code", "grad_norm", "lr", "ratio/image_text", "step_time_s", "tokens_per_s"]
names += [f"extra_{i}" for i in range(charts)]
run = stabilityclient.init(project="bench", name="live latency")
begin = time.monotonic()
for step in run.steps(1):
    time.sleep(max(0.0, begin + step / rate - time.monotonic()))
    run.log(step, {name: 2.0 + 1.0 / step + 0.01 * (step % 7) for name in names[:charts]})
"""
CHROMIUM = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


def _quantiles(values: list[float]) -> tuple[float, float, float, int]:
    ordered = sorted(values)
    at = lambda q: 1000 * ordered[min(len(ordered) - 1, int(q * len(ordered)))]  # noqa: E731
    return at(0.5), at(0.95), 1000 * ordered[-1], len(ordered)


class Floor(threading.Thread):
    """Takes the live feed without drawing anything."""

    def __init__(self, url: str, run_id: str) -> None:
        super().__init__(daemon=True)
        self.url, self.run_id, self.delays = url.replace("http", "ws") + "/api/v1/live", run_id, []

    def run(self) -> None:
        asyncio.run(self._listen())

    async def _listen(self) -> None:
        async with connect(self.url, max_size=None) as socket:
            await socket.send(json.dumps({"type": "subscribe", "run_id": self.run_id, "cursor": None}))
            with contextlib.suppress(ConnectionClosed):  # the server ends with the benchmark
                async for text in socket:
                    message = json.loads(text)
                    if message["type"] == "points":
                        now = time.time()
                        self.delays += [now - t for block in message["blocks"] for t in block["times"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--rate-hz", type=float, default=5)
    parser.add_argument("--charts", type=int, default=8)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        _measure(options, Path(folder))


def _measure(options: argparse.Namespace, folder: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    env = os.environ | {"STABILITY_URL": url, "STABILITY_DIR": str(folder / "spool"), "STABILITY_RUN_ID": "bench"}
    server = subprocess.Popen(
        [sys.executable, "-m", "stabilitybackend.cli", "up", "--port", str(port), "--data-dir", str(folder / "data")],
        stdout=subprocess.DEVNULL,
    )
    job = None
    try:
        _wait_for(f"{url}/healthz")
        job = subprocess.Popen([sys.executable, "-c", JOB, str(options.charts), str(options.rate_hz)], env=env)
        _wait_for(f"{url}/api/v1/runs/bench")
        floor = Floor(url, "bench")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=options.chromium, args=CHROMIUM)
            page = browser.new_page(bypass_csp=True, viewport={"width": 1920, "height": 2200})
            page.add_init_script(path=HANDLE)
            page.goto(f"{url}/runs/bench")
            page.wait_for_function("window.stability && window.stability.drawLog.drawn.length > 20", timeout=60_000)
            page.wait_for_timeout(3_000)
            floor.start()
            page.evaluate("window.stability.drawLog.drawn.length = 0")
            drawn: list[dict[str, float]] = []
            end = time.monotonic() + options.seconds
            while time.monotonic() < end:
                time.sleep(1)
                drawn += page.evaluate("window.stability.drawLog.drawn.splice(0)")
            charts = page.locator("canvas").count()
            browser.close()
        delays = [d["drawnAt"] - d["logTime"] for d in drawn]
        _print(options, charts, delays, floor.delays)
    finally:
        for process in (job, server):
            if process is not None:
                process.terminate()
                process.wait(15)


def _print(options: argparse.Namespace, charts: int, delays: list[float], floor: list[float]) -> None:
    print(f"{options.charts} metrics at {options.rate_hz:g} Hz, {charts} charts, {options.seconds:g} s, no GPU")
    print(f"{'from log() to':<32}{'p50 ms':>8}{'p95 ms':>8}{'max ms':>8}{'points':>8}{'p50 ratio':>11}")
    base = _quantiles(floor)
    for name, values in (("live feed, nothing drawn (floor)", base), ("pixel in Chromium", _quantiles(delays))):
        p50, p95, top, count = values
        print(f"{name:<32}{p50:>8.0f}{p95:>8.0f}{top:>8.0f}{count:>8}{p50 / base[0]:>11.2f}")


def _wait_for(url: str, timeout_s: float = 30) -> None:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        try:
            if httpx.get(url, timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"{url} did not answer within {timeout_s} s")


if __name__ == "__main__":
    main()
