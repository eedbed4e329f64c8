"""What happens to a job happens to its run: real server, real agent, real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.agent.spooled import child
from support.ports import free_port
from support.processes import Ranks, Server
from support.waiting import wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    port = free_port()
    with Server(tmp_path_factory.mktemp("server") / "data", port) as running:
        yield running


class Job:
    """Starts ranks of ``job.py`` for one run."""

    def __init__(self, server: Server, folder: Path, run_id: str) -> None:
        self.server, self.folder, self.run_id = server, folder, run_id
        (folder / "checkpoints").mkdir()

    def start(self, *, world_size: int = 2, env: dict[str, str] | None = None, **plan: Any) -> Ranks:
        together = tempfile.mkdtemp(prefix="together-", dir=self.folder)
        plan = {"checkpoints": str(self.folder / "checkpoints"), "together": together} | plan
        return Ranks(
            "job.py",
            [json.dumps(plan)],
            url=self.server.url,
            folder=self.folder / "spool",
            run_id=self.run_id,
            world_size=world_size,
            **(env or {}),
        )

    def run_to_end(self, **plan: Any) -> list[dict[str, Any]]:
        with self.start(**plan) as ranks:
            return [json.loads(lines[0]) for lines in ranks.outputs()]

    def effective(self, metric: str = "loss") -> dict[int, list[int]]:
        """Return rank -> steps of the effective curve, joined."""
        found: dict[int, list[int]] = {}
        for entry in self.get("series", metric=metric)["series"]:
            found.setdefault(entry["rank"], []).extend(entry["steps"])
        return found

    def get(self, what: str = "", **params: Any) -> Any:
        return self.server.get(f"/runs/{self.run_id}{'/' + what if what else ''}", **params)

    def wait_for(self, what: str, condition: Any, text: str, timeout_s: float = 30) -> Any:
        return self.server.wait_for(f"/runs/{self.run_id}{'/' + what if what else ''}", condition, text, timeout_s)

    def last_steps(self, *steps: int) -> None:
        """Wait until the ranks' curves end at their steps: a step is there as soon as one of them has told it."""
        ends = dict(enumerate(steps))
        wait_until(
            lambda: {r: told[-1] for r, told in self.effective().items()} == ends, 30, f"the curves end at {ends}"
        )


