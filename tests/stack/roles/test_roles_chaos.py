"""A server of several processes whose parts are killed, stopped and cut off: a checker finds nothing wrong."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal
from unittest.mock import patch

import httpx
import pytest

from support.agent.s3_server import KEYS, s3_server
from support.agent.store_proxy import StoreProxy, store_proxy
from support.outside.receiver_thread import ReceiverThread
from support.redis_servers.cluster import RedisNodes
from support.redis_servers.sentinel import WatchedRedis
from support.roles.chaos import (
    ALL_FAULTS,
    ON_A_CLUSTER,
    ON_SENTINEL,
    WITH_A_BUCKET,
    WITH_A_FULL_REDIS,
    Chaos,
    order_rollback,
)
from support.roles.checker import ENDS, Checker
from support.roles.servers import RoleServers
from support.waiting import wait_until

sys.path.insert(0, str(Path(__file__).parent))
from chaos_values import value_of

#: A job does what is ordered within so many seconds (times the tests' patience).
OBEYS_S = 6.0
#: Of the faults, those after which Redis may lack its newest writes: a power cut, and a replica that takes over.
_LOSE = {"cut_power", "kill_master", "lose_master", "stop_master"}
#: How often something is done, and what decides.
TURNS, SEED = int(os.environ.get("CHAOS_KILLS", "1000")), int(os.environ.get("CHAOS_SEED", "1"))
#: What Redis is: one server, a cluster of three masters with a replica each, or what a Sentinel watches, with two.
On = Literal["one", "cluster", "sentinel"]
#: As docs/operations.md says: a primary that is cut off takes nothing that its successor would not know.
SAFE = ("--min-replicas-to-write", "1", "--min-replicas-max-lag", "10")
#: A small window, so that parts are written whenever somebody is killed.
WINDOW_MIB = 0.05
#: What is done in each `make test`: 60 turns draw every fault, and a machine that does much else has a minute to obey.
FEW_TURNS, FEW_SEED, OBEYS_BESIDE_MUCH_S = 60, 19, 20.0


def redis_nodes(folder: Path, on: On) -> RedisNodes | WatchedRedis | None:
    """Return what is to run in place of one Redis, None for one."""
    if on == "sentinel":
        return WatchedRedis(folder, *SAFE, replicas=2)
    return RedisNodes(folder) if on == "cluster" else None


@contextmanager
def a_bucket() -> Iterator[StoreProxy]:
    """A bucket and what stands before it, which the environment names while the context lasts."""
    with s3_server() as s3, store_proxy(s3) as bucket, patch.dict(os.environ, KEYS | {"AWS_ENDPOINT_URL": bucket.url}):
        yield bucket


@contextmanager
def running(
    folder: Path,
    receiver: ReceiverThread,
    planted: str,
    window_mib: float,
    nodes: RedisNodes | WatchedRedis | None,
    archive: str,
) -> Iterator[RoleServers]:
    """Two doors, three workers and alerting."""
    settings = {
        "window_mib": window_mib, "webhook_url": f"{receiver.url}/hook", "webhook_secret": "of the test",
        "test_planted": f"accepted,impatient,stepped_clock,{planted}", "archive_url": archive,
    }  # fmt: skip
    with RoleServers(folder / "server", nodes, own=True, **settings) as servers:
        for name in ("door-1", "door-2", "worker-1", "worker-2", "worker-3", "alerting-1"):
            servers.add(name, name.partition("-")[0])
        servers.ready()
        yield servers


def wrongs(
    folder: Path, seed: int, turns: int, *, runs: int = 4, planted: str = "", faults: tuple[str, ...] = ALL_FAULTS,
    pause_s: float = 0.25, metrics: int = 0, on: On = "one", archive_url: str = "", obeys_s: float = OBEYS_S,
) -> list[str]:  # fmt: skip
    """Return what the checker finds after so many turns. ``archive_url``: of a bucket, in place of a folder."""
    window_mib = 8.0 if metrics else WINDOW_MIB
    with ExitStack() as stack:
        receiver = stack.enter_context(ReceiverThread())
        bucket = stack.enter_context(a_bucket()) if archive_url else None
        archive = archive_url or str(folder / "server" / "archive")
        nodes = redis_nodes(folder / "nodes", on)
        if nodes is not None:
            stack.enter_context(nodes)
        servers = stack.enter_context(running(folder, receiver, planted, window_mib, nodes, archive))
        chaos = Chaos(servers, folder, runs, random.Random(seed), faults, metrics, bucket=bucket)
        try:
            for run_id in chaos.jobs:
                wait_until(lambda run_id=run_id: servers.owner_of(run_id), 60, f"{run_id} is followed")
            for _ in range(turns):
                chaos.turn(pause_s)
            chaos.settle()
            deaf = [why for run_id in chaos.jobs if (why := _deafness(servers, run_id, obeys_s))]
            outcomes = chaos.finish()
            for run_id in chaos.jobs:
                wait_until(lambda run_id=run_id: _at_rest(servers, run_id), 60, f"{run_id} is over")
            checker = Checker(servers.client, archive, value_of, newest_may_be_lost=bool(_LOSE & chaos.done.keys()))
            for run_id in chaos.jobs:
                with suppress(AssertionError):  # the checker names them
                    wait_until(lambda run_id=run_id: not checker.unknown_files(run_id), 30, "unknown files are gone")
        finally:
            chaos.kill_jobs()
            (folder / "history").write_text("\n".join(chaos.history))
        alerts = [json.loads(body) for path, body in receiver.received if path == "/hook"]
        for run_id in chaos.jobs:
            checker.check(run_id, chaos.folder_of(run_id), alerts)
        print(f"seed {seed}: {dict(chaos.done)}, {dict(checker.seen)}, {len(alerts)} alerts, {outcomes}")
        return [*checker.wrong, *deaf, *(f"{run}: {said}" for run, said in outcomes.items() if said != "delivered")]


def _deafness(servers: RoleServers, run_id: str, within_s: float) -> str:
    """Return "" where a job goes back when that is ordered now, else what was answered last.

    Its agent is connected then, and its run's owner knows where.
    """
    name, last = "", ""

    def ordered() -> bool:
        nonlocal name, last
        try:
            with httpx.Client(base_url=servers.owned(run_id).url, verify=False, timeout=5.0) as client:
                # The same order where the answer to the first try was lost.
                answer = order_rollback(client, run_id, idempotency_key=f"last-{run_id}")
            last = answer.text
            name = answer.json().get("command_id", "")
        except (httpx.HTTPError, KeyError, ValueError) as error:
            last = repr(error)
        return bool(name)

    def done() -> bool:
        nonlocal last
        with suppress(httpx.HTTPError):
            commands = servers.owned(run_id).get(f"/runs/{run_id}/commands")["commands"]
            (found,) = [one for one in commands if one["command_id"] == name]
            last = json.dumps(found)
            return bool(found["state"] == "done")
        return False

    try:
        wait_until(ordered, within_s, "it is taken")
        wait_until(done, within_s, "it is done")
    except AssertionError as error:
        return f"{run_id}: an order does not reach the job: {error}; at {time.time():.2f}: {last}"
    return ""


def _at_rest(servers: RoleServers, run_id: str) -> bool:
    """Whether a run's end is judged, and nothing is being stored of it."""
    asked = servers.servers[servers.owner_of(run_id) or "worker-1"]  # one that nobody owns is taken by whoever is asked
    with suppress(httpx.HTTPError):
        run = asked.get(f"/runs/{run_id}")
        ended = all(one["state"] in ENDS for one in asked.get(f"/runs/{run_id}/commands")["commands"])
        return bool(run["status"] == "finished" and ended and asked.get(f"/runs/{run_id}/storage")["state"] == "ok")
    return False


