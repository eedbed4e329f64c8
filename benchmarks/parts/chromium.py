"""A headless Chromium for benchmarks: what it takes of the CPU, what a page holds, a slow line."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from parts.server_process import HANDLE
from playwright.sync_api import Browser, BrowserContext, CDPSession, Page, sync_playwright

__all__ = ["CHROMIUM", "DESK", "bare_page_ms", "chromium_cpu_s", "heap_mib", "launched", "slow_line", "with_handle"]

#: Where Chromium is.
CHROMIUM = os.environ.get("STABILITY_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
#: No network of its own, no sandbox (containers run as root), no GPU. Its address bar must not load web pages: each new
#: window would take 1.2 s of CPU for them.
_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup,OptimizationHints,MediaRouter,PaintHolding",
]  # fmt: skip
#: The window of somebody at a desk, pixels.
DESK = (1280, 860)
_FRAME = """() => new Promise((resolve) => requestAnimationFrame(() => resolve(performance.now())))"""


@contextlib.contextmanager
def launched(binary: str = CHROMIUM) -> Iterator[Browser]:
    """A Chromium of its own, closed at the end."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, args=_FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def with_handle(browser: Browser, size: tuple[int, int] = DESK) -> BrowserContext:
    """Return a context with an empty cache whose pages have ``window.stability``."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, bypass_csp=True)
    context.add_init_script(path=HANDLE)
    return context


def slow_line(page: Page, latency_ms: float, mbit_s: float) -> None:
    """Put a page behind a slow line: so long until each answer begins, so fast both ways. WebSockets stay as they are.

    Chromium throttles requests, not the connections below them: setting up a connection costs nothing here.
    """
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    bytes_s = mbit_s * 1e6 / 8
    line = {"offline": False, "latency": latency_ms, "downloadThroughput": bytes_s, "uploadThroughput": bytes_s}
    session.send("Network.emulateNetworkConditions", line)


def bare_page_ms(context: BrowserContext, url: str, line: tuple[float, float] | None = None) -> float:
    """Return when the first frame of the login page began, which has no chart and no data, ms from the navigation."""
    page = context.new_page()
    try:
        if line is not None:
            slow_line(page, *line)
        page.goto(f"{url}/login")
        page.wait_for_selector("#login-key")
        return float(page.evaluate(_FRAME))
    finally:
        page.close()


def chromium_cpu_s(browser: Browser, session: CDPSession | None = None) -> tuple[float, float]:
    """Return the CPU seconds of the pages' main threads and of all of Chromium so far (proc(5), schedstat)."""
    own = session or browser.new_browser_cdp_session()
    main = everything = 0.0
    for one in own.send("SystemInfo.getProcessInfo")["processInfo"]:
        process = Path(f"/proc/{one['id']}")
        if one["type"] == "renderer":
            main += _ran_s(process / "task" / str(one["id"]))
        with contextlib.suppress(OSError):  # it has just ended
            everything += sum(_ran_s(thread) for thread in (process / "task").iterdir())
    if session is None:
        own.detach()
    return main, everything


def _ran_s(thread: Path) -> float:
    try:
        return int((thread / "schedstat").read_text().split()[0]) / 1e9
    except (OSError, IndexError):
        return 0.0  # it has just ended


def heap_mib(page: Page) -> float:
    """Return what the scripts of a page hold, MiB, after the garbage is collected."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.enable")
    for _ in range(2):  # what waited for a finalizer goes with the second one
        session.send("HeapProfiler.collectGarbage")
    used = float(session.send("Runtime.getHeapUsage")["usedSize"]) / 2**20
    session.detach()
    return used
