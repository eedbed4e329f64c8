"""A server of several processes: a job does not notice who of them dies, and no alarm comes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.processes import Ranks, Server
from support.roles.chaos import order_rollback
from support.roles.servers import RoleServers
from support.waiting import wait_until

PERIOD_S = 0.02


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RoleServers]:
    with RoleServers(tmp_path_factory.mktemp("roles") / "server") as found:
        for name in ("door-1", "door-2", "worker-1", "worker-2"):
            found.add(name, name.partition("-")[0], test_planted="stepped_clock")
        found.ready()
        yield found


@pytest.fixture
def servers(processes: RoleServers) -> RoleServers:
    """All processes are there, whatever the test before did to them."""
    for server in processes.servers.values():
        assert server.process is not None
        if server.process.poll() is not None:
            server.start(wait=False)
    processes.ready()
    return processes


class Job:
    """A job of one rank with a run of its own."""

    def __init__(self, servers: RoleServers, folder: Path, *arguments: str) -> None:
        self.run_id = folder.name.replace("_", "-")
        self._folder, self._servers = folder, servers
        self.ranks = Ranks(
            "roles/steady_rank.py", [str(folder / "enough"), str(PERIOD_S), *arguments], url=servers.url,
            folder=folder / "spool", run_id=self.run_id, world_size=1,
        )  # fmt: skip

    def ask(self, path: str = "", **params: Any) -> Any:
        """Return what the run's owner answers; the workers may hand the run over at any moment."""

        def answer() -> Any:
            try:
                return self._owner().get(f"/runs/{self.run_id}{path}", **params)
            except httpx.HTTPError:
                return None

        return wait_until(answer, 90, f"the owner of {self.run_id} answers")

    def _owner(self) -> Server:
        # A run that nobody owns is taken by whichever worker is asked.
        return self._servers.servers[self._servers.owner_of(self.run_id) or "worker-1"]

    def wait_for(self, path: str, condition: Callable[[Any], object], what: str) -> None:
        """Wait until ``condition`` holds of what the run's owner answers."""
        wait_until(lambda: bool(condition(self.ask(path))), 30, what)

    def goes_on(self, steps: int = 30) -> None:
        """Wait until so many steps more are folded."""
        self.wait_for("", lambda run: run["status"] == "running", "it is folded")
        step = int(self.ask()["last_step"] or 0) + steps
        wait_until(lambda: int(self.ask()["last_step"] or 0) >= step, 90, f"{step} is folded")

    def kinds(self) -> list[str]:
        """Return the kinds of the run's incidents."""
        return sorted(one["kind"] for one in self.ask("/incidents")["incidents"])

    def stalls(self) -> str:
        """SIGSTOP the run's owner and return its name; "" where another one has just taken it."""
        name = self._servers.owner_of(self.run_id)
        if name:
            self._servers.stop_for(name)
            if self._servers.owner_of(self.run_id) != name:
                self._servers.go_on(name)
                return ""
        return name

    def is_dropped_by(self, name: str) -> bool:
        """Whether a process that another one took the run from refuses it now, or has taken it anew."""
        if self._servers.owner_of(self.run_id) == name:
            return True
        with httpx.Client(base_url=self._servers.servers[name].url, verify=False, timeout=30.0) as client:
            return client.get(f"/api/v1/runs/{self.run_id}").status_code == 503

    def goes_back(self) -> None:
        """Order a rollback, and wait until it is done."""

        def order() -> Any:
            with httpx.Client(base_url=self._owner().url, verify=False, timeout=10.0) as client:
                try:
                    return order_rollback(client, self.run_id).json()["command_id"]
                except (httpx.HTTPError, LookupError, ValueError):  # another one has just taken it
                    return None

        name = wait_until(order, 30, "the order is taken")
        self.wait_for(
            "/commands",
            lambda found: any(one["command_id"] == name and one["state"] == "done" for one in found["commands"]),
            "the job went back",
        )

    def ends(self) -> list[str]:
        """Let the job end; return what it printed once the run is shown as finished."""
        (self._folder / "enough").touch()
        (lines,) = self.ranks.outputs()
        self.wait_for("", lambda run: run["status"] == "finished", "the run is over")
        return [line for line in lines if line]

    def is_whole(self) -> bool:
        """Whether each step of the run is there once, as soon as whoever took it over has loaded all points."""

        def answer() -> Any:
            found = self.ask("/series", metric="loss", view="all", points=100_000)
            return None if found["problems"] else found

        (entry,) = wait_until(answer, 60, "all points can be read")["series"]
        return bool(entry["steps"] == list(range(1, len(entry["steps"]) + 1)))

    def connections(self, servers: RoleServers) -> list[list[bytes]]:
        """Return the door, its member id, and the number of each connection of the job's agent that is known."""
        agents: Any = servers.client.hgetall(f"sb:{{{self.run_id}}}:agents")
        return [value.split(b" ")[:2] for key, value in agents.items() if key.startswith(b"a:")]

    def door(self, servers: RoleServers) -> str:
        """Return the name of the door that the job's agent is connected to, "" for none."""
        at = [door.decode() for door, _ in self.connections(servers)]
        return next((name for name in ("door-1", "door-2") if servers.member_of(name) in at), "")


