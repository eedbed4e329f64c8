"""What people ask of a job: the kinds of command, the request for one, and the command as it is stored, sent and shown.

The JSON is that of docs/api.md, read as older servers wrote it. A command changes while it lives: only its
``CommandBook`` (``commands/commands.py``) writes it, everybody else reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from stabilitybackend.schema.lineage import Branch
from stabilitybackend.schema.orders.kinds import END_STATES, KINDS, NOT_CARRIED_OUT, OPEN_STATES, Kind, State
from stabilitybackend.schema.plan import Plan

__all__ = [
    "END_STATES", "KINDS", "NOT_CARRIED_OUT", "OPEN_STATES", "AgentCommand", "AnyCommand", "CheckpointNow", "Command",
    "CommandRequest", "Fence", "HistoryEntry", "Kind", "NodeState", "Progress", "RankState", "Restart",
    "Rollback", "ShowBatches", "StackDump", "Stage", "StageState", "State", "Stop", "Task", "read_command",
]  # fmt: skip

#: Lines kept in the history of a command.
MAX_HISTORY = 200


def _described(description: str, **limits: int) -> Mapping[str, object]:
    """Return what FastAPI reads of a field: how the OpenAPI describes it, and that ``"5"`` is no 5."""
    return {"description": description, "strict": True, **limits}


_EXPIRES = ", ".join(f"{kind} {facts.expires_s:g}" for kind, facts in KINDS.items())


@dataclass(frozen=True)
class CommandRequest:
    """What is asked of the job (``POST .../commands``). Ranges are checked in ``acting.commands.request``."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    kind: Kind
    to_step: int | None = field(
        default=None, metadata=_described("step of a checkpoint: training goes on from the step after it")
    )
    branch: int | None = field(
        default=None, metadata=_described("rollback: the discarded segment whose checkpoint it is; none if left out")
    )
    lr_scale: float | None = field(
        default=None, metadata=_described("factor on what the schedule of the restored checkpoint gives, (0, 10]")
    )
    seed: int | None = field(default=None, metadata=_described("new seed of the data order"))
    skip_batches: int | None = field(default=None, metadata=_described("global batches to skip after the checkpoint"))
    skip_range: list[int] | None = field(
        default=None, metadata=_described("[first, last]: steps whose batches are left out, not those right behind")
    )
    exclude_nodes: list[str] | None = field(
        default=None, metadata=_described("restart: nodes that the job shall come up without")
    )
    keep_nodes: list[str] | None = field(
        default=None, metadata=_described("restart: nodes that the plan would leave out and shall not")
    )
    grace_s: float | None = field(
        default=None, metadata=_described("restart: seconds from SIGTERM to SIGKILL, 10 if left out")
    )
    task: str | None = field(
        default=None, metadata=_described("task: its name, as a plug-in of the agents registered it", max_length=100)
    )
    save: bool | None = field(default=None, metadata=_described("stop: save a checkpoint first"))
    step: int | None = field(
        default=None, metadata=_described("show_batches: the step whose batch is looked at first, then its neighbours")
    )
    incident_id: str | None = field(
        default=None, metadata=_described("show_batches: the incident that it is about", max_length=100)
    )
    accept_inside_incident: bool = field(
        default=False, metadata=_described("rollback, restart: also to a checkpoint from inside an open incident")
    )
    accept_unverified: bool = field(
        default=False,
        metadata=_described("rollback, restart: also to a checkpoint that no rank of the run is known to have written"),
    )
    reason: str = field(default="", metadata=_described("why, for the record"))
    expires_s: float | None = field(
        default=None, metadata=_described(f"seconds after which nobody may begin with it; {_EXPIRES} if left out")
    )
    idempotency_key: str | None = field(
        default=None, metadata=_described("the same key gives the same command again", max_length=200)
    )

    def given(self) -> dict[str, object]:
        """Return the JSON of it: what differs from the defaults, so that a server of before knows all of it."""
        values = {one.name: (getattr(self, one.name), one.default) for one in fields(self)}
        return {name: value for name, (value, default) in values.items() if value != default}

    def expires(self, now: float) -> float:
        """Return when nobody may begin with it any more, unix seconds."""
        return now + (KINDS[self.kind].expires_s if self.expires_s is None else self.expires_s)


class Fence(Struct, omit_defaults=True):
    """What a command was decided on: it does not hold for another segment, a restart not for later processes.

    Attributes:
        starts: of a restart, node -> newest start of its ranks, ns in hex: JavaScript would round the number.
    """

    segment: int
    segment_key: str
    starts: dict[str, str] = {}


class RankState(Struct, omit_defaults=True):
    """How far a command is at one rank.

    Attributes:
        state: as the rank reported it (docs/wire.md).
        applied: once acted, what the job's handler says that it changed.
    """

    state: str
    step: int | None
    time: float
    detail: str
    applied: dict[str, Any] | None = None


class NodeState(Struct, omit_defaults=True):
    """How far a command is at one node's agent.

    Attributes:
        state: as the agent reported it.
        gone: the agent ended and did not come back: the server answered for it.
    """

    state: str
    time: float
    detail: str
    gone: bool = False


class HistoryEntry(Struct):
    """One line of a command's history; of a rank where one is named."""

    state: str
    time: float
    detail: str
    rank: int | None = None
    step: int | None = None


StageState = Literal["done", "active", "failed", "waiting"]


class Stage(Struct, frozen=True):
    """A stage of a command: of ranks one a state, of agents one a node.

    Attributes:
        active: it is what is waited for. failed: it ended the command.
        after_s: how long after the request it was done.
    """

    key: str
    label: str
    state: StageState
    after_s: float | None


