"""Printed lines of a job's ranks."""

from __future__ import annotations

from typing import Literal

import msgspec


class PrintedLine(msgspec.Struct):
    """One line.

    Attributes:
        id: rises with arrival. time: of the agent's read, unix seconds, at most a second late. step: of the rank then,
            null before the first.
        stream: ``out`` or ``err``. level: error, warning or nothing, by the line's own text.
    """

    id: str
    time: float
    rank: int
    node: str
    stream: Literal["out", "err"]
    step: int | None
    text: str
    level: Literal["error", "warning", ""]


class OutputAnswer(msgspec.Struct):
    """Lines of a run, oldest first.

    Attributes:
        ranks: with stored lines, by rank. total: their stored lines.
        first_rank: the one to read first: blamed by an open incident, else the lowest; null without any line.
        skipped: lines left out beyond the limit.
        at: id of the line at the requested step, null without one.
        older, newer: further lines on either side.
    """

    lines: list[PrintedLine]
    ranks: list[int]
    total: int
    first_rank: int | None
    skipped: int
    at: str | None
    older: bool
    newer: bool
