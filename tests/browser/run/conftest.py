"""One server and one window for all files of this folder that only look, each at runs of its own.

`server`    a real server. It stays while the folder's tests run: give your runs ids that nobody else has.
`visit`     goes to a path of it as a link does, without loading everything again (0.5 s of CPU instead of 2 to 3), and
            fails like `open_page` at the end of the test, with ``quiet=False`` whatever the console says. For a second
            page, or for one that loads anew: `open_page`.
`imported`  puts rows into a run of the server.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from browser.conftest import HANDLE, follow_troubles
from support.ports import free_port
from support.processes import Server
from support.waiting import wait_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Visit = Callable[..., "Page"]
Imported = Callable[[str, list[dict[str, Any]]], None]
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

#: What was drawn is told of one page alone, as after a load.
_GO = """(href) => {
  Object.assign(stability.drawLog, { lastDrawn: null, drawn: [], first: {} });
  stability.go(href);
}"""


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("shared") / "data", free_port()) as server:
        yield server


@pytest.fixture(scope="package")
def imported(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Imported:
    folder = tmp_path_factory.mktemp("imported")

    def put(run: str, rows: list[dict[str, Any]]) -> None:
        file = folder / f"{run}.jsonl"
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        command = [sys.executable, "-m", "stabilitybackend.cli", "import", str(file), "--run-id", run]
        subprocess.run([*command, "--url", server.url], check=True, capture_output=True, timeout=90)
        server.wait_for(f"/runs/{run}", lambda facts: facts["last_step"] == rows[-1]["step"], f"{run} is there")

    return put


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


def _leave(page: Page) -> None:
    page.mouse.move(0, 0)
    page.evaluate(_LEAVE)
    wait_in(page, f"{_OPEN} === 'incidents'", _THERE_S)


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
        if page.url != f"{server.url}/incidents":
            _leave(page)
        page.evaluate(_GO, path)
        wait_in(page, f"!['incidents', undefined].includes({_OPEN})", _THERE_S)
        return page

    yield go
    # A page that stays open goes on drawing what its run logs.
    if page.url.startswith(server.url):
        _leave(page)
    assert [one for one in troubles if not one.startswith(tuple(loud))] == []
