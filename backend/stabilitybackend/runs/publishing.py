"""Tells browsers what frames changed. Shapes: docs/api.md, live feed."""

from __future__ import annotations

from typing import Any

from stabilitybackend.lineage.changes import Placed
from stabilitybackend.runs.live import Channel
from stabilitybackend.runs.query import json_numbers
from stabilitybackend.runs.state import Changes, RunState

__all__ = ["publish"]

#: More values than this at once are not pushed to browsers: they ask for what is new, down-sampled.
MAX_PUSHED_VALUES = 20_000
#: The same while no browser is there: only what a reconnecting one will want soon is worth encoding.
MAX_KEPT_VALUES = 1_000


def publish(channel: Channel, state: RunState, changes: Changes, cursor: str) -> None:
    """Send ``changes`` to the channel of a run.

    Args:
        state: after the changes.
        cursor: stream id up to which the state is.
    """
    if changes.segments:
        tree = state.fold.tree
        channel.publish({"type": "segments", "head": tree.head, "segments": tree.as_dicts()}, cursor)
    for checkpoint in state.checkpoints() if changes.checkpoints else ():
        if checkpoint["path"] in changes.checkpoints:
            channel.publish({"type": "checkpoint", "checkpoint": checkpoint}, cursor)
    if sum(p.values.size for p in changes.placed) > (MAX_PUSHED_VALUES if channel else MAX_KEPT_VALUES):
        channel.publish({"type": "reset", "reason": "much arrived at once; ask for what is new"}, cursor)
    elif changes.placed:
        channel.publish(_points(changes.placed, cursor), cursor)
    for incident in changes.incidents.values():
        channel.publish({"type": "incident", "incident": incident}, cursor)
    for command in changes.commands.values():
        channel.publish({"type": "command", "command": command}, cursor)


def _points(placed: list[Placed], cursor: str) -> dict[str, Any]:
    blocks = [
        {
            "segment": p.segment,
            "rank": p.rank,
            "node": None if p.rank is not None else p.node,
            "steps": p.steps.tolist(),
            "times": p.times.tolist(),
            "values": {name: json_numbers(p.values[i]) for i, name in enumerate(p.names)},
        }
        for p in placed
        if not p.stray
    ]
    return {"type": "points", "cursor": cursor, "time": max(float(p.times[-1]) for p in placed), "blocks": blocks}
