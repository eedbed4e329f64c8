"""The facts in an incident's evidence that the server reads again, one Struct for each sort of incident.

Evidence is free: a plug-in detector writes what it likes, and older servers wrote less. So a fact that is not there
has its default, and one of another type counts as not there. Who writes evidence need not know of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from stabilitybackend.schema.reading import Misfit, fitted
from stabilitybackend.schema.verdicts import Verdict

__all__ = [
    "CurveFacts", "DeathFacts", "FaultyGpu", "GpuFaultFacts", "HangFacts", "JudgedFacts", "LostAgentsFacts", "Nearby",
    "OneDeath", "Raised", "facts",
]  # fmt: skip

T = TypeVar("T", bound=msgspec.Struct)


def facts(evidence: Mapping[str, Any], kind: type[T]) -> T:
    """Return the facts of ``kind`` that stand in evidence."""
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


class Growing(msgspec.Struct, frozen=True):
    """A logit that grew."""

    metric: str = ""
    rise_percent: float = 0.0


class Window(msgspec.Struct, frozen=True):
    """The drawn points."""

    steps: list[int] = []
    level: float | None = None


class CurveFacts(msgspec.Struct, frozen=True):
    """Of whatever a detector found in metrics."""

    moved_first: list[Moved] = []
    nearby: list[Nearby] = []
    gradients: Gradients = Gradients()
    growing: list[Growing] = []
    window: Window = Window()
    explained_by: list[str] = []
    level_before: float | None = None
    level_after: float | None = None


# --- of processes --------------------------------------------------------------------------------------------------


class JudgedFacts(msgspec.Struct, frozen=True):
    """Of all that have a verdict."""

    verdict: Verdict | None = None


class StalledRank(msgspec.Struct, frozen=True):
    """Where one rank stands."""

    source: str = ""
    step: int = -1
    phase: str = ""
    pid: int = 0
    node: str = ""


class HangFacts(msgspec.Struct, frozen=True):
    """Of a ``hang``. finished, left: suspects that left the job in order, None where an older server did not say."""

    verdict: Verdict | None = None
    stood_s: float = 0.0
    why: str = ""
    finished: list[int] | None = None
    left: list[int] | None = None
    ranks: dict[str, StalledRank] = {}


class Raised(msgspec.Struct, frozen=True):
    """An exception that ended a process."""

    type: str = ""
    message: str = ""


class OomKill(msgspec.Struct, frozen=True):
    """Who told of a kill for memory."""

    source: str = ""


class OneDeath(msgspec.Struct, frozen=True):
    """One process that died, as its agent and its own last words tell."""

    source: str = ""
    node: str = ""
    time: float | None = None
    pid: int | None = None
    cause: str = ""
    signal_name: str = ""
    exception: Raised | None = None
    fatal: str = ""
    over_before: list[int] = []
    oom: OomKill | None = None


class DeathFacts(msgspec.Struct, frozen=True):
    """Of a ``process_death``. deaths: the one that the others follow from first. hung: by a hang that came before."""

    verdict: Verdict | None = None
    deaths: list[OneDeath] = []
    exception: Raised | None = None
    not_described: int = 0
    exit_code: int | None = None
    hung: dict[str, Any] | None = None


class LostAgentsFacts(msgspec.Struct, frozen=True):
    """Of an ``agent_lost``. last_word: of the first of them, unix seconds."""

    verdict: Verdict | None = None
    agent: str = ""
    agents: list[str] = []
    nodes: list[str] = []
    last_word: float | None = None


# --- of GPUs -------------------------------------------------------------------------------------------------------


class FaultyGpu(msgspec.Struct, frozen=True):
    """A GPU of a fault."""

    uuid: str | None = None
    index: int | None = None
    name: str | None = None
    node: str | None = None
    ranks: list[int] = []


class GpuHistory(msgspec.Struct, frozen=True):
    """What is remembered of a GPU from other runs; faults: which one of it in two weeks this is."""

    faults: int = 0


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
