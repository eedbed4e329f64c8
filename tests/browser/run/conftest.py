"""One server for all files of this folder that only look, each at runs of its own.

`server`    a real server. It stays while the folder's tests run: give your runs ids that nobody else has.
`visit`     goes to a path of it, in the one window of all tests, and leaves it after the test.
`imported`  puts rows into a run of the server.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from browser.visiting import leave
from support.forked_program import ForkedProgram
from support.ports import free_port
from support.processes import Server

if TYPE_CHECKING:
    from playwright.sync_api import Page

Visit = Callable[..., "Page"]
Imported = Callable[[str, list[dict[str, Any]]], None]


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
        log = folder / f"{run}.log"
        command = ForkedProgram(["import", str(file), "--run-id", run, "--url", server.url], dict(os.environ), log)
        assert command.wait(90) == 0, log.read_text()
        server.wait_for(f"/runs/{run}", lambda facts: facts["last_step"] == rows[-1]["step"], f"{run} is there")

    return put


@pytest.fixture(scope="package")
def _left(_window_of_all: tuple[Page, list[str]], server: Server) -> Iterator[None]:
    """The server stays for all files, and so does the page."""
    yield
    _window_of_all[0].goto("about:blank")


@pytest.fixture
def visit(visit: Visit, server: Server) -> Iterator[Visit]:
    pages = []

    def to(path: str, **how: Any) -> Page:
        pages.append(visit(f"{server.url}{path}", **how))
        return pages[-1]

    yield to
    if pages:
        leave(pages[-1])
