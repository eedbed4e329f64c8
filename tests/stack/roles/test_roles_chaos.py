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

import httpx
import pytest

from support.outside.receiver_thread import ReceiverThread
from support.redis_servers.cluster import RedisNodes
from support.roles.chaos import ALL_FAULTS, ON_A_CLUSTER, Chaos, order_rollback
from support.roles.checker import ENDS, Checker
from support.roles.servers import RoleServers
from support.waiting import wait_until

sys.path.insert(0, str(Path(__file__).parent))
from chaos_values import value_of

#: A job does what is ordered within so many seconds (times the tests' patience).
OBEYS_S = 6.0
#: Of the faults, those after which Redis may lack its newest writes: a power cut, and a replica that takes over.
_LOSE = {"cut_power", "kill_master", "stop_master"}
#: A small window, so that parts are written whenever somebody is killed.
WINDOW_MIB = 0.05
#: What is done in each `make test`: 60 turns draw every fault, and a machine that does much else has a minute to obey.
TURNS, SEED, OBEYS_BESIDE_MUCH_S = 60, 19, 20.0


@contextmanager
def running(
    folder: Path, receiver: ReceiverThread, planted: str, window_mib: float, nodes: RedisNodes | None
) -> Iterator[RoleServers]:
    """Two doors, three workers and alerting."""
    settings = {
        "window_mib": window_mib, "webhook_url": f"{receiver.url}/hook", "webhook_secret": "of the test",
        "test_planted": f"accepted,impatient,stepped_clock,{planted}",
    }  # fmt: skip
    with RoleServers(folder / "server", nodes, **settings) as servers:
        for name in ("door-1", "door-2", "worker-1", "worker-2", "worker-3", "alerting-1"):
            servers.add(name, name.partition("-")[0])
        servers.ready()
        yield servers


def wrongs(
    folder: Path, seed: int, turns: int, *, runs: int = 4, planted: str = "", faults: tuple[str, ...] = ALL_FAULTS,
    pause_s: float = 0.25, metrics: int = 0, cluster: bool = False, obeys_s: float = OBEYS_S,
) -> list[str]:  # fmt: skip
    """Return what the checker finds after so many turns, on one Redis or on a cluster of three with a replica each."""
    window_mib = 8.0 if metrics else WINDOW_MIB
    with ExitStack() as stack:
        receiver = stack.enter_context(ReceiverThread())
        nodes = stack.enter_context(RedisNodes(folder / "nodes")) if cluster else None
        servers = stack.enter_context(running(folder, receiver, planted, window_mib, nodes))
        chaos = Chaos(servers, folder, runs, random.Random(seed), faults, metrics)
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
            checker = Checker(
                servers.client, servers.folder / "archive", value_of, newest_may_be_lost=bool(_LOSE & chaos.done.keys())
            )
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
    assert wrongs(tmp_path, SEED, TURNS, runs=2, pause_s=0.15, obeys_s=OBEYS_BESIDE_MUCH_S) == []


@pytest.mark.soak
def test_nothing_is_wrong_on_a_cluster_whoever_is_killed(tmp_path: Path) -> None:
    turns = int(os.environ.get("CHAOS_KILLS", "1000"))
    seed = int(os.environ.get("CHAOS_SEED", "1"))
    assert wrongs(tmp_path, seed, turns, runs=6, faults=ON_A_CLUSTER, cluster=True) == []


@pytest.mark.soak
@pytest.mark.parametrize("seed", [int(os.environ.get("CHAOS_SEED", "1"))])
def test_nothing_is_wrong_whoever_is_killed(tmp_path: Path, seed: int) -> None:
    assert wrongs(tmp_path, seed, int(os.environ.get("CHAOS_KILLS", "1000")), runs=8) == []
