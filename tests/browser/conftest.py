"""Fixtures of the tests in a real Chromium.

`chromium`    the browser of this folder's tests. Where none is installed they are skipped at home and fail in CI.
`lied_to`     one whose names below ``example`` lead here, as DNS rebinding makes them.
`open_page`   opens an address, with the handle of handle.js; at the end of the test fails if the page wrote an error to
              its console, threw, or asked another host for anything.
`visit`       the same in the one window of all tests, by our own links where it is on that server already. For a second
              page at once, or for one that loads anew: `open_page`.
`pages`       an empty page with our scripts for all tests of a module: each makes its own stage there.
`scripts`     an empty page with our scripts and no server: for the laws of the store and of the words.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec import to_builtins

from browser.visiting import go_to
from stabilitybackend.schema import severity
from stabilitybackend.schema.gpus import GPUS
from stabilitybackend.schema.kinds import served
from stabilitybackend.schema.ranks import RANKS
from stabilitybackend.schema.runs import STATUSES
from stabilitybackend.schema.verdicts import WORDS
from stabilityfrontend.bundle import bundle
from stabilityfrontend.served import ASSETS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

#: Features that Playwright switches off itself (``chromiumSwitches`` in its driver): of two lists Chromium reads only
#: the last one.
_PLAYWRIGHTS = (
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose",
    "HttpsUpgrades",
    "HttpsFirstBalancedModeAutoEnable",
    "LensOverlay",
    "MediaRouter",
    "PaintHolding",
    "ThirdPartyStoragePartitioning",
    "AvoidCorsURLLoaderRestartOnRedirect",
    "OptimizationHints",
    "NetworkTimeServiceQuerying",
    "AimEnabled",
    "PreconnectToSearch",
)
#: No network of its own, no sandbox (tests run as root in containers), no GPU. And no web pages in its address bar:
#: each new window loads two of them, which takes 1.2 s of CPU, more than our list of runs.
_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    f"--disable-features={','.join((*_PLAYWRIGHTS, 'WebUIOmniboxPopup', 'WebUIOmniboxAimPopup'))}",
]
#: Longest wait for anything in a page: what comes in time costs nothing more, and a loaded machine fails no test.
_PATIENCE_MS = 90_000
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: Gives pages `window.stability`; what it is, is said there.
HANDLE = Path(__file__).with_name("handle.js").read_text()

OpenPage = Callable[..., "Page"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything in this folder, so that ``-m 'not browser'`` leaves it out."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)


def _binary() -> str:
    found = os.environ.get("STABILITY_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        message = f"no Chromium on the PATH ({', '.join(_NAMES)}), and STABILITY_CHROMIUM does not name one"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return found


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """A headless Chromium. No longer than for this folder: while it is open, its event loop runs in this thread."""
    from playwright.sync_api import sync_playwright

    binary = _binary()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, args=_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def lied_to(chromium: Browser) -> Iterator[Browser]:
    """A Chromium whose name server says that every name below ``example`` is this machine."""
    lie = "--host-resolver-rules=MAP *.example 127.0.0.1"
    browser = chromium.browser_type.launch(executable_path=_binary(), args=[*_FLAGS, lie])
    yield browser
    browser.close()


@pytest.fixture
def open_page(chromium: Browser) -> Iterator[OpenPage]:
    """Opens pages, see the top of this file; ``quiet=False`` leaves the console alone, ``before`` is run first."""
    from playwright.sync_api import Error as PlaywrightError

    troubles: list[str] = []
    contexts = []

    def open_(
        url: str,
        *,
        scheme: str = "dark",
        width: int = 1280,
        height: int = 860,
        quiet: bool = True,
        before: str | None = None,
    ) -> Page:
        context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        context.set_default_timeout(_PATIENCE_MS)
        contexts.append(context)
        if before is not None:
            context.add_init_script(before)
        context.add_init_script(HANDLE)
        page = context.new_page()
        origin = "/".join(url.split("/")[:3]) if url.startswith("http") else "http"
        follow_troubles(page, origin, troubles, quiet=quiet)
        page.goto(url)
        try:
            page.evaluate(HANDLE)  # waits for it, where the page is one of ours
        except PlaywrightError as error:
            if "navigation" not in str(error):
                raise
            page.evaluate(HANDLE)  # it went on to the login
        return page

    yield open_
    for context in contexts:
        context.close()
    assert troubles == []


@pytest.fixture(scope="package")
def _window_of_all(chromium: Browser) -> Iterator[tuple[Page, list[str]]]:
    context = chromium.new_context()
    context.set_default_timeout(_PATIENCE_MS)
    context.add_init_script(HANDLE)
    page = context.new_page()
    troubles: list[str] = []
    follow_troubles(page, "http://127.0.0.1", troubles)
    yield page, troubles
    context.close()


@pytest.fixture(scope="module")
def _left(_window_of_all: tuple[Page, list[str]]) -> Iterator[None]:
    """No page asks for more when the server of a module is gone."""
    yield
    _window_of_all[0].goto("about:blank")


@pytest.fixture
def visit(_window_of_all: tuple[Page, list[str]], _left: None) -> Iterator[OpenPage]:
    """Goes to pages, see the top of this file; ``quiet=False`` leaves the console alone."""
    page, troubles = _window_of_all
    troubles.clear()
    loud: list[str] = []

    def visit_(url: str, *, scheme: str = "dark", width: int = 1280, height: int = 860, quiet: bool = True) -> Page:
        loud.extend(["console:"] * (not quiet))
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        go_to(page, url)
        page.evaluate(HANDLE)
        return page

    yield visit_
    assert [one for one in troubles if not one.startswith(tuple(loud))] == []


def follow_troubles(page: Page, origin: str, troubles: list[str], *, quiet: bool = True) -> None:
    """Note what a page throws, asks of other hosts and, with ``quiet``, tells its console."""
    ours = (origin, "data:", "blob:")
    page.on(
        "request",
        lambda request: None if request.url.startswith(ours) else troubles.append(f"asked for {request.url}"),
    )
    page.on("websocket", lambda ws: None if origin[4:] in ws.url else troubles.append(f"socket to {ws.url}"))
    page.on("pageerror", lambda error: troubles.append(f"threw {error} {error.stack}"))
    if quiet:
        page.on(
            "console",
            # A page that is left while its socket opens is no trouble: the browser warns of that all the same.
            lambda message: (
                troubles.append(f"console: {message.text}")
                if message.type in ("error", "warning") and "before the connection is established" not in message.text
                else None
            ),
        )


def load_scripts(page: Page) -> None:
    """Put all our modules into an empty page, with the tables that the head of a served page hands over."""
    board = bundle(ASSETS, "page_lifecycle.js").text
    at_hand = f"Object.assign(core_kinds.kindTable, {json.dumps(served())});"
    at_hand += f"Object.assign(core_kinds.statusTable, {json.dumps(to_builtins(STATUSES))});"
    at_hand += f"Object.assign(core_kinds.verdictWords, {json.dumps(WORDS)});"
    at_hand += f"Object.assign(core_kinds.rankTable, {json.dumps(RANKS)});"
    at_hand += f"Object.assign(core_kinds.gpuTable, {json.dumps(GPUS)});"
    at_hand += f"Object.assign(core_kinds.appearanceTable, {json.dumps(severity.served())});"
    handle = "window.stability = Object.assign({}, ...Object.values(modules));"
    page.set_content(f'<body><script type="module">{board}{at_hand}{handle}</script>')


@pytest.fixture(scope="module")
def pages(chromium: Browser) -> Iterator[Page]:
    """An empty page with our scripts in it. Every test makes its own stage there, so one page is enough."""
    page = chromium.new_page()
    load_scripts(page)
    yield page
    page.close()


@pytest.fixture(scope="module")
def _window(chromium: Browser) -> Iterator[Page]:
    page = chromium.new_page()
    yield page
    page.close()


@pytest.fixture
def scripts(_window: Page) -> Page:
    """An empty page with our scripts in it; nothing is mounted. A document of the test's own in a window of all."""
    _window.goto("about:blank")
    load_scripts(_window)
    return _window
