"""Lines that ranks printed: kept within bounds, found by rank, step and place, for who may send commands."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from stabilitybackend.runs.agents import output as module
from stabilitybackend.runs.agents.output import OutputLog, OutputQuery
from stabilityclient.wire import Output, OutputLine, Welcome
from support.gateway_stack import RawAgent
from support.ports import free_port
from support.processes import Server
from support.waiting import wait_until


def line(text: str, step: int, rank: int = 0, stream: str = "out") -> OutputLine:
    return OutputLine(1000.0 + step, rank, stream, step, text)


async def texts(log: OutputLog, **query: Any) -> list[str]:
    return [one.text for one in (await log.read("r", OutputQuery(**query))).lines]


@pytest.fixture
async def log(redis: Redis) -> OutputLog:
    """Rank 0 goes back from step 5 to step 2; rank 1 says one thing."""
    log = OutputLog(redis)
    steps = [*range(1, 6), *range(2, 8)]
    await log.add("r", Output("a", "n0", [line(f"{at}: step {step}", step) for at, step in enumerate(steps)]))
    await log.add("r", Output("a", "n1", [line("ValueError: no", 4, rank=1, stream="err")], skipped=3))
    return log


async def test_lines_around_a_step_are_those_of_the_newest_time_that_it_came(log: OutputLog) -> None:
    found = await log.read("r", OutputQuery(rank=0, step=3, limit=3))
    assert [one.text for one in found.lines] == ["5: step 2", "6: step 3", "7: step 4"]
    assert found.at == found.lines[1].id
    assert (found.older, found.newer, found.ranks, found.total, found.skipped) == (True, True, [0, 1], 12, 3)


async def test_the_rank_that_an_incident_blames_is_read_first(log: OutputLog) -> None:
    assert (await log.read("r", OutputQuery())).first_rank == 0
    assert (await log.read("r", OutputQuery(), {1, 9})).first_rank == 1
    assert (await log.read("r", OutputQuery(), {9})).first_rank == 0


async def test_lines_are_found_by_rank_stream_and_place(log: OutputLog) -> None:
    assert await texts(log, stream="err") == ["ValueError: no"]
    assert await texts(log, rank=0, limit=2) == ["9: step 6", "10: step 7"]
    found = await log.read("r", OutputQuery(rank=0))
    assert await texts(log, rank=0, after=found.lines[-2].id) == ["10: step 7"]
    assert await texts(log, rank=0, before=found.lines[2].id) == ["0: step 1", "1: step 2"]
    assert await texts(log, step=0, limit=1) == ["0: step 1"]


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("Traceback (most recent call last):", "error"), ("torch.OutOfMemoryError: CUDA out of memory", "error"),
        ("[rank3]: RuntimeError: x", "error"), ("UserWarning: old", "warning"), ("NCCL WARN connect", "warning"),
        ("error_rate 0.1", ""), ("step 5 no errors", ""),
    ],
)  # fmt: skip
async def test_lines_of_errors_are_marked(redis: Redis, text: str, level: str) -> None:
    log = OutputLog(redis)
    await log.add("r", Output("a", "n0", [line(text, 1)]))
    assert [one.level for one in (await log.read("r", OutputQuery())).lines] == [level]


async def test_a_run_that_brings_too_much_is_bounded_and_says_so(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BURST_BYTES", 10_000)
    monkeypatch.setattr(module, "BYTES_PER_S", 0)
    log = OutputLog(redis)
    for _ in range(3):
        await log.add("r", Output("a", "n0", [line("x" * 100, 1) for _ in range(60)]))
    found = await log.read("r", OutputQuery())
    assert (found.total, found.skipped) == (60, 120)


async def test_lines_that_are_none_are_left_out(redis: Redis) -> None:
    log = OutputLog(redis)
    odd = [OutputLine(1.0, -1, "out", 1, "a"), OutputLine(1.0, 0, "in", 1, "b"), OutputLine(1.0, 0, "out", -7, "c")]
    await log.add("r", Output("a", "n" * 999, [*odd, line("y" * 9_999, 1)]))
    found = await log.read("r", OutputQuery())
    assert [len(one.text) for one in found.lines] == [module.LINE_CHARS]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "data", free_port()) as server:
        yield server


def test_what_an_agent_sends_is_served_and_goes_with_the_run(server: Server) -> None:
    async def send() -> None:
        async with RawAgent(f"{server.url.replace('http', 'ws')}/api/v1/agent") as agent:
            welcome = await agent.hello("r")
            assert isinstance(welcome, Welcome)
            assert welcome.output
            await agent.send(Output("a1", "n0", [line("hello", 3)]))
            await asyncio.to_thread(wait_until, lambda: get()["total"] == 1, 20, "the line is kept")

    def get() -> Any:
        return httpx.get(f"{server.url}/api/v1/runs/r/output", params={"rank": 0, "step": 3}).json()

    asyncio.run(send())
    assert [(one["text"], one["step"], one["node"]) for one in get()["lines"]] == [("hello", 3, "n0")]
    httpx.delete(f"{server.url}/api/v1/runs/r", params={"force": "true"}).raise_for_status()
    assert httpx.get(f"{server.url}/api/v1/runs/r/output").status_code == 404