class Progress(Struct, frozen=True):
    """How far a command is, for people.

    Attributes:
        word: its state, for people. ended: it stays as it is. failed: it was not carried out, or by some only.
        acted: ranks, or nodes, that have done it.
        line: about all of it. trouble: why it failed, "" where it did not.
    """

    word: str
    ended: bool
    failed: bool
    acted: int
    stages: list[Stage]
    line: str
    trouble: str


class Command(Struct, kw_only=True, tag_field="kind"):
    """What was asked, what it was decided on, and how far it is. Which kind it is says the class.

    Attributes:
        state: done: the first new point is here.
        apply_at_step: null where agents carry it out.
        skip_range: steps whose batches are left out, first and last; absent for none.
        world_size: ranks, or agents, that have to answer.
        ranks: rank -> how far it is there.
        segment, first_step: of a command that is done, the new segment and its first step.
        waits: why nobody has looked at it yet, of an order that came while no worker followed the run.
        warning: in the answer to an order: what is to be known of it, although it is stored; never stored.
        progress: in answers and in the live feed (``commands/progress.py``); never stored.
    """

    kind: ClassVar[Kind]

    command_id: str
    run_id: str
    to_step: int | None = None
    lr_scale: float | None = None
    seed: int | None = None
    skip_batches: int | None = None
    skip_range: tuple[int, int] | UnsetType = UNSET
    reason: str
    issuer: str
    issued: float
    expires: float
    fence: Fence
    state: State = "pending"
    attempt: int = 1
    apply_at_step: int | None = None
    world_size: int
    ranks: dict[str, RankState] = {}
    history: list[HistoryEntry] = []
    checkpoint: str | None = None
    segment: int | None = None
    first_step: int | None = None
    idempotency_key: str | None = None
    waits: str | UnsetType = UNSET
    warning: str | UnsetType = UNSET
    progress: Progress | UnsetType = UNSET

    def note(self, state: State, time: float, detail: str) -> None:
        """Enter ``state``, with a line in the history."""
        self.state = state
        self.add_line(state, time, detail)

    def add_line(
        self, state: str, time: float, detail: str, *, rank: int | None = None, step: int | None = None
    ) -> None:
        """Add a line to the history; the oldest ones beyond MAX_HISTORY go."""
        self.history.append(HistoryEntry(state, time, detail, rank, step))
        del self.history[:-MAX_HISTORY]


class Rollback(Command, kw_only=True, tag="rollback"):
    """Go back to a checkpoint, on all ranks at one step boundary.

    Attributes:
        unpromised: what was ordered although the job promises only the step; older servers did not say.
        branch: the discarded segment that is gone back to.
    """

    kind: ClassVar[Kind] = "rollback"
    unpromised: list[str] | UnsetType = UNSET
    branch: Branch | UnsetType = UNSET


class Stop(Command, kw_only=True, tag="stop"):
    """End training on all ranks at one step boundary; the job's script goes on to its own end.

    Attributes:
        save: a checkpoint first.
    """

    kind: ClassVar[Kind] = "stop"
    save: bool = False


class CheckpointNow(Command, kw_only=True, tag="checkpoint_now"):
    """Save a checkpoint on all ranks at one step boundary; training goes on."""

    kind: ClassVar[Kind] = "checkpoint_now"


class AgentCommand(Command, kw_only=True):
    """A command that agents carry out."""

    nodes: dict[str, NodeState] = {}

    @property
    def agents_end(self) -> float:
        """When agents that have begun with it in time must be through, unix seconds."""
        return self.expires


class StackDump(AgentCommand, kw_only=True, tag="dump_stacks"):
    """Look closely at every rank."""

    kind: ClassVar[Kind] = "dump_stacks"


class Task(AgentCommand, kw_only=True, tag="task"):
    """Run a function that a plug-in of the agents registered (docs/extending.md).

    Attributes:
        task: its name.
    """

    kind: ClassVar[Kind] = "task"
    task: str


class ShowBatches(Command, kw_only=True, tag="show_batches"):
    """Look at the batches that the job keeps; each rank that keeps some answers for itself (docs/wire.md).

    Attributes:
        incident_id: what it is about. step: the batch that is looked at first.
        samples, text_chars: of the answer of one rank, at most.
        ranks: of those that answered some, first those that could not.
        answered: which ones did, a bit a rank, in hex: thousands of them in a few hundred characters.
        acted: how many of them showed their batches. Older servers said neither and named all ranks.
    """

    kind: ClassVar[Kind] = "show_batches"
    incident_id: str | None = None
    step: int | None = None
    samples: int
    text_chars: int
    answered: str = ""
    acted: int = 0


class Restart(AgentCommand, kw_only=True, tag="restart"):
    """Write the plan (docs/restart.md), then end the ranks of the node.

    Attributes:
        grace_s: how long ranks get to leave by themselves before they are killed.
    """

    kind: ClassVar[Kind] = "restart"
    plan: Plan
    grace_s: float

    @property
    def agents_end(self) -> float:
        """When agents that have begun with it in time must be through, unix seconds."""
        return self.expires + self.grace_s


#: What ``kind`` tells apart in JSON.
AnyCommand = Rollback | Restart | Stop | CheckpointNow | StackDump | Task | ShowBatches


def read_command(data: object) -> Command:
    """Return the command that parsed JSON holds; fields that nobody knows are passed over.

    Raises:
        msgspec.ValidationError: it is none of a kind that is known here.
    """
    command: AnyCommand = msgspec.convert(data, AnyCommand)
    return command
