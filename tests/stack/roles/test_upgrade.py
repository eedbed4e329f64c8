"""The server is upgraded while jobs of the old version run: nothing is lost, doubled or alarmed about."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.outside.receiver_thread import ReceiverThread
from support.roles.chaos import Chaos, order_rollback
from support.roles.checker import ENDS, OF_TIME, Checker
from support.roles.servers import RoleServers, sources_of
from support.waiting import wait_until

sys.path.insert(0, str(Path(__file__).parent))
from chaos_values import value_of

pytestmark = pytest.mark.soak

REPOSITORY = Path(__file__).parents[3]
#: No version is released yet, so these stand for the one before: the last commit of a server that is one process, and
#: one of several processes whose workers take runs over without a snapshot in Redis.
ONE_PROCESS = "a33800d0a365e3a3aec0842f80549e84a949fc5a"
SEVERAL = "c28681f67d18be7e90f37841cde64f8a32046b71"
#: Steps that each job goes on between two parts of an upgrade.
STEPS = 60


def sources(commit: str, folder: Path) -> Path:
    """Return the repository's files as of a commit."""
    found = subprocess.run(["git", "archive", commit, "backend", "client", "alerting", "frontend"], cwd=REPOSITORY,
                           capture_output=True)  # fmt: skip
    if found.returncode:
        pytest.skip(f"commit {commit} is not here (a shallow clone?): {found.stderr.decode()[-200:]}")
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


class Upgrade:
    """A server, jobs whose clients stay those of the old version, and what is wrong at the end."""

    def __init__(self, servers: RoleServers, folder: Path, receiver: ReceiverThread, old: Path) -> None:
        self.servers, self.old = servers, old
        self._folder, self._receiver = folder, receiver
        self.chaos = Chaos(servers, folder, 2, random.Random(1), (), 0, sources_of(old))

    def goes_on(self) -> None:
        """Wait until each job's rows are judged some steps further."""
        before = {run_id: self._step(run_id) for run_id in self.chaos.jobs}
        for run_id, step in before.items():
            wait_until(
                lambda run_id=run_id, step=step: self._step(run_id) >= step + STEPS, 90, f"{run_id} is judged on"
            )

    def _asked(self, run_id: str) -> str:
        """Return where a run can be asked for: at its owner, or at the one process that does everything."""
        return self.servers.servers[self.servers.owner_of(run_id) or next(iter(self.servers.servers))].url

    def _get(self, run_id: str, path: str = "") -> Any:
        answer = httpx.get(f"{self._asked(run_id)}/api/v1/runs/{run_id}{path}", timeout=10.0)
        answer.raise_for_status()
        return answer.json()

    def _step(self, run_id: str) -> int:
        with suppress(httpx.HTTPError):
            return self._get(run_id)["last_step"] or 0
        return 0

    def goes_back(self, run_id: str) -> None:
        """Order a rollback, and wait until the job has carried it out."""
        with httpx.Client(base_url=self._asked(run_id), timeout=10.0) as client:
            name = order_rollback(client, run_id).json()["command_id"]

        def states() -> dict[str, str]:
            with suppress(httpx.HTTPError):
                return {one["command_id"]: one["state"] for one in self._get(run_id, "/commands")["commands"]}
            return {}

        wait_until(lambda: states().get(name) in ENDS, 60, "it is carried out")
        assert states()[name] == "done"

    def ends(self) -> list[str]:
        """Let the jobs end, and return what is wrong."""
        outcomes = self.chaos.finish()
        for run_id in self.chaos.jobs:
            wait_until(lambda run_id=run_id: self._is_over(run_id), 90, f"{run_id} is over")
        wait_until(lambda: self._receiver.heard("/hook", "incident.opened", "nonfinite"), 60, "an alert came")
        checker = Checker(self.servers.client, self.servers.folder / "archive", value_of, newest_may_be_lost=False)
        alerts = [json.loads(body) for path, body in self._receiver.received if path == "/hook"]
        for run_id in self.chaos.jobs:
            checker.check(run_id, self.chaos.folder_of(run_id), alerts)
        print(dict(checker.seen), len(alerts), "alerts", outcomes)
        assert checker.seen["incidents"] > 0
        assert checker.seen["orders done"] > 0
        assert not {one["incident"]["kind"] for one in alerts} & OF_TIME
        return [*checker.wrong, *(f"{run}: {said}" for run, said in outcomes.items() if said != "delivered")]

    def _is_over(self, run_id: str) -> bool:
        with suppress(httpx.HTTPError):
            stored = self._get(run_id, "/storage")["state"] == "ok"
            return bool(stored and self._get(run_id)["status"] == "finished")
        return False


@contextmanager
def begun(folder: Path, commit: str, names: dict[str, str]) -> Iterator[Upgrade]:
    """A server of an old commit, with processes by name and role, and two jobs that are judged."""
    old = sources(commit, folder / "old")
    with ReceiverThread() as receiver:
        settings = {
            "window_mib": 0.05, "webhook_url": f"{receiver.url}/hook", "webhook_secret": "of the test",
            "test_planted": "impatient",
        }  # fmt: skip
        # The server of one process knew no cluster.
        with RoleServers(folder / "server", own=commit == ONE_PROCESS, **settings) as servers:
            for name, role in names.items():
                servers.add(name, role, old)
            servers.ready()
            upgrade = Upgrade(servers, folder, receiver, old)
            try:
                upgrade.goes_on()
                yield upgrade
            finally:
                upgrade.chaos.kill_jobs()


def test_one_process_becomes_several_of_the_next_version_while_jobs_run(tmp_path: Path) -> None:
    with begun(tmp_path, ONE_PROCESS, {"all": ""}) as upgrade:
        upgrade.goes_back("run-0")
        upgrade.servers.servers["all"].stop()
        del upgrade.servers.servers["all"]
        del upgrade.servers.balancer.ports[0]
        for name in ("door-1", "worker-1", "worker-2", "pages-1", "alerting-1"):
            upgrade.servers.add(name, name.partition("-")[0])
        upgrade.servers.ready()
        upgrade.goes_on()
        upgrade.goes_back("run-1")
        upgrade.goes_on()
        assert upgrade.ends() == []


NAMES = ("pages-1", "alerting-1", "door-1", "door-2", "worker-1", "worker-2")


def each(upgrade: Upgrade, tree: Path | None, names: tuple[str, ...]) -> None:
    """Change the version of each process, one by one."""
    for name in names:
        upgrade.servers.upgrade(name, tree)
        upgrade.goes_on()


def forwards(upgrade: Upgrade) -> None:
    each(upgrade, None, NAMES)


def back_and_forwards(upgrade: Upgrade) -> None:
    """An upgrade that is taken back and made again: what workers left in Redis is of a time before the others wrote."""
    each(upgrade, None, NAMES[3:])
    each(upgrade, upgrade.old, NAMES[:2:-1])
    each(upgrade, None, NAMES[4:])


@pytest.mark.parametrize("change", [forwards, back_and_forwards])
def test_processes_are_upgraded_one_by_one_while_jobs_run(tmp_path: Path, change: Callable[[Upgrade], None]) -> None:
    with begun(tmp_path, SEVERAL, {name: name.partition("-")[0] for name in NAMES}) as upgrade:
        upgrade.goes_back("run-0")
        change(upgrade)
        upgrade.goes_back("run-1")
        upgrade.goes_on()
        assert upgrade.ends() == []
