"""Commands to a job: kinds, request, state as stored, sent and shown; offers, proposals and pending ones.

The JSON is that of docs/api.md. A command changes while it lives; only its ``CommandBook`` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, get_args

import msgspec
from msgspec import UNSET, Struct, UnsetType

from stabilitybackend.schema.lineage import Branch
from stabilitybackend.schema.plan import Plan

Kind = Literal["rollback", "restart", "stop", "checkpoint_now", "dump_stacks", "task", "show_batches"]
State = Literal["pending", "delivered", "ready", "acted", "done", "rejected", "failed", "expired"]

#: States of a command that may still act.
OPEN_STATES: frozenset[State] = frozenset({"pending", "delivered", "ready"})
#: Final states. ``acted`` is in neither: it waits for the first new row.
END_STATES: frozenset[State] = frozenset(get_args(State)) - OPEN_STATES - {"acted"}
#: Final states of a job left unchanged, or half changed.
NOT_CARRIED_OUT: frozenset[State] = END_STATES - {"done"}

#: State -> label.
WORDS: Mapping[State, str] = {
    "pending": "approved",
    "delivered": "sent",
    "ready": "ready",
    "acted": "executing",
    "done": "done",
    "rejected": "refused",
    "failed": "failed",
    "expired": "expired",
}

#: Longest wait for a start, seconds.
MAX_EXPIRES_S = 86_400.0
#: The same for stacks, which take seconds: one without an answer must not delay the next.
MAX_DUMP_EXPIRES_S = 60.0


@dataclass(frozen=True, slots=True)
class CommandKind:
    """Facts of a kind of command.

    Args:
        by: ranks agree on a step boundary; agents need none, so they reach a hanging job; ``each rank`` answers at a
            boundary of its own.
        takes: fields of a request, besides ``reason``, ``expires_s`` and ``idempotency_key``.
        expires_s: default time for a start, seconds. max_expires_s: longest in a request, seconds.
        answered: of agents, the state once all answered and one has done it.
        unanswered: of agents, the open question about one that ended before its answer.
        beside: leaves the ranks unchanged, so a rollback or restart need not wait for it.
        moves: ends or moves training; subject to the two persons' rule.
        acted: of ranks, their action. nothing: of ranks, the result where none acted.
    """

    by: Literal["ranks", "agents", "each rank"]
    takes: frozenset[str]
    expires_s: float
    max_expires_s: float = MAX_EXPIRES_S
    answered: State = "acted"
    unanswered: str = ""
    beside: bool = False
    moves: bool = False
    acted: str = ""
    nothing: str = ""


#: All kinds. A new kind is a line here, a Struct below, and its code in the client.
KINDS: Mapping[Kind, CommandKind] = {
    # Long enough for a few slow steps, too short for a surprise after lunch.
    "rollback": CommandKind(
        "ranks",
        frozenset({"to_step", "branch", "lr_scale", "seed", "skip_batches", "skip_range"}),
        expires_s=600.0,
        moves=True,
        acted="rolled back",
        nothing="nothing was rolled back",
    ),
    # As a rollback.
    "stop": CommandKind(
        "ranks", frozenset({"save"}), expires_s=600.0, moves=True, acted="stopped", nothing="the job was not stopped"
    ),
    "checkpoint_now": CommandKind(
        "ranks", frozenset(), expires_s=600.0, acted="saved a checkpoint", nothing="no checkpoint was saved"
    ),
    # It waits for ranks that leave by themselves.
    "restart": CommandKind(
        "agents",
        frozenset(
            {"to_step", "lr_scale", "seed", "skip_batches", "skip_range", "exclude_nodes", "keep_nodes", "grace_s"}
        ),
        expires_s=60.0,
        unanswered="whether its ranks were ended is not known",
        moves=True,
    ),
    # At most 3 s a node.
    "dump_stacks": CommandKind(
        "agents",
        frozenset(),
        expires_s=15.0,
        max_expires_s=MAX_DUMP_EXPIRES_S,
        answered="done",
        unanswered="its stacks are missing",
        beside=True,
    ),
    # As long as the agent waits for its function.
    "task": CommandKind(
        "agents",
        frozenset({"task"}),
        expires_s=60.0,
        answered="done",
        unanswered="whether it was done is not known",
        beside=True,
    ),
    # A rank reads it with its next batch: a step of a large model takes half a minute.
    "show_batches": CommandKind(
        "each rank", frozenset({"incident_id", "step"}), expires_s=120.0, answered="done", beside=True
    ),
}


#: Longest history of a command, lines.
MAX_HISTORY = 200


def _described(description: str, **limits: int) -> Mapping[str, object]:
    """Return metadata of a field for FastAPI: a description for OpenAPI, and strict types (``"5"`` is no 5)."""
    return {"description": description, "strict": True, **limits}


_EXPIRES = ", ".join(f"{kind} {facts.expires_s:g}" for kind, facts in KINDS.items())


@dataclass(frozen=True)
class CommandRequest:
    """Request of a command (``POST .../commands``). Ranges are checked in ``acting.commands.request``."""

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
        """Return its JSON: fields that differ from the defaults."""
        values = {one.name: (getattr(self, one.name), one.default) for one in fields(self)}
        return {name: value for name, (value, default) in values.items() if value != default}

    def expires(self, now: float) -> float:
        """Return the end of the time for a start, unix seconds."""
        return now + (KINDS[self.kind].expires_s if self.expires_s is None else self.expires_s)


class CommandFence(Struct, omit_defaults=True):
    """State that a command was decided on: invalid on another segment, a restart also for later processes.

    Attributes:
        starts: of a restart, node -> newest start of its ranks, ns in hex: JavaScript would round the number.
    """

    segment: int
    segment_key: str
    starts: dict[str, str] = {}


class RankState(Struct, omit_defaults=True):
    """Progress of a command at one rank.

    Attributes:
        state: as the rank reported it (docs/wire.md).
        applied: once acted, changes reported by the job's handler.
    """

    state: str
    step: int | None
    time: float
    detail: str
    applied: dict[str, Any] | None = None


class NodeState(Struct, omit_defaults=True):
    """Progress of a command at one node's agent.

    Attributes:
        state: as the agent reported it.
        gone: the agent ended for good, and the server answered for it.
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


