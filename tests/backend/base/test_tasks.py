"""A task that is to end ends, also when a library swallowed the first request to."""

from __future__ import annotations

import asyncio
import threading

import pytest

from stabilitybackend.base import tasks


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


async def test_a_task_that_is_cancelled_while_its_thread_works_ends_after_the_thread() -> None:
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(10)
        done.set()

    task = asyncio.create_task(tasks.in_thread(work))
    assert await asyncio.to_thread(begun.wait, 10)
    ending = asyncio.create_task(tasks.end(task))
    await asyncio.sleep(0.05)
    assert not task.done()
    go_on.set()
    await ending
    assert task.cancelled()
    assert done.is_set()
