"""``stabilityboard export``: writes a run to a Parquet or JSONL file, or to standard output."""

from __future__ import annotations

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
