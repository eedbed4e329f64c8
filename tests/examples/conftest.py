"""The example's modules, importable by their own names, as torchrun sees them.

`tokens`  folder with the example's data as tokens, read once a session: what a second start of the job finds.
"""

from __future__ import annotations

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

    folder = tmp_path_factory.mktemp("tokens")
    load_sources(folder)
    return folder
