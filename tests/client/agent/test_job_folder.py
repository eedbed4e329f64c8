"""The agent of a job whose folders hold modules of any name."""

from __future__ import annotations

import os
import subprocess
import sys
import zipapp
from collections.abc import Iterator
from pathlib import Path

import pytest
import websockets

import stabilityclient
from support.processes import end_agents

#: What people call their files, and what an agent could meet in place of its own modules.
NAMES = (
    *(
        "uuid",
        "secrets",
        "platform",
        "numbers",
        "queue",
        "calendar",
        "asyncio",
        "ssl",
        "runpy",
        "decimal",
        "statistics",
    ),
    *("msgspec", "websockets", "pynvml", "sitecustomize", "usercustomize"),
)
#: Waits for the agent's own word; with an argument for the end of the run.
JOB = """
import json, os, sys, time
import stabilityclient
run = stabilityclient.init(run_id="shadowed", url="http://127.0.0.1:9", dir="spools")
run.log(1, {"loss": 1.0})
state, until = "spools/shadowed/agent/agent.json", time.time() + 20
while "wait" in sys.argv and not os.path.exists(state) and time.time() < until:
    time.sleep(0.05)
print(json.load(open(state))["state"] if os.path.exists(state) else "no agent", flush=True)
run.finish(10)
"""
PACKAGES = str(Path(stabilityclient.__file__).parents[1])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A job's folder with a file of each name, which ends whoever imports it."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(
            "import sys\n"
            "if 'stabilityclient.agent' in sys.argv or sys.argv[:1] in (['-c'], ['-m']):\n"
            "    raise SystemExit('a file of the job')\n"
        )
    (tmp_path / "train.py").write_text(JOB)
    yield tmp_path
    end_agents(tmp_path / "spools")


def run_job(folder: Path, *command: str, path: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "STABILITY_"))}
    environ |= {"STABILITY_DRAIN_S": "1", "PYTHONPATH": path, "PYTHONWARNINGS": "error"}
    return subprocess.run([python, *command], cwd=folder, env=environ, capture_output=True, text=True, timeout=60)


def test_no_file_of_the_job_is_imported_by_its_agent(folder: Path) -> None:
    done = run_job(folder, "train.py", "wait", path=f"{folder}{os.pathsep}{PACKAGES}")

    assert done.stdout == "connecting\n", done.stderr


def test_the_agent_of_a_job_in_a_zip_is_of_the_package_in_the_zip(folder: Path, tmp_path: Path) -> None:
    app = tmp_path / "app"
    (app / "stabilityclient").parent.mkdir()
    subprocess.run(["cp", "-r", f"{PACKAGES}/stabilityclient", app], check=True)
    (app / "__main__.py").write_text(JOB)
    zipapp.create_archive(app, tmp_path / "job.pyz")

    done = run_job(folder, "job.pyz", "wait", path=str(folder))

    assert done.stdout == "connecting\n", done.stderr


def test_an_agent_that_dies_twice_is_told_at_once_with_its_reason(folder: Path) -> None:
    broken = folder / "vendored"
    broken.mkdir(exist_ok=True)
    subprocess.run(["cp", "-r", f"{PACKAGES}/stabilityclient", broken], check=True)
    (broken / "stabilityclient" / "agent" / "main.py").write_text("raise ImportError('no such symbol')\n")

    done = run_job(folder, "train.py", path=str(broken))

    assert "the agent died twice in a row" in done.stderr
    assert "ImportError: no such symbol" in done.stderr


def test_packages_that_only_the_path_of_the_job_has_are_found_behind_a_file_of_the_same_name(folder: Path) -> None:
    """A Python without packages, and all of them in PYTHONPATH: ``pip install --target``, the modules of a cluster."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "bare"], check=True)
    installed = Path(websockets.__file__).parents[1]
    (deps := folder / "deps").mkdir()
    for name in ("msgspec", "websockets"):
        for found in installed.glob(f"{name}*"):
            (deps / found.name).symlink_to(found)
    path = os.pathsep.join((str(folder), PACKAGES, str(deps)))

    done = run_job(folder, "train.py", "wait", path=path, python=str(folder / "bare" / "bin" / "python"))

    assert done.stdout == "connecting\n", done.stderr
