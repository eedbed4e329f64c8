"""Skips tests of what is not installed. A large package is looked for without importing it:

``pytest.importorskip`` at the top of a file imports it in every process of the tests that only collects the file:
torch, lightning and scikit-learn together take 8 s of CPU and 600 MiB each time.
"""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec

import pytest

__all__ = ["needed_program", "needs"]


def needs(package: str, reason: str) -> pytest.MarkDecorator:
    """Return the mark that skips a test where ``package`` is not installed."""
    return pytest.mark.skipif(find_spec(package) is None, reason=reason)


def needed_program(name: str, reason: str) -> str:
    """Return the path of a program; without it the test is skipped at home and fails in CI."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if path is not None:
        return path
    message = f"no {name} on the PATH: {reason}"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)
