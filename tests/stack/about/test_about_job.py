"""What a real job says of itself, facts of its launch and lines that it prints, and that both can be off."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.ports import free_port
from support.processes import Server
from support.waiting import wait_until

_JOB = """
import sys, time
import stabilityclient
run = stabilityclient.init(project="p", run_id=sys.argv[1], config={"lr": 1, "hf_token": "Zqsecret1"}, tags=["one"])
for step in run.steps(0, 20):
    print(f"at {step}, password: Zqsecret2", flush=True)
    run.log(step, {"loss": 1.0})
    time.sleep(0.05)
run.finish()
print("after the end", flush=True)
raise ValueError("the last words")
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("about") / "data", free_port()) as server:
        yield server


def train(server: Server, folder: Path, run_id: str, **environ: str) -> None:
    """Let a job train, with a secret in its arguments, that prints to a file and dies of an exception at the end."""
    (folder / "train.py").write_text(_JOB)
    environ = {**os.environ, "STABILITY_URL": server.url, "STABILITY_DIR": str(folder / "spool"), **environ}
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "train.py", run_id, "--api-key", "Zqsecret3"]
        subprocess.run(command, cwd=folder, env=environ, stdout=log, stderr=log, check=False)


def ask(server: Server, run_id: str, what: str) -> Any:
    answer = httpx.get(f"{server.url}/api/v1/runs/{run_id}/{what}")
    return answer.json() if answer.status_code == 200 else {}


def test_facts_and_output_of_a_job_arrive_without_its_secrets(server: Server, tmp_path: Path) -> None:
    train(server, tmp_path, "r1")
    wait_until(lambda: ask(server, "r1", "about").get("launches"), 30, "the facts are there")
    about = ask(server, "r1", "about")
    (launch,) = about["launches"]
    assert launch["command"].endswith("train.py r1 --api-key '(hidden)'")
    assert (launch["folder"], launch["script"]) == (str(tmp_path), str(tmp_path / "train.py"))
    assert about["config"] == {"lr": 1, "hf_token": "(hidden)"}
    assert about["tags"] == ["one"]
    wait_until(lambda: "the last words" in str(ask(server, "r1", "output")), 30, "the last line is there")
    lines = ask(server, "r1", "output")["lines"]
    assert [line["text"] for line in lines[:20]] == [f"at {step}, password: (hidden)" for step in range(20)]
    steps = [line["step"] for line in lines[:20] if line["step"] is not None]
    assert steps == sorted(steps)
    assert set(steps) <= set(range(20))
    assert "Zqsecret" not in str(about) + str(lines)


def test_both_can_be_switched_off(server: Server, tmp_path: Path) -> None:
    train(server, tmp_path, "r2", STABILITY_FACTS="off", STABILITY_OUTPUT="off")
    run = f"{server.url}/api/v1/runs/r2"
    wait_until(lambda: httpx.get(run).json().get("status") == "finished", 30, "the run is over")
    assert ask(server, "r2", "about")["launches"] == []
    assert ask(server, "r2", "output")["total"] == 0
