"""The example's modules, importable by their own names, as torchrun sees them.

`tokens`  folder with the example's data as tokens: what a second start of the job finds. Read once for all processes
          of a session, since reading them takes 4 s of CPU.
"""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
JOB_FOLDER = REPOSITORY / "examples" / "multimodal"

sys.path.insert(0, str(JOB_FOLDER))


@pytest.fixture(scope="session")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder for ``--data-cache``, filled."""
    pytest.importorskip("sklearn", reason="the example's images come from scikit-learn")
    from data import load_sources

    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = base / "tokens"
    with (base / "tokens.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        load_sources(folder)
    return folder
