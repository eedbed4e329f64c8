"""Events of agents (docs/wire.md): a Struct for each type, and their reader.

A field without a default is required. Free parts (``changes``) are checked by readers.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from stabilitybackend.schema.job.about import LaunchReported
from stabilitybackend.schema.job.unrecorded import Preempted, RecordsLost, RefusedText, Unrecorded
from stabilitybackend.schema.lineage import Branch
from stabilitybackend.schema.reading import Misfit, fitted
from stabilityclient.wire import MAX_STEP, EventBlock


class OrdersObeyed(msgspec.Struct):
    """Commands that a rank obeys.

    Attributes:
        orders: kinds of command, see docs/commands.md; unknown ones are allowed.
        why: kind -> reason against it, half a sentence, where it is more than "no function".
    """

    orders: list[str]
    why: dict[str, str] = {}


class ProcessStart(msgspec.Struct):
    """``start``. says_orders: its client reports the commands that it obeys."""

    says_orders: bool = False


#: A number in the range of times and counters; NaN and infinities are invalid.
Finite = Annotated[float, Meta(ge=-1e18, le=1e18)]
#: A whole number that a browser's double holds exactly.
Whole = Annotated[int, Meta(ge=-MAX_STEP, le=MAX_STEP)]
#: A rank of a job; the agent takes no larger one.
Rank = Annotated[int, Meta(ge=0, lt=2**31)]
#: A fork step; -1 is before the first one.
_Step = Annotated[int, Meta(ge=-1, le=MAX_STEP)]
_Count = Annotated[int, Meta(ge=0, le=MAX_STEP)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Index = Annotated[int, Meta(ge=0, lt=1_024)]
_Name = Annotated[str, Meta(max_length=64)]
#: Generator -> digest of its state.
_Digests = Annotated[dict[_Name, Annotated[str, Meta(max_length=32)]], Meta(max_length=16)]
_Texts = Annotated[dict[_Name, Annotated[str, Meta(max_length=200)]], Meta(max_length=64)]


class Empty(msgspec.Struct):
    """``finish``; ``no_rollbacks``: from here on only an event opens a segment, not a lower step."""


class SegmentEntered(msgspec.Struct):
    """``segment``: points of this source belong to ``key`` from here on, forked after ``to_step`` (of ``branch``)."""

    key: str
    to_step: _Step
    cause: str | None = None
    reason: str | None = None
    command_id: str | None = None
    issuer: str | None = None
    changes: dict[str, Any] | None = None
    applied: dict[str, Any] | None = None
    branch: Branch | None = None


class CheckpointNamed(msgspec.Struct):
    """``checkpoint``, ``checkpoint_gone``; ``rng``: generator of random numbers -> digest of its state.

    ``took_s``: time that the save held up training, where a phase measured it.
    """

    path: str
    rng: _Digests | None = None
    took_s: Annotated[float, Meta(ge=0, le=1e9)] | None = None


class CheckpointSeen(msgspec.Struct):
    """``checkpoint_seen``: files found by an agent at the path; ``bad``: missing or truncated ones."""

    path: str
    kind: _Name = "unknown"
    complete: bool | None = None
    writing: bool = False
    problem: Annotated[str, Meta(max_length=1_000)] = ""
    bad: Annotated[list[Annotated[str, Meta(max_length=4_096)]], Meta(max_length=64)] = []
    size_bytes: _Count | None = None
    files: _Count | None = None
    world_size: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    loads_with: Literal["any", "same"] | None = None


class StateRestored(msgspec.Struct):
    """``restored``: the rank continues from the state after the event's step, with these random numbers."""

    rng: _Digests | None = None


class EnvironmentReported(msgspec.Struct):
    """``environment``: versions and devices of a node's ranks; ``variables``: of a fixed list."""

    entries: _Texts = {}
    variables: _Texts = {}


class SamplesKept(msgspec.Struct):
    """The samples of one data set in a ``batch``; ``kept`` are hashes with ``shift`` leading zero bits, as base64."""

    name: str = ""
    samples: _Count = 0
    shift: Annotated[int, Meta(ge=0, le=64)] = 0
    kept: Annotated[str, Meta(max_length=512)] = ""


