"""What Prometheus reads: real servers, parsed with Prometheus' own parser."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from stabilitybackend.access.auth import KeyRing
from stabilitybackend.base.judging_lag import JUDGED_WITHIN_S, JudgingLag
from stabilitybackend.base.loop_lag import BUCKETS_S, LoopLag
from stabilitybackend.server.metrics import MAX_RUNS, OTHERS, ServerMetrics
from stabilitybackend.storage.redis_link import make_redis
from stabilityclient.wire import Ack
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.server_stack import RunningServer

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"


@pytest.fixture
def server(redis_url: str, tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(redis_url, tmp_path) as running:
        yield running


def read(text: str) -> dict[tuple[str, ...], float]:
    """Return the samples by name and label values."""
    families = text_string_to_metric_families(text)
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


async def test_what_was_stored_sent_again_and_followed_is_counted(server: RunningServer) -> None:
    job = Job()
    first, second = job.rows([1, 2, 3]), job.rows([4])
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(first, second)
        await agent.send(first)
        await agent.next(Ack)
        await asyncio.to_thread(server.wait_for, "/runs/run-1", lambda r: r["last_step"] == 4, "step 4 is there")
        found = read(server.client.get("/metrics").text)
    assert found[("stability_frames_stored_total",)] == 2
    assert found[("stability_records_stored_total",)] == 4
    assert found[("stability_frames_duplicate_total",)] == 1
    assert (found[("stability_agents",)], found[("stability_storing",)]) == (1, 1)
    assert sum(value for key, value in found.items() if key[0] == "stability_runs") == 1
    assert found[("stability_run_cpu_seconds_total", "run-1")] > 0
    batches, waited_s = (found[(f"stability_judging_lag_seconds_{name}",)] for name in ("count", "sum"))
    assert (1 <= batches <= 2, 0 < waited_s < 60) == (True, True)
    assert abs(found[("stability_redis_clock_ahead_seconds",)]) < 2
    assert found[("stability_ownership_refused_total",)] == 0
    assert found[("process_resident_memory_bytes",)] > 0


def test_the_page_about_operations_names_every_metric_and_no_other(server: RunningServer) -> None:
    families = text_string_to_metric_families(server.client.get("/metrics").text)
    told = {f"{f.name}_total" if f.type == "counter" else f.name for f in families if f.name.startswith("stability_")}
    assert told == set(re.findall(r"^\| `(stability_\w+)` \|", PAGE.read_text(), re.MULTILINE))


def test_beyond_loopback_metrics_take_a_key_that_may_read(redis_url: str, tmp_path: Path) -> None:
    async def keys() -> list[str]:
        redis = make_redis(redis_url)
        made = [(await KeyRing(redis).create(name, [name]))[1] for name in ("read", "agent")]
        await redis.aclose()
        return made

    reader, agent = asyncio.run(keys())
    with RunningServer(redis_url, tmp_path, host="0.0.0.0") as server:
        codes = [
            httpx.get(f"{server.url}/metrics", headers=headers).status_code
            for headers in ({}, {"Authorization": f"Bearer {agent}"}, {"Authorization": f"Bearer {reader}"})
        ]
        text = httpx.get(f"{server.url}/metrics", headers={"Authorization": f"Bearer {reader}"}).text
    assert codes == [401, 403, 200]
    assert reader not in text


def test_the_runs_that_take_most_have_a_series_and_keep_it_and_all_others_share_one() -> None:
    metrics = object.__new__(ServerMetrics)
    metrics._named = set()
    spent = {f"run-{i:03}": float(i) for i in range(100)}
    first = dict(metrics._cpu(spent))
    spent["run-000"] = 1_000.0
    second = dict(metrics._cpu(spent))
    assert set(first) == set(second) == {f"run-{i:03}" for i in range(100 - MAX_RUNS, 100)} | {OTHERS}
    assert sum(second.values()) == sum(spent.values())


def test_a_frame_waits_from_when_redis_stored_it_until_it_is_judged_and_never_less_than_nothing() -> None:
    lag = JudgingLag(lambda: 100.0)
    for stored in (100.2, 99.998, 97.0, -900.0):
        lag.judged(stored)
    counts = dict(zip((*JUDGED_WITHIN_S, "longer"), lag.counts, strict=True))
    assert {bound: count for bound, count in counts.items() if count} == {0.01: 2, 5.0: 1, "longer": 1}
    assert lag.waited_s == pytest.approx(0.002 + 3.0 + 1_000.0)


def test_a_loop_that_stands_is_felt() -> None:
    loop_lag = LoopLag(lambda: 0.0)
    for late_s in (-0.001, 0.0004, 0.06, 7.0):
        loop_lag.note(late_s)
    assert (sum(loop_lag.counts), loop_lag.counts[0], loop_lag.counts[-1]) == (4, 2, 1)
    assert (loop_lag.stalls, loop_lag.longest_s, len(loop_lag.counts)) == (2, 7.0, len(BUCKETS_S) + 1)
