"""Old runs go when somebody said so, everywhere, and no run that lives goes with them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from redis.asyncio import Redis

from stabilitybackend.access.audit import AuditLog
from stabilitybackend.base.errors import BadRequest
from stabilitybackend.base.keys import RunKeys
from stabilitybackend.base.tasks import end
from stabilitybackend.ingest.ingest import Ingest
from stabilitybackend.judging.liveness.budgets import Limits
from stabilitybackend.runs.archiving import retention
from stabilitybackend.runs.archiving.archiver import ArchiveFiles
from stabilitybackend.runs.archiving.retention import Retention
from stabilitybackend.runs.index import RunIndex
from stabilitybackend.runs.manager import RunManager
from stabilitybackend.storage.archive.cache import ByteCache
from stabilitybackend.storage.archive.location import open_location
from stabilityclient.wire import Frame, Hello, encode_message
from support.cli_program import Program
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.server_stack import RunningServer
from support.waiting import until

DAY_S = 86_400.0
WINDOW_BYTES = 4_000


class Stage:
    """Runs that were logged on given days, and the retention of day ``now``."""

    def __init__(self, redis: Redis, folder: Path) -> None:
        self.redis = redis
        self.folder = folder
        self.now = 0.0
        files = ArchiveFiles(open_location(folder), ByteCache(1 << 20), self.clock)
        self.manager = RunManager(redis, self.clock, files, WINDOW_BYTES, Limits())
        self.index = RunIndex(redis)
        self.audit = AuditLog(redis, self.clock)
        self.retention = Retention(self.manager, self.index, self.clock, self.audit)

    def clock(self) -> float:
        return self.now * DAY_S + 1_000.0

    async def run(self, run_id: str, *frames: Frame, day: float) -> None:
        """Log a run on ``day``; its worker has stored all that it knows."""
        self.now = day
        await self.index.register(Hello(run_id, "a1", "n0", "0.1.0"), self.clock())
        async with Ingest(self.redis) as ingest:
            for frame in frames:
                await ingest.append(run_id, frame.source, frame.first_seq, frame.last_seq, encode_message(frame))
        worker = await self.manager.get(run_id)

        async def stored() -> bool:
            await worker.tick()
            found = await self.index.stored(run_id)
            return bool(found.last_step == worker.run().last_step and found.updated == self.clock())

        await until(stored, 10, f"run {run_id} is stored")

    async def left(self) -> list[str]:
        return sorted(await self.index.ids())


@pytest.fixture
async def stage(redis: Redis, tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(redis, tmp_path / "archive")
    yield stage
    await stage.manager.stop()


async def test_a_run_that_two_processes_delete_at_once_is_deleted_by_one_of_them(
    redis: Redis, stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.run("old", day=0)
    stage.now = 30
    other = Stage(redis, tmp_path / "archive")
    other.now = 30
    both_are_there, forget = asyncio.Barrier(2), RunIndex.forget

    async def forget_together(index: RunIndex, run_id: str) -> bool:
        await both_are_there.wait()
        return await forget(index, run_id)

    monkeypatch.setattr(RunIndex, "forget", forget_together)
    async with asyncio.timeout(30):
        both = await asyncio.gather(*(each.retention.apply(7, who="ann") for each in (stage, other)))
    await other.manager.stop()
    assert sorted(run.deleted for runs in both for run in runs) == [False, True]
    assert [entry.action for entry in await stage.audit.newest(10)] == ["run.delete"]


def _ended(steps: int = 20) -> list[Frame]:
    job = Job()
    return [*(job.rows(range(at, at + 20)) for at in range(1, steps, 20)), job.event("finish", steps)]


async def test_runs_that_ended_before_the_day_asked_for_go_and_younger_ones_stay(stage: Stage) -> None:
    for name, day in (("old", 1.0), ("middle", 20.0), ("young", 39.0)):
        await stage.run(name, *_ended(), day=day)
    stage.now = 40.0
    found = await stage.retention.apply(19.0, who="ada")
    assert [(run.run_id, run.status, run.deleted) for run in found] == [
        ("old", "finished", True), ("middle", "finished", True),
    ]  # fmt: skip
    assert await stage.left() == ["young"]


async def test_nothing_of_a_deleted_run_is_left_in_redis_or_in_the_archive_and_the_log_says_who(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    await stage.run("old", *_ended(2_000), day=1.0)
    await stage.manager.compact_run("old")
    assert any(path.is_file() for path in stage.folder.rglob("*"))
    stage.now = 40.0
    with caplog.at_level(logging.WARNING):
        await stage.retention.apply(30.0, who="ada")
    assert [key for key in await stage.redis.keys("*") if b"old" in key] == []
    assert [path for path in stage.folder.rglob("*") if path.is_file()] == []
    assert any("run old" in line and "deleted by ada" in line for line in caplog.messages)
    (entry,) = await stage.audit.newest(10)
    assert (entry.who, entry.action, entry.target) == ("ada", "run.delete", "old")


async def test_a_dry_run_names_the_runs_and_touches_none(stage: Stage) -> None:
    await stage.run("old", *_ended(), day=1.0)
    stage.now = 40.0
    found = await stage.retention.apply(30.0, who="ada", dry_run=True)
    assert [(run.run_id, run.deleted, run.problem) for run in found] == [("old", False, None)]
    assert await stage.left() == ["old"]


async def test_a_run_that_another_process_owns_is_left_to_that_one(stage: Stage) -> None:
    await stage.run("old", *_ended(), day=1.0)
    await stage.run("theirs", *_ended(), day=1.0)

    async def others(run_ids: Sequence[str]) -> set[str]:
        return {"theirs"} & set(run_ids)

    stage.now, stage.retention.others = 40.0, others
    assert [run.run_id for run in await stage.retention.apply(30.0, who="ada")] == ["old"]
    assert await stage.left() == ["theirs"]


async def test_a_run_whose_job_vanished_without_a_word_goes_too(stage: Stage) -> None:
    await stage.run("gone", Job().rows(range(1, 21)), day=1.0)
    stage.now = 40.0
    assert [run.deleted for run in await stage.retention.apply(30.0, who="ada")] == [True]


async def test_a_run_with_an_agent_stays_however_long_it_is_silent(stage: Stage) -> None:
    await stage.run("hangs", Job().rows(range(1, 21)), day=1.0)

    async def send(command: object) -> None: ...

    await (await stage.manager.get("hangs")).agent_connected(Hello("hangs", "a1", "n0", "0.1.0"), send)
    stage.now = 40.0
    found = await stage.retention.apply(30.0, who="ada")
    assert [run.deleted for run in found] in ([], [False])
    assert await stage.left() == ["hangs"]


async def test_the_setting_is_acted_on_again_and_again_also_after_trouble(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retention, "FIRST_SWEEP_S", 0.0)
    monkeypatch.setattr(retention, "SWEEP_S", 0.01)
    await stage.run("one", *_ended(), day=1.0)
    await stage.redis.hset(RunKeys("one").meta, "config", "no JSON")
    stage.now = 40.0
    following = asyncio.create_task(stage.retention.follow(30.0))

    async def in_trouble() -> bool:
        return any("old runs stay" in line for line in caplog.messages)

    async def gone() -> bool:
        return await stage.left() == []

    await until(in_trouble, 10, "the trouble is in the log")
    await stage.redis.hdel(RunKeys("one").meta, "config")
    await until(gone, 10, "the run is gone")
    await end(following)


@pytest.mark.parametrize("days", [0.0, 0.5, -3.0, float("nan"), float("inf")])
async def test_a_time_that_would_take_living_runs_is_refused(stage: Stage, days: float) -> None:
    with pytest.raises(BadRequest, match="expected 1 or more"):
        await stage.retention.apply(days, who="ada")


# --- the command ------------------------------------------------------------------------------------------------------


async def test_the_command_shows_merges_and_deletes_a_run(redis_url: str, tmp_path: Path, program: Program) -> None:
    with RunningServer(redis_url, tmp_path / "server") as server:
        async with RawAgent(server.agent_url) as agent:
            await agent.hello("run-1", sources=[Job().info])
            for frame in _ended(200):
                await agent.ask(frame)
            server.wait_for("/runs/run-1", lambda run: run["status"] == "finished", "the run is over")
            refused = program("archive", "delete", "run-1", "--yes", "--url", server.url)
        assert refused[0] == 1
        assert "was not deleted" in refused[2]
        server.wait_for("/runs/run-1", lambda run: run["agents"] == 0, "its agent is gone")
        code, shown, _ = program("archive", "compact", "run-1", "--url", server.url)
        assert (code, "run-1: 0 parts" in shown) == (0, True)
        code, shown, _ = program("archive", "status", "--url", server.url)
        assert (code, "run-1" in shown, "ok" in shown) == (0, True, True)
        code, shown, _ = program("archive", "retain", "--days", "30", "--dry-run", "--url", server.url)
        assert (code, shown.strip()) == (0, "no run ended more than 30 days ago")
        code, shown, _ = program("archive", "delete", "run-1", "--yes", "--url", server.url)
        assert (code, shown.strip()) == (0, "run-1: deleted")
        assert server.client.get("/api/v1/runs/run-1").status_code == 404
        code, _, problem = program("archive", "status", "run-1", "--url", server.url)
        assert (code, "there is no run 'run-1'" in problem) == (1, True)
