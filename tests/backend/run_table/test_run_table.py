"""The table of all runs: nothing is left out, whatever changes while somebody pages; each key sees its own."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from stabilitybackend.base.errors import Conflict
from stabilitybackend.run_table.digest_updates import DigestUpdater, is_stale
from stabilitybackend.run_table.table import RunTables, TableQuery
from stabilitybackend.runs.index import RunIndex
from stabilitybackend.runs.run_listing import SAVE_EVERY_S
from stabilitybackend.schema.runs import RunView, WorstIncident
from stabilitybackend.storage.redis_link import make_redis
from stabilityclient.wire import Hello
from support.job_frames import Job
from support.manager_stack import Stage, rows
from support.server_stack import RunningServer
from support.stored.run import store_view

NONE = {"sick": 0, "crashed": 0, "well": 0, "empty": 0, "over": 0}
HANG = WorstIncident("i1", "hang", "critical", "Hang since step 7")


async def _add(index: RunIndex, name: str, at: float, project: str = "llm", **view: Any) -> None:
    await index.register(Hello(name, "a1", "n0", "0.1.0", project=project, config={"lr": at}), at)
    await store_view(index._redis, name, RunView(**{"status": "finished"} | view), at)


def _filled(server: RunningServer, redis_url: str) -> Any:
    """Put eight runs there; return the table of them."""
    asyncio.run(_fill(redis_url))
    return server.wait_for("/run_table", lambda answer: len(answer["rows"]) == 8, "the table has all runs")


async def _fill(redis_url: str) -> None:
    redis = make_redis(redis_url)
    index = RunIndex(redis)
    for n in range(7):
        loss = {"latest": {"loss": float(n)}, "loss_metric": "loss", "metric_count": 1}
        await _add(index, f"run-{n}", 1000.0 + n, "llm" if n % 2 else "vlm", **loss)
    await _add(index, "ill", 900.0, open_incidents=1, worst_incident=HANG)
    await redis.aclose()


def _ids(answer: Any) -> list[str]:
    return [row["run_id"] for row in answer["rows"]]


def test_the_sick_stand_first_then_the_newest_and_all_are_counted(server: RunningServer, redis_url: str) -> None:
    answer = _filled(server, redis_url)
    assert _ids(answer) == ["ill", *(f"run-{n}" for n in (6, 5, 4, 3, 2, 1, 0))]
    assert (answer["fit"], answer["total"], answer["conditions"]) == (
        8, 8, NONE | {"over": 8},
    )  # fmt: skip
    assert answer["rows"][0]["state"]["word"] == "Hang"


def test_filter_order_groups_and_columns_come_from_the_same_call(server: RunningServer, redis_url: str) -> None:
    _filled(server, redis_url)
    answer = server.get(
        "/run_table", q="loss<5", sort=["-loss"], group="project", column=["config.lr", "metric.loss", "config.gone"]
    )
    assert _ids(answer) == ["run-3", "run-1", "run-4", "run-2", "run-0"]
    assert answer["groups"] == [
        {"label": "llm", "first": 0, "count": 2, "conditions": NONE | {"over": 2}},
        {"label": "vlm", "first": 2, "count": 3, "conditions": NONE | {"over": 3}},
    ]  # fmt: skip
    assert answer["rows"][0]["cells"] == [1003.0, 3.0, None]
    assert [one.get("gone", False) for one in answer["columns"]] == [False, False, True]
    assert (answer["fit"], answer["total"]) == (5, 8)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("q=loss>", "has no value"),
        ("sort=curve", "can't be sorted"),
        ("group=age", "can't be grouped"),
        ("limit=0", "limit"),
    ],
)
def test_what_can_not_be_asked_is_refused(server: RunningServer, query: str, words: str) -> None:
    answer = server.client.get(f"/api/v1/run_table?{query}")
    assert answer.status_code == 422
    assert words in answer.json()["error"]["message"]


def test_a_key_that_no_run_has_is_no_error_but_is_said(server: RunningServer, redis_url: str) -> None:
    _filled(server, redis_url)
    answer = server.get("/run_table", q="lrr>3")
    assert (answer["rows"], answer["fit"]) == ([], 0)
    assert answer["notes"] == ["No run has 'lrr' in its config or among its metrics. Did you mean lr?"]


def test_columns_to_choose_say_how_many_runs_have_them(server: RunningServer, redis_url: str) -> None:
    _filled(server, redis_url)
    answer = server.get("/run_columns", search="lr")
    assert [(one["key"], one["runs"]) for one in answer["found"]] == [("config.lr", 8)]
    projects = next(one for one in server.get("/run_columns")["built_in"] if one["key"] == "project")
    assert projects["values"] == ["llm", "vlm"]


async def test_a_key_of_one_project_sees_its_runs_counts_and_names_only(stage: Stage) -> None:
    index = RunIndex(stage.redis)
    await _add(index, "mine", 1.0, "llm")
    await _add(index, "theirs", 2.0, "secret")
    tables = RunTables(stage.manager, index, lambda: stage.now)
    every = await tables.table(TableQuery(None), [], 0, 10)
    ours = await tables.table(TableQuery("llm"), ["config.lr"], 0, 10)
    assert ([row.run_id for row in ours.rows], ours.fit, ours.total, ours.columns[0].runs) == (["mine"], 1, 1, 1)
    assert b"secret" not in msgspec.json.encode(await tables.columns("llm", "", 100))
    with pytest.raises(Conflict):  # an order of all runs is none of this key's
        await tables.table(TableQuery("llm"), [], 0, 10, order=every.order)


async def test_paging_in_one_order_loses_and_repeats_nothing_while_runs_come_go_and_change(stage: Stage) -> None:
    index = RunIndex(stage.redis)
    for n in range(25):
        await _add(index, f"run-{n:02d}", 1000.0 + n, last_step=n)
    tables = RunTables(stage.manager, index, lambda: stage.now)
    query = TableQuery(None, sort=("-step",))
    first = await tables.table(query, [], 0, 10)
    await _add(index, "new", 2000.0, last_step=99)
    await index.forget("run-07")
    await store_view(index._redis, "run-03", RunView(status="finished", last_step=500), 2001.0)
    stage.now += 60
    second = await tables.table(query, [], 10, 10, order=first.order)
    third = await tables.table(query, [], 20, 10, order=first.order)
    seen = [row.run_id for page in (first, second, third) for row in page.rows]
    assert seen == [f"run-{n:02d}" for n in reversed(range(25))]
    # What changed is there as it is now, and who left is marked.
    assert {row.run_id: row.step for row in third.rows}["run-03"] == 500
    assert [row.run_id for page in (second, third) for row in page.rows if row.gone] == ["run-07"]
    fresh = await tables.table(query, [], 0, 100)
    assert [row.run_id for row in fresh.rows][:2] == ["run-03", "new"]
    assert (fresh.fit, fresh.total) == (25, 25)


async def test_a_run_that_comes_where_another_one_was_deleted_is_there_and_the_other_is_not(stage: Stage) -> None:
    index = RunIndex(stage.redis)
    await _add(index, "deleted", 1.0)
    tables = RunTables(stage.manager, index, lambda: stage.now)
    assert [row.run_id for row in (await tables.table(TableQuery(None), [], 0, 10)).rows] == ["deleted"]
    await index.forget("deleted")
    await stage.send(*rows(Job(), 1, 20))
    stage.now += 60
    assert [row.run_id for row in (await tables.table(TableQuery(None), [], 0, 10)).rows] == ["run-1"]


async def test_an_order_that_is_not_kept_is_refused_and_not_begun_anew_in_silence(stage: Stage) -> None:
    tables = RunTables(stage.manager, RunIndex(stage.redis), lambda: stage.now)
    with pytest.raises(Conflict) as refused:
        await tables.table(TableQuery(None), [], 0, 10, order="0123")
    assert refused.value.code == "order_gone"


async def test_runs_without_a_value_come_last_whichever_way_they_are_sorted(redis: Redis, stage: Stage) -> None:
    index = RunIndex(redis)
    for name, latest in (("a", {"x": 2.0}), ("b", {}), ("c", {"x": "NaN"}), ("d", {"x": 1.0})):
        await _add(index, name, 1.0, latest=latest)
    tables = RunTables(stage.manager, index, lambda: stage.now)
    up = await tables.table(TableQuery(None, sort=("metric.x",)), [], 0, 10)
    down = await tables.table(TableQuery(None, sort=("-metric.x",)), [], 0, 10)
    assert [row.run_id for row in up.rows] == ["d", "a", "c", "b"]
    assert [row.run_id for row in down.rows] == ["a", "d", "c", "b"]


async def test_what_is_worked_out_of_a_run_is_stored_and_is_in_its_row(stage: Stage) -> None:
    index = RunIndex(stage.redis)
    worker = await stage.send(*rows(Job(), 1, 200))
    stage.now += SAVE_EVERY_S  # what only counts on is due
    await worker.tick()
    tables = RunTables(stage.manager, index, lambda: stage.now)
    await DigestUpdater(stage.manager, tables, lambda: stage.now).round()
    table = await tables.table(TableQuery(None), [], 0, 10)
    curve = table.rows[0].curve
    assert curve is not None
    assert (curve.metric, curve.first, curve.last, len(curve.low)) == ("loss", 1, 200, 60)
    stored = (await index.digests(["run-1"]))["run-1"]
    assert (stored.step, stored.curve) == (200, curve)
    assert not is_stale(worker.listing.run, stored)
