"""The examples of docs/extending.md work: a real server loads the folder, and each does what its chapter says."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from support.gateway_stack import log_frames
from support.job_frames import Job
from support.nvml.fake_nvml import FakeNvml
from support.ports import free_port
from support.processes import Ranks, Server
from support.waiting import wait_until

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "extending"


class Phone(ThreadingHTTPServer):
    """Takes what the alert channel pushes."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Push)
        self.pushed: list[tuple[str, str]] = []


class _Push(BaseHTTPRequestHandler):
    server: Phone

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.pushed.append((self.headers["Priority"], text))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing on stderr."""


@pytest.fixture(scope="module")
def phone() -> Iterator[Phone]:
    with Phone() as phone:
        thread = threading.Thread(target=phone.serve_forever)
        thread.start()
        yield phone
        phone.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, phone: Phone) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("extended")
    env = {"STABILITY_PLUGINS": str(FOLDER), "STABILITY_NTFY_URL": f"http://127.0.0.1:{phone.server_port}/topic"}
    with Server(home / "data", free_port(), env) as running:
        yield running


def log(server: Server, run_id: str, metric: str, values: list[float]) -> None:
    """Log a run of one metric beside its loss."""
    rows = Job().rows(range(1, len(values) + 1), {"loss": [2.0] * len(values), metric: values})
    log_frames(server.url, rows, run_id=run_id)


def test_the_server_lists_the_plug_ins_that_it_loaded(server: Server) -> None:
    said = (server.data_dir.parent / "server.log").read_text()

    names = (
        "free_disk.py",
        "full_disk.py",
        "lost_steps.py",
        "nan_counts.py",
        "ntfy.py",
        "remapped_rows.py",
        "slow_data.py",
        "text_log.py",
    )
    assert f"Plug-ins: {', '.join(str(FOLDER / name) for name in names)}" in said


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
    assert kind["sign"] == "▤"


def test_the_importer_of_a_file_is_found_by_content_and_its_rows_are_there(server: Server, tmp_path: Path) -> None:
    lines = [f"iter {step}: loss {3.0 - step / 100:.4f}, time 12.50ms, mfu 38.02%" for step in range(50)]
    (log_file := tmp_path / "train.log").write_text("\n".join(["tokens per iteration: 491,520", *lines]))

    done = cli(server, "import", str(log_file), "--run-id", "old")

    assert (done.returncode, "50 rows (100 points) of nanoGPT log sent" in done.stdout) == (0, True), done
    server.wait_for("/runs/old", lambda r: r["last_step"] == 49, "all of it is read")
    [series] = server.get("/runs/old/series", metric="step_time_s")["series"]
    assert series["values"] == [0.0125] * 50


def test_the_alert_channel_of_a_file_pushes_an_incident_with_its_severity(server: Server, phone: Phone) -> None:
    log(server, "full-too", "disk_free_gib", [500.0, 60.0])

    wait_until(lambda: any("60 GiB left" in text for _, text in phone.pushed), 20, "the incident is pushed")

    [(priority, _)] = [each for each in phone.pushed if "60 GiB left" in each[1]]
    assert priority == "5"


def test_the_gpu_condition_of_two_files_is_reported_by_the_node_and_judged_by_the_server(
    server: Server, nvml_library: Path, tmp_path: Path
) -> None:
    nvml = FakeNvml(nvml_library, tmp_path, gpus=1)
    (tmp_path / "kmsg").touch()
    env = {
        "STABILITY_AGENT_PLUGINS": str(FOLDER / "node" / "remapped_rows.py"),
        "STABILITY_KMSG": str(tmp_path / "kmsg"),
        "STABILITY_GPU_POLL_S": "0.2",
    }
    plan = json.dumps({"stop": 100_000, "period_s": 0.05})
    where = {"url": server.url, "folder": tmp_path / "spool", "run_id": "rows", "world_size": 1}
    with Ranks("job.py", [plan], **where, **nvml.environ, **env):
        server.wait_for("/runs/rows/gpus", lambda r: r["gpus"], "the GPU is known")
        server.wait_for("/runs/rows", lambda r: "gpu/0/remapped_rows" in r["metrics"], "its rows are counted")
        nvml.gpu[0].remap_cor = 2
        found = server.wait_for("/runs/rows/incidents", lambda r: r["incidents"], "the rows are an incident")

    [incident] = found["incidents"]
    assert (incident["kind"], incident["severity"]) == ("gpu_fault", "warning")
    assert "2 memory rows replaced" in incident["text"] + incident["title"]


def test_the_consumer_of_a_file_counts_what_is_logged(server: Server) -> None:
    log(server, "nans", "aux", [1.0, math.nan, 2.0, math.nan])

    found = server.wait_for("/runs/nans/nan_counts", lambda counts: counts, "its rows are taken")

    assert found == {"aux": 2}


def test_the_stage_of_a_file_works_in_the_background_with_a_call_a_command_and_a_check(server: Server) -> None:
    server.wait_for("/free_disk", lambda r: r["gib"] > 0, "it is measured")
    shown = cli(server, "disk")
    doctor = json.loads(cli(server, "doctor", "--json", url=False).stdout)

    assert (shown.returncode, shown.stdout.endswith(" GiB\n")) == (0, True), shown
    assert "disk" in [check["name"] for check in doctor["checks"]]


@pytest.mark.soak
def test_the_task_of_a_file_runs_on_each_node_and_an_unknown_one_on_none(server: Server, tmp_path: Path) -> None:
    plan = json.dumps({"stop": 100_000, "period_s": 0.05})
    where = {"url": server.url, "folder": tmp_path / "spool", "run_id": "task", "world_size": 1}
    with Ranks("job.py", [plan], **where, STABILITY_AGENT_PLUGINS=str(FOLDER / "node" / "disk_space.py")):
        server.wait_for("/runs/task", lambda r: r["agents"] == 1 and r["last_step"], "the job trains")
        done = cli(server, "task", "task", "disk_space")
        body = {"kind": "task", "task": "rm_rf"}
        issued = httpx.post(f"{server.url}/api/v1/runs/task/commands", json=body).json()["command_id"]
        unknown = server.wait_for(f"/runs/task/commands/{issued}", lambda c: c["state"] == "failed", "it is refused")

    assert (done.returncode, "acted: spool " in done.stdout) == (0, True), done
    [answer] = unknown["nodes"].values()
    assert answer["detail"] == "there is no task 'rm_rf' on this node, expected one of: disk_space"


def cli(server: Server, *arguments: str, url: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stabilitybackend.cli", *arguments, *(["--url", server.url] if url else [])],
        env=os.environ | {"STABILITY_PLUGINS": str(FOLDER), "STABILITY_DATA_DIR": str(server.data_dir)},
        capture_output=True,
        text=True,
        check=False,
    )
