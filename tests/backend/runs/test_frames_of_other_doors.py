"""Frames that doors in other processes store faster than a run's worker folds them count for the run's window."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis.asyncio import Redis

from stabilitybackend.base.errors import Unavailable
from stabilitybackend.ingest.ingest import Ingest
from stabilitybackend.runs.archiving import window
from stabilitybackend.runs.journal import FIRST_COUNT, Journal
from stabilityclient.wire import encode_message
from support.job_frames import Job
from support.manager_stack import Stage, rows


async def test_the_stream_may_not_grow_while_two_windows_wait_that_the_worker_has_not_read(
    redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "ROOM_TIMEOUT_S", 0.01)
    stage, job = Stage(redis, tmp_path), Job()
    worker = await stage.send(*rows(job, 1, 4))
    others, read = rows(job, 5, 400), Journal("run-1", worker.fence, lambda: stage.now)
    try:
        await worker._pause()  # it is slow, or has much to do
        async with Ingest(redis) as door:
            for frame in others:
                await door.append("run-1", frame.source, frame.first_seq, frame.last_seq, encode_message(frame))
        cursor, counts, full = worker.cursor, [], []
        while entries := await read.read(cursor):
            await read.count()
            worker.window.found_waiting(worker.state.store, read)
            full.append(worker.window.full)
            counts.append(len(entries))
            for cursor, message in entries:
                worker.window.read(worker.state, cursor, len(message))
        assert counts[0] == FIRST_COUNT
        assert full[0] == "the window of run run-1 is full: points come faster than they are judged"
        worker.window.found_waiting(worker.state.store, read)
        assert read.unread_bytes(0) == 0
        monkeypatch.setattr(worker.window, "limit_bytes", 1 << 20)
        worker.window.found_waiting(worker.state.store, read)
        await worker.window.room()
        monkeypatch.setattr(worker.window, "limit_bytes", 1)
        worker.window.found_waiting(worker.state.store, read)
        with pytest.raises(Unavailable, match="the archive is written"):
            await worker.window.room()
    finally:
        await stage.manager.stop()
