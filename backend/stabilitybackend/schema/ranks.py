"""State of each rank, and collected stacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

#: Worst first. dead: gone, or left by an exception or without ``finish``. over: past its budget, and the others wait
#: for it. unheard: its agent is away or silent. unread: its slot can't be read. behind: by steps. waits: past its
#: budget, for another rank. long: in a phase that may be long.
RankStatus = Literal["dead", "over", "unheard", "unread", "behind", "waits", "long", "finished", "running"]
#: Severity as a colour class of the pages.
Tone = Literal["", "info", "warning", "critical"]


class RankStatusFacts(msgspec.Struct, frozen=True):
    """Appearance of a rank's state.

    Attributes:
        label: in a legend. mark: the shape in its cell.
        counted: label in the summary.
        hollow: drawn as an outline: not observed.
        on_node: the name of its node has its tone.
    """

    label: str
    mark: Literal["", "cross", "bang", "hatch", "question", "down", "dash", "dots", "tick"]
    tone: Tone = ""
    counted: Literal["runs", "waits", "finished", "trouble"] = "trouble"
    hollow: bool = False
    on_node: bool = False


_STATUSES: Mapping[RankStatus, RankStatusFacts] = {
    "dead": RankStatusFacts("gone", "cross", "critical", on_node=True),
    "over": RankStatusFacts("stalled: over its time budget", "bang", "critical", on_node=True),
    "unheard": RankStatusFacts("not reporting", "hatch", "warning", hollow=True, on_node=True),
    "unread": RankStatusFacts("unreadable", "question", "warning", hollow=True),
    "behind": RankStatusFacts("behind", "down", "warning"),
    "waits": RankStatusFacts("waits", "dash", "warning", "waits"),
    "long": RankStatusFacts("long phase", "dots", "info", "runs"),
    "finished": RankStatusFacts("finished", "tick", counted="finished"),
    "running": RankStatusFacts("runs", "", counted="runs"),
}
#: Sent with the head of the pages: the statuses, worst first, and the appearance of ranks named by an open verdict
#: (``waits_for``), in any status.
RANKS = {"statuses": msgspec.to_builtins(_STATUSES), "named": {"tone": "critical", "counted": "trouble"}}

#: Location of a rank's main thread, by its stack.
Where = Literal["data", "collective", "checkpoint", "lock", "user", "native", "idle", "unknown"]


class DumpedRank(msgspec.Struct):
    """Stack of one rank; ``missing``: reason for none."""

    node: str
    pid: int
    proc: dict[str, Any]
    slot: dict[str, Any]
    missing: str | None


class StackFrame(msgspec.Struct):
    """A frame of a stack; line 0 for unknown."""

    function: str
    file: str
    line: int


class StackGroup(msgspec.Struct):
    """Ranks whose main threads have one stack.

    Attributes:
        what: the collective, as ``all_reduce #1841 of default_pg``, or only its name; the call that takes a lock, as
            ``with cache``.
        frames: of the main thread, innermost first.
        text: whole text of one of them, "" beyond 1 MB a dump.
        odd: the others may wait for these.
    """

    ranks: list[int]
    nodes: list[str]
    where: Where
    what: str
    frames: list[StackFrame]
    text: str
    odd: bool


class StuckCollective(msgspec.Struct):
    """A collective that some ranks have entered and others not; ``unknown``: ranks without a flight recorder."""

    pg: str
    seq: int
    op: str
    joined: list[int]
    missing: list[int]
    unknown: list[int]


class RankStacks(msgspec.Struct):
    """The stacks of all ranks at one moment.

    Attributes:
        complete: every running rank answered.
        groups: the largest first.
        not_kept: ranks beyond the bound.
    """

    request: str
    reason: str
    time: float
    complete: bool
    ranks: dict[str, DumpedRank]
    groups: list[StackGroup]
    collectives: list[StuckCollective]
    bytes: int
    not_kept: int


class StackDumps(msgspec.Struct):
    """The newest 8 dumps, newest first."""

    dumps: list[RankStacks]
