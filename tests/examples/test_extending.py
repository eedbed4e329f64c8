"""The examples of docs/extending.md work: a real server loads the folder, and each does what its chapter says."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.ports import free_port
from support.processes import Server

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "extending"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("extended")
    with Server(home / "data", free_port(), {"STABILITY_PLUGINS": str(FOLDER)}) as running:
        yield running


def log(server: Server, run_id: str, metric: str, values: list[float]) -> None:
    """Log a run of one metric beside its loss."""

    async def send() -> None:
        rows = Job().rows(range(1, len(values) + 1), {"loss": [2.0] * len(values), metric: values})
        async with RawAgent(f"{server.url.replace('http', 'ws')}/api/v1/agent") as agent:
            await agent.begin(rows, run_id=run_id)

    asyncio.run(send())


def test_the_detector_of_a_file_reports_and_is_listed_with_the_others(server: Server) -> None:
    log(server, "slow", "data_s", [0.1] * 20 + [3.0] * 15 + [0.1] * 15)

    found = server.wait_for("/runs/slow/incidents", lambda r: r["incidents"], "the slow data is an incident")
    listed = {each["name"]: each["title"] for each in server.get("/detectors")["detectors"]}

    [incident] = found["incidents"]
    assert (incident["kind"], incident["state"], incident["onset_step"]) == ("throughput", "recovered", 21)
    assert listed["slow_data"] == "Slow data"


def test_the_incident_kind_of_a_file_has_its_label_advice_and_sign(server: Server) -> None:
    log(server, "full", "disk_free_gib", [500.0, 300.0, 80.0, 20.0])

    found = server.wait_for("/runs/full/incidents", lambda r: r["incidents"], "the full disk is an incident")
    [kind] = [each for each in server.get("/incident_kinds")["kinds"] if each["name"] == "full_disk"]

    [incident] = found["incidents"]
    assert (incident["kind"], incident["label"], incident["onset_step"]) == ("full_disk", "Full disk", 3)
    assert incident["suggestion"]["text"].startswith("Delete old checkpoints")
    assert kind["sign"] == "⛁"


def test_the_importer_of_a_file_is_found_by_content_and_its_rows_are_there(server: Server, tmp_path: Path) -> None:
    lines = [f"iter {step}: loss {3.0 - step / 100:.4f}, time 12.50ms, mfu 38.02%" for step in range(50)]
    (log_file := tmp_path / "train.log").write_text("\n".join(["tokens per iteration: 491,520", *lines]))

    done = subprocess.run(
        [sys.executable, "-m", "stabilitybackend.cli", "import", str(log_file), "--run-id", "old", "--url", server.url],
        env=os.environ | {"STABILITY_PLUGINS": str(FOLDER)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, "50 rows (100 points) of nanoGPT log sent" in done.stdout) == (0, True), done
    server.wait_for("/runs/old", lambda r: r["last_step"] == 49, "all of it is read")
    [series] = server.get("/runs/old/series", metric="step_time_s")["series"]
    assert series["values"] == [0.0125] * 50
