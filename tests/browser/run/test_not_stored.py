"""A page says within seconds that nothing is stored, and takes it back: real server, real Redis that gets full."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from redis import Redis

from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.plain_redis import PlainRedis
from support.server_stack import RunningServer
from support.waiting import wait_in

if TYPE_CHECKING:
    from browser.conftest import OpenPage


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[PlainRedis]:
    with PlainRedis(tmp_path) as running:
        yield running


@pytest.fixture
def server(plain: PlainRedis, tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(plain.url, tmp_path / "data") as running:
        yield running


@pytest.mark.parametrize("path", ["/", "/runs/run-1"])
def test_the_banner_says_that_redis_is_full_while_it_is(
    plain: PlainRedis, server: RunningServer, open_page: OpenPage, path: str
) -> None:
    async def log() -> None:
        async with RawAgent(server.agent_url) as agent:
            await agent.begin(Job().rows([1, 2, 3]))

    feeder = threading.Thread(target=lambda: asyncio.run(log()))  # Playwright's loop runs in this thread
    feeder.start()
    feeder.join()
    page = open_page(f"{server.url}{path}")
    wait_in(page, "document.getElementById('live-pill')?.textContent.match(/live|connected/)")
    with Redis.from_url(plain.url) as redis:
        redis.config_set("maxmemory-policy", "noeviction")
        redis.config_set("maxmemory", "1mb")
        page.wait_for_selector("#banner:not([hidden])")
        assert "Redis is full" in page.inner_text("#banner")
        assert "Training goes on" in page.inner_text("#banner")
        redis.config_set("maxmemory", "0")
        page.wait_for_selector("#banner", state="hidden")
