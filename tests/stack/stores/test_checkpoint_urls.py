"""A job that saves to S3 is offered the checkpoints that are whole there: real job, agent, server and S3 protocol."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from support.agent.s3_server import KEYS, s3_server
from support.ports import free_port
from support.processes import Ranks, Server

JOB = Path(__file__).with_name("url_job.py")


@pytest.mark.soak
def test_a_torn_one_is_not_offered_and_the_job_goes_back_to_a_whole_one(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    with s3_server() as s3, Server(tmp_path / "data", free_port()) as server:
        arguments, env = [s3, str(stop)], KEYS | {"AWS_ENDPOINT_URL": s3, "STABILITY_NODE": "n0"}
        with Ranks(
            str(JOB), arguments, url=server.url, folder=tmp_path / "spool", run_id="r", world_size=1, **env
        ) as ranks:
            offer = server.wait_for("/runs/r/rollback", lambda a: a["withheld"] and a["checkpoints"], "both are known")
            whole, torn = offer["checkpoints"], offer["withheld"]
            assert [(c["step"], c["path"], c["complete"]) for c in whole] == [(10, "s3://bucket/run/step-10.pt", True)]
            assert [(c["step"], c["complete"]) for c in torn] == [(20, False)]
            assert "step-20.pt is truncated" in torn[0]["unfit"]

            order = {"kind": "rollback", "to_step": 10}
            assert httpx.post(f"{server.url}/api/v1/runs/r/commands", json=order, timeout=30).status_code < 300
            server.wait_for("/runs/r/commands", lambda a: a["commands"][0]["state"] == "done", "the job went back")

            stop.touch()
            ranks.outputs()
        stored = b"".join(file.read_bytes() for file in (tmp_path / "data").rglob("*") if file.is_file())
    assert b"password" not in stored
