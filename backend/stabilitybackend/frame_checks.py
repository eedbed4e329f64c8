"""Says whether a frame that could be read also holds what can be stored.

Our own client refuses such values where they are logged, so a frame that fails here comes from a foreign or broken
client. The check costs a few microseconds: it looks at steps and names as arrays, never at single values.
"""

from __future__ import annotations

import numpy as np

from stabilitybackend.errors import BadRequest
from stabilitybackend.keys import check_source_id
from stabilityclient.wire import MAX_NAME_CHARS, MAX_STEP, EventBlock, Frame, PointsBlock

__all__ = ["MAX_SEQ", "check_frame"]

#: Largest sequence number: what Lua inside Redis still counts exactly.
MAX_SEQ = 2**53 - 1
#: Longest event type, characters.
MAX_TYPE_CHARS = 64
_SHOWN_CHARS = 40


def check_frame(frame: Frame) -> None:
    """Check names, steps, times and numbers of a frame.

    Raises:
        BadRequest: something can't be stored; the message names it, what was given and what is expected.
    """
    check_source_id(frame.source.source)
    if frame.last_seq > MAX_SEQ:
        raise BadRequest(f"sequence number is {frame.last_seq}, expected at most {MAX_SEQ}")
    for block in frame.blocks:
        if isinstance(block, PointsBlock):
            _check_points(block)
        else:
            _check_event(block)


def _check_points(block: PointsBlock) -> None:
    for name in block.names:
        if not 1 <= len(name) <= MAX_NAME_CHARS:
            raise BadRequest(
                f"metric name {name[:_SHOWN_CHARS]!r} has {len(name)} characters, expected 1 to {MAX_NAME_CHARS}"
            )
    if len(set(block.names)) != len(block.names):
        raise BadRequest("a metric name stands twice in one block, expected each once")
    if not block.steps:
        return
    steps = np.frombuffer(block.steps, "<i8")
    for step in (int(steps.min()), int(steps.max())):
        if not 0 <= step <= MAX_STEP:
            raise BadRequest(f"step is {step}, expected 0 to {MAX_STEP}")
    if not np.isfinite(np.frombuffer(block.times, "<f8")).all():
        raise BadRequest("a time is not finite, expected unix seconds")


def _check_event(event: EventBlock) -> None:
    if not 1 <= len(event.type) <= MAX_TYPE_CHARS:
        raise BadRequest(f"event type has {len(event.type)} characters, expected 1 to {MAX_TYPE_CHARS}")
    # -1 is "no step yet": a process may die before its first one.
    if event.step is not None and not -1 <= event.step <= MAX_STEP:
        raise BadRequest(f"step of event {event.type!r} is {event.step}, expected -1 to {MAX_STEP} or none")
    if not np.isfinite(event.time):
        raise BadRequest(f"time of event {event.type!r} is {event.time}, expected unix seconds")
