"""The fleet over HTTP: a GPU that was at fault before is known, and each stop of a job is in the table, once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from redis import Redis

from stabilityclient.wire import Frame
from support.gateway_stack import RawAgent
from support.gpu_events import Node
from support.job_frames import Job
from support.server_stack import RunningServer


class _Rank(Job):
    """A rank whose clock is near the server's, so that what it lost is counted as of today."""

    def at(self, seconds: float) -> _Rank:
        self._time = seconds
        return self


async def _run(server: RunningServer, run_id: str, *frames: Frame) -> None:
    """Send a run; it is stored when the last frame is confirmed."""
    async with RawAgent(server.agent_url) as agent:
        await agent.hello(run_id, agent=f"a-{run_id}", sources=[])
        for frame in frames:
            await agent.ask(frame)


def _broken(start: int, now: float) -> list[Frame]:
    """A job that runs for 100 steps, loses GPU 2 to a memory error, and dies; the next start repeats 40 steps."""
    node = Node(first_rank=-2)  # rank 0 is on GPU 2
    first, second = _Rank(0, start).at(now), _Rank(0, start + 1).at(now + 100)
    death = {"rank": 0, "source": first.info.source, "pid": 7, "last_phase": "backward", "evidence": {"text": "gone"}}
    return [
        node.frame(node.inventory(now - 1)),
        first.rows(range(1, 101)),
        node.frame(node.xid(2, 45, now + 10)),
        node.frame(node.xid(2, 48, now + 10.5)),
        first.at(now + 12).event("process_death", 100, **death),
        second.rows(range(61, 121)),
    ]


def _only(answer: dict[str, Any], run_id: str) -> dict[str, Any]:
    (found,) = (one for one in answer["interruptions"] if one["run_id"] == run_id)
    return dict(found)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


async def test_a_gpu_is_known_by_its_uuid_over_runs_restarts_and_the_deletion_of_a_run(
    redis_url: str, folder: Path
) -> None:
    now = time.time() - 3_000
    with RunningServer(redis_url, folder) as server:
        for at, run_id in enumerate(("run-a", "run-b")):
            await _run(server, run_id, *_broken(1, now + 500 * at))
            server.wait_for(f"/runs/{run_id}/gpus", lambda a: a["gpus"][2:] and a["gpus"][2]["faults"], "its fault")
            server.wait_for("/gpus", lambda a, n=at + 1: a["gpus"] and a["gpus"][0]["count"] == n, "it is remembered")
        incident = next(i for i in server.get("/runs/run-b/incidents")["incidents"] if i["kind"] == "gpu_fault")
        assert "Second fault of this GPU in 14 days, in 2 runs (run-a, run-b)." in incident["text"]
        gpu = server.get("/runs/run-b/gpus")["gpus"][2]
        assert (gpu["state"], gpu["faults"][0]["incident_id"]) == ("sick", incident["incident_id"])
        assert gpu["offences"] == {"runs": 1, "faults": 1, "last": now + 10.5}
        assert server.client.delete("/api/v1/runs/run-a?force=true").status_code == 200
    with RunningServer(redis_url, folder) as server:  # what was told is told again, and counts no second time
        server.get("/runs/run-b/incidents")
        (known,) = server.get("/gpus")["gpus"]
        assert (known["uuid"], known["count"], known["runs"], known["node"]) == ("GPU-gpu-03-2", 2, 2, "gpu-03")
        assert [fault["run_id"] for fault in known["faults"]] == ["run-b", "run-a"]