@pytest.fixture
def job(server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Job:
    return Job(server, tmp_path, f"t{abs(hash(request.node.name)) % 10**10}")


def test_a_run_from_start_to_finish_is_delivered_in_full(job: Job) -> None:
    assert [r["outcome"] for r in job.run_to_end()] == ["delivered", "delivered"]
    job.last_steps(59, 59)
    assert job.effective() == {0: list(range(1, 60)), 1: list(range(1, 60))}
    assert job.wait_for("", lambda r: r["status"] == "finished", "the run is finished")["open_incidents"] == 0


def test_rollbacks_that_the_job_makes_by_itself_are_stitched_nested_and_to_step_0(job: Job) -> None:
    job.run_to_end(declare={"30": 10, "31": 20, "40": 0})
    job.last_steps(59, 59)
    segments = job.get("segments")["segments"]
    assert [(s["parent"], s["fork_step"], s["cause"]) for s in segments] == [
        (None, None, "start"),
        (0, 10, "declared"),
        (1, 20, "declared"),
        (0, 0, "declared"),
    ]
    assert all(s["ranks"] == [0, 1] for s in segments)
    assert segments[1]["changes"] == {"lr_scale": 0.5}
    assert job.effective() == {0: list(range(1, 60)), 1: list(range(1, 60))}


def test_a_plain_restart_from_an_earlier_step_is_a_new_segment(job: Job) -> None:
    job.run_to_end(stop=40, finish=False)
    job.run_to_end(start=21, stop=60)
    job.last_steps(59, 59)
    segments = job.get("segments")["segments"]
    assert [(s["fork_step"], s["cause"], s["ranks"]) for s in segments] == [
        (None, "start", [0, 1]),
        (20, "restart", [0, 1]),
    ]
    assert job.effective() == {0: list(range(1, 60)), 1: list(range(1, 60))}


def test_an_ordered_rollback_is_done_by_all_ranks_at_one_boundary_twice_in_a_row(job: Job) -> None:
    enough = job.folder / "enough"
    with job.start(stop=100_000, period_s=0.02, enough=str(enough)) as ranks:
        for times in (1, 2):
            job.wait_for(
                "checkpoints", lambda r: any(c["step"] >= 30 for c in r["checkpoints"]), "checkpoint 30 is there"
            )
            job.wait_for("", lambda r: r["last_step"] > 35, "step 35 is there")
            answer = httpx.post(
                f"{job.server.url}/api/v1/runs/{job.run_id}/commands",
                json={"kind": "rollback", "to_step": 20, "seed": times, "reason": "test"},
            )
            assert answer.status_code == 201, answer.text
            command_id = answer.json()["command_id"]
            done = job.wait_for(f"commands/{command_id}", lambda c: c["state"] == "done", "the rollback is done")
            assert {r["state"] for r in done["ranks"].values()} == {"acted"}
            assert len({r["step"] for r in done["ranks"].values()}) == 1
            assert (done["first_step"], len(done["ranks"])) == (21, 2)
        job.wait_for("", lambda r: r["last_step"] > 40, "the job goes on")
        enough.touch()
        outputs = [json.loads(lines[0]) for lines in ranks.outputs()]
    assert [output["loaded"] for output in outputs] == [[20, 20], [20, 20]]
    job.last_steps(*[output["last"] for output in outputs])
    assert job.effective() == {rank: list(range(1, output["last"] + 1)) for rank, output in enumerate(outputs)}
    last = job.get("series", metric="loss")["series"][-1]
    assert last["values"][0] == 2000.0 + 2000.0 - 21


def test_a_command_ends_with_the_job_that_was_killed_before_its_boundary(job: Job) -> None:
    with job.start(stop=4000, period_s=0.3) as ranks:
        job.wait_for("checkpoints", lambda r: r["checkpoints"], "a checkpoint is there")
        for process in ranks.processes:
            process.send_signal(signal.SIGSTOP)  # or it reaches its boundary while this test is on its way to kill it
        order = {"kind": "rollback", "to_step": 10, "reason": "test"}
        command = httpx.post(f"{job.server.url}/api/v1/runs/{job.run_id}/commands", json=order).json()
        ranks.kill()
        ended = job.wait_for(f"commands/{command['command_id']}", lambda c: c["state"] == "failed", "it has ended")
        assert "nothing was rolled back" in ended["history"][-1]["detail"]


def test_the_tail_of_a_rank_that_was_killed_arrives_and_its_death_is_one_incident(job: Job) -> None:
    with job.start(die_at=[0, 50], stop=52) as ranks:
        ranks.processes[0].wait(30)
        found = job.wait_for(
            "incidents", lambda r: any(i["kind"] == "process_death" for i in r["incidents"]), "the death is an incident"
        )
        job.last_steps(49, 51)  # what the agent has to say itself may be there before the tail
        assert job.effective()[0] == list(range(1, 50))
        (death,) = [i for i in found["incidents"] if i["kind"] == "process_death"]
        assert (death["rank"], death["severity"]) == (0, "critical")


#: Saves on SIGTERM and leaves with exit code 0, as Lightning's and Slurm's handlers do.
SAVES_AND_LEAVES = """
import os, signal, sys, stabilityclient
run = stabilityclient.init(project="tests")
def save(*_):
    run.checkpoint(run.logged_step, "ckpt")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
for step in range(10**9):
    run.log(step, {"loss": 1.0})
    if step == 170:
        os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_job_that_saves_and_leaves_on_sigterm_is_preempted_and_its_interruption_is_counted(job: Job) -> None:
    env = {"STABILITY_URL": job.server.url, "STABILITY_DIR": str(job.folder / "spool"), "STABILITY_RUN_ID": job.run_id}
    with child(SAVES_AND_LEAVES, **env) as process:
        _, said = process.communicate(timeout=60)

    assert process.returncode == 0, said
    run = job.wait_for("", lambda run: run["status"] == "preempted", "the run is preempted")
    assert run["state"]["word"] == "preempted"
    assert "was preempted by SIGTERM at step 170" in run["note"]
    assert "asked to end by" in run["note"]
    mine = lambda found: [  # noqa: E731
        one for one in found["interruptions"] if one["run_id"] == job.run_id and one["counted"]
    ]
    (stop,) = mine(job.server.wait_for("/interruptions", mine, "the interruption counts"))
    assert (stop["what"], stop["step"]) == ("death", 170)

    with job.start(start=165, stop=180, world_size=1) as ranks:
        ranks.outputs()
    job.wait_for("", lambda run: run["status"] == "finished", "the job that was started again has finished")


def test_a_rank_that_stands_still_is_one_hang_incident_naming_the_suspect(job: Job) -> None:
    with job.start(hang_at=[1, 40], stop=100):
        found = job.wait_for("incidents", lambda r: r["incidents"], "the hang is an incident", timeout_s=60)
        (hang,) = found["incidents"]
        assert (hang["kind"], hang["state"]) == ("hang", "open")
        assert "rank 1" in hang["text"]
        assert "data" in hang["text"]
        assert job.get()["status"] == "stalled"


def test_a_rank_that_does_not_come_is_named_before_the_first_step_and_nothing_is_wrong_once_it_has(
    job: Job, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with job.start(late=[1, str(gate)]) as ranks:
        found = job.wait_for("incidents", lambda r: r["incidents"], "the hang is an incident", timeout_s=60)
        (hang,) = found["incidents"]
        assert hang["title"] == "The job hangs before its first step: rank 1 has not come"
        assert (hang["evidence"]["verdict"]["class"], hang["evidence"]["verdict"]["culprits"]) == ("peer_missing", [1])
        gate.touch()
        ranks.outputs()
    job.wait_for("incidents", lambda r: [i["state"] for i in r["incidents"]] == ["resolved"], "it is over, and alone")


@pytest.mark.soak  # tests/backend/cli/test_runs.py has the law
def test_a_run_recorded_offline_is_imported_whole_and_importing_again_adds_nothing(job: Job) -> None:
    outcomes = job.run_to_end(env={"STABILITY_MODE": "offline"}, declare={"30": 10})
    assert [r["outcome"] for r in outcomes] == ["spooled", "spooled"]
    for _ in range(2):
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "stabilitybackend.cli",
                "import",
                str(job.folder / "spool"),
                "--url",
                job.server.url,
            ],
            capture_output=True,
            text=True,
            timeout=60,
            env=os.environ,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        job.last_steps(59, 59)
        assert job.effective() == {0: list(range(1, 60)), 1: list(range(1, 60))}
        assert sum(s["points"] for s in job.get("segments")["segments"]) == 2 * 2 * (30 + 49)
