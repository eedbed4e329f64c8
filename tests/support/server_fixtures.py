"""Fixtures of the tests of the backend and of the plug-ins.

`server`    a server of the test's own, over the real Redis of all tests.
`stage`     the runs of a server without its HTTP, over the same Redis.
`program`   the program ``stabilityboard``, called in the test's own process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from support.cli_program import Program, program_in
from support.manager_stack import Stage
from support.server_stack import RunningServer


@pytest.fixture
def server(redis_url: str, tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(redis_url, tmp_path / "server") as running:
        yield running


@pytest.fixture
async def stage(redis: Redis, tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(redis, tmp_path / "archive")
    yield stage
    await stage.manager.stop()


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Program:
    return program_in(tmp_path, monkeypatch, capfd)
