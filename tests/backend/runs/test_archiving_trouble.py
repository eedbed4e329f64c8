"""Two who meddle with one archive, a Redis that forgets, a disk that goes away: nothing is lost, doubled or stuck."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError

from stabilitybackend.base.errors import AgentGone, Unavailable
from stabilitybackend.lineage.consumer import Effects
from stabilitybackend.runs.archiving.archiver import ArchiveFiles, RunArchive
from stabilitybackend.runs.pending_frames import PendingFrames
from stabilitybackend.runs.worker import RunWorker
from stabilitybackend.storage.archive.cache import ByteCache
from stabilitybackend.storage.archive.location import LocalFolder, open_location
from stabilitybackend.storage.archive.part import Part, PartReader
from support.job_frames import Job
from support.manager_stack import HELLO, KEYS, WINDOW_BYTES, Lossy, Stage, points, rows


@pytest.fixture
async def stage(redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr("stabilitybackend.runs.stream_watch.BLOCK_MS", 50)  # so that a cut is noticed soon
    stage = Stage(redis, tmp_path / "archive")
    yield stage
    await stage.manager.stop()


class _Gate:
    """A disk on which writing a snapshot takes, after ``close``, until ``open``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits = threading.Event()
        self._open = threading.Event()
        self._open.set()
        write = LocalFolder.write_bytes

        def slow(place: LocalFolder, name: str, data: bytes) -> int:
            if name.endswith(".state") and not self._open.is_set():
                self.waits.set()
                self._open.wait(10)
            return write(place, name, data)

        monkeypatch.setattr(LocalFolder, "write_bytes", slow)

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Gate]:
    gate = _Gate(monkeypatch)
    yield gate
    gate.open()


async def _listed(redis: Redis) -> list[Part]:
    found: Any = await redis.hvals(KEYS.parts)
    return sorted((Part.from_json(data) for data in found), key=lambda part: int(part.to_id.split("-")[0]))


