"""Health messages (docs/wire.md): each rank of the node, and the agent itself.

Types of the messages of each second are hidden from the garbage collector (``gc=False``): large jobs send thousands a
second, and none is part of a cycle.
"""

from __future__ import annotations

from typing import Annotated, cast

import msgspec
from msgspec import UNSET, Meta, UnsetType

from stabilitybackend.schema.events import Finite, GpuNote, Rank, Whole
from stabilitybackend.schema.json_data import MAX_TEXT_CHARS
from stabilitybackend.schema.ranks import RankStatus
from stabilitybackend.schema.reading import Misfit, typed
from stabilityclient.wire import MAX_STEP, Health

#: Largest valid time of messages, unix seconds.
MAX_TIME_S = 1e18
#: A counter of the agent or of the slot.
_Count = Annotated[int, Meta(ge=0, le=MAX_STEP)]
_Text = Annotated[str, Meta(max_length=MAX_TEXT_CHARS)]


class GpuOfRank(msgspec.Struct, omit_defaults=True, gc=False):
    """The GPU that a rank computes on."""

    index: Whole | None = None
    uuid: _Text | None = None


class Proc(msgspec.Struct, omit_defaults=True, gc=False):
    """Kernel's view of the thread that runs the loop."""

    state: _Text | None = None
    wchan: _Text | None = None
    threads: Whole | None = None
    cpu: Finite | None = None


class PhaseTimes(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False):
    """A phase in a slot's table: passes, total seconds, and seconds of the longest pass."""

    count: Finite
    total_s: Finite
    longest_s: Finite


class WaitSamples(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False):
    """Samples of a rank's loop: steps sampled, sum of their shares of waiting for other ranks, and of the squares."""

    steps: Finite
    waited: Finite
    squares: Finite


class RankHealth(msgspec.Struct, omit_defaults=True, kw_only=True, gc=False):
    """The newest process of a rank and its slot: last report of its agent, and the server's judgement.

    Attributes:
        step: absent for an unreadable slot.
        budget_s: longest stay in its phase; null for one without steps while others make them, absent for a process
            without a rank.
        status: the server's judgement; null for a replaced process.
    """

    rank: Rank | None
    source: Annotated[str, Meta(min_length=1, max_length=MAX_TEXT_CHARS)]
    pid: Whole | None = None
    alive: bool | None = None
    time: Finite | None = None
    local_rank: Whole | None = None
    world_size: Whole | None = None
    gpu: GpuOfRank | None = None
    can_dump: bool | None = None
    trouble: _Text | None = None
    proc: Proc | None = None
    state: _Text | None = None
    step: Annotated[int, Meta(ge=-1, le=MAX_STEP)] | None = None
    step_start: Finite | None = None
    phase: _Text | None = None
    phase_start: Finite | None = None
    expect_s: Finite | None = None
    beat: Whole | None = None
    last_seq: _Count | None = None
    dropped: _Count | None = None
    segment_key: _Text | None = None
    phases: dict[str, PhaseTimes] | None = None
    pending: Whole | None = None
    waits: WaitSamples | None = None
    budget_s: float | UnsetType | None = UNSET
    status: RankStatus | None


class VisibilityGap(msgspec.Struct, omit_defaults=True):
    """A blind spot on a node."""

    what: _Text
    why: _Text | None = None
    do: _Text | None = None


class SpoolFacts(msgspec.Struct, omit_defaults=True, gc=False):
    """Room for unsent records."""

    free_mib: Finite | None = None
    limit_mib: Finite | None = None
    dropped: _Count | None = None
    error: _Text | None = None


class LogFacts(msgspec.Struct, frozen=True):
    """A log followed from outside, without an agent at the job.

    Attributes:
        name: of the file. quiet_s: seconds without a new row. limit_s: longest usual pause.
    """

    name: _Text
    quiet_s: Finite
    limit_s: Finite

    @property
    def is_quiet(self) -> bool:
        """Whether the pause is longer than usual."""
        return self.quiet_s > self.limit_s


class AgentState(msgspec.Struct, omit_defaults=True, gc=False):
    """The agent itself."""

    gpu: GpuNoteNow | None = None
    frames_sent: _Count | None = None
    records_sent: _Count | None = None
    bad_records: _Count | None = None
    version: _Text | None = None
    started: Finite | None = None
    spool: SpoolFacts | None = None
    clock_step_s: Finite | None = None
    blind: list[VisibilityGap] | None = None
    log: LogFacts | None = None


class GpuNoteNow(msgspec.Struct, omit_defaults=True):
    """The node's GPUs in one line, and the time of the last reading."""

    visible: bool | None = None
    text: _Text | None = None
    time: Finite | None = None


class AgentHealth(msgspec.Struct, kw_only=True, gc=False):
    """The newest report of one agent.

    Attributes:
        gpu: the node's GPUs in a line. gpus: index -> field -> newest reading.
    """

    agent: str
    node: str
    time: float
    connected: bool = True
    gpu: GpuNote = msgspec.field(default_factory=GpuNote)
    gpus: dict[str, dict[str, float]] = {}
    agent_state: AgentState
    ranks: list[RankHealth]


class HealthAnswer(msgspec.Struct):
    """The newest report of every agent.

    Attributes:
        waits_for: culprits of open verdicts.
    """

    agents: list[AgentHealth]
    waits_for: list[int]


class _SentRank(RankHealth, omit_defaults=True, kw_only=True, gc=False):
    """A rank as sent, without judgement. A factory, as a default would be left out of answers."""

    status: RankStatus | None = msgspec.field(default_factory=type(None))


class TypedHealth(Health):
    """A Health message of these types."""

    ranks: list[_SentRank]  # type: ignore[assignment]  # free in a message that is not read yet
    agent_state: AgentState = msgspec.field(default_factory=AgentState)  # type: ignore[assignment]


#: For ``decode_message``: well-typed messages, nearly all, never become a dict.
TYPED_HEALTH = {Health: msgspec.msgpack.Decoder(TypedHealth)}


def read_health(health: Health) -> tuple[AgentHealth, list[str]]:
    """Return a message, and a sentence for each field left out for its type."""
    left_out: list[str] = []
    if isinstance(health, TypedHealth):
        ranks, state = cast(list[RankHealth], health.ranks), health.agent_state
    else:
        ranks, state = _fitting(health, left_out)
    for rank in ranks:
        rank.budget_s, rank.status = UNSET, None  # derived by the server, never the sender's
    time = health.time if abs(health.time) < MAX_TIME_S else 0.0
    return AgentHealth(agent=health.agent, node=health.node, time=time, agent_state=state, ranks=ranks), left_out


def _fitting(health: Health, left_out: list[str]) -> tuple[list[RankHealth], AgentState]:
    ranks: list[RankHealth] = []
    for data in health.ranks:
        data.pop("budget_s", None)
        data["status"] = None
        try:
            rank, without = typed(data, RankHealth)
            ranks.append(rank)
            left_out += without
        except Misfit as error:
            left_out.append(f"a rank, {error}")
    try:
        state, without = typed(health.agent_state, AgentState)
        left_out += without
    except Misfit as error:
        state = AgentState()
        left_out.append(f"agent_state: {error}")
    return ranks, state
