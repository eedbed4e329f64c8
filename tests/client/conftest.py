"""Fixtures of the client's tests.

`start`    opens runs in a folder of the test and closes what is still open afterwards; offline unless a url is given.
`quiet`    lets the client swallow trouble as in a real job, although this is pytest.
`agents`   the folder whose agents are ended after the test, by the process ids that they wrote themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes import end_agents

_LAUNCHER = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the settings of the machine that it runs on."""
    for name in list(os.environ):
        if name.startswith(("STABILITY_", "SLURM_", "MASTER_", "OMPI_", "PMI_", "MPI_")) or name in _LAUNCHER:
            monkeypatch.delenv(name)
    monkeypatch.setenv("STABILITY_DRAIN_S", "20")


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Path]:
    """Folder for spools; agents that still work there are ended after the test."""
    folder = tmp_path / "spools"
    yield folder
    end_agents(folder)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the client behave as in a real job: swallow, count and log."""
    monkeypatch.setattr("stabilityclient.init_run.under_pytest", lambda environ: False)


@pytest.fixture
def start(agents: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Open a run: ``start(url=..., run_id=...)``."""
    import stabilityclient

    opened = []

    def open_run(**settings: Any) -> stabilityclient.Run:
        if "url" not in settings:
            monkeypatch.setenv("STABILITY_MODE", "offline")
        run = stabilityclient.init(**{"project": "p", "run_id": "r1", "dir": agents, **settings})
        opened.append(run)
        return run

    yield open_run
    for run in opened:
        run.finish(timeout_s=0)