class BatchTaken(msgspec.Struct):
    """``batch``: a rank's part of a step; all but ``epoch`` or ``position`` may be absent."""

    fingerprint: str = ""
    of: str | None = None
    samples: _Count | None = None
    tokens: _Count | None = None
    epoch: Finite | None = None
    position: _Count | Annotated[str, Meta(max_length=100)] | None = None
    sets: Annotated[list[SamplesKept], Meta(max_length=64)] | None = None


class KeepsBatches(msgspec.Struct):
    """``keeps_batches``: the rank holds its newest ``last`` batches; ``on_spike``: to be asked for at a spike."""

    last: Annotated[int, Meta(ge=1, le=MAX_STEP)]
    on_spike: bool = False


class StepSeen(msgspec.Struct):
    """One batch of ``batch_samples``; only its step where time ran out."""

    step: Annotated[int, Meta(ge=0, le=MAX_STEP)]
    time: Finite | None = None
    samples: _Count = 0
    loss: Finite | None = None
    worst: Finite | None = None
    nonfinite: _Count = 0
    repeated: _Share | None = None
    whole: bool = True
    failed: bool = False
    discarded: bool = False


class SampleSeen(msgspec.Struct):
    """One sample of ``batch_samples``."""

    step: Annotated[int, Meta(ge=0, le=MAX_STEP)]
    id: Annotated[str, Meta(max_length=200)] | None = None
    dataset: Annotated[str, Meta(max_length=200)] | None = None
    loss: Finite | Literal["NaN", "Infinity", "-Infinity"] | None = None
    text: Annotated[str, Meta(max_length=4_000)] | None = None
    shape: Annotated[list[Whole], Meta(max_length=8)] | None = None
    tokens: _Count | None = None
    repeated: _Share | None = None


class SamplesShown(msgspec.Struct):
    """``batch_samples``: steps in a rank's ring, and the worst samples in it, on command."""

    command_id: Annotated[str, Meta(max_length=128)]
    last: Annotated[int, Meta(ge=1, le=MAX_STEP)] = 1
    steps: Annotated[list[StepSeen], Meta(max_length=256)] = []
    samples: Annotated[list[SampleSeen], Meta(max_length=256)] = []
    seconds: Finite = 0.0
    error: Annotated[str, Meta(max_length=2_000)] = ""


class NamesDeclared(msgspec.Struct):
    """``names``: roles of metrics: role -> metric, and role -> data set -> metric."""

    roles: dict[str, str] | None = None
    datasets: dict[str, dict[str, str]] | None = None


class MixtureDeclared(msgspec.Struct):
    """``mixture``: declared shares of the data sets, of tokens or of samples."""

    shares: dict[str, _Share]
    unit: Literal["tokens", "samples"] = "tokens"


class JobAlert(msgspec.Struct):
    """``alert`` of the job itself."""

    title: str | None = None
    text: str | None = None
    severity: Literal["info", "warning", "critical"] = "warning"


class CommandReport(msgspec.Struct):
    """``command``: progress of a command, by a rank or an agent."""

    command_id: str
    state: str
    attempt: Whole | None = None
    detail: str | None = None
    applied: dict[str, Any] | None = None


class HandlerReport(msgspec.Struct):
    """``handler``: registered, with the changes it can make; ``branches``: it can go to a discarded one."""

    can: list[str] | None = None
    branches: bool = False


class ExceptionRaised(msgspec.Struct):
    """``exception``: an uncaught one ended the process."""

    type: str | None = None
    message: str | None = None
    traceback: str | None = None
    ordered: str | None = None


class RankLeft(msgspec.Struct):
    """``left``: a rank left in order, without finish()."""

    source: str
    rank: Rank


class ProcessDeath(msgspec.Struct):
    """``process_death``: how a rank ended."""

    source: str
    rank: Rank
    pid: Whole | None = None
    last_phase: str | None = None
    cause: str | None = None
    signal: Whole | None = None
    signal_name: str | None = None
    exit_code: Whole | None = None
    oom: dict[str, Any] | None = None
    fatal: str | None = None
    how: str | None = None
    ordered: str | None = None
    evidence: dict[str, Any] | str | None = None


class StackSample(msgspec.Struct):
    """One rank of ``stacks``. The rest is free; ``liveness/stacks/dumps.py`` reads it."""

    rank: Rank
    source: str | None = None
    pid: Whole | None = None
    sampled: Finite | None = None
    stack_missing: str | None = None


