"""Checkpoints as the API has them, for what is decided from a list of them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from stabilitybackend.schema.lineage import Checkpoint

__all__ = ["checkpoint"]


def checkpoint(step: int, **changes: Any) -> Checkpoint:
    """Return one of the first segment that can be gone back to."""
    return replace(Checkpoint(step, f"c/{step}", 0, 0.0, available=True, dead=False), **changes)
