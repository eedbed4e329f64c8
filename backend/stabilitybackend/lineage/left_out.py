"""Batches that a rollback was to leave out, or did: one reading of the ordered and of the applied changes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["left_out"]


def left_out(changes: Mapping[str, Any], fork_step: int) -> tuple[int, int] | None:
    """Return the first and last step, of the branch that was left, whose batches were left out; None for none.

    Args:
        changes: of a segment; a job may declare any value.
        fork_step: the step that it went back to.
    """
    span, skip = changes.get("skip_range"), changes.get("skip_batches")
    if isinstance(span, list | tuple) and [type(one) for one in span] == [int, int] and fork_step < span[0] <= span[1]:
        return span[0], span[1]
    if isinstance(skip, int) and not isinstance(skip, bool) and skip > 0:
        return fork_step + 1, fork_step + skip
    return None
