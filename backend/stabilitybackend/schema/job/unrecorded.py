"""What a job gave and nobody stored, and that it was asked to end: as its agents and ranks report it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from stabilityclient.wire import MAX_STEP

_Count = Annotated[int, Meta(ge=0, le=MAX_STEP)]


class Unrecorded(msgspec.Struct):
    """``unrecorded``: what a rank gave since its start and nobody stored; a later one replaces it.

    Attributes:
        dropped: records that found no room. refused: things that can't be stored. stored: records that were.
        forked: a forked child logged. why: there was no room, in words.
    """

    source: str
    rank: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    dropped: _Count = 0
    refused: _Count = 0
    stored: _Count = 0
    forked: bool = False
    why: str = ""


class RecordsLost(msgspec.Struct):
    """``lost``: so many numbers of the source have no record any more."""

    records: Annotated[int, Meta(ge=-MAX_STEP, le=MAX_STEP)]
    reason: str | None = None


class RefusedText(msgspec.Struct):
    """``refused``: the first refusal of its kind in a process, in words."""

    text: str


class Preempted(msgspec.Struct):
    """``preempted``: the process was asked to end from outside, saves and leaves; ``by``: a signal, or who asked."""

    by: str = ""


class UnrecordedCounts(msgspec.Struct):
    """What the job gave and the run does not have.

    Attributes:
        dropped: records that found no room on their node. refused: values, steps and calls that can't be stored.
        lost: records that were stored on a node and could not be read there.
        stored: records of the ranks of which some were dropped.
        refusals: the first refusal of each kind, in words.
        text: all of it in sentences, "" while nothing is missing.
    """

    dropped: int = 0
    refused: int = 0
    lost: int = 0
    stored: int = 0
    refusals: list[str] = []
    text: str = ""