async def test_a_stop_is_one_row_of_the_table_with_its_cost_and_a_person_may_correct_it(
    redis_url: str, folder: Path
) -> None:
    now = time.time() - 3_000
    with RunningServer(redis_url, folder) as server:
        await _run(server, "run-a", *_broken(1, now))
        over = server.wait_for("/interruptions", lambda a: a["count"] and not a["interruptions"][0]["open"], "it")
        one = _only(over, "run-a")
        assert (one["category"], one["confidence"], one["step"], one["resumed_step"]) == ("gpu_hbm3", "high", 100, 61)
        assert (one["gpus"], one["ranks"], one["redone_steps"]) == (["GPU-gpu-03-2"], [0], 40)
        assert one["downtime_s"] == pytest.approx(90.1, abs=0.1)  # 10 s of rows, then nothing until second 100
        assert one["redone_s"] == pytest.approx(40 * 0.1, abs=0.1)
        assert (over["count"], over["mtbi_s"]) == (1, pytest.approx(over["running_s"]))
        place = f"/api/v1/runs/run-a/incidents/{one['incidents'][-1]}/category"
        wrong = server.client.put(place, json={"category": "gremlins"})
        assert (wrong.status_code, "expected one of faulty_gpu" in wrong.text) == (422, True)
        said = server.client.put(place, json={"category": "power_supply"}).json()
        assert (said["category"], said["seen_category"], said["visible"]) == ("power_supply", "gpu_hbm3", "no")
        assert said["set_by"]["who"]
        missing = server.client.put("/api/v1/runs/run-a/incidents/i-none/category", json={"category": None})
        assert missing.status_code == 404
        rows = {row["category"]: row["count"] for row in server.get("/interruptions", days=1)["table"] if row["count"]}
        assert rows == {"power_supply": 1}
        assert server.get("/interruptions", project="another")["interruptions"] == []
        server.client.put(place, json={"category": None})
        assert _only(server.get("/interruptions"), "run-a")["category"] == "gpu_hbm3"
    with Redis.from_url(redis_url) as redis:
        audit = [orjson.loads(fields[b"i"]) for _, fields in redis.xrange("sb:{run-a}:command_audit") if b"i" in fields]
    assert [entry["category"] for entry in audit] == ["power_supply", None]


async def test_what_rollbacks_cost_is_summed_over_all_runs_and_worked_out_where_an_older_server_did_not(
    redis_url: str, folder: Path
) -> None:
    now = time.time() - 3_000
    with RunningServer(redis_url, folder) as server:
        for at, run_id in enumerate(("run-a", "run-b")):
            await _run(server, run_id, *_broken(1, now + 500 * at))
        found = server.wait_for("/rollback_costs", lambda a: a["run_count"] == 2, "both are known")
        own = [server.get(f"/runs/{run_id}/rollback_costs")["totals"] for run_id in ("run-a", "run-b")]
        names = ("rollbacks", "steps_lost", "wall_lost_s", "downtime_s", "gpu_hours_lost")
        assert [found[name] for name in names] == [pytest.approx(own[0][name] + own[1][name]) for name in names]
        assert found["steps_lost"] == 80
        assert sum(one["gpu_hours_lost"] for one in found["runs"]) == pytest.approx(found["gpu_hours_lost"])
        assert found["month"]["rollbacks"] == sum(
            one["created"] >= found["month_began"]
            for run_id in ("run-a", "run-b")
            for one in server.get(f"/runs/{run_id}/rollback_costs")["rollbacks"]
        )
        assert server.get("/rollback_costs", project="another")["rollbacks"] == 0
        assert server.client.get("/api/v1/rollback_costs?days=0").status_code == 422
        server.client.delete("/api/v1/runs/run-b?force=true")
        assert server.get("/rollback_costs")["steps_lost"] == 80  # what is lost is lost
    with Redis.from_url(redis_url) as redis:
        redis.hdel("sb:fleet:rollbacks", "run-a")
    with RunningServer(redis_url, folder) as server:
        again = server.wait_for("/rollback_costs", lambda a: a["run_count"] == 2, "it is worked out again", 30.0)
        assert (again["steps_lost"], again["unknown"]) == (80, 0)


async def test_what_is_down_is_listed_first_however_long_ago_it_stopped(redis_url: str, folder: Path) -> None:
    now = time.time() - 40 * 86_400
    with RunningServer(redis_url, folder) as server:
        await _run(server, "run-a", *_broken(1, now)[:-1])
        found = server.wait_for("/interruptions?days=7", lambda a: a["down"], "it is down")
        assert ([one["run_id"] for one in found["down"]], found["interruptions"]) == (["run-a"], [])
