"""What people ask of a job: the kinds of command, the request for one, and the command as it is stored, sent and shown.

The JSON is that of docs/api.md, read as older servers wrote it. A command changes while it lives: only its
``CommandBook`` (``commands/commands.py``) writes it, everybody else reads.
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

#: States in which a command may still be acted on.
OPEN_STATES: frozenset[State] = frozenset({"pending", "delivered", "ready"})
#: States in which a command stays. One that is acted is in neither: it waits for the first new row.
END_STATES: frozenset[State] = frozenset(get_args(State)) - OPEN_STATES - {"acted"}
#: Of these, those in which the job was left as it was, or half of it.
NOT_CARRIED_OUT: frozenset[State] = END_STATES - {"done"}

#: State -> what people read. Before it is a command: proposed, and declined, refused, expired or superseded.
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

#: Longest time that a command may wait for somebody to begin with it, seconds.
MAX_EXPIRES_S = 86_400.0
#: The same of a look at stacks, which takes seconds: one that nobody answers must not keep the next one waiting.
MAX_DUMP_EXPIRES_S = 60.0


@dataclass(frozen=True, slots=True)
class CommandKind:
    """What a kind of command is.

    Args:
        by: who carries it out. Ranks agree on a step boundary; agents need none, so they reach a job that hangs; each
            rank by itself answers at a boundary of its own.
        takes: the fields of a request beside ``reason``, ``expires_s`` and ``idempotency_key``.
        expires_s: nobody may begin with it after so long, seconds, where the request names nothing else.
        max_expires_s: the most that a request may name, seconds.
        answered: of agents, the state once all of them have answered and one has done it.
        unanswered: of agents, what is not known where one ended before it answered.
        beside: it leaves the ranks as they are, so that a rollback or restart need not wait for it.
        moves: it ends or moves training: the two persons' rule is about it.
        acted: of ranks that all have acted, what they did. nothing: of ranks, what did not happen where none acted.
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


#: The one table of kinds. A further kind is a line here, a Struct below, and what carries it out in the client.
KINDS: Mapping[Kind, CommandKind] = {
    # Long enough for a few slow steps, short enough that nobody is surprised by a rollback ordered before lunch.
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


class CommandOffer(Struct, frozen=True):
    """Whether one order would be taken now.

    Attributes:
        why: it would not, half a sentence; "" where it would.
        works: what reaches this job instead.
    """

    possible: bool
    why: str
    works: list[Kind]


class CommandOffers(Struct, frozen=True):
    """What can be ordered of a job now.

    Attributes:
        ranks: that all do it at one step boundary, or none.
        last_checkpoint: step of the newest one that can be used, null for none.
        steps_lost: that a stop loses which does not save first; null before the first step. seconds_lost: the same.
    """

    stop: CommandOffer
    checkpoint_now: CommandOffer
    ranks: int
    last_checkpoint: int | None
    steps_lost: int | None
    seconds_lost: float | None


ProposalState = Literal["proposed", "approved", "declined", "refused", "superseded", "expired"]


class Proposal(Struct, frozen=True, kw_only=True):
    """What somebody, or a program, wants of a job. Nothing is sent before a person approves it.

    Attributes:
        what: the order in words. order: as ``POST .../commands`` takes it.
        proposer: whose key proposed it. proposer_key: that key's id, null without one.
        by_program: an assistant proposed it.
        proposed, expires: unix seconds. Nobody can approve it later.
        fence: the head of the run on which it was proposed; it does not hold for another.
        state: approved: ``command_id`` says what became of it, null until it is sent. refused: by the server, as the
            run went elsewhere. superseded: the same proposer proposed anew.
        decided_by, decided: who approved or declined it, and when, unix seconds.
        detail: why it was declined or refused, or why it could not be sent yet; "" where there is nothing to say.
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
    fence: Fence
    state: ProposalState = "proposed"
    decided_by: str | None = None
    decided: float | None = None
    detail: str = ""
    command_id: str | None = None

    @property
    def request(self) -> CommandRequest:
        """The order as it is issued; fields that this server does not know are left out."""
        known = {one.name for one in fields(CommandRequest)}
        given = {name: value for name, value in self.order.items() if name in known}
        return msgspec.convert({**given, "idempotency_key": self.proposal_id}, CommandRequest)

    def at(self, now: float) -> Proposal:
        """Return it as it is at this time: one that nobody decided on expires."""
        late = self.state == "proposed" and now > self.expires
        return msgspec.structs.replace(self, state="expired") if late else self


class RunProposals(Struct):
    """The newest proposals of a run, newest first. ``two_persons``: rollbacks, restarts, stops are to be proposed."""

    proposals: list[Proposal]
    two_persons: bool


class Proposals(Struct):
    """What waits for a person in all runs, oldest first."""

    proposals: list[Proposal]


class PendingCommand(msgspec.Struct, frozen=True):
    """What was asked, and the command as it would have been on what was stored then.

    Attributes:
        order: the JSON of the request. command: pending; its fence is what was true when it was ordered.
    """

    order: dict[str, Any]
    command: AnyCommand

    @property
    def request(self) -> CommandRequest:
        """What was asked; fields that this server does not know are left out."""
        return msgspec.convert(self.order, CommandRequest)

    @property
    def name(self) -> str:
        """What makes it one order however often it is given."""
        return self.command.idempotency_key or self.command.command_id

    def at(self, now: float) -> Command:
        """Return its command as people see it at this time: nobody begins with one that expired."""
        if now <= self.command.expires:
            return self.command
        ended: Command = msgspec.json.decode(msgspec.json.encode(self.command), type=AnyCommand)
        ended.note("expired", self.command.expires, "no worker followed the run until then, and nothing was sent")
        return ended
