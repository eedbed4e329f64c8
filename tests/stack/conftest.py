"""Fixtures of the tests of whole jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes import end_agents


@pytest.fixture(autouse=True)
def _no_agent_outlives_its_test(tmp_path: Path) -> Iterator[None]:
    yield
    end_agents(tmp_path, "**")
