"""Fixtures of the backend's tests: a server of the test's own, over the real Redis of all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.server_stack import RunningServer


@pytest.fixture
def server(redis_url: str, tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(redis_url, tmp_path / "server") as running:
        yield running
