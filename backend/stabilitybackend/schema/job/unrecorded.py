"""Records of a job that were not stored, and requests to end it, as reported by agents and ranks."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from stabilityclient.wire import MAX_STEP

_Count = Annotated[int, Meta(ge=0, le=MAX_STEP)]


class Unrecorded(msgspec.Struct):
    """``unrecorded``: lost records of a rank since its start; a later one replaces it.

    Attributes:
        dropped: records without room. refused: values that can't be stored. stored: records that were.
        forked: a forked child logged. why: reason for the lack of room.
    """

    source: str
    rank: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    dropped: _Count = 0
    refused: _Count = 0
    stored: _Count = 0
    forked: bool = False
    why: str = ""


class RecordsLost(msgspec.Struct):
    """``lost``: sequence numbers of the source without a record."""

    records: Annotated[int, Meta(ge=-MAX_STEP, le=MAX_STEP)]
    reason: str | None = None


class RefusedText(msgspec.Struct):
    """``refused``: the first refusal of its kind in a process."""

    text: str


class Preempted(msgspec.Struct):
    """``preempted``: the process was asked to end from outside, saves and leaves; ``by``: a signal, or the source."""

    by: str = ""


class UnrecordedCounts(msgspec.Struct):
    """Records missing in the run.

    Attributes:
        dropped: records without room on their node. refused: values, steps and calls that can't be stored.
        lost: records of a node that could not be read there.
        stored: records of the ranks of which some were dropped.
        refusals: the first refusal of each kind.
        text: the same in sentences, "" for nothing missing.
    """

    dropped: int = 0
    refused: int = 0
    lost: int = 0
    stored: int = 0
    refusals: list[str] = []
    text: str = ""
