"""Discarded branches that a command can return to: an undone rollback. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import asdict

from stabilitybackend.judging.incidents.affecting import where_from
from stabilitybackend.lineage.tree import FoldedSegment, SegmentTree
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.kinds import kind_of
from stabilitybackend.schema.lineage import Checkpoint, OfferedBranch, OfferedCheckpoint

__all__ = ["offered_branches"]

#: Offered branches, newest first, and checkpoints of each.
MAX_BRANCHES, MAX_CHECKPOINTS = 20, 40


def offered_branches(
    tree: SegmentTree,
    heads: Sequence[tuple[float, int]],
    checkpoints: Sequence[Checkpoint],
    incidents: Sequence[Incident],
) -> list[OfferedBranch]:
    """Return the branches with a usable checkpoint, newest first.

    Args:
        heads: (time of creation, id) of each segment that became the head, in order; without the root.
        checkpoints: newest first. incidents: of the run.
    """
    living: dict[int, list[Checkpoint]] = {}
    for one in checkpoints:
        if one.dead and one.available and not one.unfit:
            living.setdefault(one.segment, []).append(one)
    labels = {one.id: one.label for one in tree.view().segments}
    return [
        _offered(tree, segment, _left_by(tree, heads, segment), labels, living[segment], incidents)
        for segment in sorted(living, reverse=True)[:MAX_BRANCHES]
    ]


def _left_by(tree: SegmentTree, heads: Sequence[tuple[float, int]], segment: int) -> FoldedSegment | None:
    """Return the newest head that left a segment before its end, None for none."""
    last = tree[segment].last_step
    order = [0, *(head for _, head in heads)]
    began = order.index(segment) if segment in order else len(order)
    for head in order[began + 1 :]:
        part = next((one for one in tree.path(head) if one.segment == segment), None)
        if part is None or (part.last is not None and last is not None and part.last < last):
            return tree[head]
    return None


def _offered(
    tree: SegmentTree,
    segment: int,
    left_by: FoldedSegment | None,
    labels: dict[int, str],
    living: Sequence[Checkpoint],
    incidents: Sequence[Incident],
) -> OfferedBranch:
    alive_until = tree.dead_after(segment)
    begin = tree[segment].fork_step if alive_until is None else alive_until
    left_at = tree[segment].last_step or begin
    affecting = [
        one
        for one in incidents
        if one.segment == segment and one.dead and kind_of(one.kind).rollback_helps and one.severity != "info"
    ]
    first = min(affecting, key=lambda one: (one.onset_step, one.incident_id), default=None)
    return OfferedBranch(
        segment=segment,
        label="" if left_by is None else labels.get(left_by.id, ""),
        alive_until=begin,
        left_at=left_at,
        to_step=living[0].step,
        text=_text(left_at, left_by, first, living),
        checkpoints=[
            OfferedCheckpoint(
                **asdict(one), skip_batches=None, where="" if first is None else where_from(one.step, first.onset_step)
            )
            for one in living[:MAX_CHECKPOINTS]
        ],
    )


def _text(left_at: int, left_by: FoldedSegment | None, first: Incident | None, living: Sequence[Checkpoint]) -> str:
    reason = f" ({left_by.reason})" if left_by is not None and left_by.reason else ""
    words = [f"The branch was left at step {left_at:,}{reason}."]
    if first is not None:
        what = f"the {kind_of(first.kind).short} at step {first.onset_step:,}"
        sound = max((one.step for one in living if one.step < first.onset_step), default=None)
        words.append(
            f"It has {what}: its checkpoints from then on may hold the damage"
            + (", none is from before it." if sound is None else f", that of step {sound:,} is from before it.")
        )
    return " ".join(words)
