"""A task that is to end ends, also when a library swallowed the first request to."""

from __future__ import annotations

import asyncio

import pytest

from stabilitybackend import tasks


async def test_a_task_that_swallows_a_cancellation_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_AGAIN_S", 0.01)
    swallowed = asyncio.Event()

    async def deaf_once() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            swallowed.set()
        await asyncio.sleep(60)

    task = asyncio.create_task(deaf_once())
    await asyncio.sleep(0)
    await tasks.end(task, None)
    assert swallowed.is_set()
    assert task.cancelled()
