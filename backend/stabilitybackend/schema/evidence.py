"""The facts in an incident's evidence that the server reads again, one Struct for each sort of incident.

Evidence is free: a plug-in detector writes what it likes, and older servers wrote less. So a fact that is not there
has its default, and one of another type counts as not there. Who writes evidence need not know of these.
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
    """Return the facts of ``kind`` that are in evidence."""
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
    """What happened near the onset; distance: steps after it."""

    what: str = ""
    step: int | None = None
    distance: float = 1.0
    text: str = ""


class Gradients(msgspec.Struct, frozen=True):
    """Gradient norm right before the onset against earlier, and its largest since against right before."""

    quiet_ratio: float = 1.0
    burst_ratio: float = 1.0


class Growing(msgspec.Struct, frozen=True, rename={"start": "from", "end": "to"}):
    """A logit that grew, and goes on to; since_step: of its first level, None from an older server."""

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
    """Of whatever a detector found in metrics.

    Attributes:
        onset_band: first and last step at which it may have begun, both inclusive; empty where the onset is exact.
        regained: it did not come back, but training came down to the level from before it.
        all_alike: several data sets rose together, so that no one of them is to blame.
        lone_since: the step since which the lone high points of the curve are higher, None where that is not the event.
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


#: Who reports data that another run of the project had, and the kind of what wakes nobody.
BY_OTHER_RUNS, SHARED_DATA = "other_runs", "shared_data"


class SharedDataFacts(msgspec.Struct, frozen=True):
    """What is known of it.

    Attributes:
        other_run, other_name: the run that had the data. other_step: its step with the data of the onset.
        by: ``ids`` of batches, or the ``loss``. r: correlation, 1.0 for ids.
        shift: how much further the other run was: steps for ``ids``, else points.
        offset_steps: how much further this run was, steps.
        from_step: the step of the other run whose weights this one says that it began with; None where it says nothing.
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
    """Of all that have a verdict; since: unix seconds, where the incident is about machines."""

    verdict: Verdict | None = None
    since: float | None = None


class StalledRank(msgspec.Struct, frozen=True):
    """Where one rank is."""

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
    """One process that died, as its agent and its own last messages say; the first fields stand in any.

    Attributes:
        step: the last one that it reported, -1 for none. time: unix seconds of its node's clock.
        evidence, how: what the agent saw, and how it knows. oom: the same of a kill for memory. fatal: last words.
        gpu: of the process. over_before: ranks of its start that had finished or left before.
        job_step: where it reported no step, the newest one of its start. heard: when it was reported, unix seconds.
        preempted: who or what asked it to end, where it said so and left in order.
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
    """The hang that deaths ended: its class, when it began (unix seconds), and for how long it was seen."""

    key: str = ""
    kind: str = ""
    title: str = ""
    since: float = 0.0
    stood_s: float = 0.0


class Explained(msgspec.Struct, frozen=True):
    """A printed error in plain words (``liveness/death/known_errors.py``).

    Attributes:
        name: of the error, "" where it is not in the table.
        means, cause: a sentence, and what it usually comes from. next: lines to follow, the first is the advice.
    """

    name: str = ""
    means: str = ""
    cause: str = ""
    next: list[str] = []
    source: str = ""


class DeathFacts(msgspec.Struct, frozen=True):
    """Of a ``process_death``.

    Attributes:
        deaths: the one that the others follow from first. hung: by a hang that came before.
        explained: the error that the first one ended with.
    """

    verdict: Verdict | None = None
    deaths: list[Death] = []
    exception: Raised | None = None
    not_described: int = 0
    hung: Hung | None = None
    explained: Explained = Explained()


class StragglerFacts(msgspec.Struct, frozen=True):
    """Of a ``straggler`` by phases. slow: its ranks; level_before, level_after, sigma, lost_s: seconds.

    waits: whether the other ranks wait for it; null where that is not known.
    past: windows before it (``before``), windows since (``slow_windows``), and how far above the others the slowest
    was in both, fractions (``past_excess``, ``slow_excess``); ``cost``: what that came to, in windows.
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
    """Of an ``sdc_suspect``. ranks: that were compared; gpus: of the suspect.

    copy: it is about numbers that are equal on healthy ranks. whole_until: newest step at which they were.
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
    """Of a message to people. about: id of the incident that it is about, "" for none."""

    about: str = ""


class QuietLogFacts(msgspec.Struct, frozen=True):
    """Of a ``quiet_log``. agent: who follows it; log: its name; last_word: of the log, unix seconds; limit_s: usual."""

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
    """What is remembered of a GPU from other runs; faults: which one of it in two weeks this is. text: the same."""

    faults: int = 0
    text: str = ""


class GpuFaultFacts(msgspec.Struct, frozen=True, rename={"asks": "class"}):
    """Of a ``gpu_fault``. asks: what NVIDIA asks for; since, last: unix seconds; foreign: no rank of ours is on it."""

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
