"""A run that has ended is whole again after its Redis lost it, as long as nothing else had it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from stabilitybackend.base.keys import RunKeys
from stabilityclient.sidecar import agent_lives
from support.agent.spooled import child, spools
from support.plain_redis import PlainRedis
from support.server_stack import RunningServer
from support.waiting import wait_until

STEPS = 200


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[PlainRedis]:
    """Return a Redis that keeps nothing on its disk."""
    (tmp_path / "primary").mkdir()
    with PlainRedis(tmp_path / "primary", "--repl-diskless-sync-delay", "0") as node:
        yield node


@pytest.fixture
def replica(tmp_path: Path, primary: PlainRedis) -> Iterator[PlainRedis]:
    (tmp_path / "replica").mkdir()
    with PlainRedis(tmp_path / "replica", "--replicaof", "127.0.0.1", str(primary.port)) as node:
        yield node
        node.send_signal(signal.SIGCONT)


def _steps(server: RunningServer) -> int:
    answer = server.client.get("/api/v1/runs/r/series", params={"metric": "loss"})
    return len(answer.json()["series"][0]["steps"]) if answer.status_code == 200 and answer.json()["series"] else 0


def _stored(node: PlainRedis) -> int:
    """Return the newest number that Redis holds of the job's one rank: of its rows and its events."""
    with Redis.from_url(node.url) as client:
        found: dict[bytes, bytes] = client.hgetall(RunKeys("r").last_seq)
        return max((int(last) for name, last in found.items() if name.startswith(b"r0-")), default=0)


def _times_asked(node: PlainRedis) -> int:
    """Return how often the server has asked whether its replica follows."""
    return int(node.info("commandstats").get("cmdstat_wait", {}).get("calls", 0))


def test_a_primary_that_is_killed_after_the_end_while_its_replica_was_stalled_is_filled_again(
    tmp_path: Path, primary: PlainRedis, replica: PlainRedis
) -> None:
    spool = tmp_path / "spool"
    with RunningServer(primary.url, tmp_path / "data") as server:
        wait_until(lambda: primary.info("replication").get("connected_slaves") == 1, 20, "the replica follows")
        replica.send_signal(signal.SIGSTOP)
        job = child(
            f"""
import stabilityclient
run = stabilityclient.init(run_id="r", dir={str(spool)!r}, url={server.url!r})
for step in range({STEPS}):
    run.log(step, {{"loss": 1.0}})
print(run.finish())
""",
            STABILITY_DRAIN_S="120",
        )
        assert job.communicate(timeout=60)[0].strip() == "delivered"
        wait_until(lambda: _steps(server) == STEPS, 20, "the server has all of it")
        asked = _times_asked(primary)
        wait_until(lambda: _times_asked(primary) >= asked + 2, 30, "nothing of it is durable, and the agent knows")
        primary.come_back_empty()
        wait_until(lambda: _stored(primary) > STEPS, 60, "the agent has sent it again")
        wait_until(lambda: _steps(server) == STEPS, 20, "the server has all of it again")
        assert spools(spool / "r")
        replica.send_signal(signal.SIGCONT)
        wait_until(lambda: not agent_lives(spool / "r"), 60, "the agent leaves when it can't be lost")
        assert spools(spool / "r") == []
