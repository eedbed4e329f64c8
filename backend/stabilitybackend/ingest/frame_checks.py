"""Says whether a message that could be read also holds what can be stored and shown.

Our own client refuses such values where they are logged, so a frame that fails here comes from a foreign or broken
client. The check costs a few microseconds: it looks at steps and names as arrays, never at single values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from stabilitybackend.base.errors import BadRequest
from stabilitybackend.base.keys import check_source_id, is_of_file
from stabilitybackend.schema.json_data import check_data
from stabilityclient.wire import (
    MAX_NAME_CHARS,
    MAX_STEP,
    EventBlock,
    Frame,
    FramePart,
    NodeFrame,
    PointsBlock,
    SourceInfo,
)

__all__ = ["MAX_RECORDS", "MAX_SEQ", "Checked", "check_frame", "check_node_frame", "check_source"]

#: Largest sequence number: what Lua inside Redis still counts exactly.
MAX_SEQ = 2**53 - 1
#: Records that one source can have, and that one event can say to be lost: 10,000 a second for three years. A number
#: beyond it is no count of anything, and whoever sent it would have all that the source sends later taken for stored.
MAX_RECORDS = 10**12
#: Largest rank, as agents take it.
MAX_RANK = 2**31 - 1
#: Longest event type, characters.
MAX_TYPE_CHARS = 64
_SHOWN_CHARS = 40
#: Rows of a block up to which Python's own numbers are looked at quicker than an array.
_FEW_ROWS = 64
#: Sources and sets of names that are remembered as checked; names in all of the sets together.
_REMEMBERED, _NAMES_REMEMBERED = 4_096, 200_000


class Checked:
    """What one connection has sent that was checked before and comes again with nearly each message."""

    def __init__(self) -> None:
        self._sources: dict[str, SourceInfo] = {}
        self._names = set[tuple[str, ...]]()
        self._in_names = 0

    def source(self, info: SourceInfo) -> None:
        """Do what ``check_source`` does."""
        if self._sources.get(info.source) != info:
            check_source(info)
            if len(self._sources) >= _REMEMBERED:
                self._sources.clear()
            self._sources[info.source] = info

    def names(self, names: Sequence[str]) -> None:
        """Check the names of a block's metrics."""
        row = tuple(names)
        if row not in self._names:
            _check_names(row)
            if len(self._names) >= _REMEMBERED or self._in_names > _NAMES_REMEMBERED:
                self._names.clear()
                self._in_names = 0
            self._names.add(row)
            self._in_names += len(row)


def check_frame(frame: Frame, checked: Checked | None = None) -> None:
    """Check names, steps, times and numbers of a frame; ``checked`` is of its connection.

    Raises:
        BadRequest: something can't be stored; the message names it, what was given and what is expected.
    """
    records, checked = 0, checked or Checked()
    for block in frame.blocks:
        if isinstance(block, PointsBlock):
            _check_points(block, checked)
            records += len(block.steps) // 8
        else:
            records += _check_event(block)
    _check_numbers(frame, records, checked)


def check_node_frame(frame: NodeFrame, checked: Checked | None = None) -> None:
    """Do the same for each source in a message; raise as ``check_frame``."""
    checked = checked or Checked()
    for table in frame.tables:
        _check_points(table, checked)
    for part in frame.parts:
        records = 0
        for one in part.blocks:
            records += _check_event(one) if isinstance(one, EventBlock) else one[1]
        _check_numbers(part, records, checked)


def _check_numbers(frame: Frame | FramePart, records: int, checked: Checked) -> None:
    checked.source(frame.source)
    if frame.last_seq > MAX_SEQ:
        raise BadRequest(f"sequence number is {frame.last_seq}, expected at most {MAX_SEQ}")
    if is_of_file(frame.source.source):
        if frame.last_seq > MAX_RECORDS:
            raise BadRequest(f"sequence number is {frame.last_seq}, expected at most {MAX_RECORDS}")
    elif frame.last_seq - frame.first_seq + 1 != records:
        raise BadRequest(
            f"frame numbers {frame.first_seq}..{frame.last_seq} stand for {frame.last_seq - frame.first_seq + 1} "
            f"records, and it holds {records}"
        )


def check_source(info: SourceInfo) -> None:
    """Check who says that it sends.

    Raises:
        BadRequest: its id, its rank, its start or another number of it is none that a process can have.
    """
    check_source_id(info.source)
    if info.rank is not None and not 0 <= info.rank <= MAX_RANK:
        raise BadRequest(f"rank of {info.source} is {info.rank}, expected 0 to {MAX_RANK} or none")
    if not math.isfinite(info.started):
        raise BadRequest(f"start of {info.source} is {info.started}, expected unix seconds")
    for name in ("world_size", "local_rank", "pid", "generation"):
        if abs(getattr(info, name) or 0) > MAX_STEP:
            raise BadRequest(f"{name} of {info.source} is {getattr(info, name)}, expected at most {MAX_STEP}")


def _lost(event: EventBlock) -> int:
    """Return how many numbers a ``lost`` event stands for."""
    records = event.data.get("records")
    if type(records) is not int or not 1 <= records <= MAX_RECORDS:
        raise BadRequest(f"lost records are {records!r:.40}, expected a whole number of 1 to {MAX_RECORDS}")
    return records


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if not 1 <= len(name) <= MAX_NAME_CHARS:
            raise BadRequest(
                f"metric name {name[:_SHOWN_CHARS]!r} has {len(name)} characters, expected 1 to {MAX_NAME_CHARS}"
            )
    if len(set(names)) != len(names):
        raise BadRequest("a metric name is twice in one block, expected each once")


def _check_points(block: PointsBlock, checked: Checked) -> None:
    checked.names(block.names)
    if not block.steps:
        return
    steps, times = np.frombuffer(block.steps, "<i8"), np.frombuffer(block.times, "<f8")
    few: list[int] | None = steps.tolist() if len(steps) <= _FEW_ROWS else None
    for step in (min(few), max(few)) if few is not None else (int(steps.min()), int(steps.max())):
        if not 0 <= step <= MAX_STEP:
            raise BadRequest(f"step is {step}, expected 0 to {MAX_STEP}")
    if not (all(map(math.isfinite, times.tolist())) if few is not None else np.isfinite(times).all()):
        raise BadRequest("a time is not finite, expected unix seconds")


def _check_event(event: EventBlock) -> int:
    """Check an event, and return how many numbers it stands for."""
    if not 1 <= len(event.type) <= MAX_TYPE_CHARS:
        raise BadRequest(f"event type has {len(event.type)} characters, expected 1 to {MAX_TYPE_CHARS}")
    # -1 is "no step yet": a process may die before its first one.
    if event.step is not None and not -1 <= event.step <= MAX_STEP:
        raise BadRequest(f"step of event {event.type!r} is {event.step}, expected -1 to {MAX_STEP} or none")
    if not np.isfinite(event.time):
        raise BadRequest(f"time of event {event.type!r} is {event.time}, expected unix seconds")
    check_data(event.data, f"event {event.type!r}")
    return _lost(event) if event.type == "lost" else 1