@pytest.fixture
def job(servers: RoleServers, tmp_path: Path) -> Iterator[Job]:
    found = Job(servers, tmp_path, "30")
    with found.ranks:
        yield found


def test_a_process_says_which_role_it_has_and_only_a_door_that_data_is_sent_there(servers: RoleServers) -> None:
    logs = {name: (one.data_dir.parent / "server.log").read_text() for name, one in servers.servers.items()}
    assert "as door is up at" in logs["door-1"]
    assert "as worker is up at" in logs["worker-1"]
    assert [name for name, text in logs.items() if "Send data with" in text] == ["door-1", "door-2"]


def test_a_killed_workers_run_is_judged_by_the_next_one_within_seconds_and_nothing_is_found_twice(
    servers: RoleServers, job: Job
) -> None:
    job.wait_for("/incidents", lambda found: found["incidents"], "the NaN is found")
    first = servers.owned(job.run_id)
    events = f"sb:{{{job.run_id}}}:incident_events"
    before: Any = servers.client.xrange(events)
    first.kill()
    killed = time.monotonic()
    servers.owned(job.run_id)
    job.goes_on(1)
    print(f"the next worker judges after {time.monotonic() - killed:.2f} s")
    after: Any = servers.client.xrange(events)
    assert after[: len(before)] == before
    assert job.ends()[-1] == "delivered"
    assert (job.kinds(), job.is_whole()) == (["nonfinite"], True)


def test_a_run_whose_worker_stops_in_good_order_goes_over_at_once(servers: RoleServers, job: Job) -> None:
    job.goes_on()
    first = servers.owned(job.run_id)
    assert first.stop() == 0
    second = servers.owned(job.run_id)
    assert second is not first
    job.goes_on()
    job.ends()
    assert (job.kinds(), job.is_whole()) == (["nonfinite"], True)


def test_a_worker_that_was_stalled_while_another_one_took_its_run_drops_it(servers: RoleServers, job: Job) -> None:
    job.goes_on()
    name = wait_until(job.stalls, 60, "the owner is stalled")
    wait_until(lambda: servers.owner_of(job.run_id) not in (name, ""), 30, "another one owns it")
    job.goes_on()
    servers.go_on(name)
    wait_until(lambda: job.is_dropped_by(name), 30, "it finds out")
    job.goes_on()
    job.ends()
    assert (job.kinds(), job.is_whole()) == (["nonfinite"], True)


def test_an_agent_that_goes_over_to_another_door_is_never_lost_and_gets_its_orders_there(
    servers: RoleServers, job: Job
) -> None:
    job.goes_on()
    servers.servers[wait_until(lambda: job.door(servers), 30, "the agent is at a door")].kill()
    job.goes_on()
    job.goes_back()
    assert job.ends()[0].startswith("back ")
    assert job.kinds() == ["nonfinite"]


@pytest.mark.soak  # agents may wait long for the next door; tests/plugins/scale/test_reports.py has the law
def test_the_end_of_an_older_connection_that_a_door_notices_late_is_no_end_of_the_newer_one(
    servers: RoleServers, job: Job
) -> None:
    job.goes_on()
    first = wait_until(lambda: job.door(servers), 30, "the agent is at a door")
    servers.stop_for(first)
    servers.balancer.ports.remove(int(servers.servers[first].url.rpartition(":")[2]))
    servers.balancer.drop_all()
    wait_until(lambda: job.door(servers) not in (first, ""), 60, "the agent is at another door")
    newer = job.connections(servers)
    servers.go_on(first)
    door = servers.servers[first]
    wait_until(lambda: "stability_agents 0.0" in door._client.get("/metrics").text, 60, "it finds its agent gone")
    job.goes_on()
    assert job.connections(servers) == newer  # its next Health would have it noted again, under another number
    job.goes_back()
    servers.balancer.ports.append(int(servers.servers[first].url.rpartition(":")[2]))
    job.ends()
    assert job.kinds() == ["nonfinite"]


@pytest.mark.soak  # that the server's clock never jumps is tests/backend/test_steady_clock.py
@pytest.mark.parametrize("off_s", [3600.0, -3600.0, 5.0, -5.0])
def test_a_machine_whose_clock_is_set_sounds_no_alarm_and_its_runs_go_on(
    servers: RoleServers, job: Job, off_s: float
) -> None:
    job.goes_on()
    for off in (off_s, 0.0):
        for name in servers.servers:
            servers.set_clock(name, off)
        job.goes_on(100)
    kinds = job.kinds()
    assert job.ends() == ["delivered"]
    assert (kinds, job.is_whole()) == (["nonfinite"], True)
