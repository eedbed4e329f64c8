"""A server that is killed again and again judges on where it was: real processes, kill -9, nothing told twice."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import httpx
import orjson
import pytest

from stabilitybackend.runs.backtest import backtest
from stabilitybackend.schema.incidents import decoded
from stabilityclient.wire import Frame
from support.eventful_run import as_frames, eventful_rows, facts
from support.gateway_stack import RawAgent
from support.processes import Server
from support.waiting import wait_until

#: Frame numbers at which the server is killed, and what is waited for before it: that the frames are folded, that the
#: run has just been written down, or nothing.
KILLS = [(12, "folded"), (21, "written"), (26, "nothing"), (37, "written"), (40, "folded"), (44, "nothing")]


@pytest.fixture
def server(tmp_path: Path, free_port: int) -> Iterator[Server]:
    with Server(tmp_path / "data", free_port) as running:
        yield running


def taken_up(server: Server) -> float:
    """Return how many runs this life of the server has taken up from files."""
    text = httpx.get(f"{server.url}/metrics", verify=False).text
    found = re.search(r'^stability_restart_files_total\{outcome="taken_up"\} (\S+)', text, re.MULTILINE)
    return float(found[1]) if found else 0.0


async def send(server: Server, frames: list[Frame]) -> None:
    async with RawAgent(f"{server.url.replace('http', 'ws')}/api/v1/agent") as agent:
        await agent.begin(*frames)


@pytest.mark.soak
def test_after_kills_at_many_moments_incidents_and_points_are_those_of_a_server_that_was_never_killed(
    server: Server,
) -> None:
    rows = eventful_rows(declared=True)
    frames = as_frames(rows, range(0, 1_000, 16))
    fold = server.data_dir / "restart" / "run-1" / "fold"
    edges = [0, *(at for at, _ in KILLS), len(frames)]
    takes = 0.0
    for (first, last), (_, until) in zip(pairwise(edges), [*KILLS, (0, "end")], strict=True):
        before = fold.stat().st_mtime_ns if fold.exists() else 0
        asyncio.run(send(server, frames[first:last]))
        if until == "folded":
            server.wait_for(
                "/runs/run-1", lambda r, n=last: r["effective_points"] + r["dead_points"] >= 15 * n, "folded"
            )
        elif until == "written":
            wait_until(lambda b=before: fold.exists() and fold.stat().st_mtime_ns > b, 30, "the run is written down")
        if until != "end":
            server.kill()
            server.start()
            wait_until(
                lambda: httpx.get(f"{server.url}/readyz", verify=False).status_code == 200, 60, "the server is ready"
            )
            takes += taken_up(server)
    steps = sorted({row[0] for row in rows if row[2]})
    run = server.wait_for("/runs/run-1", lambda r: r["last_step"] == steps[-1], "all is folded")
    expected = backtest(frames, run_id="run-1").incidents
    found = server.wait_for("/runs/run-1/incidents", lambda r: len(r["incidents"]) >= len(expected), "judged")
    assert facts(decoded(orjson.dumps(one)) for one in found["incidents"]) == facts(expected)
    assert run["effective_points"] + run["dead_points"] == sum(bool(row[2]) for row in rows)
    assert takes > 0