def test_nothing_is_wrong_after_sixty_faults(tmp_path: Path) -> None:
    assert wrongs(tmp_path, FEW_SEED, FEW_TURNS, runs=2, pause_s=0.15, obeys_s=OBEYS_BESIDE_MUCH_S) == []


@pytest.mark.soak
def test_nothing_is_wrong_whoever_is_killed(tmp_path: Path) -> None:
    assert wrongs(tmp_path, SEED, TURNS, runs=8) == []


@pytest.mark.soak
def test_nothing_is_wrong_on_a_cluster_whoever_is_killed(tmp_path: Path) -> None:
    assert wrongs(tmp_path, SEED, TURNS, runs=6, faults=ON_A_CLUSTER, on="cluster") == []


@pytest.mark.soak
def test_nothing_is_wrong_on_what_a_sentinel_watches_whoever_is_killed_and_takes_over(tmp_path: Path) -> None:
    assert wrongs(tmp_path, SEED, TURNS, faults=ON_SENTINEL, on="sentinel") == []


@pytest.mark.soak
def test_nothing_is_lost_or_stands_still_when_redis_has_been_full_for_seconds(tmp_path: Path) -> None:
    assert wrongs(tmp_path, SEED, TURNS, faults=WITH_A_FULL_REDIS) == []


@pytest.mark.soak
def test_nothing_is_lost_or_stands_still_when_the_bucket_was_slow_failing_silent_and_away(tmp_path: Path) -> None:
    assert wrongs(tmp_path, SEED, TURNS, faults=WITH_A_BUCKET, archive_url="s3://bucket/runs") == []
