"""Skips tests of a large package that is not installed, without importing it.

``pytest.importorskip`` at the top of a file imports it in every process of the tests that only collects the file:
torch, lightning and scikit-learn together take 8 s of CPU and 600 MiB each time.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest

__all__ = ["needs"]


def needs(package: str, reason: str) -> pytest.MarkDecorator:
    """Return the mark that skips a test where ``package`` is not installed."""
    return pytest.mark.skipif(find_spec(package) is None, reason=reason)
