"""One server and one window for all files of this folder that only look, each at runs of its own.

`server`    a real server. It stays while the folder's tests run: give your runs ids that nobody else has.
`visit`     goes to a path of it as a link does, without loading everything again (0.5 s of CPU instead of 2 to 3), and
            fails like `open_page` at the end of the test, with ``quiet=False`` whatever the console says. For a second
            page, or for one that loads anew: `open_page`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from browser.conftest import HANDLE, follow_troubles
from support.ports import free_port
from support.processes import Server
from support.waiting import wait_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Visit = Callable[..., "Page"]
#: Seconds for a page of ours to be there; `wait_in` gives a loaded machine more.
_THERE_S = 30
#: The page that has come to life: its skeleton stands before that.
_OPEN = """((root) => root === stability.opened.root ? root?.dataset.page : undefined)(
  document.querySelector("#page > .page"))"""
#: Ends the page that is open. It leaves nothing of a test behind: what people chose is forgotten.
_LEAVE = """() => {
  localStorage.clear();
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  document.activeElement?.blur();
  stability.go("/incidents");
}"""


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("shared") / "data", free_port()) as server:
        yield server


@pytest.fixture(scope="package")
def _shared(chromium: Browser, server: Server) -> Iterator[tuple[Page, list[str]]]:
    context = chromium.new_context()
    context.set_default_timeout(90_000)
    context.add_init_script(HANDLE)
    page = context.new_page()
    troubles: list[str] = []
    follow_troubles(page, server.url, troubles)
    yield page, troubles
    context.close()


@pytest.fixture
def visit(_shared: tuple[Page, list[str]], server: Server) -> Iterator[Visit]:
    page, troubles = _shared
    troubles.clear()
    loud: list[str] = []

    def go(path: str, *, scheme: str = "dark", width: int = 1280, height: int = 860, quiet: bool = True) -> Page:
        loud.extend(["console:"] * (not quiet))
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        if not page.url.startswith(server.url):
            page.goto(f"{server.url}/incidents")
            page.evaluate(HANDLE)
        page.mouse.move(0, 0)
        page.evaluate(_LEAVE)
        wait_in(page, f"{_OPEN} === 'incidents'", _THERE_S)
        page.evaluate("(href) => { stability.go(href); }", path)
        wait_in(page, f"!['incidents', undefined].includes({_OPEN})", _THERE_S)
        return page

    yield go
    assert [one for one in troubles if not one.startswith(tuple(loud))] == []
