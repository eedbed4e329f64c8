"""Facts in an incident's evidence that the server reads, one Struct per sort of incident.

Evidence is free: a missing fact, or one of another type, has its default. Writers of evidence need not use these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from stabilitybackend.schema.batches import SharedBy
from stabilitybackend.schema.reading import Misfit, fitted
from stabilitybackend.schema.verdicts import SuspectGpu, Verdict

T = TypeVar("T", bound=msgspec.Struct)


def facts(evidence: Mapping[str, Any], kind: type[T]) -> T:
    """Return the facts of ``kind`` in evidence."""
    try:
        return msgspec.convert(evidence, kind)
    except (msgspec.ValidationError, OverflowError):
        try:
            return msgspec.convert(fitted(dict(evidence), kind)[0], kind)
        except Misfit:
            return kind()


# --- of the curves -------------------------------------------------------------------------------------------------


class Moved(msgspec.Struct, frozen=True):
    """A series that left its usual range around the onset."""

    metric: str = ""
    onset_step: int | None = None
    rise_percent: float | None = None


class Nearby(msgspec.Struct, frozen=True):
    """An event near the onset; distance: steps after it."""

    what: str = ""
    step: int | None = None
    distance: float = 1.0
    text: str = ""


class Gradients(msgspec.Struct, frozen=True):
    """Gradient norm right before the onset against earlier, and its largest since against right before."""

    quiet_ratio: float = 1.0
    burst_ratio: float = 1.0


class Growing(msgspec.Struct, frozen=True, rename={"start": "from", "end": "to"}):
    """A growing logit; since_step: of its first level."""

    metric: str = ""
    rise_percent: float = 0.0
    start: float | None = None
    end: float | None = None
    since_step: int | None = None


class Window(msgspec.Struct, frozen=True):
    """The drawn points."""

    steps: list[int] = []
    level: float | None = None


class CurveFacts(msgspec.Struct, frozen=True):
    """Of any finding in metrics.

    Attributes:
        onset_band: first and last possible onset, both inclusive; empty for an exact one.
        regained: no recovery, but training reached the level from before it.
        all_alike: several data sets rose, so none of them is the cause.
        lone_since: first step of higher lone points of the curve, None for other events.
    """

    moved_first: list[Moved] = []
    nearby: list[Nearby] = []
    gradients: Gradients = Gradients()
    growing: list[Growing] = []
    window: Window = Window()
    explained_by: list[str] = []
    level_before: float | None = None
    level_after: float | None = None
    onset_band: list[int] = []
    regained: bool = False
    all_alike: bool = False
    lone_since: int | None = None


#: Detector of data shared with another run, and its silent kind.
BY_OTHER_RUNS, SHARED_DATA = "other_runs", "shared_data"


class SharedDataFacts(msgspec.Struct, frozen=True):
    """Of ``shared_data``.

    Attributes:
        other_run, other_name: run with the same data. other_step: its step with the data of the onset.
        by: ``ids`` of batches, or the ``loss``. r: correlation, 1.0 for ids.
        shift: lead of the other run: steps for ``ids``, else points.
        offset_steps: lead of this run, steps.
        from_step: step of the other run whose weights this one declares to start from; None for none.
    """

    other_run: str = ""
    other_name: str = ""
    other_step: int = 0
    by: SharedBy = "loss"
    r: float = 0.0
    shift: int = 0
    offset_steps: int = 0
    from_step: int | None = None


# --- of processes --------------------------------------------------------------------------------------------------


class JudgedFacts(msgspec.Struct, frozen=True):
    """Of incidents with a verdict; since: unix seconds, of machine incidents."""

    verdict: Verdict | None = None
    since: float | None = None


class StalledRank(msgspec.Struct, frozen=True):
    """Location of one rank."""

    source: str = ""
    step: int = -1
    phase: str = ""
    pid: int = 0
    node: str = ""


class HangFacts(msgspec.Struct, frozen=True):
    """Of a ``hang``. finished, left: suspects that left the job in order, with ``run.finish()`` and without."""

    verdict: Verdict | None = None
    stood_s: float = 0.0
    finished: list[int] = []
    left: list[int] = []
    ranks: dict[str, StalledRank] = {}


class Raised(msgspec.Struct, frozen=True, omit_defaults=True):
    """An exception that ended a process."""

    type: str = ""
    message: str = ""
    traceback: str = ""


class DeathGpu(msgspec.Struct, frozen=True):
    """The GPU that a process which died was on."""

    index: int | None = None
    uuid: str | None = None


class Death(msgspec.Struct, frozen=True, omit_defaults=True):
    """One process that died, by its agent and its own last messages.

    Attributes:
        step: the last one reported, -1 for none. time: unix seconds of its node's clock.
        evidence, how: observation of the agent, and its source. oom: the same of a kill for memory. fatal: last output.
        gpu: of the process. over_before: ranks of its start that had finished or left before.
        job_step: newest step of its start, for a process without one. heard: time of the report, unix seconds.
        preempted: source of a request to end, where it left in order.
    """

    source: str
    rank: int
    node: str
    step: int
    time: float
    pid: int | None = None
    last_phase: str = ""
    cause: str = ""
    signal: int | None = None
    signal_name: str = ""
    exit_code: int | None = None
    exception: Raised | None = None
    evidence: dict[str, Any] | str | None = None
    how: str = ""
    oom: dict[str, Any] | None = None
    fatal: str = ""
    gpu: DeathGpu | None = None
    over_before: list[int] = []
    job_step: int = -1
    preempted: str = ""
    heard: float | None = None


class Hung(msgspec.Struct, frozen=True, rename={"kind": "class"}):
    """The hang that deaths ended: class, start (unix seconds) and duration."""

    key: str = ""
    kind: str = ""
    title: str = ""
    since: float = 0.0
    stood_s: float = 0.0


class Explained(msgspec.Struct, frozen=True):
    """A printed error explained (``liveness/death/known_errors.py``).

    Attributes:
        name: of the error, "" for one outside the table.
        means, cause: a sentence, and its usual cause. next: lines to follow, the first is the advice.
    """

    name: str = ""
    means: str = ""
    cause: str = ""
    next: list[str] = []
    source: str = ""


class DeathFacts(msgspec.Struct, frozen=True):
    """Of a ``process_death``.

    Attributes:
        deaths: the cause of the others first. hung: by an earlier hang.
        explained: last error of the first one.
    """

    verdict: Verdict | None = None
    deaths: list[Death] = []
    exception: Raised | None = None
    not_described: int = 0
    hung: Hung | None = None
    explained: Explained = Explained()


class StragglerFacts(msgspec.Struct, frozen=True):
    """Of a ``straggler`` by phases. slow: its ranks; level_before, level_after, sigma, lost_s: seconds.

    waits: whether the other ranks wait for it; null for unknown. past: windows before it (``before``), windows since
    (``slow_windows``), excess of the slowest over the others in both, fractions (``past_excess``, ``slow_excess``);
    ``cost``: their sum, in windows.
    """

    phase: str = ""
    slow: list[int] = []
    level_before: float = 0.0
    level_after: float = 0.0
    sigma: float = 1.0
    lost_s: float = 0.0
    waits: bool | None = None
    past: dict[str, float] = {}


class SdcFacts(msgspec.Struct, frozen=True):
    """Of an ``sdc_suspect``. ranks: compared; gpus: of the suspect.

    copy: about numbers that are equal on healthy ranks. whole_until: newest step at which they were.
    """

    ranks: list[int] = []
    gpus: list[SuspectGpu] = []
    copy: bool = False
    whole_until: int | None = None


class LostAgentsFacts(msgspec.Struct, frozen=True):
    """Of an ``agent_lost``. last_word: of the first of them, unix seconds."""

    verdict: Verdict | None = None
    agent: str = ""
    agents: list[str] = []
    nodes: list[str] = []
    last_word: float | None = None


class MessageFacts(msgspec.Struct, frozen=True):
    """Of an alert's message. about: id of its incident, "" for none."""

    about: str = ""


