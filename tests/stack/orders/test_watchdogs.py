"""A watchdog outside spares a job that goes back on order and ends one that hangs: real ranks, a real watchdog."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from stabilityclient.progress import read
from support.ports import free_port
from support.processes import Server
from support.waiting import wait_until

REPOSITORY = Path(__file__).parents[3]
RANK = Path(__file__).with_name("pausing_rank.py")
#: Seconds without a step after which the watchdog ends the job: many times what a busy machine makes of 20 ms.
STUCK_S = 8.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server") / "data", free_port()) as running:
        yield running


def launched(command: list[str], **env: str) -> subprocess.Popen[str]:
    watchdog = [sys.executable, str(REPOSITORY / "examples/supervise/watchdog.py"), f"--stuck-after={STUCK_S}"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return subprocess.Popen(
        [*watchdog, "--grace=2", "--", *command], env=clean | env, stderr=subprocess.PIPE, text=True
    )


def spared_then_ended(server: Server, folder: Path, run_id: str, command: list[str]) -> None:
    file, place = folder / "progress.json", f"/runs/{run_id}"
    env = {"STABILITY_URL": server.url, "STABILITY_DIR": str(folder / "spool"), "STABILITY_RUN_ID": run_id}
    watchdog = launched(command, **env, STABILITY_PROGRESS_FILE=str(file))
    try:
        server.wait_for(f"{place}/rollback", lambda r: r["to_step"] is not None, "it can go back", 90)
        step = server.get(f"{place}/checkpoints")["checkpoints"][-1]["step"]
        order = {"kind": "rollback", "to_step": step, "idempotency_key": "once"}
        answer = httpx.post(f"{server.url}/api/v1{place}/commands", json=order)
        assert answer.status_code == 201, answer.text

        def is_overdue() -> bool:
            found = read(str(file)) or {}
            return found.get("state") == "rollback" and time.time() - found["advanced"] > STUCK_S + 2

        wait_until(is_overdue, 90, "it pauses for longer than the watchdog waits")
        assert watchdog.poll() is None, "it was told to pause"
        (folder / "go").touch()
        path = f"{place}/commands/{answer.json()['command_id']}"
        server.wait_for(path, lambda c: c["state"] == "done", "it trains again", 60)
        wait_until(lambda: (read(str(file)) or {}).get("state") == "training", 30, "the pause is over in the file too")

        (folder / "hang").touch()
        assert watchdog.wait(90) == 75
    finally:
        if watchdog.poll() is None:
            watchdog.terminate()
        said = watchdog.communicate(timeout=60)[1]
    verdicts = [line.split(": ")[1] for line in said.splitlines() if line.startswith("watchdog: ")]
    assert [one for one in verdicts if one != "unknown"] == ["progress", "pause", "progress", "stuck"], said


def test_a_watchdog_spares_a_job_that_goes_back_on_order_and_ends_it_when_it_hangs(
    server: Server, tmp_path: Path
) -> None:
    program = f"import runpy, sys; sys.argv[1:] = [{str(tmp_path)!r}, 'plain']; runpy.run_path({str(RANK)!r})"
    both = f"""
import os, subprocess, sys
ranks = [subprocess.Popen([sys.executable, "-c", {program!r}], env=os.environ | {{"RANK": str(r), "LOCAL_RANK": str(r),
         "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}}) for r in range(2)]
sys.exit(max(rank.wait() for rank in ranks))
"""
    spared_then_ended(server, tmp_path, "plain", [sys.executable, "-c", both])


@pytest.mark.soak
def test_it_does_so_with_a_job_of_torchrun_whose_ranks_wait_for_each_other(server: Server, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    spared_then_ended(server, tmp_path, "torch", [*launcher, str(RANK), str(tmp_path), "torch"])


@pytest.mark.soak
def test_it_spares_a_job_that_was_ordered_to_restart_until_it_makes_steps_again(server: Server, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    file, place = tmp_path / "progress.json", "/runs/again"
    env = {"STABILITY_URL": server.url, "STABILITY_DIR": str(tmp_path / "spool"), "STABILITY_RUN_ID": "again"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    watchdog = launched(
        [*launcher, str(RANK), str(tmp_path), "torch"], **env, STABILITY_PROGRESS_FILE=str(file),
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
    )  # fmt: skip
    try:
        server.wait_for(f"{place}/rollback", lambda r: r["to_step"] is not None, "it has a checkpoint", 90)
        step = server.get(f"{place}/checkpoints")["checkpoints"][-1]["step"]
        order = {"kind": "restart", "to_step": step, "idempotency_key": "once"}
        answer = httpx.post(f"{server.url}/api/v1{place}/commands", json=order)
        assert answer.status_code == 201, answer.text
        wait_until(lambda: (read(str(file)) or {}).get("state") == "restart", 60, "the file says that it restarts")
        path = f"{place}/commands/{answer.json()['command_id']}"
        server.wait_for(path, lambda c: c["state"] == "done", "it is back", 90)
        wait_until(lambda: (read(str(file)) or {}).get("state") == "training", 30, "and the file says so")
        assert watchdog.poll() is None
    finally:
        watchdog.terminate()
        said = watchdog.communicate(timeout=60)[1]
    verdicts = [line.split(": ")[1] for line in said.splitlines() if line.startswith("watchdog: ")]
    known = [one for one in verdicts if one != "unknown"]
    assert known[:2] == ["progress", "pause"], said
    assert "stuck" not in known
