"""Says which segments can be taken back."""

from __future__ import annotations

from stabilitybackend.errors import Conflict, NotFound
from stabilitybackend.lineage.tree import Segment, SegmentTree

__all__ = ["undoable"]


def undoable(run_id: str, tree: SegmentTree, segment: int) -> Segment:
    """Return the segment if it was inferred from steps alone and nothing hangs from it.

    Raises:
        NotFound: there is no such segment.
        Conflict: it was declared or ordered, or other segments hang from it.
    """
    if not 0 < segment < len(tree):
        raise NotFound(f"run {run_id} has no segment {segment}", hint="list them with GET .../segments")
    found = tree[segment]
    if found.cause != "restart" or any(s.parent == segment for s in tree):
        raise Conflict(
            f"segment {segment} (cause {found.cause}) can't be undone",
            hint="only a segment that nobody declared and from which no other hangs can be",
        )
    return found
