"""The list of runs: in pages that leave nothing out, and every run under way found again after a restart."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from stabilitybackend.base.errors import BadRequest
from stabilitybackend.base.keys import RUNS_ACTIVE, RUNS_WITH_INCIDENTS, RunKeys
from stabilitybackend.runs.index import RunIndex
from stabilitybackend.schema.runs import RunView
from stabilitybackend.storage.redis_link import make_redis
from stabilityclient.wire import Hello
from support.cli_program import program_in
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.manager_stack import Stage
from support.plain_redis import PlainRedis
from support.server_stack import RunningServer
from support.stored.run import store_view

RUNNING = RunView(status="running")


@pytest.fixture
def index(redis: Redis) -> RunIndex:
    return RunIndex(redis)


async def _register(index: RunIndex, names: list[str], first: float = 1000.0) -> None:
    for n, name in enumerate(names):
        await index.register(Hello(name, "a1", "n0", "0.1.0"), first + n // 3)  # three of a moment each


async def _pages(index: RunIndex, limit: int) -> list[list[str]]:
    pages, cursor = [], None
    while True:
        page = await index.page(limit, cursor)
        pages.append(page.ids)
        cursor = page.next
        if cursor is None:
            return pages


@pytest.mark.parametrize("limit", [1, 2, 7, 10, 11])
async def test_the_pages_hold_every_run_once_newest_first(index: RunIndex, limit: int) -> None:
    names = [f"run-{n}" for n in range(10)]
    await _register(index, names)
    pages = await _pages(index, limit)
    assert [name for page in pages for name in page] == await index.ids()
    assert sorted(await index.ids()) == names
    assert [len(page) for page in pages[:-1]] == [limit] * (len(pages) - 1)
    assert (await index.page(limit)).total == 10


async def test_runs_that_come_and_go_between_two_pages_neither_repeat_nor_hide_another(index: RunIndex) -> None:
    await _register(index, [f"run-{n}" for n in range(9)])
    whole = await index.ids()
    first = await index.page(4)
    await _register(index, ["newest"], first=2000.0)
    await index.forget(first.ids[-1])  # the very one that the cursor names
    rest = await index.page(100, first.next)
    assert (rest.ids, rest.next) == (whole[4:], None)


@pytest.mark.parametrize("cursor", ["", "x", "nan:run-1", "12", "12:"])
async def test_a_cursor_that_no_page_gave_is_refused(index: RunIndex, cursor: str) -> None:
    with pytest.raises(BadRequest, match="expected the value of 'next'"):
        await index.page(10, cursor)


async def _many(redis_url: str, count: int) -> None:
    redis = make_redis(redis_url)
    await _register(RunIndex(redis), [f"run-{n}" for n in range(count)])
    await redis.aclose()


def test_over_http_the_first_page_says_how_many_there_are_and_where_it_goes_on(
    server: RunningServer, redis_url: str
) -> None:
    asyncio.run(_many(redis_url, 5))
    first: Any = server.get("/runs", limit=3)
    second: Any = server.get("/runs", limit=3, cursor=first["next"])
    assert [run["run_id"] for run in first["runs"] + second["runs"]] == ["run-4", "run-3", "run-2", "run-1", "run-0"]
    assert (first["total"], second["total"], second["next"]) == (5, 5, None)
    assert server.client.get("/api/v1/runs?limit=0").status_code == 422
    assert server.client.get("/api/v1/runs?cursor=12").status_code == 422


def test_the_program_says_how_many_runs_it_leaves_out_and_shows_all_when_asked(
    server: RunningServer, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    asyncio.run(_many(redis_url, 5))
    monkeypatch.setattr("stabilitybackend.base.api_client.PAGE_RUNS", 2)
    program = program_in(tmp_path, monkeypatch, capsys)
    _, some, _ = program("runs", "--limit", "3", "--url", server.url)
    _, everything, _ = program("runs", "--limit", "0", "--url", server.url)
    assert "the newest 3 of 5 runs" in some
    assert ["run-1" in some, "run-0" in everything, " of 5 runs" in everything] == [False, True, False]


async def test_a_restart_takes_up_a_run_under_way_that_is_older_than_six_hundred_others(stage: Stage) -> None:
    index = RunIndex(stage.redis)
    await _register(index, ["old"], first=stage.now)
    await store_view(stage.redis, "old", RUNNING, stage.now)
    await _register(index, [f"newer-{n}" for n in range(600)], first=stage.now + 1)
    for n in range(600):
        await store_view(stage.redis, f"newer-{n}", RunView(status="finished"), stage.now + 1)
    await stage.manager.start()
    await stage.until(lambda: set(stage.manager._workers) == {"old"}, "it is taken up")


async def test_runs_under_way_are_watched_though_redis_went_away_while_the_server_started(tmp_path: Path) -> None:
    with PlainRedis(tmp_path, "--appendonly", "yes", "--appendfsync", "always") as plain:
        client = make_redis(plain.url)
        stage = Stage(client, tmp_path / "archive")
        await _register(RunIndex(client), ["old"], first=stage.now)
        await store_view(client, "old", RUNNING, stage.now)
        plain.kill()
        await stage.manager.start()
        assert (stage.manager.late, stage.manager._workers) == (True, {})
        plain.come_back()
        await stage.until(lambda: set(stage.manager._workers) == {"old"}, "it is taken up")
        assert not stage.manager.late
        await stage.manager.stop()
        await client.aclose()


async def test_what_an_older_version_did_not_note_is_noted_at_the_start(stage: Stage) -> None:
    index = RunIndex(stage.redis)
    await _register(index, ["old", "quiet"], first=stage.now)
    await store_view(stage.redis, "old", RUNNING, stage.now + 5)
    await stage.redis.xadd(RunKeys("old").incident_events, {"i": "{}"}, id="7000-0")
    await stage.redis.delete(RUNS_ACTIVE, RUNS_WITH_INCIDENTS)
    await index.complete()
    assert await stage.redis.zrange(RUNS_ACTIVE, 0, -1, withscores=True) == [(b"quiet", 1000.0), (b"old", 1005.0)]
    assert await stage.redis.zrange(RUNS_WITH_INCIDENTS, 0, -1, withscores=True) == [(b"old", 7.0)]


async def test_a_run_that_was_deleted_is_in_no_list_even_if_its_worker_stores_a_last_word(index: RunIndex) -> None:
    await _register(index, ["run-1"])
    await index.forget("run-1")
    await store_view(index._redis, "run-1", RUNNING, 1001.0)
    assert (await index.ids(), await index.active_since(0.0), await index.with_incidents_since(0.0)) == ([], [], [])


async def test_lists_carry_no_names_of_metrics_and_a_run_gives_them_in_pages(server: RunningServer) -> None:
    names = [f"layer/{n}/norm" for n in range(1_200)]
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(Job().rows([1, 2], {"loss": [2.0, 1.0]} | {name: [1.0, 1.0] for name in names}))
        wait: Any = partial(server.wait_for, "/runs/run-1", lambda one: one["metric_count"] == 1_201, "its metrics")
        run = await asyncio.to_thread(wait)
    [listed] = server.get("/runs")["runs"]

    assert (listed["latest"], "metrics" in listed, "layer" in str(listed)) == ({"loss": 1.0}, False, False)
    assert run["metrics"] == ["loss", *names[:999]]
    page = server.get("/runs/run-1/metrics", search="/11", after=50, limit=55)
    eleven = [name for name in names if "/11" in name]
    assert (page["metrics"], page["total"], page["next"]) == (eleven[50:105], len(eleven), 105)
    assert server.get("/runs/run-1/metrics", search="/11", after=105)["next"] is None
