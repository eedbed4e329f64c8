"""Figures of many tabs on one run: what they cost the server, and that a chart which all show is made once."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import httpx
from parts.page_bench import BIG, LIVE, Bench, live_job
from parts.page_figure import Figure
from parts.server_process import usage
from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

__all__ = ["many_tabs", "shared_charts"]

TABS, SHARED_TABS = 100, 32
#: Before the tabs are measured they have caught up, seconds.
SETTLE_S = 3.0
SLICE_S = 5.0


def many_tabs(bench: Bench) -> list[Figure]:
    """Return what 100 tabs of a live run cost the server, without and with them.

    A tab is what it is to the server: a live feed that follows the run. No browser draws anything.
    """
    with live_job(bench):
        time.sleep(SETTLE_S)
        alone = _shares(bench, 2)
        tabs = _Tabs(bench.url.replace("http", "ws") + "/api/v1/live", TABS)
        tabs.start()
        time.sleep(SETTLE_S)
        before, begin = tabs.messages, time.monotonic()
        shares = _shares(bench, bench.times(2, 12))
        rate = (tabs.messages - before) / (time.monotonic() - begin) / TABS
        tabs.stop()
    base = sum(alone) / len(alone)
    return [
        Figure(f"{TABS} tabs of a live run (floor: none), server", shares, "% of a core", floor=base),
        Figure("messages to each of them", [rate], "a second"),
    ]


def _shares(bench: Bench, slices: int) -> list[float]:
    found = []
    for _ in range(slices):
        before, begin = usage(bench.server.pid).cpu_s, time.monotonic()
        time.sleep(SLICE_S)
        found.append(100 * (usage(bench.server.pid).cpu_s - before) / (time.monotonic() - begin))
    return found


class _Tabs(threading.Thread):
    """Live feeds that follow one run in a thread of their own."""

    def __init__(self, url: str, count: int) -> None:
        super().__init__(daemon=True)
        self.messages = 0
        self._url, self._count = url, count
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()

    def run(self) -> None:
        self._loop.run_until_complete(self._all())

    def stop(self) -> None:
        """End them all."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self.join()

    async def _all(self) -> None:
        tabs = [asyncio.create_task(self._follow()) for _ in range(self._count)]
        await self._stopped.wait()
        for tab in tabs:
            tab.cancel()
        await asyncio.gather(*tabs, return_exceptions=True)

    async def _follow(self) -> None:
        try:
            async with connect(self._url, max_size=None, open_timeout=60) as socket:
                await socket.send(json.dumps({"type": "subscribe", "run_id": LIVE, "cursor": None}))
                async for _ in socket:
                    self.messages += 1
        except ConnectionClosed:
            pass  # the server ends with the benchmark


def shared_charts(bench: Bench) -> list[Figure]:
    """Return how often the server makes a chart that 32 tabs ask for at once, and what that costs beside one tab."""
    bench.make_big()
    made, cost, alone = [], [], []
    times = bench.times(5, 15)
    for number in range(times):
        # A window of its own each time: none that was asked for before.
        alone.append(_asked(bench, 1, 2 * number + 1)[1])
        found, cpu_ms = _asked(bench, SHARED_TABS, 2 * number + 2)
        made.append(float(found))
        cost.append(cpu_ms)
    return [
        Figure(f"one chart for {SHARED_TABS} tabs is computed", made, "times", 1, "highest"),
        Figure("server for one chart", alone, "CPU ms"),
        Figure(f"server for {SHARED_TABS} tabs", cost, "CPU ms", floor=sorted(alone)[len(alone) // 2]),
    ]


def _asked(bench: Bench, tabs: int, first: int) -> tuple[int, float]:
    """Return how many answers were made for so many tabs, and the server's CPU, ms."""
    params = {"metric": ["loss", "grad_norm"], "view": "all", "points": 2000, "start": first}

    async def ask() -> None:
        async with httpx.AsyncClient(base_url=bench.url, timeout=60) as client:
            path = f"/api/v1/runs/{BIG}/series"
            asked = [client.get(path, params=params, headers={"Cache-Control": "max-age=1"}) for _ in range(tabs)]
            for answer in await asyncio.gather(*asked):
                answer.raise_for_status()

    before, cpu = _made(bench), usage(bench.server.pid).cpu_s
    asyncio.run(ask())
    cpu_ms = 1000 * (usage(bench.server.pid).cpu_s - cpu)
    return _made(bench) - before, cpu_ms


def _made(bench: Bench) -> int:
    text = httpx.get(f"{bench.url}/metrics").text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "stability_series_answers_total" and sample.labels["how"] == "made":
                return int(sample.value)
    raise SystemExit("the server does not say how many charts it made")
