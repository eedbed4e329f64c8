"""What a job gave and nobody stored stays a fact of its run, after its end too: real server, real agent, real job."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.agent.spooled import child
from support.ports import free_port
from support.processes import Server, end_agents
from support.waiting import wait_until

#: On a disk that holds the spool of the rank and nothing else: the agent's own report has no room while it runs.
FULL = """
import sys, time, stabilityclient
run = stabilityclient.init(project="tests", run_id=sys.argv[1])
for step in range(20_000):
    run.log(step, {f"m{part}": 1.0 for part in range(30)} | {"loss": 1.0})
time.sleep(1.2)
print(run.finish(60))
"""
JOB = """
import os, sys, stabilityclient
run = stabilityclient.init(project="tests", run_id=sys.argv[1])
run.log(1, {"loss": "abc"})
run.log(1, "loss")
for step in range(120_000):
    run.log(step, {"loss": 1.0, "lr": 2.0, "grad_norm": 3.0})
if os.fork() == 0:
    run.log(1, {"child/loss": 1.0})
    os._exit(0)
os.wait()
print(run.finish(60), run._guard.refused)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server") / "data", free_port()) as running:
        yield running


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    (folder := tmp_path / "small").mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2500k", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield folder
    end_agents(tmp_path, "**")
    wait_until(lambda: not subprocess.run(["umount", folder], capture_output=True).returncode, 20, "the agent has left")


def test_a_full_disk_is_told_once_the_delivered_spool_made_room(server: Server, small_disk: Path) -> None:
    with child(FULL, "full-disk", STABILITY_URL=server.url, STABILITY_DIR=str(small_disk)) as job:
        out, said = job.communicate(timeout=120)

    assert out == "delivered\n", said
    assert "No space left on device" in said
    run = server.wait_for("/runs/full-disk", lambda run: run["unrecorded"]["dropped"], "the run has its counts")
    assert run["effective_points"] + run["unrecorded"]["dropped"] in range(19_990, 20_011)
    assert run["note"].endswith(": the disk of the spool was full.")


def test_a_run_that_lost_rows_says_so_after_its_end(server: Server, tmp_path: Path) -> None:
    env = {"STABILITY_URL": server.url, "STABILITY_DIR": str(tmp_path), "STABILITY_SPOOL_MIB": "2"}
    with child(JOB, "short-of-rows", **env) as job:
        out, said = job.communicate(timeout=120)

    assert out == "delivered 2\n", said
    assert "forked after init()" in said
    run = server.wait_for(
        "/runs/short-of-rows",
        lambda run: (
            run["status"] == "finished"
            and run["unrecorded"]["refused"] == 2
            and abs(run["effective_points"] + run["unrecorded"]["dropped"] - 120_000) <= 10
        ),
        "each row of the finished run is there or counted",
        timeout_s=30.0,
    )
    lost = run["unrecorded"]
    assert lost["dropped"] > 0
    assert f"{lost['dropped']:,} of {lost['dropped'] + lost['stored']:,} records were dropped on node" in run["note"]
    assert f"node {os.uname().nodename}" in run["note"]
    assert "2 values were refused; the first: log(): metric 'loss' is 'abc'" in run["note"]
    assert "A process that was forked after init() logged" in run["note"]
