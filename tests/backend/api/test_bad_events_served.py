"""One bad event on a whole server: the run is shown with what could not be read, and no page of another run notices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stabilityclient.wire import EventBlock, Frame, Health, SourceInfo
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.server_stack import RunningServer

AGENT = SourceInfo("a1-1", node="n0", pid=9, started=990.0)
DEATH = {"source": "r0-1", "rank": 0, "cause": "signal", "signal": 9, "signal_name": "SIGKILL"}
#: Each was stored and acknowledged, and then the list of runs answered 500 for everybody, also after a restart.
BAD: tuple[tuple[str, dict[str, Any]], ...] = (
    ("process_death", {**DEATH, "signal_name": {"a": 1}}),
    ("process_death", {**DEATH, "cause": {"a": 1}}),
    ("process_death", {**DEATH, "how": {"a": 1}, "cause": "exit_code"}),
    ("process_death", {**DEATH, "rank": {"a": 1}}),
    ("gpu_inventory", {"gpus": 7}),
    ("segment", {"key": "k", "to_step": {"a": 1}}),
    ("exception", {"type": {"a": 1}, "message": ["x"]}),
)


@pytest.fixture(params=range(len(BAD)), ids=[f"{kind}-{at}" for at, (kind, _) in enumerate(BAD)])
def bad(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return BAD[request.param]


@pytest.fixture
def server(redis_url: str, tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(redis_url, tmp_path) as running:
        yield running


async def _job(server: RunningServer, run_id: str, *blocks: EventBlock) -> None:
    """Let a run train ten steps and its rank or its agent say something, in one frame with a good event behind it."""
    job = Job()
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(job.rows(range(1, 11)), run_id=run_id)
        if blocks:
            of_rank = blocks[0].type in ("segment", "exception")
            source, first = (job.info, 11) if of_rank else (AGENT, 1)
            await agent.store(Frame(source, first, first + len(blocks) - 1, list(blocks)))
        await agent.send(Health("a1", "n0", 1_000.0, [{"rank": {"a": 1}, "source": "r0-1"}, {"rank": 0, "source": 7}]))


async def test_a_bad_event_is_named_on_its_run_and_all_pages_answer(
    server: RunningServer, bad: tuple[str, dict[str, Any]]
) -> None:
    kind, data = bad
    beside = EventBlock(
        "gpu_note" if kind != "segment" else "checkpoint", 1_001.0, 10, {"visible": True, "path": "c/10"}
    )
    await _job(server, "bad", EventBlock(kind, 1_001.0, 10, data), beside)
    await _job(server, "good")
    runs = {run["run_id"]: run for run in server.get("/runs")["runs"]}
    assert {run["last_step"] for run in runs.values()} == {10}
    unreadable = runs["bad"]["unreadable"]
    assert kind in [one["what"] for one in unreadable["named"]]
    assert (unreadable["defects"], runs["good"]["unreadable"]["passed_over"]) == (0, 0)
    for run_id in runs:
        for page in (
            "",
            "/segments",
            "/incidents",
            "/checkpoints",
            "/health",
            "/gpus",
            "/rollback_costs",
            "/plan",
            "/stacks",
        ):
            server.get(f"/runs/{run_id}{page}")
    if kind == "segment":
        assert [one["path"] for one in server.get("/runs/bad/checkpoints")["checkpoints"]] == ["c/10"]
    else:
        assert server.get("/runs/bad/health")["agents"][0]["gpu"]["visible"] is True
    assert server.client.delete("/api/v1/runs/bad", params={"force": True}).status_code < 300
    assert [run["run_id"] for run in server.get("/runs")["runs"]] == ["good"]


async def test_a_bad_event_that_is_stored_already_is_read_the_same_by_a_server_that_starts(
    redis_url: str, tmp_path: Path
) -> None:
    with RunningServer(redis_url, tmp_path) as server:
        await _job(server, "bad", *(EventBlock(kind, 1_001.0, 10, data) for kind, data in BAD[:4]))
        before = server.get("/runs/bad")["unreadable"]
    with RunningServer(redis_url, tmp_path) as server:
        after = server.get("/runs/bad")
        assert [run["run_id"] for run in server.get("/runs")["runs"]] == ["bad"]
    stored = [one for one in before["named"] if one["what"] != "health"]
    assert [one for one in after["unreadable"]["named"] if one["what"] != "health"] == stored
    assert after["unreadable"]["passed_over"] == 1
