"""Brings in what only some formats need: packages of the extra ``import``."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from stabilitybackend.errors import StabilityBoardError

__all__ = ["message_class"]


def message_class(module: str, name: str, files: str) -> Any:
    """Return the protobuf class ``name`` of ``module``.

    Args:
        files: what is read with it, for the message.

    Raises:
        StabilityBoardError: its package is not installed.
    """
    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        package = module.partition(".")[0]
        raise StabilityBoardError(
            f"{files} are read with the package {package}, which is not there ({error})",
            hint='pip install "stabilityboard[import]"',
            code="missing_package",
        ) from error
