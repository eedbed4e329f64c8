"""Detectors are set for one run from a moment on, and folding it again comes to the same: real Redis, real files."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest

from stabilitybackend.ingest.ingest import Ingest
from stabilitybackend.runs.detector_settings import MAX_CHANGES
from stabilitybackend.runs.worker import RunWorker
from stabilitybackend.server.api import trial
from stabilityclient.wire import Frame, encode_message
from support.cli_program import program_in
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.manager_stack import KEYS, Stage, rows
from support.server_stack import RunningServer
from support.waiting import wait_until

DEAF = {"curve": {"sensitivity": 0.0}}


def spiky(job: Job, first: int, last: int, *spikes: int) -> list[Frame]:
    """Return frames of a quiet loss with spikes of six steps that begin at ``spikes``."""

    def loss(step: int) -> float:
        high = any(at <= step < at + 6 for at in spikes)
        return 9.0 + 0.1 * math.cos(step) if high else 2.0 + 0.01 * math.sin(step)

    return [
        job.rows(range(at, at + 20), {"loss": [loss(s) for s in range(at, at + 20)]}) for at in range(first, last, 20)
    ]


def spikes(worker: RunWorker) -> list[int]:
    return sorted(one.onset_step for one in worker.state.incidents.all() if one.kind == "spike")


def detectors_of(worker: RunWorker) -> Any:
    """Return all that the detectors know, without the snapshots that they would go back to."""
    return {part.name: part.data for part in worker.state.judge.saved() if "." in part.name}


async def test_a_change_holds_from_its_moment_on_and_never_before(stage: Stage) -> None:
    job = Job()
    worker = await stage.send(*spiky(job, 1, 300, 200))
    await worker.detectors.replace(DEAF, "ada", worker.cursor)
    worker = await stage.send(*spiky(job, 301, 600, 500))
    assert spikes(worker) == [200]
    await worker.detectors.replace({}, "ada", worker.cursor)
    worker = await stage.send(*spiky(job, 601, 900, 800))
    assert spikes(worker) == [200, 800]


async def test_a_restart_comes_to_the_same_state_and_tells_nothing_twice(stage: Stage) -> None:
    job = Job()
    worker = await stage.send(*spiky(job, 1, 300, 200))
    await worker.detectors.replace(DEAF, "ada", worker.cursor)
    worker = await stage.send(*spiky(job, 301, 700, 500))
    await worker.detectors.replace({"curve": {"sensitivity": 0.5}}, "ada", worker.cursor)
    worker = await stage.send(*spiky(job, 701, 760))
    before, told, shown = detectors_of(worker), worker.state.incidents.all(), worker.detectors.shown()
    await stage.restart()
    again = await stage.manager.get("run-1")
    assert detectors_of(again) == before
    assert (again.state.incidents.all(), again.detectors.shown()) == (told, shown)


async def test_archived_frames_that_are_folded_again_meet_the_settings_of_their_time(stage: Stage) -> None:
    job = Job()
    frames = spiky(job, 1, 300, 200)
    worker = await stage.send(*frames)
    await worker.detectors.replace(DEAF, "ada", worker.cursor)
    worker = await stage.send(*spiky(job, 301, 700, 500))
    await stage.archived(worker, 2)
    before = detectors_of(worker)
    for state in stage.folder.rglob("*.state"):
        state.write_bytes(b"damaged")
    await stage.restart()
    again = await stage.manager.get("run-1")
    assert detectors_of(again) == before
    assert spikes(again) == [200]


async def test_changes_while_frames_come_are_met_at_the_same_frames_again(stage: Stage) -> None:
    job = Job()
    worker = await stage.send(*spiky(job, 1, 60))
    async with Ingest(stage.redis) as ingest:
        for at, frame in enumerate(spiky(job, 61, 1_200, *range(100, 1_200, 90))):
            await ingest.append("run-1", frame.source, frame.first_seq, frame.last_seq, encode_message(frame))
            if at % 5 == 0:
                await worker.detectors.replace({"curve": {"sensitivity": (0, 0.5, 2)[at % 3]}}, "ada", worker.cursor)
    last: Any = (await stage.redis.xinfo_stream(KEYS.frames))["last-generated-id"]
    await stage.until(lambda: worker.cursor == last.decode(), "all is folded")
    before, found = detectors_of(worker), spikes(worker)
    await stage.manager.stop()
    for state in stage.folder.rglob("*.state"):
        state.write_bytes(b"damaged")
    await stage.restart()
    again = await stage.manager.get("run-1")
    assert (detectors_of(again), spikes(again)) == (before, found)


async def test_a_deleted_run_takes_its_settings_along(stage: Stage) -> None:
    worker = await stage.send(*rows(Job(), 1, 40))
    await worker.detectors.replace(DEAF, "ada", worker.cursor)
    assert await stage.redis.llen(KEYS.detector_settings) == 1
    await stage.manager.delete_run("run-1", force=True)
    assert await stage.redis.exists(KEYS.detector_settings) == 0


async def test_only_the_newest_changes_are_kept_and_all_are_in_the_audit(stage: Stage) -> None:
    worker = await stage.send(*rows(Job(), 1, 40))
    for at in range(MAX_CHANGES + 5):
        await worker.detectors.replace({"curve": {"sensitivity": 0.5 + at / 1000}}, "ada", worker.cursor)
    changes = worker.detectors.shown().changes
    await stage.restart()
    again = await stage.manager.get("run-1")
    assert again.detectors.shown().changes == changes
    assert (len(changes), changes[0].settings) == (MAX_CHANGES, {"curve": {"sensitivity": 0.604}})
    audit: Any = await stage.redis.xrange(KEYS.command_audit)
    assert [orjson.loads(fields[b"d"])["who"] for _, fields in audit] == ["ada"] * (MAX_CHANGES + 5)


async def test_a_stored_setting_that_this_version_does_not_know_is_left_out(stage: Stage) -> None:
    await stage.send(*rows(Job(), 1, 40))
    old = {"spike": {"sensitivity": 0.5, "gone": 1.0}, "gone": {"sensitivity": 2.0}}
    await stage.redis.rpush(
        KEYS.detector_settings, orjson.dumps({"position": "0-1", "settings": old, "who": "ada", "time": 1.0})
    )
    await stage.restart()
    assert (await stage.manager.get("run-1")).detectors.shown().settings == {"curve": {"sensitivity": 0.5}}


async def test_what_the_next_owner_of_a_run_sets_is_shown_by_whoever_read_it_before(stage: Stage) -> None:
    worker = await stage.send(*rows(Job(), 1, 40))
    await worker.detectors.replace(DEAF, "ada", worker.cursor)
    other = stage._manager()
    there = await other.get("run-1")
    await there.detectors.replace({"curve": {"sensitivity": 2.0}}, "bob", there.cursor)
    await worker.detectors.refresh()
    assert worker.detectors.shown().settings == {"curve": {"sensitivity": 2.0}}
    assert [change.who for change in worker.detectors.shown().changes] == ["bob", "ada"]
    await other.stop()


async def _sent(server: RunningServer, *frames: Frame, last_step: int) -> None:
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(*frames)
    await asyncio.to_thread(server.wait_for, "/runs/run-1", lambda r: r["last_step"] == last_step, f"step {last_step}")


async def test_settings_are_listed_set_and_refused_over_http(server: RunningServer) -> None:
    await _sent(server, *spiky(Job(), 1, 60), last_step=60)
    every = server.get("/detectors")
    listed = {one["name"]: one for one in every["detectors"]}
    sensitivity = listed["curve"]["parameters"][0]
    assert (sensitivity["name"], sensitivity["default"], sensitivity["low"], sensitivity["high"]) == (
        "sensitivity", 1.0, 0.0, 4.0
    )  # fmt: skip
    assert all(one["text"] and one["title"] and one["kinds"] for one in listed.values())
    assert server.get("/runs/run-1/detectors") == {"settings": {}, "changes": [], **every}
    path = "/api/v1/runs/run-1/detectors"
    put = server.client.put(path, json={"settings": {"curve": {"sensitivity": 0.5}, "nonfinite": {"sensitivity": 1}}})
    assert put.status_code == 200
    assert put.json() | every == server.get("/runs/run-1/detectors")
    assert put.json()["settings"] == {"curve": {"sensitivity": 0.5}}  # what is the default is no override
    for settings, words in (
        ({"curve": {"sensitivity": 9}}, "curve.sensitivity is 9, expected a number from 0 to 4"),
        ({"curve": {"loudness": 1}}, "detector curve has no 'loudness'"),
        ({"noise": {}}, "there is no detector 'noise'"),
        ([], "settings are list, expected"),
    ):
        refused = server.client.put(path, json={"settings": settings})
        assert refused.status_code == 422
        assert words in refused.json()["error"]["message"]
    assert server.get("/runs/run-1/detectors")["settings"] == {"curve": {"sensitivity": 0.5}}
    assert server.client.put(path, json={"setting": {}}).status_code == 422
    assert len(server.client.put(path, json={"settings": {"x" * 100_000: {}}}).text) < 1_000


async def test_what_is_tried_is_judged_whole_and_changes_nothing(server: RunningServer) -> None:
    await _sent(server, *spiky(Job(), 1, 600, 200, 500), last_step=600)
    path = "/api/v1/runs/run-1/backtest"
    told = server.get("/runs/run-1/incidents")["incidents"]
    same = server.client.post(path, json={"settings": {}}).json()
    assert [(one["incident_id"], one["state"]) for one in same["incidents"]] == [
        (one["incident_id"], one["state"]) for one in told
    ]
    assert (same["now"], same["points"], same["rows"]) == (same["then"], 600, 600)
    deaf = server.client.post(path, json={"settings": DEAF}).json()
    assert [one for one in deaf["incidents"] if one["kind"] == "spike"] == []
    assert sum(same["now"]["curve"].values()) == sum(deaf["now"]["curve"].values()) == 2
    newest = server.client.post(path, json={"settings": {}, "last_steps": 200}).json()
    assert (newest["first_step"], [one["onset_step"] for one in newest["incidents"]]) == (401, [500])
    assert newest["rows"] < 600
    assert server.get("/runs/run-1/detectors")["settings"] == {}
    assert server.get("/runs/run-1/incidents")["incidents"] == told
    assert server.client.post(path, json={"settings": {"curve": {"sensitivity": -1}}}).status_code == 422


async def test_a_run_with_more_points_than_one_try_may_have_is_refused_with_what_to_do(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stabilitybackend.server.api.trial.MAX_VALUES", 500)
    await _sent(server, *spiky(Job(), 1, 600, 560), last_step=600)
    path = "/api/v1/runs/run-1/backtest"
    refused = server.client.post(path, json={"settings": {}})
    assert refused.status_code == 422
    assert refused.json()["error"]["message"] == "run run-1 has 600 values, expected at most 500 for one try"
    assert refused.json()["error"]["hint"] == "try fewer of the newest steps: last_steps"
    some = server.client.post(path, json={"settings": {}, "last_steps": 300})
    assert [one["onset_step"] for one in some.json()["incidents"]] == [560]


async def test_the_program_lists_sets_and_resets(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    await _sent(server, *spiky(Job(), 1, 60), last_step=60)
    program = program_in(tmp_path, monkeypatch, capsys)

    async def call(*words: str) -> tuple[int, str, str]:
        return await asyncio.to_thread(program, "detectors", *words, "--url", server.url)

    def now() -> Any:
        return server.get("/runs/run-1/detectors")["settings"]

    code, out, err = await call()
    assert (code, err, "curve" in out, "sensitivity" in out) == (0, "", True, True)
    assert (await call("run-1", "--set", "spike.sensitivity=0.5"))[0] == 0
    code, out, err = await call("run-1", "--set", "nonfinite.sensitivity=0")
    assert (code, err, out.splitlines()[-1].startswith("last changed by ")) == (0, "", True)
    assert now() == {"curve": {"sensitivity": 0.5}, "nonfinite": {"sensitivity": 0.0}}
    assert (await call("run-1", "--reset", "--set", "spike.sensitivity=2"))[0] == 0
    assert now() == {"curve": {"sensitivity": 2.0}}
    code, out, err = await call("run-1", "--set", "spike.sensitivity=99")
    assert (code, "expected a number from 0 to 4" in err) == (2, True)
    code, out, err = await call("run-1", "--set", "curve=much")
    assert (code, "expected detector.parameter=number" in err) == (2, True)
    assert now() == {"curve": {"sensitivity": 2.0}}


async def test_one_try_a_run_at_a_time_and_it_stops_when_nobody_waits_for_it(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _sent(server, *spiky(Job(), 1, 600), last_step=600)
    monkeypatch.setattr("stabilitybackend.runs.archiving.replay.YIELD_S", 0.2)  # 30 frames: 6 s for all of them
    path = "/api/v1/runs/run-1/backtest"
    begun, original = threading.Event(), trial.replay

    async def noted(*given: Any) -> Any:
        begun.set()
        return await original(*given)

    monkeypatch.setattr(trial, "replay", noted)

    def status() -> int:
        return server.client.post(path, json={"settings": {}}).status_code

    with socket.create_connection(("127.0.0.1", server.port)) as asker:
        body = b'{"settings": {}}'
        asker.sendall(
            b"POST %b HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (path.encode(), server.port, len(body), body)
        )
        assert begun.wait(60)
        assert status() == 409
    monkeypatch.setattr("stabilitybackend.runs.archiving.replay.YIELD_S", 0.0)
    monkeypatch.setattr("stabilitybackend.server.api.trial.MAX_VALUES", 1)
    wait_until(lambda: status() == 422, 4, "the try whose asker went is over")
