"""A job that hangs is ended on order and comes back from its plan: real server, real agent, real torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.processes import Server

_TRAIN = Path(__file__).parents[2] / "examples" / "supervise" / "train.py"
_RUN = "comes-back"


@pytest.fixture
def server(tmp_path: Path, free_port: int) -> Iterator[Server]:
    with Server(tmp_path / "data", free_port, {"STABILITY_HANG_FLOOR_S": "1.5"}) as running:
        yield running


@pytest.fixture
def torchrun(tmp_path: Path, server: Server) -> Iterator[subprocess.Popen[bytes]]:
    """Two ranks under torchrun; rank 1 stands still in step 25 of its first life."""
    (tmp_path / "checkpoints").mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "STABILITY_"))}
    env |= {"STABILITY_URL": server.url, "STABILITY_DIR": str(tmp_path / "spool"), "STABILITY_RUN_ID": _RUN}
    env |= {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # as in torchrun.sh
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", "4", str(_TRAIN), "--checkpoints", str(tmp_path / "checkpoints")]
    command += ["--hang-at", "25", "--steps", "40", "--save-every", "10", "--step-s", "0.02", "--timeout-s", "40"]
    with (tmp_path / "torchrun.log").open("w") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    yield process
    process.terminate()  # it ends its ranks
    process.wait(90)


@pytest.mark.torch
@pytest.mark.soak
def test_a_rank_that_hangs_is_restarted_on_order_and_the_job_goes_on_from_the_plan(
    server: Server, torchrun: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    place = f"/runs/{_RUN}"
    server.wait_for(
        f"{place}/incidents",
        lambda r: any(i["kind"] == "hang" and i["state"] == "open" for i in r["incidents"]),
        "the hang is an incident",
        90,
    )
    order = {"kind": "restart", "to_step": 10, "reason": "it hangs", "idempotency_key": "once", "grace_s": 5}
    answers = [httpx.post(f"{server.url}/api/v1{place}/commands", json=order) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201], answers[0].text
    command = answers[0].json()
    assert answers[1].json()["command_id"] == command["command_id"]
    done = server.wait_for(
        f"{place}/commands/{command['command_id']}", lambda c: c["state"] == "done", "the job is back", 150
    )
    assert {word["state"] for word in done["nodes"].values()} == {"acted"}
    assert done["first_step"] == 11
    written = json.loads((tmp_path / "spool" / _RUN / "plan.json").read_text())
    assert (written["checkpoint"]["step"], written["command_id"]) == (10, command["command_id"])
    assert torchrun.wait(60) == 0, (tmp_path / "torchrun.log").read_text()[-3000:]
    ended = server.wait_for(place, lambda r: r["status"] == "finished" and r["last_step"] == 40, "the job is done", 30)
    assert ended["open_incidents"] == 0
    segments = server.get(f"{place}/segments")["segments"]
    assert [(s["fork_step"], s["cause"], s["ranks"]) for s in segments] == [
        (None, "start", [0, 1]),
        (10, "restart", [0, 1]),
    ]
    kinds = [i["kind"] for i in server.get(f"{place}/incidents")["incidents"]]
    assert "process_death" not in kinds
