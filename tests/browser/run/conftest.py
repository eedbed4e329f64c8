"""One server for all files of this folder that only look, each at runs of its own.

`server`    a real server. It stays while the folder's tests run: give your runs ids that nobody else has.
`visit`     goes to a path of it, in the one window of all tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from support.ports import free_port
from support.processes import Server

if TYPE_CHECKING:
    from playwright.sync_api import Page

Visit = Callable[..., "Page"]


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("shared") / "data", free_port()) as server:
        yield server


@pytest.fixture
def visit(visit: Visit, server: Server) -> Visit:
    def to(path: str, **how: Any) -> Page:
        return visit(f"{server.url}{path}", **how)

    return to