class CommandStage(Struct, frozen=True):
    """Stage of a command: one per state of ranks, one per node of agents.

    Attributes:
        active: awaited now. failed: it ended the command.
        after_s: seconds from the request to its end.
    """

    key: str
    label: str
    state: StageState
    after_s: float | None


class Progress(Struct, frozen=True):
    """Progress of a command for display.

    Attributes:
        word: label of its state. ended: final. failed: not carried out, or by some only.
        acted: ranks, or nodes, that are done.
        line: summary. trouble: why it failed, "" for no failure.
    """

    word: str
    ended: bool
    failed: bool
    acted: int
    stages: list[CommandStage]
    line: str
    trouble: str


class Command(Struct, kw_only=True, tag_field="kind"):
    """A command: request, fence and progress; its class is its kind.

    Attributes:
        state: done: the first new point arrived.
        apply_at_step: null for agents.
        skip_range: first and last step whose batches are left out; absent for none.
        world_size: ranks, or agents, that have to answer.
        ranks: rank -> progress.
        segment, first_step: of a command that is done, the new segment and its first step.
        waits: why it is pending: no worker followed the run.
        warning: in the answer to a request only, never stored.
        progress: in answers and in the live feed (``commands/progress.py``), never stored.
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
    fence: CommandFence
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
        """Add a line to the history, and drop the oldest beyond MAX_HISTORY."""
        self.history.append(HistoryEntry(state, time, detail, rank, step))
        del self.history[:-MAX_HISTORY]


class Rollback(Command, kw_only=True, tag="rollback"):
    """Go back to a checkpoint, on all ranks at one step boundary.

    Attributes:
        unpromised: changes requested although the job promises only the step.
        branch: the discarded segment to go back to.
    """

    kind: ClassVar[Kind] = "rollback"
    unpromised: list[str] | UnsetType = UNSET
    branch: Branch | UnsetType = UNSET


class Stop(Command, kw_only=True, tag="stop"):
    """End training on all ranks at one step boundary; the job's script continues to its own end.

    Attributes:
        save: a checkpoint first.
    """

    kind: ClassVar[Kind] = "stop"
    save: bool = False


class CheckpointNow(Command, kw_only=True, tag="checkpoint_now"):
    """Save a checkpoint on all ranks at one step boundary; training continues."""

    kind: ClassVar[Kind] = "checkpoint_now"


class AgentCommand(Command, kw_only=True):
    """A command that agents carry out."""

    nodes: dict[str, NodeState] = {}

    @property
    def agents_end(self) -> float:
        """Return the deadline for agents that started in time, unix seconds."""
        return self.expires


class StackDump(AgentCommand, kw_only=True, tag="dump_stacks"):
    """Collect the stacks of every rank."""

    kind: ClassVar[Kind] = "dump_stacks"


class Task(AgentCommand, kw_only=True, tag="task"):
    """Run a function that a plug-in of the agents registered (docs/extending.md)."""

    kind: ClassVar[Kind] = "task"
    task: str


class ShowBatches(Command, kw_only=True, tag="show_batches"):
    """Inspect the batches that the job keeps; each rank answers for itself (docs/wire.md).

    Attributes:
        incident_id: subject. step: the first batch to inspect.
        samples, text_chars: most per rank.
        ranks: some of those that answered, failures first.
        answered: a bit per rank that answered, in hex: thousands of ranks in a few hundred characters.
        acted: ranks that showed their batches.
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
        grace_s: time to leave before a kill, seconds.
    """

    kind: ClassVar[Kind] = "restart"
    plan: Plan
    grace_s: float

    @property
    def agents_end(self) -> float:
        return self.expires + self.grace_s


#: Tagged by ``kind`` in JSON.
AnyCommand = Rollback | Restart | Stop | CheckpointNow | StackDump | Task | ShowBatches


def read_command(data: object) -> Command:
    """Return the command in parsed JSON; unknown fields are ignored.

    Raises:
        msgspec.ValidationError: unknown kind, or not a command.
    """
    command: AnyCommand = msgspec.convert(data, AnyCommand)
    return command


class CommandOffer(Struct, frozen=True):
    """Whether one command would be accepted now.

    Attributes:
        why: reason against it, half a sentence; "" for none.
        works: kinds that reach this job instead.
    """

    possible: bool
    why: str
    works: list[Kind]


class CommandOffers(Struct, frozen=True):
    """Commands that a job would accept now.

    Attributes:
        ranks: that act at one step boundary, or none.
        last_checkpoint: step of the newest usable one, null for none.
        steps_lost, seconds_lost: by a stop without a save; null before the first step.
    """

    stop: CommandOffer
    checkpoint_now: CommandOffer
    ranks: int
    last_checkpoint: int | None
    steps_lost: int | None
    seconds_lost: float | None


ProposalState = Literal["proposed", "approved", "declined", "refused", "superseded", "expired"]


class Proposal(Struct, frozen=True, kw_only=True):
    """A command proposed by a person or a program, sent only after approval.

    Attributes:
        what: the command as text. order: its request, as for ``POST .../commands``.
        proposer: name of the key. proposer_key: id of the key, null without one.
        by_program: from an assistant.
        proposed, expires: unix seconds.
        fence: head of the run at that time; invalid for another.
        state: approved: see ``command_id``, null until sent. refused: by the server, as the run moved on. superseded:
            by a newer one of the same proposer.
        decided_by, decided: person and time (unix seconds) of the decision.
        detail: reason of a decline, a refusal or a delay; "" for none.
    """

    proposal_id: str
    run_id: str
    what: str
    order: dict[str, Any]
    proposer: str
    proposer_key: str | None = None
    by_program: bool = False
    proposed: float
    expires: float
    fence: CommandFence
    state: ProposalState = "proposed"
    decided_by: str | None = None
    decided: float | None = None
    detail: str = ""
    command_id: str | None = None

    @property
    def request(self) -> CommandRequest:
        """The command to issue; unknown fields are ignored."""
        known = {one.name for one in fields(CommandRequest)}
        given = {name: value for name, value in self.order.items() if name in known}
        return msgspec.convert({**given, "idempotency_key": self.proposal_id}, CommandRequest)

    def at(self, now: float) -> Proposal:
        """Return it at this time: undecided ones expire."""
        late = self.state == "proposed" and now > self.expires
        return msgspec.structs.replace(self, state="expired") if late else self


class RunProposals(Struct):
    """The newest proposals of a run, newest first. ``two_persons``: rollbacks, restarts and stops need a proposal."""

    proposals: list[Proposal]
    two_persons: bool


class Proposals(Struct):
    """Undecided proposals of all runs, oldest first."""

    proposals: list[Proposal]


class PendingCommand(msgspec.Struct, frozen=True):
    """A command to a run without an owner, stored until one takes it.

    Attributes:
        order: JSON of the request. command: pending; its fence is the stored state at that time.
    """

    order: dict[str, Any]
    command: AnyCommand

    @property
    def request(self) -> CommandRequest:
        """The request; unknown fields are ignored."""
        return msgspec.convert(self.order, CommandRequest)

    @property
    def name(self) -> str:
        """Identity of the request, the same for a repeated one."""
        return self.command.idempotency_key or self.command.command_id

    def at(self, now: float) -> Command:
        """Return its command at this time, expired ones as such."""
        if now <= self.command.expires:
            return self.command
        ended: Command = msgspec.json.decode(msgspec.json.encode(self.command), type=AnyCommand)
        ended.note("expired", self.command.expires, "no worker followed the run until then, and nothing was sent")
        return ended