class QuietLogFacts(msgspec.Struct, frozen=True):
    """Of a ``quiet_log``. agent: its follower; log: its name; last_word: of the log, unix seconds; limit_s: usual."""

    agent: str = ""
    log: str = ""
    last_word: float = 0.0
    limit_s: float = 0.0


# --- of GPUs -------------------------------------------------------------------------------------------------------


class FaultyGpu(msgspec.Struct, frozen=True):
    """A GPU of a fault."""

    uuid: str | None = None
    index: int | None = None
    name: str | None = None
    node: str | None = None
    ranks: list[int] = []


class GpuHistory(msgspec.Struct, frozen=True):
    """Faults of a GPU in other runs; faults: number of this one within two weeks. text: the same."""

    faults: int = 0
    text: str = ""


class GpuFaultFacts(msgspec.Struct, frozen=True, rename={"asks": "class"}):
    """Of a ``gpu_fault``. asks: action asked for by NVIDIA; since, last: unix seconds; foreign: without a rank of this
    run."""

    asks: str = ""
    family: str = ""
    what: str = ""
    xids: list[int] = []
    recovery_action: int | None = None
    ranks: list[int] = []
    foreign: bool = False
    since: float | None = None
    last: float | None = None
    blames_hardware: bool = False
    gpu: FaultyGpu = FaultyGpu()
    gpus: list[FaultyGpu] = []
    history: GpuHistory = GpuHistory()
