"""The incidents of all runs over HTTP: paged without loss, within a key's project, read again after a restart."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs
from redis import Redis

from stabilitybackend.access.auth import KeyRing
from stabilitybackend.base.keys import RUNS, RUNS_WITH_INCIDENTS, RunKeys
from stabilitybackend.fleet.name_search import best
from stabilitybackend.schema.incidents import Incident, encoded
from stabilitybackend.storage.redis_link import make_redis
from stabilityclient.wire import Hello
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.server_stack import RunningServer

NOW = 1_700_000_000.0


def _incident(run_id: str, name: str, kind: str, severity: Any = "critical", **others: Any) -> Incident:
    plain = Incident(
        incident_id=name, run_id=run_id, segment=0, opened=NOW, updated=NOW, version=1, evidence={"key": 1}, kind=kind,
        severity=severity, state="open", title=f"{kind} of {run_id}", text="", onset_step=5, step=6, now_step=6,
    )  # fmt: skip
    return structs.replace(plain, **others)


def _store(redis: Redis, run_id: str, *incidents: Incident, project: str = "llm") -> None:
    """Store a run as a server left it."""
    keys = RunKeys(run_id)
    redis.zadd(RUNS, {run_id: NOW})
    redis.zadd("sb:runs:heard", {run_id: NOW})
    redis.hset(keys.meta, mapping={"name": f"name-{run_id}", "project": project, "created": repr(NOW)})
    for one in incidents:
        redis.hset(keys.incidents, one.incident_id, encoded(one))
        redis.zadd(RUNS_WITH_INCIDENTS, {run_id: NOW})


def _complete(server: RunningServer, path: str) -> Any:
    return server.wait_for(path, lambda a: a["complete"], "all that is stored is read")


def test_pages_of_any_size_hold_each_incident_once_the_open_ones_first_by_severity_and_cause(
    redis_url: str, tmp_path: Path
) -> None:
    kinds = ("spike", "hang", "process_death", "divergence")
    with Redis.from_url(redis_url) as redis:
        for run in range(5):
            some = [
                _incident(
                    f"run-{run}", f"i-{run}{at}", kinds[at % 4], "warning" if at % 3 else "critical",
                    opened=NOW + 10 * at, state="resolved" if at % 5 == 4 else "open",
                    acknowledged_by="ann" if at % 2 else None, acknowledged=NOW if at % 2 else None,
                )
                for at in range(8)
            ]  # fmt: skip
            _store(redis, f"run-{run}", *some, project="llm" if run else "vlm")
    with RunningServer(redis_url, tmp_path / "data") as server:
        whole = _complete(server, "/incidents")["incidents"]
        assert len({one["incident_id"] for one in whole}) == 40
        looks = [(one["state"] != "open", one["state"] == "open" and one["severity"] != "critical") for one in whole]
        assert looks == sorted(looks)
        critical = [one["kind"] for one in whole if (one["state"], one["severity"]) == ("open", "critical")]
        assert critical == sorted(critical, key=["process_death", "hang"].__contains__, reverse=True)
        for limit in (1, 7, 40):
            found: list[Any] = []
            cursor: str | None = ""
            while cursor is not None:
                page = server.get("/incidents", limit=limit, **({"cursor": cursor} if cursor else {}))
                found += page["incidents"]
                cursor = page["next"]
            assert found == whole
        counts = server.get("/incidents", limit=0)["counts"]
        assert (counts["open"], counts["resolved"], counts["alarms"]) == (35, 5, 35)
        assert counts["unacknowledged"] == sum(not one["acknowledged_by"] for one in whole if one["state"] == "open")
        only = server.get("/incidents", severity="critical", kind=["hang", "spike"], state="open", acknowledged=False)
        assert {(one["kind"], one["severity"], one["acknowledged_by"]) for one in only["incidents"]} == {
            ("spike", "critical", None)
        }
        assert {one["run_id"] for one in server.get("/incidents", project="vlm")["incidents"]} == {"run-0"}
        assert {one["run_name"] for one in server.get("/incidents", run="run-3")["incidents"]} == {"name-run-3"}
        assert len(server.get("/incidents", since=NOW + 70)["incidents"]) == 5
        for wrong in ("cursor=x", "severity=grave", "state=closed", "limit=-1", "since=nan"):
            refused = server.client.get(f"/api/v1/incidents?{wrong}")
            assert (refused.status_code, "error" in refused.json()) == (422, True)


async def test_a_new_incident_is_listed_acknowledged_and_gone_with_its_run(redis_url: str, tmp_path: Path) -> None:
    job = Job(0, 1)
    with RunningServer(redis_url, tmp_path / "data") as server:
        async with RawAgent(server.agent_url) as agent:
            await agent.hello("run-1", agent="a-1", sources=[])
            await agent.ask(job.rows(range(1, 30)))
            death = {"rank": 0, "source": job.info.source, "pid": 7, "last_phase": "backward", "evidence": {}}
            await agent.ask(job.event("process_death", 29, **death))
        listed = server.wait_for("/incidents?state=open", lambda a: a["incidents"], "it is listed")["incidents"][0]
        assert (listed["kind"], listed["stops_job"], listed["acknowledged_by"]) == ("process_death", True, None)
        place = f"/api/v1/runs/run-1/incidents/{listed['incident_id']}/ack"
        assert server.client.post(place).status_code == 200
        assert server.get("/incidents")["incidents"][0]["acknowledged_by"]
        assert server.get("/incidents", limit=0)["counts"]["unacknowledged"] == 0
        found = server.get("/search", q="death", run="run-1")
        assert [one["incident_id"] for one in found["incidents"]] == [listed["incident_id"]]
        assert server.client.delete("/api/v1/runs/run-1?force=true").status_code == 200
        assert server.get("/incidents")["total"] == 0


@pytest.mark.parametrize("path", ["/incidents", "/search?q=run", "/rollback_costs", "/interruptions"])
async def test_a_key_of_one_project_sees_nothing_of_another(redis_url: str, tmp_path: Path, path: str) -> None:
    with Redis.from_url(redis_url) as redis:
        _store(redis, "run-own", _incident("run-own", "i-own", "spike"), project="own")
        _store(redis, "run-other", _incident("run-other", "i-other", "spike"), project="other")
    client = make_redis(redis_url)
    _, key = await KeyRing(client).create("reader", ["read"], project="own")
    await client.aclose()
    with RunningServer(redis_url, tmp_path / "data", host="0.0.0.0") as server:
        server.client.headers["Authorization"] = f"Bearer {key}"
        text = server.client.get(f"/api/v1{path}").text
        assert "other" not in text
        if "complete" in text:
            assert "run-own" in str(_complete(server, path))
        refused = server.client.get(f"/api/v1{path.partition('?')[0]}", params={"project": "other", "q": "x"})
        assert refused.status_code == 404 or "run-other" not in refused.text


async def test_a_search_finds_run_metric_incident_node_and_gpu_the_best_first(redis_url: str, tmp_path: Path) -> None:
    job = Job(0, 1)
    with Redis.from_url(redis_url) as redis:
        for at in range(300):
            _store(redis, f"old-{at}", _incident(f"old-{at}", f"i-{at}", "spike"))
    with RunningServer(redis_url, tmp_path / "data") as server:
        _complete(server, "/incidents?limit=0")
        async with RawAgent(server.agent_url) as agent:
            await agent.ask(Hello("run-1", "a-1", "gpu-042", "0.1.0", project="vlm", name="interleaved-7b"))
            await agent.ask(job.rows(range(1, 9)))
            server.wait_for("/search?q=loss&run=run-1", lambda a: a["metrics"], "its metrics")
            found = server.get("/search", q="7b inter")
            assert [one["run_id"] for one in found["runs"]] == ["run-1"]
            assert server.get("/search", q="intrlv7b")["runs"][0]["run_id"] == "run-1"
            assert server.get("/search", q="042")["machines"] == [
                {"node": "gpu-042", "gpu": "", "run_id": "run-1", "run_name": "interleaved-7b"}
            ]
            assert len(server.get("/search", q="spike", limit=5)["incidents"]) == 5
            nothing = server.get("/search", q="  ")
            assert [nothing[name] for name in ("runs", "metrics", "incidents", "machines")] == [[], [], [], []]
            assert server.client.get("/api/v1/search?q=x&run=none").status_code == 404
    with RunningServer(redis_url, tmp_path / "data") as server:
        again = server.wait_for("/search?q=gpu-042", lambda a: a["machines"], "nodes are remembered")
        assert again["machines"][0]["run_id"] == "run-1"


def test_ten_thousand_names_are_ranked_by_where_the_word_is_within_a_fifth_of_a_second() -> None:
    names = [f"layers/{at}/attention/entropy" for at in range(10_000)] + ["entropy", "loss/code-entropy", "centropy"]
    began = time.thread_time()  # of this thread alone: the machine may be busy
    found = best(["entropy"], names, str, 4)
    took_s = time.thread_time() - began
    assert found[0] == "entropy"
    assert set(found[1:]) >= {"loss/code-entropy"}
    assert took_s < 0.2 * 10  # ten times what it takes here: it may be a slow one


def test_an_incident_of_the_feed_reaches_only_browsers_of_its_project() -> None:
    from stabilitybackend.server.api.live import _OneProject

    own = _OneProject("own")
    for project in ("own", "other"):
        own.put(msgspec.json.encode({"type": "incident", "incident": {"project": project}}))
    assert own._queue.qsize() == 1
