"""What the ranks of a job printed, as the API answers it."""

from __future__ import annotations

from typing import Literal

import msgspec


class PrintedLine(msgspec.Struct):
    """One line.

    Attributes:
        id: its place; lines with greater ones came later. time: when the agent read it, unix seconds, at most a second
            late. step: that of the rank then, null before the first.
        stream: ``out`` or ``err``. level: what the line itself says: an error, a warning, or nothing of the kind.
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
        ranks: those of which lines are kept, by rank. total: lines that are kept of all of them.
        first_rank: whose lines people read first: a rank that an open incident blames, else the lowest; null without
            any line.
        skipped: lines that were left out because there were too many.
        at: id of the line at the step that was asked for, null without one.
        older, newer: whether there are further lines on either side.
    """

    lines: list[PrintedLine]
    ranks: list[int]
    total: int
    first_rank: int | None
    skipped: int
    at: str | None
    older: bool
    newer: bool
