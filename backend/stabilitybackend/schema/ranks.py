"""What each rank does, and the stacks that were collected of them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from stabilitybackend.schema.events import GpuNote
from stabilitybackend.schema.health import AgentState, RankWord

__all__ = ["AgentHealth", "HealthAnswer", "RankHealth", "RankStacks", "RankStatus", "StackDumps", "Where"]

#: Worst first. dead: gone. over: past its budget, and the others wait for it. unheard: its agent is away or silent.
#: unread: its slot can't be read. behind: by steps. waits: past its budget, for another rank. long: in a phase that may
#: be long.
RankStatus = Literal["dead", "over", "unheard", "unread", "behind", "waits", "long", "finished", "running"]


#: Where the main thread of a rank is, by its stack.
Where = Literal["data", "collective", "checkpoint", "user", "native", "idle", "unknown"]


class RankHealth(RankWord, kw_only=True):
    """One process of a rank: what its agent sent last, and what the server makes of it.

    Attributes:
        budget_s: how long it may stay where it is; null for one that tells no steps while the others make them, absent
            for a process without a rank.
        status: judged by the server once, for everybody; null for a process that another one has replaced.
    """

    budget_s: float | UnsetType | None = UNSET
    status: RankStatus | None


class AgentHealth(msgspec.Struct):
    """The newest report of one agent.

    Attributes:
        gpu: the node's GPUs in a line. gpus: index -> field -> newest reading.
    """

    agent: str
    node: str
    time: float
    connected: bool
    gpu: GpuNote
    gpus: dict[str, dict[str, float]]
    agent_state: AgentState
    ranks: list[RankHealth]


class HealthAnswer(msgspec.Struct):
    """The newest report of every agent.

    Attributes:
        waits_for: the ranks of open verdicts for which the others wait.
    """

    agents: list[AgentHealth]
    waits_for: list[int]


class DumpedRank(msgspec.Struct):
    """What was seen of one rank; ``missing``: why there is no stack."""

    node: str
    pid: int
    proc: dict[str, Any]
    slot: dict[str, Any]
    missing: str | None


class StackFrame(msgspec.Struct):
    """A frame of a stack; line 0 where it is not known."""

    function: str
    file: str
    line: int


class StackGroup(msgspec.Struct):
    """The ranks whose main threads have one stack.

    Attributes:
        what: the collective, as ``all_reduce #1841 of default_pg``, or only its name.
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
    """A collective that some ranks have entered and others not; ``unknown``: no recorder of theirs was read."""

    pg: str
    seq: int
    op: str
    joined: list[int]
    missing: list[int]
    unknown: list[int]


class RankStacks(msgspec.Struct):
    """The stacks of all ranks at one moment.

    Attributes:
        complete: every rank that ran has answered.
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
