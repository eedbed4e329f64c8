"""A page says within seconds that nothing is stored, and takes it back: real server, real Redis that gets full."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from redis import Redis

from support.gateway_stack import log_frames
from support.job_frames import Job
from support.plain_redis import PlainRedis
from support.server_stack import RunningServer
from support.waiting import wait_in

if TYPE_CHECKING:
    from browser.conftest import OpenPage


@pytest.mark.soak
def test_the_banner_of_every_page_says_that_redis_is_full_while_it_is(tmp_path: Path, open_page: OpenPage) -> None:
    with (
        PlainRedis(tmp_path) as plain,
        RunningServer(plain.url, tmp_path / "data") as server,
        Redis.from_url(plain.url) as redis,
    ):
        log_frames(server.url, Job().rows([1, 2, 3]))
        redis.config_set("maxmemory-policy", "noeviction")
        page = open_page(server.url)
        for path in ("/", "/runs/run-1"):
            page.evaluate("(path) => { stability.go(path); }", path)
            wait_in(page, f"location.pathname === '{path}' && Boolean(stability.page)")
            wait_in(page, "document.getElementById('live-pill')?.textContent.match(/live|connected/)")
            redis.config_set("maxmemory", "1mb")
            page.wait_for_selector("#banner:not([hidden])")
            assert "Redis is full" in page.inner_text("#banner")
            assert "Training goes on" in page.inner_text("#banner")
            redis.config_set("maxmemory", "0")
            page.wait_for_selector("#banner", state="hidden")
        page.context.close()  # before its server goes
