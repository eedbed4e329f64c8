"""Rounds of background work go on whatever one of them meets."""

from __future__ import annotations

import asyncio
import logging

import pytest

from stabilitybackend.base import rounds


async def test_a_round_that_fails_is_logged_once_a_minute_and_the_next_ones_come(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rounds, "ROUND_S", 0.0)
    monkeypatch.setattr(rounds, "LONGEST_PAUSE_S", 0.0)
    met: list[Exception] = [OSError("away"), OSError("away"), ValueError("a mistake"), ValueError("a mistake")]
    now = 0.0
    done = asyncio.Event()

    async def one() -> None:
        nonlocal now
        now += 30.0
        if met:
            raise met.pop(0)
        done.set()

    log = logging.getLogger("test.rounds")
    going = rounds.in_rounds(one, share=0.1, undone="it is not done", expected=(OSError,), log=log, clock=lambda: now)
    task = asyncio.create_task(going)
    await asyncio.wait_for(done.wait(), 60)
    task.cancel()

    logged = [(one.levelname, one.getMessage(), one.exc_info is not None) for one in caplog.records]
    assert logged[0] == ("WARNING", "it is not done for now: away", False)
    assert logged[1][0] == "ERROR"
    assert logged[1][1].startswith("it is not done: a mistake")
    assert logged[1][2]
    assert len(logged) == 2
