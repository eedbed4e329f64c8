"""The detectors: what can be set, what is set for a run, and what other settings would have found."""

from __future__ import annotations

import msgspec

from stabilitybackend.schema.incidents import ShownIncident

#: Detector -> parameter -> number, of what is not the default.
_Overrides = dict[str, dict[str, float]]


class DetectorParameter(msgspec.Struct):
    """A number that can be set. Every detector has ``sensitivity``: thresholds are divided by it, 0 finds nothing."""

    name: str
    default: float
    low: float
    high: float
    unit: str
    text: str


class DetectorInfo(msgspec.Struct):
    """A detector.

    Attributes:
        kinds: of the incidents that it opens.
        text: what it does, paragraphs with a newline between; the first one is a sentence or two.
        every_rank: it looks at all ranks, not only at the lowest that logs the loss.
    """

    name: str
    title: str
    kinds: list[str]
    parameters: list[DetectorParameter]
    text: str
    every_rank: bool


class Detectors(msgspec.Struct):
    """All detectors, in the order of their right to an event."""

    detectors: list[DetectorInfo]


class DetectorChange(msgspec.Struct, frozen=True):
    """A change of a run's settings: the whole set of overrides, not only what is new in it.

    Attributes:
        position: the first stream id that it holds for; "" while it waits for a worker, which says that.
        settings: of those that differ from their default on purpose.
        who: name of the key, or of the machine's own user.
    """

    position: str
    settings: _Overrides
    who: str
    time: float


class RunDetectors(msgspec.Struct):
    """What is set for a run.

    Attributes:
        settings: what holds now, only what is not the default.
        changes: newest first, at most 100.
    """

    settings: _Overrides
    changes: list[DetectorChange]


class ListedRunDetectors(RunDetectors):
    """What is set for a run, beside all that can be set."""

    detectors: list[DetectorInfo]


class SeverityCounts(msgspec.Struct):
    """Incidents by severity."""

    info: int = 0
    warning: int = 0
    critical: int = 0


class Trial(msgspec.Struct):
    """What the detectors would have found in a run with other settings.

    Attributes:
        first_step: the first that counts, null for all.
        now, then: by detector: what the run's incidents say today, and with these settings.
        incidents: newest first, at most 500.
        seconds: that it took.
        failures: exceptions of detectors.
    """

    settings: _Overrides
    first_step: int | None
    now: dict[str, SeverityCounts]
    then: dict[str, SeverityCounts]
    incidents: list[ShownIncident]
    rows: int
    points: int
    seconds: float
    failures: dict[str, int]
    unreadable: int
