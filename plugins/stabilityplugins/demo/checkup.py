"""A check of ``stabilityboard doctor``: the package that the demo needs."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from stabilitybackend.base.settings import Settings
from stabilitybackend.hooks import CheckResult


def demo(settings: Settings) -> CheckResult:
    try:
        return CheckResult("demo", "ok", f"torch {version('torch')} is installed")
    except PackageNotFoundError:
        return CheckResult(
            "demo", "note", "torch is not installed", "for the demo only: pip install 'stabilityboard[demo]'"
        )
