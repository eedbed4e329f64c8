"""Figures of long lists: the table of 5,000 runs, and the charts of 600 metrics scrolled past."""

from __future__ import annotations

import json
import math
import random
import statistics
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec
import redis
from parts.chromium import DESK, bare_page_ms, chromium_cpu_s, launched, with_handle
from parts.page_bench import WIDE, WIDE_METRICS, Bench
from parts.page_figure import Figure
from parts.server_process import ServerProcess, usage
from playwright.sync_api import Browser, BrowserContext, CDPSession, Page

from stabilitybackend.base.keys import RUNS, RUNS_ACTIVE, RunKeys
from stabilitybackend.schema.pages.run_table import CURVE_BUCKETS, RunCurve, RunDigest

__all__ = ["MANY_RUNS", "fill", "run_lists", "scrolled_metrics"]

#: Runs in the table.
MANY_RUNS = 5_000
#: The promises, milliseconds: a call of the server, the first row, a sort, a frame of a scroll.
SERVER_MS, FIRST_MS, SORT_MS, FRAME_MS = 100, 1000, 100, 50
#: A turn of the wheel, pixels, and the time between two of them.
WHEEL_PX, WHEEL_MS = 300, 30
#: Calls by what they ask for.
CALLS: dict[str, dict[str, Any]] = {
    "sick first": {},
    "sorted by loss": {"sort": "-loss"},
    "by project, then lr": {"sort": ["project", "-config.lr"]},
    "state:sick project:llm lr>2e-4": {"q": "state:sick project:llm lr>2e-4"},
    "grouped by optimizer": {"group": "config.optimizer.name"},
    "two more columns": {"column": ["config.lr", "metric.grad_norm"]},
}
METRICS = ["loss", "grad_norm", "lr", "tokens_per_s", "consumed_tokens", *(f"layer/{n}/norm" for n in range(55))]
FIRST_ROW = """() => new Promise((done) => {
  const found = () => document.querySelector("#runs-body tr[data-run]") && (requestAnimationFrame(() =>
    done(performance.now())), true);
  if (!found()) new MutationObserver((_, all) => found() && all.disconnect())
    .observe(document, { childList: true, subtree: true });
})"""
UNFOLD = """() => {
  document.querySelectorAll('[data-section][aria-expanded="false"]').forEach((fold) => fold.click());
}"""
WATCH_FRAMES = """() => {
  const [frames, long] = [[], []];
  const tasks = new PerformanceObserver((list) => list.getEntries().forEach((one) => long.push(one.duration)));
  tasks.observe({ entryTypes: ["longtask"] });
  let [before, asked] = [performance.now(), 0];
  const frame = (now) => {
    frames.push(now - before);
    before = now;
    asked = requestAnimationFrame(frame);
  };
  asked = requestAnimationFrame(frame);
  window.endWatch = () => {
    cancelAnimationFrame(asked);
    tasks.disconnect();
    return { frames: frames.slice(2), long, height: document.documentElement.scrollHeight };
  };
}"""
SORT = """(key) => new Promise((done) => {
  const first = () => document.querySelector("#runs-body tr[data-run]")?.dataset.run;
  const before = first();
  const begin = performance.now();
  new MutationObserver((_, all) => {
    if (!first() || first() === before) return;
    all.disconnect();
    requestAnimationFrame(() => done(performance.now() - begin));
  }).observe(document.querySelector("#runs-body"), { childList: true, subtree: true, attributes: true });
  document.querySelector(`[data-sort="${key}"]`).click();
})"""


def fill(socket: Path, runs: int, live: int) -> None:
    """Put runs into a Redis, the newest ``live`` of them under way."""
    rnd, now = random.Random(7), time.time()
    with redis.Redis(unix_socket_path=str(socket)) as store:
        for begin in range(0, runs, 500):
            pipe = store.pipeline(transaction=False)
            for number in range(begin, min(begin + 500, runs)):
                run, created = f"run-{number:05d}", now - 600.0 * (runs - number)
                pipe.hset(RunKeys(run).meta, mapping=_meta(rnd, number, created, number >= runs - live))
                pipe.zadd(RUNS, {run: created})
                pipe.zadd(RUNS_ACTIVE, {run: created})
            pipe.execute()


