"""One small job, end to end, on a Redis of many servers: alerts, archive, page, a rollback, and who is killed.

The first test has it all at once (a cluster, TLS, a user with the listed commands only, a master killed with -9), since
each start of a server costs; the long ones take each for itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from stabilitybackend.storage.redis_link.checks import acl_line
from support.outside.receiver_thread import ReceiverThread
from support.plain_redis import PlainRedis
from support.processes import Ranks, Server
from support.redis_servers.certificates import make_certificate
from support.redis_servers.cluster import RedisNodes
from support.redis_servers.sentinel import WatchedRedis
from support.redis_servers.users import PASSWORD, denied, user_options
from support.waiting import wait_until

RUN = "small"
ONSET = 120


def lives(redis_url: str, folder: Path, port: int, kill: Callable[[], Any]) -> float:
    """Let a job train, spike, be told of, be rolled back and go on while somebody is killed; return the outage in s.

    Args:
        kill: called while the job trains; what it had acknowledged must be there at the end.
    """
    plan = {"onset": ONSET, "every": 25, "checkpoints": str(folder), "period_s": 0.02}
    plan["enough"] = str(folder / "enough")
    with ReceiverThread() as outside:
        env = {
            "STABILITY_REDIS_URL": redis_url, "STABILITY_WINDOW_MIB": "0.02",
            "STABILITY_WEBHOOK_URL": f"{outside.url}/hook", "STABILITY_WEBHOOK_SECRET": "secret",
        }  # fmt: skip
        with Server(folder / "data", port, env) as server:
            ranks = Ranks(
                "orders/spiking_rank.py", [json.dumps(plan)], url=server.url, folder=folder / "spool", run_id=RUN
            )
            with ranks:
                server.wait_for(f"/runs/{RUN}", lambda run: (run["last_step"] or 0) > 30, "the job trains")
                before = server.get(f"/runs/{RUN}")["last_step"]
                killed = time.monotonic()
                kill()
                path = f"/runs/{RUN}"
                server.wait_for(path, lambda run: (run["last_step"] or 0) > before + 20, "its rows come on", 60)
                outage = time.monotonic() - killed
                server.wait_for(f"{path}/incidents", _spike, "the spike is found", 60)
                order = {"kind": "rollback", "to_step": 100, "idempotency_key": "k", "expires_s": 60}
                answer = httpx.post(
                    f"{server.url}/api/v1{path}/commands", json=order | {"accept_inside_incident": True}, verify=False
                )
                assert answer.status_code == 201, answer.text
                ordered = f"{path}/commands/{answer.json()['command_id']}"
                server.wait_for(ordered, lambda one: one["state"] == "done", "it is rolled back", 60)
                server.wait_for(path, lambda run: run["last_step"] > ONSET + 40, "it goes on", 60)
                (folder / "enough").touch()
                ends = [json.loads(lines[0]) for lines in ranks.outputs()]
            server.wait_for(path, lambda run: run["status"] == "finished", "it is finished", 60)
            server.wait_for(f"{path}/storage", lambda one: one["cold"]["rows"] > 0, "a part of it is archived", 60)
            _told_once(outside)
            assert [[back["to_step"] for back in end["went_back"]] for end in ends] == [[100], [100]]
            series = server.get(f"{path}/series", metric=["loss"])["series"]
            for rank, end in enumerate(ends):
                steps = sorted(step for one in series if one["rank"] == rank for step in one["steps"])
                assert steps == sorted(set(steps))
                assert set(range(1, end["last"] + 1)) <= set(steps)
            page = httpx.get(f"{server.url}/runs/{RUN}", verify=False)
            assert (page.status_code, "text/html" in page.headers["content-type"]) == (200, True)
            probe = httpx.get(f"{server.url}/readyz", verify=False)
            assert probe.status_code == 200, probe.text
    return outage


def _spike(found: dict[str, Any]) -> bool:
    return any(one["kind"] in ("spike", "level_shift") for one in found["incidents"])


def _told_once(outside: ReceiverThread) -> None:
    """Each incident that people hear of was told once."""
    wait_until(lambda: outside.heard("/hook", "opened"), 60, "it is told")
    keys = [json.loads(body)["id"] for _, body in outside.received]
    assert len(keys) == len(set(keys)), keys


@pytest.mark.soak  # tests/backend/redis_link has the laws of clusters, TLS and users
def test_on_a_cluster_with_tls_and_a_user_of_the_listed_commands_while_a_master_is_killed(
    tmp_path: Path, free_port: int
) -> None:
    user = user_options(acl_line(), "board")
    with RedisNodes(tmp_path / "nodes", *user, tls=make_certificate(tmp_path / "tls")) as nodes:
        url = nodes.url_for(f"board:{PASSWORD}@")
        outage = lives(url, tmp_path, free_port, lambda: nodes.fail_over(f"sb:{{{RUN}}}:frames"))
        refused = []
        for node in nodes.nodes:
            with node.client() as client:
                refused += denied(client)
    print(f"a master killed with -9: rows come on after {outage:.1f} s")
    assert refused == []
    assert outage < 60


@pytest.mark.soak
def test_on_a_plain_cluster(tmp_path: Path, free_port: int) -> None:
    with RedisNodes(tmp_path / "nodes") as nodes:
        print("outage", lives(nodes.url, tmp_path, free_port, lambda: nodes.fail_over(f"sb:{{{RUN}}}:frames")))


@pytest.mark.soak
def test_on_a_cluster_whose_run_moves_to_another_master(tmp_path: Path, free_port: int) -> None:
    def move() -> None:
        source = nodes.owner(f"sb:{{{RUN}}}:frames")
        target = next(node for node in nodes.masters if node is not source)
        nodes.move_slot(f"sb:{{{RUN}}}:frames", source, target)

    with RedisNodes(tmp_path / "nodes") as nodes:
        print("outage", lives(nodes.url, tmp_path, free_port, move))


@pytest.mark.soak
def test_on_what_sentinels_watch(tmp_path: Path, free_port: int) -> None:
    with WatchedRedis(tmp_path / "watched") as watched:
        print("outage", lives(watched.url, tmp_path, free_port, watched.fail_over))


@pytest.mark.soak
def test_on_one_server_with_tls(tmp_path: Path, free_port: int) -> None:
    with PlainRedis(tmp_path, "--appendonly", "yes", tls=make_certificate(tmp_path / "tls")) as one:
        print("outage", lives(one.url, tmp_path, free_port, lambda: (one.kill(), one.come_back())))
