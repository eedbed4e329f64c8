"""What is asked of each master of a cluster: whether it stores, what of it is durable, and whether it lost anything."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from stabilityalerting import AlertingService, RecordingSink, RetryPolicy, Server
from stabilitybackend.base.errors import Unavailable
from stabilitybackend.base.keys import RunKeys
from stabilitybackend.base.tasks import end
from stabilitybackend.ingest.durability import Durability
from stabilitybackend.ingest.ingest import Ingest, StoredFrames
from stabilitybackend.runs.stream_watch import StreamWatch
from stabilitybackend.schema.runs import StoringProblem
from stabilitybackend.storage.redis_link import ClusterClient, make_redis
from stabilitybackend.storage.storing import Storing
from stabilityclient.wire import encode_message
from support.gateway_stack import SOURCE, frame
from support.incident_stream import incident
from support.redis_servers.cluster import RedisNodes
from support.waiting import until


async def runs_of_each(client: ClusterClient) -> dict[str, str]:
    """Return a run that each master has."""
    await client.initialize()
    return {client.master_of(RunKeys(f"run-{n}").frames): f"run-{n}" for n in range(30)}


class Agent:
    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.stored = {"r0-1": 7}
        self.told: list[Mapping[str, int]] = []

    async def durable(self, last_seq: Mapping[str, int]) -> None:
        self.told.append(dict(last_seq))
        self.stored = {}

    async def lost(self, last_seq: Mapping[str, int]) -> None:
        raise AssertionError("nothing was lost")


async def test_a_full_master_is_named_and_the_others_store(nodes: RedisNodes, cluster: ClusterClient) -> None:
    said: list[StoringProblem | None] = []
    storing = Storing(cluster, lambda: 1.0)
    storing.watch(said.append)
    await storing.probe()
    assert said == []
    full = nodes.masters[1]
    full.ask("CONFIG SET", "maxmemory", "1")
    await storing.probe()
    full.ask("CONFIG SET", "maxmemory", "0")
    await storing.probe()
    problem, well = said
    assert problem is not None
    assert (problem.code, well) == ("redis_full", None)
    assert f"(node {full.name}). Of the runs there nothing is stored" in problem.problem


async def test_frames_of_the_other_masters_are_stored_while_one_is_full(
    nodes: RedisNodes, cluster: ClusterClient
) -> None:
    runs = await runs_of_each(cluster)
    full = nodes.masters[0]
    full.ask("CONFIG SET", "maxmemory", "1")
    message = encode_message(frame(1, [1.0]))
    async with Ingest(cluster) as ingest:
        waiting = [ingest.append(run_id, SOURCE, 1, 1, message) for run_id in runs.values()]
        found = dict(zip(runs, await asyncio.gather(*waiting, return_exceptions=True), strict=True))
    full.ask("CONFIG SET", "maxmemory", "0")
    assert [name for name, one in found.items() if not isinstance(one, StoredFrames)] == [full.name]
    assert isinstance(found[full.name], Unavailable)


async def test_while_one_replica_is_stalled_only_the_runs_of_its_master_are_not_durable(
    nodes: RedisNodes, cluster: ClusterClient
) -> None:
    runs = await runs_of_each(cluster)
    agents = {name: Agent(run_id) for name, run_id in runs.items()}
    for agent in agents.values():
        await cluster.hset(RunKeys(agent.run_id).last_seq, "r0-1", 7)
    client = make_redis(nodes.url, connections=1)
    durability = Durability(client, {})
    assert await until(durability.holds, 30, "each node can say what it holds")
    nodes.replicas[2].send_signal(signal.SIGSTOP)
    stalled = nodes.masters[2].name
    durability = Durability(client, agents)

    async def others_know() -> bool:
        await durability.notify()
        return sum(bool(agent.told) for agent in agents.values()) == 2

    try:
        await until(others_know, 60, "the agents of the other masters are told")
        assert not agents[stalled].told
    finally:
        nodes.replicas[2].send_signal(signal.SIGCONT)

    async def all_know() -> bool:
        await durability.notify()
        return bool(agents[stalled].told)

    await until(all_know, 60, "it is told, too")
    await client.aclose()


async def test_alerts_of_runs_on_all_masters_are_sent(cluster: ClusterClient) -> None:
    runs = await runs_of_each(cluster)
    streams = [RunKeys(run_id).incident_events for run_id in runs.values()]
    sink, stop = RecordingSink(), asyncio.Event()

    async def names() -> list[str]:
        return [*streams, RunKeys("no-incident-yet").incident_events]

    quick = RetryPolicy(per_second=1e3, burst=1_000)
    service = AlertingService(
        cluster, Server(names, "http://board", lambda: 1.0), [sink], retry_policy=quick, lease_s=2.0
    )
    sending = asyncio.create_task(service.run(stop))
    for number, (run_id, stream) in enumerate(zip(runs.values(), streams, strict=True)):
        await cluster.xadd(stream, {"i": orjson.dumps(incident(number, run_id=run_id, kind=f"kind-{number}"))})
    await until(lambda: len(sink.notices) == len(runs), 30, "each is told")
    stop.set()
    await sending
    assert {one.alert.run_id for one in sink.notices} == set(runs.values())


class _Rest:
    rests = True

    def __init__(self) -> None:
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


class _Journal:
    interrupted = False


class _Worker:
    """As much of a worker as the watch sees."""

    has_agents = False
    cursor = "0-0"

    def __init__(self, run_id: str) -> None:
        self.run_id, self.rest, self.journal = run_id, _Rest(), _Journal()


async def test_runs_are_woken_by_frames_and_warned_when_a_master_comes_back_without_its_newest(
    tmp_path: Path,
) -> None:
    with RedisNodes(tmp_path / "nodes") as nodes:
        client = make_redis(nodes.url)
        workers: dict[str, Any] = {name: _Worker(run_id) for name, run_id in (await runs_of_each(client)).items()}
        watch = asyncio.create_task(StreamWatch(client, lambda: list(workers.values())).follow())
        await client.xadd(RunKeys(workers[nodes.masters[0].name].run_id).frames, {"b": "x"})
        await until(lambda: workers[nodes.masters[0].name].rest.woken, 30, "its worker is woken")
        assert [one.rest.woken for name, one in workers.items() if name != nodes.masters[0].name] == [0, 0]
        nodes.masters[1].kill()
        nodes.masters[1].start()  # before anybody took its place
        await until(lambda: all(one.journal.interrupted for one in workers.values()), 30, "all look at what is there")
        await end(watch)  # a client that is connecting may swallow one request to end
        await client.aclose()
