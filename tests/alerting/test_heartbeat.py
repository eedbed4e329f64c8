"""A watcher outside hears of a server while all is well, and of nothing else: over a real socket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stabilityalerting import Heartbeat
from support.waiting import until


@pytest.fixture
async def beats(receiver: Any) -> AsyncIterator[tuple[Heartbeat, list[bool]]]:
    """A heartbeat that is as well as the last entry of a list says."""
    well = [True]
    heart = Heartbeat(f"{receiver.url}/ping/s3cret", lambda: "" if well[-1] else "restoring", every_s=0.01)
    stop = asyncio.Event()
    task = asyncio.create_task(heart.run(stop))
    yield heart, well
    stop.set()
    await task


async def test_it_beats_while_all_is_well_and_is_silent_while_not(
    receiver: Any, beats: tuple[Heartbeat, list[bool]]
) -> None:
    heart, well = beats
    await until(lambda: heart.sent >= 2, 10, "it beats")
    well.append(False)
    missed = heart.missed
    await until(lambda: heart.missed > missed, 10, "it is silent")
    heard = len(receiver.received)
    await until(lambda: heart.missed > missed + 5, 10, "it stays silent")
    assert len(receiver.received) == heard
    well.append(True)
    await until(lambda: len(receiver.received) > heard, 10, "it beats again")
    assert {one.path for one in receiver.received} == {"/ping/s3cret"}


async def test_a_watcher_that_is_away_is_tried_again_and_its_address_is_never_logged(
    receiver: Any, beats: tuple[Heartbeat, list[bool]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "httpx")
    heart, _ = beats
    receiver.status = 500
    await until(lambda: heart.missed >= 2, 10, "it is refused")
    receiver.status = 200
    sent = heart.sent
    await until(lambda: heart.sent > sent, 10, "it is taken")
    assert "s3cret" not in caplog.text


async def test_a_watcher_that_understands_it_hears_of_the_start_and_of_trouble_that_lasts(receiver: Any) -> None:
    trouble = ["restoring"]
    heart = Heartbeat(f"{receiver.url}/ping/s3cret?a=b", lambda: trouble[-1], every_s=0.01, style="healthchecks")
    stop = asyncio.Event()
    task = asyncio.create_task(heart.run(stop))

    def paths() -> list[str]:
        return list(dict.fromkeys(one.path for one in receiver.received))

    try:
        await until(lambda: heart.missed >= 5, 10, "it is not ready yet")
        assert paths() == ["/ping/s3cret/start?a=b"]
        trouble.append("")
        await until(lambda: heart.sent, 10, "it is well")
        trouble.append("redis_full: Redis is full")
        await until(lambda: len(paths()) == 3, 10, "it says that something is wrong")
    finally:
        stop.set()
        await task
    assert paths() == ["/ping/s3cret/start?a=b", "/ping/s3cret?a=b", "/ping/s3cret/fail?a=b"]
    assert receiver.received[-1].body == b"redis_full: Redis is full"
