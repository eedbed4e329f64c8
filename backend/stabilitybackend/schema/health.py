"""What a Health message says (docs/wire.md): a word of each rank of the node, and of the agent itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from stabilitybackend.errors import BadRequest
from stabilitybackend.schema.events import Finite, Rank, Whole
from stabilitybackend.schema.json_data import MAX_TEXT_CHARS, check_data
from stabilitybackend.schema.reading import Misfit, fitted
from stabilityclient.wire import MAX_STEP, Health

__all__ = ["AgentState", "RankWord", "read_health"]

#: A counter of the agent or of the slot.
_Count = Annotated[int, Meta(ge=0, le=MAX_STEP)]
_Text = Annotated[str, Meta(max_length=MAX_TEXT_CHARS)]


class GpuOfRank(msgspec.Struct):
    """The GPU that a rank computes on."""

    index: Whole | None = None
    uuid: _Text | None = None


class Proc(msgspec.Struct):
    """What the kernel says of the thread that runs the loop."""

    state: _Text | None = None
    wchan: _Text | None = None
    threads: Whole | None = None
    cpu: Finite | None = None


class RankWord(msgspec.Struct):
    """The newest process of one rank, and its slot."""

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
    state: _Text | int | None = None
    step: Annotated[int, Meta(ge=-1, le=MAX_STEP)] | None = None
    step_start: Finite | None = None
    phase: _Text | None = None
    phase_start: Finite | None = None
    expect_s: Finite | None = None
    beat: Whole | None = None
    last_seq: _Count | None = None
    dropped: _Count | None = None
    segment_key: _Text | None = None
    phases: dict[str, tuple[Finite, Finite, Finite]] | None = None
    pending: Whole | None = None


class BlindSpot(msgspec.Struct):
    """What can't be seen on a node."""

    what: str
    why: str | None = None
    do: str | None = None


class SpoolFacts(msgspec.Struct):
    """The room for what is not sent yet."""

    free_mib: Finite | None = None
    limit_mib: Finite | None = None
    dropped: _Count | None = None
    error: str | None = None


class AgentState(msgspec.Struct):
    """What the agent says of itself."""

    gpu: GpuNoteNow | None = None
    frames_sent: _Count | None = None
    records_sent: _Count | None = None
    bad_records: _Count | None = None
    version: str | None = None
    started: Finite | None = None
    spool: SpoolFacts | None = None
    clock_step_s: Finite | None = None
    blind: list[BlindSpot] | None = None


class GpuNoteNow(msgspec.Struct):
    """The node's GPUs in one line, and when they were last looked at."""

    visible: bool | None = None
    text: str | None = None
    time: Finite | None = None


def read_health(health: Health) -> list[str]:
    """Make the words of ``health`` those of their types; return what was left out for that, one sentence each."""
    told: list[str] = []
    words: list[dict[str, Any]] = []
    for word in health.ranks:
        try:
            word, left_out = fitted(word, RankWord)
        except Misfit as error:
            told.append(f"a rank, {error}")
            continue
        told += left_out
        for data, name in [*_unknown(word)]:
            try:
                check_data(data[name], f"{name} of rank {word['rank']}")
            except BadRequest as error:
                del data[name]
                told.append(error.message)
        words.append(word)
    health.ranks = words
    try:
        check_data(health.agent_state, "agent_state")
        health.agent_state, left_out = fitted(health.agent_state, AgentState)
        told += left_out
    except (BadRequest, Misfit) as error:
        health.agent_state = {}
        told.append(f"agent_state: {error}")
    return told


#: Names that a type checks, of a rank's word and of what lies in it.
_KNOWN = frozenset(RankWord.__struct_fields__)
_INNER = {"proc": frozenset(Proc.__struct_fields__), "gpu": frozenset(GpuOfRank.__struct_fields__)}


def _unknown(word: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield what newer agents say beside what the types know: where it lies, and its name."""
    for name in word.keys() - _KNOWN:
        yield word, name
    for part, known in _INNER.items():
        inner: dict[str, Any] = word.get(part) or {}
        for name in inner.keys() - known:
            yield inner, name
