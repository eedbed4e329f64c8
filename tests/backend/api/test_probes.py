"""What orchestrators ask, and that a Redis which stores nothing is said everywhere within seconds: real servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis as SyncRedis
from websockets.asyncio.client import connect

from stabilitybackend.base.tasks import Watched
from stabilitybackend.ingest.durability import Durability
from stabilitybackend.schema.runs import RunView
from stabilitybackend.server.problems import server_problems
from stabilitybackend.storage.redis_link import make_redis
from stabilitybackend.storage.storing import Storing
from stabilityclient.wire import Error
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.manager_stack import HELLO, Stage, rows
from support.plain_redis import PlainRedis
from support.server_stack import RunningServer
from support.stored.run import store_view
from support.waiting import wait_until

pytestmark = pytest.mark.both_redis

#: Storing that has stopped is said within this time, seconds.
SAID_WITHIN_S = 5.0


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[PlainRedis]:
    folder = tmp_path / "redis"
    folder.mkdir()
    with PlainRedis(folder) as running:
        yield running


@pytest.fixture
def server(plain: PlainRedis, tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(plain.url, tmp_path / "data") as running:
        yield running


def codes(server: RunningServer) -> list[str]:
    return [reason["code"] for reason in server.client.get("/readyz").json()["reasons"]]


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/healthz"])
def test_a_server_that_is_well_says_so_to_every_probe(server: RunningServer, path: str) -> None:
    wait_until(lambda: server.client.get(path).status_code == 200, SAID_WITHIN_S, "the probe is answered well")
    assert (server.client.head(path).status_code, server.client.head(path).content) == (200, b"")


def fill(redis: SyncRedis) -> None:
    """Let Redis have reached its maxmemory."""
    redis.config_set("maxmemory-policy", "noeviction")
    redis.config_set("maxmemory", "1mb")


def fill_disk(redis: SyncRedis) -> None:
    """Let Redis have failed to write to its disk: its folder is gone."""
    shutil.rmtree(str(redis.config_get("dir")["dir"]))
    redis.config_set("save", "3600 1")
    redis.set("x", 1)
    redis.bgsave()
    wait_until(lambda: redis.info("persistence")["rdb_last_bgsave_status"] == "err", 10, "Redis could not save")


def empty_disk(redis: SyncRedis) -> None:
    redis.config_set("save", "")


@pytest.mark.parametrize(
    ("harm", "code", "words"), [(fill, "redis_full", "maxmemory"), (fill_disk, "redis_disk", "disk")]
)
async def test_a_redis_that_stores_nothing_is_said_by_every_probe_page_and_run_until_it_stores_again(
    plain: PlainRedis, server: RunningServer, harm: Any, code: str, words: str
) -> None:
    job = Job()
    async with RawAgent(server.agent_url) as agent, connect(server.live_url) as live:
        await live.send(json.dumps({"type": "subscribe", "run_id": None, "cursor": None}))
        assert json.loads(await live.recv())["storing"] is None
        await agent.begin(job.rows([1, 2]))
        with SyncRedis.from_url(plain.url, decode_responses=True) as redis:
            await asyncio.to_thread(harm, redis)
            await agent.send(job.rows([3]))
            refused = await agent.next(Error)
            assert refused.code == "busy"
            await asyncio.to_thread(wait_until, lambda: codes(server) == [code], SAID_WITHIN_S, "readyz says it")
            assert server.client.get("/livez").status_code == 200
            assert words in server.client.get("/healthz").json()["redis"]
            storing = server.get("/runs/run-1")["storing"]
            assert (storing["code"], storing["problem"].endswith("Nothing is stored")) == (code, True)
            assert server.get("/runs")["storing"] == storing
            said = json.loads(await live.recv())
            while said["type"] != "storing":
                said = json.loads(await live.recv())
            assert said["storing"] == storing
            await asyncio.to_thread(empty_disk, redis)
            await asyncio.to_thread(redis.config_set, "maxmemory", "0")
            await asyncio.to_thread(wait_until, lambda: codes(server) == [], 10, "readyz is well again")
            assert server.get("/runs/run-1")["storing"] is None


def test_work_of_the_server_that_ends_by_a_mistake_is_named_and_the_process_is_not_ended_for_it(
    plain: PlainRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def mistaken(durability: Durability) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Durability, "follow", mistaken)
    with RunningServer(plain.url, tmp_path / "data") as server:
        wait_until(lambda: codes(server) == ["stopped"], SAID_WITHIN_S, "readyz says it")
        (reason,) = server.client.get("/readyz").json()["reasons"]
        assert reason["message"] == "durability (ZeroDivisionError) no longer runs"
        assert server.client.get("/livez").status_code == 200


def test_a_server_whose_redis_goes_away_while_it_starts_is_up_says_so_and_goes_on_when_it_is_back(
    plain: PlainRedis, tmp_path: Path
) -> None:
    plain.kill()
    with RunningServer(plain.url, tmp_path / "data") as server:
        assert server.client.get("/livez").status_code == 200
        wait_until(lambda: set(codes(server)) == {"redis_away", "restoring"}, SAID_WITHIN_S, "readyz says it")
        plain.come_back()
        wait_until(lambda: server.client.get("/readyz").status_code == 200, 10, "readyz is well again")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MiB; only who may mount one has it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("this user may not mount a tmpfs, and nothing else here is a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_a_full_disk_under_redis_is_said_and_taken_back_when_there_is_room(
    small_disk: Path, tmp_path: Path
) -> None:
    job = Job()
    with (
        PlainRedis(small_disk, "--appendonly", "yes") as plain,
        RunningServer(plain.url, tmp_path / "data") as server,
    ):
        async with RawAgent(server.agent_url) as agent:
            await agent.begin(job.rows([1, 2]))
            ballast = small_disk / "ballast"
            with contextlib.suppress(OSError):
                ballast.write_bytes(bytes(8 << 20))
            await asyncio.to_thread(wait_until, lambda: codes(server) == ["redis_disk"], 10, "readyz says it")
            await agent.send(job.rows([3]))
            refused = await agent.next(Error)
            assert refused.code == "busy"
            ballast.unlink()
            await asyncio.to_thread(wait_until, lambda: codes(server) == [], 20, "readyz is well again")


@pytest.fixture
async def storing(redis_url: str, stage: Stage) -> AsyncIterator[Storing]:
    client = make_redis(redis_url, connections=1)
    found = Storing(client, lambda: stage.now)
    found.watch(stage.manager.note_storing)
    yield found
    await client.aclose()


async def test_a_server_is_ready_when_every_live_run_is_judged_those_heard_of_last_first(
    stage: Stage, storing: Storing
) -> None:
    for place, run_id in enumerate(("run-c", "run-a", "run-b")):
        hello = type(HELLO)(run_id, "a1", "n0", "0.1.0")
        await stage.manager._index.register(hello, 100.0)
        await store_view(stage.redis, run_id, RunView(status="running"), stage.now - place)
    await stage.restart()
    await stage.manager.start()
    (reason,) = server_problems(stage.manager, storing, Watched())
    assert (reason.code, "3 of 3" in reason.message) == ("restoring", True)
    await stage.until(lambda: not server_problems(stage.manager, storing, Watched()), "all runs are judged")
    assert list(stage.manager._workers) == ["run-c", "run-a", "run-b"]


async def test_a_clock_that_is_off_is_named_once_with_what_to_do(
    stage: Stage, storing: Storing, caplog: pytest.LogCaptureFixture
) -> None:
    seconds, micros = await stage.redis.time()
    stage.now = seconds + micros / 1e6 + 3_600.0
    await storing.probe()
    await storing.probe()
    (line,) = [one.getMessage() for one in caplog.records if "clock" in one.getMessage()]
    assert line.startswith(
        "the clock of this machine is 3,600 s ahead of that of Redis, expected at most 2 s: set both"
    )
    assert storing.ahead_s == pytest.approx(-3_600.0, abs=60)


@pytest.mark.parametrize("several", [True, False])
async def test_several_processes_agree_on_times_by_redis_and_one_that_is_alone_goes_on_by_its_own(
    redis_url: str, stage: Stage, several: bool
) -> None:
    seconds, _ = await stage.redis.time()
    stage.now = seconds + 3_600.0
    client = make_redis(redis_url, connections=1)
    storing = Storing(client, lambda: stage.now, several=several)
    await storing.probe()
    await client.aclose()
    assert storing.now() == pytest.approx(float(seconds) if several else stage.now, abs=60)


async def test_an_archive_that_cannot_be_written_makes_the_server_not_ready_until_it_can(
    stage: Stage, storing: Storing
) -> None:
    stage.folder.parent.mkdir(exist_ok=True)
    stage.folder.write_text("a file where a folder is needed")
    await stage.send(*rows(Job(), 1, 300))
    await stage.until(
        lambda: [one.code for one in server_problems(stage.manager, storing, Watched())] == ["archive"],
        "the archive is named",
    )
    stage.folder.unlink()
    stage.now += 60.0
    await stage.until(lambda: not server_problems(stage.manager, storing, Watched()), "the archive is well again")


async def test_a_run_that_takes_no_frame_for_a_minute_is_named_by_the_probe_its_page_and_its_storage(
    stage: Stage, storing: Storing
) -> None:
    stage.folder.parent.mkdir(exist_ok=True)
    stage.folder.write_text("a file where a folder is needed")
    worker = await stage.send(*rows(Job(), 1, 1_000))
    await stage.until(lambda: worker.window.full, "the window is full")
    assert (worker.window.full_since, worker.storing_problem) == (None, None)
    stage.now += 61.0
    await stage.until(lambda: worker._storing_problem, "browsers hear of it")
    codes = lambda: [one.code for one in server_problems(stage.manager, storing, Watched())]  # noqa: E731
    await stage.until(lambda: codes() == ["archive", "window_full"], "the probe names both, between two tries")
    assert worker.storing_problem is not None
    assert worker.storing_problem.problem.startswith("Nothing new of this run is stored: the window of run run-1 is")
    stage.folder.unlink()

    def a_minute_later(holds: Callable[[], bool]) -> Callable[[], bool]:
        """Look a minute later each time: a try that was under way may fail after the folder is mended."""

        def look() -> bool:
            stage.now += 61.0
            return holds()

        return look

    await stage.until(
        a_minute_later(lambda: not server_problems(stage.manager, storing, Watched())), "there is room again"
    )
    await stage.until(a_minute_later(lambda: worker._storing_problem is None), "browsers hear of that, too")