class Stacks(msgspec.Struct):
    """``stacks`` of the ranks of a node, or of one rank."""

    request: str
    ranks: list[StackSample] | None = None
    rank: Rank | None = None
    source: str | None = None
    pid: Whole | None = None
    sampled: Finite | None = None
    stack_missing: str | None = None


class GpuNote(msgspec.Struct):
    """``gpu_note``: the node's GPUs in one line."""

    visible: bool = False
    text: str = ""


class GpuListed(msgspec.Struct):
    """One GPU of a ``gpu_inventory``."""

    index: _Index | None = None
    uuid: str | None = None
    name: str | None = None
    bus_id: str | None = None
    serial: str | int | None = None
    memory_mib: Finite | None = None
    mig: list[str] | None = None
    missing: bool | None = None
    ranks: list[Rank] | None = None


class GpuInventory(msgspec.Struct):
    """``gpu_inventory``."""

    gpus: list[GpuListed]
    driver: str | None = None
    text: str | None = None


class GpuFacts(msgspec.Struct):
    """Evaluated ``facts`` of a ``gpu`` event."""

    xid: Whole | None = None
    source: str | None = None
    pid: Whole | None = None
    process: str | None = None
    repeats: Whole | None = None
    added: Finite | None = None
    total: Finite | None = None
    count: Finite | None = None
    corrected: Finite | None = None
    pages: Finite | None = None
    seconds: Finite | None = None
    pending: bool | None = None
    action: Whole | None = None
    call: str | None = None
    error: str | None = None
    why: str | None = None
    reason: str | None = None
    share: Finite | None = None
    sensor: str | None = None
    state: str | None = None


class GpuChange(msgspec.Struct):
    """``gpu``: a change at one GPU."""

    what: str
    state: str | None = None
    uuid: str | None = None
    index: _Index | None = None
    bus_id: str | None = None
    name: str | None = None
    ranks: list[Rank] | None = None
    facts: GpuFacts | None = None
    text: str | None = None
    xid: Whole | None = None


class KernelLine(msgspec.Struct):
    """``kernel``: a line of the kernel's log."""

    what: str
    text: str | None = None
    pid: Whole | None = None
    bus_id: str | None = None
    xid: Whole | None = None
    index: _Index | None = None
    uuid: str | None = None
    name: str | None = None
    ranks: list[Rank] | None = None
    comm: str | None = None
    scope: str | None = None
    cgroup: str | None = None
    suppressed: Whole | None = None


#: Type of an event -> its data. Other types pass unread.
EVENTS: dict[str, type[msgspec.Struct]] = {
    "start": ProcessStart,
    "finish": Empty,
    "preempted": Preempted,
    "no_rollbacks": Empty,
    "segment": SegmentEntered,
    "checkpoint": CheckpointNamed,
    "checkpoint_gone": CheckpointNamed,
    "checkpoint_seen": CheckpointSeen,
    "restored": StateRestored,
    "environment": EnvironmentReported,
    "launch": LaunchReported,
    "batch": BatchTaken,
    "keeps_batches": KeepsBatches,
    "batch_samples": SamplesShown,
    "names": NamesDeclared,
    "mixture": MixtureDeclared,
    "alert": JobAlert,
    "command": CommandReport,
    "handler": HandlerReport,
    "obeys": OrdersObeyed,
    "exception": ExceptionRaised,
    "left": RankLeft,
    "process_death": ProcessDeath,
    "stacks": Stacks,
    "lost": RecordsLost,
    "unrecorded": Unrecorded,
    "refused": RefusedText,
    "gpu_note": GpuNote,
    "gpu_inventory": GpuInventory,
    "gpu": GpuChange,
    "kernel": KernelLine,
}


def read_event(block: EventBlock) -> tuple[EventBlock, list[str]]:
    """Return an event with typed data, and a sentence for each field left out.

    Raises:
        Misfit: a required field is missing or wrong.
    """
    kind = EVENTS.get(block.type)
    if kind is None:
        return block, []
    if block.type in ("checkpoint", "checkpoint_seen", "restored") and block.step is None:
        raise Misfit("step: none came, expected the step that it is about")
    data, left_out = fitted(block.data, kind)
    return (EventBlock(block.type, block.time, block.step, data), left_out) if left_out else (block, [])
