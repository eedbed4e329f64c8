"""Old runs go once, whichever process is asked: each worker removes its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from stabilitybackend.runs.index import RunIndex
from stabilitybackend.storage.redis_link import make_redis
from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis
from stabilityclient.wire import Hello
from support.server_stack import RunningServer

DAY_S = 86_400.0
OLD = [f"old-{n}" for n in range(12)]


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[RunningServer]:
    """A process of pages beside two workers, with twelve runs of a month ago and one of today."""
    with EmbeddedRedis(tmp_path) as redis, ExitStack() as stack:

        async def register() -> None:
            client = make_redis(redis.url)
            for run in OLD:
                await RunIndex(client).register(Hello(run, "a1", "n0", "0.1.0"), time.time() - 30 * DAY_S)
            await RunIndex(client).register(Hello("new", "a1", "n0", "0.1.0"), time.time())
            await client.aclose()

        asyncio.run(register())
        for name in ("worker", "other"):
            worker = RunningServer(redis.url, tmp_path / name, role=("worker",), archive_url=str(tmp_path / "archive"))
            stack.enter_context(worker)
        yield stack.enter_context(
            RunningServer(redis.url, tmp_path / "pages", role=("pages",), archive_url=str(tmp_path / "archive"))
        )


def test_a_process_of_pages_lets_each_worker_remove_its_own_runs_and_answers_for_all(pages: RunningServer) -> None:
    dry = pages.client.post("/api/v1/retention?days=7&dry_run=true").json()["runs"]
    assert sorted(run["run_id"] for run in dry) == sorted(OLD)
    answer = pages.client.post("/api/v1/retention?days=7", timeout=60).json()["runs"]
    assert sorted((run["run_id"], run["deleted"], run["problem"]) for run in answer) == [
        (run, True, None) for run in sorted(OLD)
    ]
    deleted = [one["target"] for one in pages.get("/audit", limit=50)["entries"] if one["action"] == "run.delete"]
    assert sorted(deleted) == sorted(OLD)
    assert [run["run_id"] for run in pages.get("/runs")["runs"]] == ["new"]
    short = pages.client.post("/api/v1/retention?days=0.5")
    assert (short.status_code, short.json()["error"]["code"]) == (422, "bad_request")
