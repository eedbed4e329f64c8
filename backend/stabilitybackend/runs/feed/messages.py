"""Notifies browsers of changes by frames. Shapes: docs/api.md, live feed."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from stabilitybackend.acting.commands.progress import shown as shown_command
from stabilitybackend.judging.gpus.readings import gpu_parts
from stabilitybackend.lineage.batch import Batch, Placed
from stabilitybackend.lineage.consumer import Effects
from stabilitybackend.runs.feed.pubsub import Channel
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.incidents import shown
from stabilitybackend.storage.query.query import json_numbers

__all__ = ["publish"]

#: Larger batches of values are not pushed to browsers: they ask for the new ones, down-sampled.
MAX_PUSHED_VALUES = 20_000
#: The same while no browser is there: only the wants of a soon reconnecting one are worth keeping.
MAX_KEPT_VALUES = 1_000
#: Memory of rows until a browser wants them as JSON, bytes: for each set of rows, and for each value.
_ROWS_BYTES, _VALUE_BYTES = 600, 10


def publish(channel: Channel, state: RunState, changes: Effects, cursor: str) -> None:
    """Send ``changes`` to the channel of a run.

    Args:
        state: after the changes.
        cursor: stream id up to which the state is.
    """
    if changes.segments:
        tree = state.fold.tree
        channel.publish({"type": "segments", "head": tree.head, "segments": tree.news()}, cursor)
    for checkpoint in state.job.checkpoints(changes.checkpoints) if changes.checkpoints else ():
        channel.publish({"type": "checkpoint", "checkpoint": checkpoint}, cursor)
    tables = [table for batch in changes.batches for table in batch.tables]
    values = sum([table.values.size for table in tables])
    if values > (MAX_PUSHED_VALUES if channel else MAX_KEPT_VALUES):
        much = {"type": "reset", "reason": "much arrived at once; ask for what is new", "cursor": cursor}
        channel.publish(much, cursor)
    elif tables:
        size = _ROWS_BYTES * sum([len(table.sources) for table in tables]) + _VALUE_BYTES * values
        channel.publish_later(functools.partial(_points, tuple(changes.batches), cursor), cursor, size)
    for incident in changes.incidents.values():
        channel.publish({"type": "incident", "incident": shown(incident)}, cursor)
    for command in changes.commands.values():
        channel.publish({"type": "command", "command": shown_command(command)}, cursor)


def _points(some: Sequence[Batch], cursor: str) -> dict[str, Any]:
    placed = [rows for one in some for rows in one.each()]
    blocks = [_block(p) for p in placed if not p.stray]
    return {"type": "points", "cursor": cursor, "time": max(float(p.times[-1]) for p in placed), "blocks": blocks}


def _block(p: Placed) -> dict[str, Any]:
    block: dict[str, Any] = {
        "segment": p.segment,
        "rank": p.rank,
        "node": None if p.rank is not None else p.node,
        "steps": p.steps.tolist(),
        "times": p.times.tolist(),
    }
    shape = _gpu_table(tuple(p.names)) if p.rank is None and len(p.steps) == 1 else None
    if shape is None:
        return block | {"values": {name: json_numbers(p.values[i]) for i, name in enumerate(p.names)}}
    fields, gpus = shape
    values = json_numbers(p.values[:, 0])
    columns = [[None if row is None else values[row] for row in rows] for rows in gpus.values()]
    return block | {"values": {}, "gpus": {"fields": fields, "index": list(gpus), "values": columns}}


@functools.lru_cache(maxsize=1_024)
def _gpu_table(names: tuple[str, ...]) -> tuple[list[str], dict[int, list[int | None]]] | None:
    """Return the fields of an agent's readings and, by GPU, the row of each; None where other metrics are among them.

    Their names are four fifths of the size of a node's points: eight GPUs share names.
    """
    parts = [gpu_parts(name) for name in names]
    if not parts or len(set(names)) < len(names):
        return None
    fields: dict[str, None] = {}
    rows: dict[int, dict[str, int]] = {}
    for row, part in enumerate(parts):
        if part is None or f"gpu/{int(part[0])}/{part[1]}" != names[row]:
            return None
        fields[part[1]] = None
        rows.setdefault(int(part[0]), {})[part[1]] = row
    return list(fields), {index: [known.get(field) for field in fields] for index, known in rows.items()}