def _meta(rnd: random.Random, number: int, created: float, live: bool) -> dict[str, Any]:
    step, loss = rnd.randrange(100, 200_000), 1.5 + rnd.random()
    status = "running" if live else rnd.choices(["finished", "crashed"], [95, 5])[0]
    severity = rnd.choices(["", "warning", "critical"], [90, 7, 3])[0]
    worst = (
        {"incident_id": f"i-{number}", "kind": "spike", "severity": severity, "title": "Spike"} if severity else None
    )
    view = {
        "status": status, "open_incidents": int(bool(severity)), "worst_incident": worst, "metrics": METRICS,
        "latest": dict.fromkeys(METRICS, rnd.random()) | {"loss": loss, "tokens_per_s": 1e5 * rnd.random()},
        "loss_metric": "loss", "last_step": step, "logged": created + step / 10, "world_size": 64,
    }  # fmt: skip
    heights = [round(100 * math.exp(-at / 12)) for at in range(CURVE_BUCKETS)]
    digest = RunDigest(
        step=step, head=0, status=status, made=created, curve=RunCurve("loss", 0, step, heights, heights, loss, 9.0),
        tokens=step * 4e6, tokens_metric="consumed_tokens", goodput=0.8 + 0.2 * rnd.random(), gpus=64,
    )  # fmt: skip
    config = {
        "lr": rnd.choice([1e-4, 3e-4, 6e-4]), "optimizer": {"name": rnd.choice(["adamw", "lion"]), "beta": 0.95},
        "seed": number, **{f"model_{n}": rnd.randrange(8) for n in range(36)},
    }  # fmt: skip
    return {
        "created": created, "updated": created + step / 10, "view": json.dumps(view),
        "digest": msgspec.json.encode(digest), "name": f"{rnd.choice(['7b', '13b', '70b'])}-{number}",
        "project": rnd.choice(["llm", "vlm", "rl"]), "config": json.dumps(config),
    }  # fmt: skip


def run_lists(bench: Bench) -> list[Figure]:
    """Return how fast the table of 5,000 runs is: the server's calls, the first row, a sort by a click on a head.

    The runs are as a server leaves them, without points: with a config of 40 keys, 60 metrics, a curve of the whole run
    each, and some of them sick. Calls: a new order each (a filter that was not asked before), 100 rows. A row counts
    when the frame after it was put there begins; a sort from the click to the first row of the new order.
    """
    with launched(bench.chromium) as browser:
        return [*_calls(bench), *_opened(browser, bench), *_sorted(browser, bench)]


def _calls(bench: Bench) -> list[Figure]:
    figures, times = [], bench.times(3, 9)
    with httpx.Client(base_url=bench.url, timeout=60.0) as client:
        client.get("/api/v1/run_table").raise_for_status()
        for name, params in CALLS.items():
            taken = []
            idle = _idle_share(bench.server)
            before, since = usage(bench.server.pid).cpu_s, time.perf_counter()
            for turn in range(times):
                # Another order each time: one that was asked for a moment ago is shared.
                q = f"{params.get('q', '')} -nothing{turn}"
                begin = time.perf_counter()
                client.get("/api/v1/run_table", params={**params, "q": q}).raise_for_status()
                taken.append(1000 * (time.perf_counter() - begin))
            spent = usage(bench.server.pid).cpu_s - before - idle * (time.perf_counter() - since)
            cpu_ms = 1000 * max(spent, 0.0) / times
            figures.append(Figure(f"5,000 runs, server: {name} ({cpu_ms:.0f} ms CPU)", taken, aim=SERVER_MS))
    return figures


def _idle_share(server: ServerProcess) -> float:
    """Return the CPU seconds a second that the server takes when nobody asks: its live runs."""
    before = usage(server.pid).cpu_s
    time.sleep(1.0)
    return usage(server.pid).cpu_s - before