async def _assert_whole(stage: Stage, worker: RunWorker, last: int) -> None:
    """Every point is there once, before and after a restart, and the parts follow one another."""
    expected = {(0, False, s): Job().value(s) for s in range(1, last + 1)}
    assert points(worker) == expected
    assert worker.state.store.values == last
    await stage.restart()
    again = await stage.manager.get("run-1")
    assert points(again) == expected
    assert again.state.store.values == last
    ends = ["0-0"]
    for reader in again.state.store.parts:
        assert reader.part.from_id == ends[-1]
        ends.append(reader.part.to_id)
    frames = sum(part.frames for part in await _listed(stage.redis)) + await stage.redis.xlen(KEYS.frames)
    assert frames == -(-last // 20)


async def _fill_folder(stage: Stage) -> None:
    """Put a file where the archive's folder should be."""
    stage.folder.parent.mkdir(exist_ok=True)
    stage.folder.write_text("a file where a folder is needed")


# --- two at once -------------------------------------------------------------------------------------------------


async def test_two_who_merge_at_once_double_nothing(stage: Stage, gate: _Gate) -> None:
    worker = await stage.send(*rows(Job(), 1, 400))
    await stage.archived(worker, 3)
    await stage.until(lambda: worker.window.facts(worker.state.store).state == "ok", "nothing is being written")
    gate.close()
    both = [asyncio.create_task(stage.manager.compact_run("run-1")) for _ in range(2)]
    await stage.until(gate.waits.is_set, "a part is being written")
    gate.open()
    assert [facts.cold.parts for facts in await asyncio.gather(*both)] == [1, 1]
    await _assert_whole(stage, worker, 400)


async def test_a_sweep_leaves_alone_what_is_being_written(stage: Stage, gate: _Gate) -> None:
    gate.close()
    worker = await stage.send(*rows(Job(), 1, 400))
    await stage.until(gate.waits.is_set, "a part is being written")
    sweep = asyncio.create_task(worker._archive.sweep())
    await asyncio.sleep(0.1)
    gate.open()
    await sweep
    await stage.archived(worker, 1)
    await _assert_whole(stage, worker, 400)


async def test_files_that_another_server_takes_for_garbage_are_written_again_before_a_frame_leaves_redis(
    stage: Stage, gate: _Gate
) -> None:
    gate.close()
    worker = await stage.send(*rows(Job(), 1, 400))
    await stage.until(gate.waits.is_set, "a part is being written")
    other = ArchiveFiles(open_location(stage.folder), ByteCache(0), lambda: stage.now)
    meddler = RunArchive("run-1", worker.fence, other)
    await meddler.load()
    await meddler.sweep(of_others=True)
    gate.open()
    await stage.until(lambda: worker.window.facts(worker.state.store).state == "failed", "it is noticed")
    stage.now += 60.0
    await stage.archived(worker, 1)
    await _assert_whole(stage, worker, 400)


async def test_a_run_that_is_archived_whole_while_its_window_is_full_is_archived_once(stage: Stage) -> None:
    await _fill_folder(stage)
    worker = await stage.send(*rows(Job(), 1, 600))
    await stage.until(lambda: worker.window.facts(worker.state.store).state == "failed", "the trouble is named")
    stage.folder.unlink()
    stage.now += 60.0
    flush = asyncio.create_task(worker.flush())
    await asyncio.sleep(0)
    worker.window.archive_when_due(worker.state, lambda: worker._stored_to)
    await flush
    await stage.archived(worker, 1)
    await _assert_whole(stage, worker, 600)


async def test_a_run_that_is_deleted_while_a_part_is_being_written_leaves_no_file(
    stage: Stage, gate: _Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stabilitybackend.runs.archiving.window.STOP_TIMEOUT_S", 0.01)
    gate.close()
    await stage.send(*rows(Job(), 1, 400))
    await stage.until(gate.waits.is_set, "a part is being written")
    delete = asyncio.create_task(stage.manager.delete_run("run-1", force=True))
    await asyncio.sleep(0.1)
    gate.open()
    await delete
    await stage.manager.stop()
    await asyncio.get_running_loop().shutdown_default_executor()  # whatever still writes is done
    assert stage.files() == []


async def test_a_segment_that_two_people_take_back_at_once_is_taken_back_once(stage: Stage) -> None:
    job = Job()
    worker = await stage.send(*rows(job, 1, 100), *rows(job, 50, 90))
    await asyncio.gather(worker.undo_segment(1, "ada"), worker.undo_segment(1, "bob"))
    assert worker.window.facts(worker.state.store).hot.frames == await stage.redis.xlen(KEYS.frames)


# --- room --------------------------------------------------------------------------------------------------------


async def test_a_frame_that_the_worker_read_before_its_agent_had_the_answer_does_not_wait_for_ever(
    stage: Stage,
) -> None:
    worker = await stage.send(*rows(Job(), 1, 20))
    before = worker.window.facts(worker.state.store).hot.bytes
    await stage.manager.frame_stored("run-1", worker.cursor, 10 * WINDOW_BYTES)
    assert worker.window.facts(worker.state.store).hot.bytes == before
    await stage.manager.room("run-1")


async def test_only_the_first_of_many_frames_waits_for_room_so_that_health_gets_through(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stabilitybackend.runs.archiving.window.ROOM_TIMEOUT_S", 1.0)
    await _fill_folder(stage)
    worker = await stage.send(*rows(Job(), 1, 600))
    await stage.until(lambda: worker.window.facts(worker.state.store).state == "failed", "the trouble is named")
    began = time.monotonic()
    for _ in range(16):
        with pytest.raises(Unavailable, match="is full"):
            await stage.manager.room("run-1")
    assert time.monotonic() - began < 10.0  # did each of them wait, 16


async def test_a_clock_that_is_put_back_does_not_keep_the_archive_waiting(stage: Stage) -> None:
    await _fill_folder(stage)
    worker = await stage.send(*rows(Job(), 1, 400))
    await stage.until(lambda: worker.window.facts(worker.state.store).state == "failed", "the trouble is named")
    stage.folder.unlink()
    stage.now -= 3_600.0
    await stage.archived(worker, 1)


# --- Redis -------------------------------------------------------------------------------------------------------


async def test_after_a_commit_without_an_answer_the_whole_run_can_be_archived_and_nothing_is_doubled(
    stage: Stage,
) -> None:
    worker = await stage.send(*rows(Job(), 1, 20))
    worker._archive._fence = Lossy(worker.fence, after=True)  # type: ignore[assignment]
    await stage.send(*(frame for frame in rows(_sent(20), 21, 400)))
    await stage.until(lambda: worker.window.facts(worker.state.store).state == "failed", "the commit has no answer")
    await worker.flush()
    await _assert_whole(stage, worker, 400)


def _sent(last: int) -> Job:
    """Return a job that has logged up to ``last``."""
    job = Job()
    rows(job, 1, last)
    return job


class _Cut:
    """A Redis client whose next read of a stream finds the connection cut."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self.cut = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._redis, name)

    async def xread(self, *args: Any, **options: Any) -> Any:
        if self.cut:
            self.cut = False
            raise ConnectionError("the server has gone away")
        return await self._redis.xread(*args, **options)


@pytest.mark.parametrize("archived", [False, True], ids=["frames", "a-part"])
async def test_a_redis_that_comes_back_without_its_newest_words_loses_and_doubles_nothing(
    stage: Stage, archived: bool
) -> None:
    job = Job()
    worker = await stage.send(*rows(job, 1, 100))
    old = {key: await stage.redis.dump(key) for key in (KEYS.frames, KEYS.last_seq)}
    lost = rows(job, 101, 500 if archived else 140)
    await stage.send(*lost)
    if archived:
        await stage.archived(worker, 1)
        await stage.redis.delete(KEYS.parts)
    for key, data in old.items():
        await stage.redis.restore(key, 0, data, replace=True)
    cut = _Cut(stage.redis)
    stage.manager._watch._redis = cut  # type: ignore[assignment]
    await stage.until(lambda: not cut.cut, "the cut is noticed")
    worker = await stage.send(*lost)  # the agent has them still, and sends them again
    last = 500 if archived else 140
    await stage.until(lambda: worker.readiness.reached and len(points(worker)) == last, "all is there")
    assert len(worker.state.fold.tree.view().segments) == 1
    if archived:
        await stage.archived(worker, 1)
    await _assert_whole(stage, worker, last)


async def test_after_redis_came_back_empty_the_agents_make_the_run_anew(stage: Stage) -> None:
    await stage.manager.agent_connected(HELLO, _no_command)
    worker = await stage.send(*rows(Job(), 1, 100))
    await stage.redis.flushall()
    stage.manager._watch._redis = _Cut(stage.redis)  # type: ignore[assignment]
    await stage.until(lambda: worker.is_over, "it is noticed")
    with pytest.raises(AgentGone):
        await stage.manager.room("run-1")
    await stage.manager.agent_connected(HELLO, _no_command)
    worker = await stage.send(*rows(Job(), 1, 100))
    assert [run.run_id for run in (await stage.manager.runs(100)).runs] == ["run-1"]
    await _assert_whole(stage, worker, 100)


# --- the place of the files --------------------------------------------------------------------------------------


async def test_a_disk_that_is_unmounted_under_a_live_run_is_named_and_nothing_is_written_under_its_mount_point(
    stage: Stage,
) -> None:
    job = Job()
    worker = await stage.send(*rows(job, 1, 300))
    await stage.archived(worker, 1)
    aside = stage.folder.rename(stage.folder.with_name("aside"))
    stage.folder.mkdir()
    await stage.send(*rows(job, 301, 600))
    await stage.until(lambda: worker.window.facts(worker.state.store).state == "failed", "the trouble is named")
    assert "no file of run run-1" in worker.window.facts(worker.state.store).problem
    assert stage.files() == []
    stage.folder.rmdir()
    aside.rename(stage.folder)
    stage.now += 60.0
    await stage.archived(worker, 2)
    await _assert_whole(stage, worker, 600)


async def test_a_run_whose_files_are_gone_for_good_can_be_deleted_by_force(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stabilitybackend.runs.archiving.recovery.PAUSE_S", 0.05)
    worker = await stage.send(*rows(Job(), 1, 500))
    await stage.archived(worker, 1)
    await stage.manager.stop()
    stage.folder.rename(stage.folder.with_name("gone"))
    await stage.restart()
    fresh = stage.manager._worker("run-1")
    await stage.until(lambda: fresh.readiness.trouble is not None, "the trouble is noticed")
    with pytest.raises(Unavailable, match="can't be opened now"):
        await stage.manager.delete_run("run-1")
    await stage.manager.delete_run("run-1", force=True)
    assert [key async for key in stage.redis.scan_iter(match="sb:{run-1}*")] == []


async def test_while_archived_frames_are_folded_again_others_get_their_turn_after_each_batch(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await stage.send(*rows(Job(), 1, 600))
    await stage.archived(worker, 2)
    await stage.manager.stop()
    for state in stage.folder.rglob("*.state"):
        state.write_bytes(b"damaged")
    turn, seen = 0, []

    fold = PendingFrames.fold

    def noted(*arguments: Any) -> Effects:
        seen.append(turn)
        return fold(*arguments)

    monkeypatch.setattr(PendingFrames, "fold", noted)
    await stage.restart()
    again = asyncio.create_task(stage.manager.get("run-1"))
    while not again.done():
        turn += 1
        await asyncio.sleep(0)
    assert len(seen) == len(set(seen)) > 2


async def test_what_a_part_holds_is_never_read_on_the_event_loop(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, threads = PartReader.keys, set()

    def noted(reader: PartReader) -> Any:
        threads.add(threading.current_thread())
        return keys(reader)

    monkeypatch.setattr(PartReader, "keys", noted)
    worker = await stage.send(*rows(Job(), 1, 600))
    await stage.archived(worker, 2)
    await stage.manager.compact_run("run-1")
    await stage.restart()
    await stage.manager.get("run-1")
    assert threads
    assert threading.current_thread() not in threads


async def test_a_merge_stops_where_a_part_would_become_too_large(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = await stage.send(*rows(Job(), 1, 600))
    await stage.archived(worker, 2)
    parts = worker.state.store.parts
    monkeypatch.setattr("stabilitybackend.runs.archiving.archiver.MAX_BYTES", parts[0].part.bytes)
    assert worker._archive.mergeable(parts, everything=True) == []


# --- agents ------------------------------------------------------------------------------------------------------


async def _no_command(command: dict[str, Any]) -> None:
    pass


async def test_an_agent_that_comes_while_the_server_stops_starts_no_worker(stage: Stage, gate: _Gate) -> None:
    gate.close()
    await stage.send(*rows(Job(), 1, 400))
    await stage.until(gate.waits.is_set, "a part is being written")
    stop = asyncio.create_task(stage.manager.stop())
    await asyncio.sleep(0.05)
    with pytest.raises(Unavailable, match="the server stops"):
        await stage.manager.agent_connected(HELLO, _no_command)
    gate.open()
    await stop
