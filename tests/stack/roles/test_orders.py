"""What people order reaches the job whichever process they are at, and while nobody owns its run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes import Ranks, Server
from support.roles.servers import RoleServers
from support.slack.fake_slack import FakeSlack, Posted
from support.waiting import wait_until

USERS = json.dumps({"U0ADA": "command"})


@pytest.fixture(scope="module")
def slack() -> Iterator[FakeSlack]:
    with FakeSlack() as running:
        yield running


@pytest.fixture(scope="module")
def processes(slack: FakeSlack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RoleServers]:
    with RoleServers(tmp_path_factory.mktemp("roles") / "server", retention_days=30) as found:
        variables = slack.variables(STABILITY_SLACK_USERS=USERS)
        app = {name.removeprefix("STABILITY_").lower(): value for name, value in variables.items()}
        for name in ("door-1", "worker-1", "pages-1"):
            found.add(name, name[:-2])
        found.add("alerting-1", "alerting", **app)
        found.ready()
        yield found


@pytest.fixture
def servers(processes: RoleServers) -> RoleServers:
    """All of them at work."""
    for server in processes.servers.values():
        assert server.process is not None
        if server.process.poll() is not None:
            server.start(wait=False)
    processes.ready()
    for key in list(processes.client.scan_iter("*storm*")):  # the runs before this one are no storm
        processes.client.delete(key)
    return processes


class Job:
    """A job of two ranks that is spoiled at step 60, with a good checkpoint of step 50."""

    def __init__(self, servers: RoleServers, folder: Path, run_id: str) -> None:
        self.run_id = run_id
        self._enough, checkpoints = folder / "enough", folder / "checkpoints"
        checkpoints.mkdir()
        self.ranks = Ranks(
            "orders/spoiled_job.py", [str(checkpoints), "0.02", str(self._enough)], url=servers.url,
            folder=folder / "spool", run_id=run_id, world_size=2,
        )  # fmt: skip

    def commands(self, server: Server) -> list[dict[str, Any]]:
        """Return what was ordered, newest first."""
        found: list[dict[str, Any]] = server.get(f"/runs/{self.run_id}/commands")["commands"]
        return found

    def spoiled(self, server: Server) -> str:
        """Return the id of its incident once it is found, and the job is past the checkpoint."""
        path = f"/runs/{self.run_id}/incidents"
        incidents = server.wait_for(path, lambda found: found["incidents"], "the NaN is found", 60)["incidents"]
        server.wait_for(f"/runs/{self.run_id}", lambda run: run["last_step"] >= 70, "it goes on", 60)
        return str(incidents[-1]["incident_id"])

    def ends(self) -> None:
        """Let it end."""
        self._enough.touch()
        self.ranks.outputs()


@pytest.fixture
def job(servers: RoleServers, tmp_path: Path) -> Iterator[Job]:
    found = Job(servers, tmp_path, f"run-{tmp_path.name[-20:].strip('_').replace('_', '-')}")
    with found.ranks:
        yield found
        found.ends()


def test_a_button_of_slack_in_a_process_of_alerting_alone_rolls_the_job_back_and_acknowledges(
    servers: RoleServers, slack: FakeSlack, job: Job
) -> None:
    pages = servers.servers["pages-1"]
    incident = job.spoiled(pages)

    def told(slack: FakeSlack) -> Posted | None:
        return next((one for one in slack.parents() if f"/{job.run_id}" in one.said()), None)

    parent = slack.wait_for(told, "the incident is told", 60)
    slack.wait_for(FakeSlack.listens, "the app listens")
    slack.press(parent, "stability_ack")
    pages.wait_for(
        f"/runs/{job.run_id}/incidents/{incident}",
        lambda found: found["acknowledged_by"] == "slack:ada", "it is acknowledged at the owner",
    )  # fmt: skip
    view = slack.asked(parent, "stability_roll_back")
    assert "All 2 ranks stop" in json.dumps(view)
    assert slack.deliver(slack.submit(view, "loss is NaN")) == {"response_action": "clear"}
    slack.wait_for(lambda s: any("done in" in one.text for one in s.replies(parent)), "it is done", 60)
    [command] = job.commands(pages)
    assert (command["issuer"], command["reason"], command["state"]) == ("slack:ada", "loss is NaN", "done")
    assert {rank["state"] for rank in command["ranks"].values()} == {"acted"}
    done = [one["action"] for one in pages.get("/audit", limit=20)["entries"] if one["who"] == "slack:ada"]
    assert sorted(done) == ["command.order", "incident.acknowledge"]
    assert not slack.late


@pytest.mark.soak  # tests/backend/runs/orders/test_waiting_orders.py has the law
def test_an_order_without_a_worker_waits_as_one_however_often_it_comes_and_the_next_owner_carries_it_out(
    servers: RoleServers, job: Job
) -> None:
    pages, worker = servers.servers["pages-1"], servers.servers["worker-1"]
    job.spoiled(pages)
    worker.kill()
    wish = {"kind": "rollback", "to_step": 50, "reason": "at three", "idempotency_key": f"key-{job.run_id}"}
    path = f"/api/v1/runs/{job.run_id}/commands"
    began = time.monotonic()
    first = pages._client.post(path, json=wish, timeout=30)
    print(f"answered after {time.monotonic() - began:.1f} s")
    again = pages._client.post(path, json=wish, timeout=30)
    assert (first.status_code, again.status_code) == (202, 202), first.text
    assert first.json()["command_id"] == again.json()["command_id"]
    other = pages._client.post(path, json={"kind": "rollback", "to_step": 0}, timeout=30)
    assert other.json()["error"]["code"] in ("conflict", "bad_request")
    [waiting] = job.commands(pages)
    assert (waiting["state"], waiting["waits"], waiting["progress"]["word"]) == (
        "pending",
        "no worker follows the run",
        "waiting",
    )
    worker.start()
    done = pages.wait_for(
        f"/runs/{job.run_id}/commands", lambda found: found["commands"][0]["state"] == "done", "it is done", 60
    )
    [command] = done["commands"]
    assert (command["command_id"], command["reason"]) == (first.json()["command_id"], "at three")
    assert {rank["state"] for rank in command["ranks"].values()} == {"acted"}
    assert "waits" not in command


@pytest.mark.soak  # tests/backend/runs/orders/test_waiting_orders.py has the law
def test_an_order_that_waits_can_be_taken_back_until_a_worker_takes_it(servers: RoleServers, job: Job) -> None:
    pages, worker = servers.servers["pages-1"], servers.servers["worker-1"]
    job.spoiled(pages)
    worker.kill()
    path = f"/api/v1/runs/{job.run_id}/commands"
    ordered = pages._client.post(path, json={"kind": "rollback", "to_step": 50}, timeout=30)
    assert ordered.status_code == 202, ordered.text
    gone = pages._client.delete(f"{path}/{ordered.json()['command_id']}", timeout=30)
    assert (gone.status_code, gone.json()["state"]) == (200, "failed")
    assert "taken back by local" in gone.json()["history"][-1]["detail"]
    worker.start()
    wait_until(lambda: servers.owner_of(job.run_id), 30, "somebody owns it")
    taken = pages._client.post(path, json={"kind": "dump_stacks"}, timeout=30)
    assert taken.status_code == 201, taken.text
    assert "rollback" not in [one["kind"] for one in job.commands(pages)]


@pytest.mark.soak  # tests/backend/runs/orders/test_waiting_acknowledgements.py has the law
def test_an_acknowledgement_without_a_worker_counts_at_once_and_is_still_there_when_one_is_back(
    servers: RoleServers, job: Job
) -> None:
    pages, worker = servers.servers["pages-1"], servers.servers["worker-1"]
    job.spoiled(pages)
    path = f"/runs/{job.run_id}/incidents"
    name = pages.get(path)["incidents"][0]["incident_id"]
    worker.kill()
    answer = pages._client.post(f"/api/v1{path}/{name}/ack", timeout=30)
    assert (answer.status_code, answer.json()["acknowledged_by"]) == (202, "local"), answer.text
    assert pages.get(f"{path}/{name}")["status"] == "acknowledged"
    worker.start()
    wait_until(lambda: servers.owner_of(job.run_id), 30, "somebody owns it")
    waits = f"sb:{{{job.run_id}}}:acknowledged"
    wait_until(lambda: not servers.client.exists(waits), 30, "it is written down")
    found = pages.get(f"{path}/{name}")
    assert (found["acknowledged_by"], found["acknowledged"]) == ("local", answer.json()["acknowledged"])