def _opened(browser: Browser, bench: Bench) -> list[Figure]:
    cold, warm, floor, bare_cold = [], [], [], []
    times = bench.times(3, 9)
    for _ in range(times):
        for into, measure in ((bare_cold, bare_page_ms), (cold, _first_row)):
            context = with_handle(browser)
            into.append(measure(context, bench.url))
            context.close()
    context = with_handle(browser)
    for turn in range(times + 1):
        taken, bare = _first_row(context, bench.url), bare_page_ms(context, bench.url)
        if turn:  # the first one fills the cache
            warm.append(taken)
            floor.append(bare)
    context.close()
    return [
        Figure("5,000 runs: first row, cold", cold, aim=FIRST_MS, floor=statistics.median(bare_cold)),
        Figure("5,000 runs: first row, warm", warm, aim=FIRST_MS, floor=statistics.median(floor)),
    ]


def _first_row(context: BrowserContext, url: str) -> float:
    page = context.new_page()
    try:
        page.goto(url, wait_until="commit")
        return float(page.evaluate(FIRST_ROW))
    finally:
        page.close()


def _sorted(browser: Browser, bench: Bench) -> list[Figure]:
    page = with_handle(browser).new_page()
    page.goto(bench.url)
    page.evaluate(FIRST_ROW)
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
    figures = []
    for key in ("loss", "step", "name"):
        taken, cpu = list[float](), list[float]()
        for _ in range(bench.times(4, 9)):
            page.wait_for_timeout(1100)  # an order is shared for a second
            before = _main_thread_ms(devtools)
            taken.append(float(page.evaluate(SORT, key)))
            cpu.append(_main_thread_ms(devtools) - before)
        words = f"5,000 runs: sort by {key} ({statistics.median(cpu):.0f} ms CPU)"
        figures.append(Figure(words, taken, aim=SORT_MS))
    return figures


def _main_thread_ms(devtools: CDPSession) -> float:
    """Return the CPU time that the page's main thread has taken so far."""
    found = devtools.send("Performance.getMetrics")["metrics"]
    return 1000 * float(next(one["value"] for one in found if one["name"] == "TaskDuration"))


def scrolled_metrics(bench: Bench) -> list[Figure]:
    """Return the frames of a page of 600 charts that is scrolled by the wheel from its top to its end.

    The floor is an empty page of the same height, scrolled alike.
    """
    bench.make_wide()
    frames, long, bare, main = list[float](), list[float](), list[float](), list[float]()
    with launched(bench.chromium) as browser:
        for _ in range(bench.times(1, 3)):
            page = with_handle(browser).new_page()
            page.goto(f"{bench.url}/runs/{WIDE}")
            page.wait_for_function("window.stability?.page?.ready")
            page.evaluate(UNFOLD)
            page.wait_for_timeout(1_500)
            before = chromium_cpu_s(browser)[0]
            height = _scroll(page, frames, long)
            main.append(1000 * (chromium_cpu_s(browser)[0] - before) / WIDE_METRICS)
            page.close()
            blank = browser.new_page(viewport={"width": DESK[0], "height": DESK[1]})
            blank.set_content(f"<body style='margin: 0'><div style='height: {height}px'></div>")
            _scroll(blank, bare, [], pixels=3 * WHEEL_PX)
            blank.close()
    what = f"scroll past {WIDE_METRICS} metrics"
    return [
        Figure(f"{what}: a frame", frames, aim=FRAME_MS, judged="highest", floor=max(bare)),
        Figure(f"{what}: tasks of 50 ms and more", [float(len(long))], "of them", floor=None),
        Figure(f"{what}: main thread, a chart", main, "CPU ms"),
    ]


def _scroll(page: Page, frames: list[float], long: list[float], pixels: int = WHEEL_PX) -> float:
    """Turn the wheel until the end, add the time of each frame and of long tasks; return the height of the page."""
    page.mouse.move(DESK[0] / 2, DESK[1] / 2)
    page.evaluate(WATCH_FRAMES)
    before = -1.0
    while True:
        for _ in range(10):
            page.mouse.wheel(0, pixels)
            page.wait_for_timeout(WHEEL_MS)
        now = float(page.evaluate("scrollY"))
        if now == before:
            break
        before = now
    found = page.evaluate("() => window.endWatch()")
    frames += found["frames"]
    long += found["long"]
    return float(found["height"])
