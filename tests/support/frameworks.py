"""The environments of other people's frameworks, which ``make integrations`` makes from requirements/integrations."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

__all__ = ["framework_python", "in_environment"]

_ENVIRONMENTS = Path(sys.prefix) / "integrations"


def in_environment(name: str) -> list[pytest.MarkDecorator]:
    """Return the marks of tests whose job runs in the environment ``name``; `make test` leaves them out.

    Where that environment was asked for and is missing, they run and fail.
    """
    asked = name in os.environ.get("STABILITY_FRAMEWORKS", "").split()
    missing = not asked and not framework_python(name).exists()
    return [pytest.mark.integrations, pytest.mark.skipif(missing, reason=f"make integrations FRAMEWORKS={name}")]


def framework_python(name: str) -> Path:
    """Return the Python that has the framework, the client and what the client's agent needs."""
    return _ENVIRONMENTS / name / "bin" / "python"
