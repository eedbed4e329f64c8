"""Machines whose clocks are an hour apart: a job is judged, taken over and rolled back as if they were not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.outside.receiver_thread import ReceiverThread
from support.processes import Ranks
from support.roles.chaos import order_rollback
from support.roles.servers import RoleServers
from support.waiting import wait_until

#: Which process has which clock; alerting has that of Redis.
CLOCKS = {"door-1": "hour_ahead", "worker-1": "hour_behind", "worker-2": "hour_ahead", "alerting-1": ""}


def log_of(servers: RoleServers, name: str) -> str:
    return (servers.folder / name / "server.log").read_text()


@pytest.mark.soak  # five processes; api/test_probes.py and process/test_members.py of tests/backend have the laws
def test_clocks_an_hour_apart_are_named_and_cause_no_alarm_no_lost_order_and_no_alert_twice(tmp_path: Path) -> None:
    with (
        ReceiverThread() as receiver,
        RoleServers(
            tmp_path / "server", webhook_url=f"{receiver.url}/hook", webhook_secret="of the test"
        ) as servers,
    ):  # fmt: skip
        for name, clock in CLOCKS.items():
            servers.add(name, name.partition("-")[0], test_planted=clock)
        servers.ready()
        ranks = Ranks(
            "roles/steady_rank.py", [str(tmp_path / "enough"), "0.02", "30"], url=servers.url,
            folder=tmp_path / "spool", run_id="clocks", world_size=1,
        )  # fmt: skip
        with ranks:
            for turn in range(2):  # each worker owns it once
                owner = servers.owned("clocks")
                first = servers.owner_of("clocks")
                owner.wait_for("/runs/clocks/incidents", lambda found: found["incidents"], "the NaN is found")
                step = owner.get("/runs/clocks")["last_step"]
                owner.wait_for("/runs/clocks", lambda run, step=step: run["last_step"] > step + 40, "it goes on")
                with httpx.Client(base_url=owner.url, timeout=10.0) as client:
                    ordered = lambda client=client: order_rollback(client, "clocks").json().get("command_id")  # noqa: E731
                    order = wait_until(ordered, 30, "a rollback can be ordered")
                owner.wait_for(
                    "/runs/clocks/commands",
                    lambda found, order=order: any(
                        one["command_id"] == order and one["state"] == "done" for one in found["commands"]
                    ),
                    "the job went back",
                )
                if turn == 0:
                    owner.kill()
                    wait_until(
                        lambda first=first: servers.owner_of("clocks") not in (first, ""), 30, "it is taken over"
                    )
            (tmp_path / "enough").touch()
            (lines,) = ranks.outputs()
            assert lines[-2:] == ["delivered", ""]
        owner.wait_for("/runs/clocks", lambda run: run["status"] == "finished", "the run is over")
        assert [one["kind"] for one in owner.get("/runs/clocks/incidents")["incidents"]] == ["nonfinite"]
        wait_until(lambda: receiver.heard("/hook", "incident.opened"), 30, "an alert came")
        alerts: list[Any] = [json.loads(body) for path, body in receiver.received if path == "/hook"]
        assert [one["type"] for one in alerts].count("incident.opened") == 1, alerts
        for name, clock in CLOCKS.items():
            side = {"hour_ahead": "ahead of", "hour_behind": "behind", "": None}[clock]
            told = "the clock of this machine is 3,600 s " in log_of(servers, name)
            assert (told, side is None or side in log_of(servers, name)) == (clock != "", True), name
