"""Records of a spool, one at a time: rows, events, and numbers whose records are lost."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

__all__ = ["STEP_TIME", "Lost", "Record", "SpooledEvent", "SpooledRow"]

#: How the data of a row begins.
STEP_TIME = struct.Struct("<qd")


class SpooledRow(NamedTuple):
    """One call of log(). ``data`` is step i64, time f64 and one f64 a name, as they lie in the spool."""

    seq: int
    names: tuple[str, ...]
    data: bytes

    @property
    def step(self) -> int:
        """Return the step."""
        step: int = STEP_TIME.unpack_from(self.data)[0]
        return step

    @property
    def time(self) -> float:
        """Return the unix seconds at which it was logged."""
        when: float = STEP_TIME.unpack_from(self.data)[1]
        return when


class SpooledEvent(NamedTuple):
    """One event as the rank logged it."""

    seq: int
    type: str
    time: float
    step: int | None
    data: dict[str, Any]


class Lost(NamedTuple):
    """Numbers ``seq..last_seq`` whose records can't be read any more."""

    seq: int
    last_seq: int
    reason: str


Record = SpooledRow | SpooledEvent | Lost
