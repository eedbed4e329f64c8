"""Going back to a branch that was left: whose state the job took up, and how far the path stays as it was. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stabilitybackend.lineage.tree import ROOT_FORK, SegmentTree

__all__ = ["left_by", "taken_up"]


def taken_up(tree: SegmentTree, here: int, data: Mapping[str, Any]) -> tuple[int, dict[str, int]]:
    """Return the segment whose state a source took up, by its ``segment`` event, and the kept part of the new segment.

    Nearly always that is the one that the source is in. Of an order to go back to a branch that was left it is that
    branch: of several with its key (a restart that repeats itself) the one with its id, else the newest.

    Args:
        here: the segment that the source is in. data: of the event.

    Returns:
        The segment, and fields of the new one: ``returns_to`` and ``shared_step`` where it returns to a branch.
    """
    branch = data.get("branch")
    if branch is None:
        return here, {}
    known = [one.id for one in tree.with_key(branch["segment_key"]) if not one.undone]
    if not known:
        return here, {}
    origin = branch["segment"] if branch["segment"] in known else known[-1]
    return origin, {"returns_to": origin, "shared_step": _shared_step(tree, here, origin, data["to_step"])}


def left_by(tree: SegmentTree, heads: Sequence[tuple[float, int]], segment: int) -> int | None:
    """Return the segment whose later steps a fork repeats: the head before it, or the branch that it returned to.

    None for one that never was the head.

    Args:
        heads: (when it was created, id) of each segment that became the head, in order; without the root.
    """
    order = [head for _, head in heads]
    if segment not in order:
        return None
    if (returns_to := tree[segment].returns_to) is not None:
        return returns_to
    at = order.index(segment)
    return order[at - 1] if at else 0


def _shared_step(tree: SegmentTree, left: int, taken: int, fork_step: int) -> int:
    """Return the greatest step, ``fork_step`` at most, up to which the paths to two segments are the same."""
    shared = ROOT_FORK
    for one, other in zip(tree.path(left), tree.path(taken), strict=False):
        if one.segment != other.segment:
            break
        shared = min([fork_step, *(end for end in (one.last, other.last) if end is not None)])
        if one.last != other.last:
            break
    return shared
