"""What people note at steps of a run: over HTTP, in the live feed, through rollbacks, exports and imports."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from stabilitybackend.base.keys import RunKeys
from support.cli_program import Program
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.server_stack import RunningServer

PATH = "/api/v1/runs/run-1/annotations"


async def _forked(server: RunningServer, run_id: str = "run-1") -> Job:
    """Steps 1 to 10, back to 5, on to 8."""
    job = Job()
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(job.rows(range(1, 11)), job.rolled_back(5, "k"), job.rows([6, 7, 8]), run_id=run_id)
        await asyncio.to_thread(server.wait_for, f"/runs/{run_id}", lambda r: r["last_step"] == 8, "step 8")
    return job


def _add(server: RunningServer, **body: Any) -> dict[str, Any]:
    answer = server.client.post(PATH, json=body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def test_an_annotation_is_kept_with_who_made_it_and_comes_by_step(server: RunningServer) -> None:
    await _forked(server)
    later = _add(server, first_step=7, last_step=8, text="  bad shard <b>42</b> \n", metric="loss")
    first = _add(server, step=2, text="warm-up")
    assert (later["text"], later["segment"], later["metric"]) == ("bad shard <b>42</b>", 1, "loss")
    assert (later["author"], first["first_step"], first["last_step"], first["segment"]) == ("local", 2, 2, 0)
    assert server.get("/runs/run-1/annotations")["annotations"] == [first, later]


async def test_whoever_may_command_changes_and_deletes_it_and_every_change_is_on_record(
    server: RunningServer, redis: Any
) -> None:
    await _forked(server)
    made = _add(server, step=7, text="one")
    path = f"{PATH}/{made['annotation_id']}"
    changed = server.client.put(path, json={"text": "two", "first_step": 2, "last_step": 3}).json()
    assert (changed["text"], changed["first_step"], changed["segment"]) == ("two", 2, 0)
    assert (changed["author"], changed["created"]) == (made["author"], made["created"])
    assert changed["edited"] >= made["created"]
    assert server.client.delete(path).json() == {"annotation_id": made["annotation_id"], "annotation": None}
    assert server.client.delete(path).status_code == 404
    assert server.get("/runs/run-1/annotations")["annotations"] == []
    entries = await redis.xrange(RunKeys("run-1").command_audit)
    noted = [json.loads(fields[b"a"]) for _, fields in entries if b"a" in fields]
    assert [(one["what"], one["annotation"]["text"]) for one in noted] == [
        ("made", "one"),
        ("changed", "two"),
        ("deleted", "two"),
    ]


async def test_one_that_is_sent_again_as_its_answer_got_lost_is_one_and_was_not_edited(server: RunningServer) -> None:
    await _forked(server)
    sent = {"text": "once", "first_step": 2, "last_step": 3}
    first, again = (server.client.put(f"{PATH}/a-1", json=sent).json() for _ in "12")
    assert first == again
    assert (again["edited"], server.get("/runs/run-1/annotations")["annotations"]) == (None, [first])


async def test_on_a_discarded_branch_it_stays_and_says_so(server: RunningServer) -> None:
    await _forked(server)
    spike = _add(server, step=9, segment=0, text="the spike")
    assert (spike["segment"], spike["dead"]) == (0, True)
    kept = _add(server, step=4, text="before it")
    assert (kept["segment"], kept["dead"]) == (0, False)


async def test_other_pages_hear_of_each_change_at_once(server: RunningServer) -> None:
    await _forked(server)
    async with connect(server.live_url) as socket:
        await socket.send(json.dumps({"type": "subscribe", "run_id": "run-1", "cursor": None}))

        async def told() -> dict[str, Any]:
            while True:
                message: dict[str, Any] = json.loads(await socket.recv())
                if message["type"] == "annotation":
                    return message

        async with asyncio.timeout(60):
            while json.loads(await socket.recv())["type"] != "hello":
                pass
            made = await asyncio.to_thread(_add, server, step=7, text="seen?")
            assert (await told())["annotation"] == made
            await asyncio.to_thread(server.client.delete, f"{PATH}/{made['annotation_id']}")
            assert await told() == {
                "type": "annotation", "annotation_id": made["annotation_id"], "annotation": None
            }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"step": 1, "text": " "}, "text has 0 characters, expected 1 to 2000"),
        ({"step": 1, "text": "x" * 2001}, "text has 2001 characters, expected 1 to 2000"),
        ({"text": "where?"}, "expected step, or both of the others"),
        ({"step": 1, "first_step": 1, "last_step": 2, "text": "?"}, "expected step, or both of the others"),
        ({"first_step": 3, "text": "?"}, "expected step, or both of the others"),
        ({"first_step": 3, "last_step": 2, "text": "?"}, "expected 0 <= first_step <= last_step"),
        ({"step": -1, "text": "?"}, "expected 0 <= first_step"),
        ({"step": 1, "text": "?", "segment": 9}, "segment is 9, expected 0 to 1"),
        ({"step": 1, "text": "?", "metric": ""}, "metric has 0 characters"),
    ],
)
async def test_what_can_be_no_annotation_is_refused_with_what_is_expected(
    server: RunningServer, body: dict[str, Any], said: str
) -> None:
    await _forked(server)
    answer = server.client.post(PATH, json=body)
    assert answer.status_code == 422
    assert said in answer.json()["error"]["message"]


async def test_a_run_takes_so_many_and_then_says_so(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stabilitybackend.runs.annotations.MAX_ANNOTATIONS", 1)
    await _forked(server)
    _add(server, step=1, text="one")
    answer = server.client.post(PATH, json={"step": 2, "text": "two"})
    assert answer.status_code == 409
    assert "expected fewer than 1" in answer.json()["error"]["message"]


async def test_it_goes_with_the_run(server: RunningServer, redis: Any) -> None:
    await _forked(server)
    _add(server, step=1, text="one")
    assert server.client.delete("/api/v1/runs/run-1", params={"force": True}).is_success
    assert not await redis.exists(RunKeys("run-1").annotations)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
async def test_an_export_carries_them_and_an_import_makes_them_again_however_often(
    server: RunningServer, program: Program, tmp_path: Path, kind: str
) -> None:
    await _forked(server)
    _add(server, step=7, text="after the fork", metric="loss")
    _add(server, first_step=8, last_step=10, segment=0, text="discarded: \u05e9\u05dc\u05d5\u05dd")
    file = tmp_path / f"run.{kind}"
    assert (await asyncio.to_thread(program, "export", "run-1", "--to", file, "--url", server.url))[0] == 0
    for _ in range(2):
        code, out, err = await asyncio.to_thread(program, "import", file, "--run-id", "copy", "--url", server.url)
        assert (code, err.strip()) == (0, "")
        assert "note: 2 annotations" in out
    had, has = (server.get(f"/runs/{name}/annotations")["annotations"] for name in ("run-1", "copy"))
    assert [one.pop("imported_by") for one in has] == ["local"] * 2
    assert [one.pop("imported_by") for one in had] == [None] * 2
    assert has == had


async def test_a_run_that_returned_to_a_branch_is_the_same_after_export_and_import(
    server: RunningServer, program: Program, tmp_path: Path
) -> None:
    job, root = Job(), {"segment": 0, "segment_key": ""}
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(
            job.rows(range(1, 31)), job.rolled_back(10, "c-1"), job.rows(range(11, 21)),
            job.rolled_back(25, "c-2", branch=root), job.rows(range(26, 41)),
        )  # fmt: skip
        await asyncio.to_thread(server.wait_for, "/runs/run-1", lambda r: r["last_step"] == 40, "step 40")
    file = tmp_path / "run.parquet"
    assert (await asyncio.to_thread(program, "export", "run-1", "--to", file, "--url", server.url))[0] == 0
    assert (await asyncio.to_thread(program, "import", file, "--run-id", "copy", "--url", server.url))[0] == 0
    await asyncio.to_thread(server.wait_for, "/runs/copy", lambda r: r["status"] == "finished", "the copy is over")
    trees = [
        [(s["parent"], s["fork_step"], s["returns_to"], s["dead_after"]) for s in server.get(path)["segments"]]
        for path in ("/runs/run-1/segments", "/runs/copy/segments")
    ]
    assert trees[0] == trees[1] == [(None, None, None, 25), (0, 10, None, 10), (0, 25, 0, None)]
