"""Wheels of the client and of the server install and run on the Python versions that people have."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.ports import free_port
from support.processes import Server

pytestmark = pytest.mark.integrations

REPOSITORY = Path(__file__).parents[2]
#: Of the client: training images are older than servers.
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
#: The oldest of the server.
OF_THE_SERVER = (3, 11)
INSTALL_S = 600
STEPS = 50
JOB = f"""
import math, stabilityclient
run = stabilityclient.init(project="wheels")
for step in run.steps(1, {STEPS + 1}):
    run.log(step, {{"loss": 2 + math.exp(-step / 20), "lr": 1e-3}})
run.finish()
"""


def interpreter(version: str) -> str:
    """Return the command of a Python of this version; skip where there is none."""
    name = f"python{version}"
    try:  # pyenv has a command for each version, which fails where the version is not chosen
        subprocess.run([name, "--version"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"no {name} here (pyenv: PYENV_VERSION=3.11.7:3.10.13 make integrations)")
    return name


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of both wheels, built from what is committed and what lies beside it."""
    folder = tmp_path_factory.mktemp("wheels")
    tree = tmp_path_factory.mktemp("tree")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=REPOSITORY, capture_output=True, check=True).stdout.decode().split("\0")
    for name in filter(None, names):
        if (REPOSITORY / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes((REPOSITORY / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    for source in (tree / "client", tree):
        subprocess.run([*command, "--wheel-dir", str(folder), str(source)], check=True, timeout=INSTALL_S)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server") / "data", free_port()) as server:
        yield server


def installed(version: str, folder: Path, wheels: Path, *packages: str) -> Path:
    """Return the Python of a new environment that has nothing but these packages and what they need."""
    command, env = [interpreter(version), "-m", "venv", str(folder)], clean_environment()
    subprocess.run(command, env=env, check=True, timeout=INSTALL_S, capture_output=True)
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    subprocess.run([*install, "--find-links", str(wheels), *packages], env=env, check=True, timeout=INSTALL_S)
    return python


def clean_environment() -> dict[str, str]:
    """Return this environment without what would lead to the working tree, or to another run."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "STABILITY_"))}


def train(python: Path, folder: Path, url: str) -> subprocess.CompletedProcess[str]:
    """Run the job to its end, as the run that is called like its folder."""
    told = {"STABILITY_URL": url, "STABILITY_DIR": str(folder / "spool"), "STABILITY_RUN_ID": folder.name}
    command = [str(python), "-W", "error", "-c", JOB]
    return subprocess.run(
        command, env=clean_environment() | told, cwd=folder, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_a_job_of_each_python_reports_every_step(version: str, tmp_path: Path, wheels: Path, server: Server) -> None:
    folder = tmp_path / f"client-{version}"
    folder.mkdir()
    python = installed(version, folder / "venv", wheels, "stabilityclient")

    ended = train(python, folder, server.url)

    assert (ended.returncode, ended.stderr) == (0, "")
    run = server.wait_for(f"/runs/{folder.name}", lambda run: run["status"] == "finished", "the job has finished")
    assert run["last_step"] == STEPS


@pytest.mark.parametrize("version", [one for one in VERSIONS if tuple(map(int, one.split("."))) >= OF_THE_SERVER])
def test_the_server_of_each_python_takes_a_job(version: str, tmp_path: Path, wheels: Path) -> None:
    folder = tmp_path / f"server-{version}"
    folder.mkdir()
    python = installed(version, folder / "venv", wheels, "stabilityboard")
    port = free_port()

    with Server(folder / "data", port, python=python) as server:
        ended = train(python, folder, server.url)
        assert (ended.returncode, ended.stderr) == (0, "")
        run = server.wait_for(f"/runs/{folder.name}", lambda run: run["status"] == "finished", "the job has finished")

    assert run["last_step"] == STEPS
