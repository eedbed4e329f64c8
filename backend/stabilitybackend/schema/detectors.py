"""Detectors: settings, their changes in a run, and trials of other settings."""

from __future__ import annotations

import msgspec

from stabilitybackend.schema.incidents import ShownIncident

#: Detector -> parameter -> value other than the default.
_Overrides = dict[str, dict[str, float]]


class DetectorParameter(msgspec.Struct):
    """A number to set. Every detector has ``sensitivity``: thresholds are divided by it, 0 finds nothing."""

    name: str
    default: float
    low: float
    high: float
    unit: str
    text: str


class DetectorInfo(msgspec.Struct):
    """A detector.

    Attributes:
        kinds: of its incidents.
        text: description, paragraphs with a newline between; the first one is a sentence or two.
        every_rank: it reads all ranks, not only the lowest that logs the loss.
    """

    name: str
    title: str
    kinds: list[str]
    parameters: list[DetectorParameter]
    text: str
    every_rank: bool


class Detectors(msgspec.Struct):
    """All detectors, in the order of their priority for an event."""

    detectors: list[DetectorInfo]


class DetectorChange(msgspec.Struct, frozen=True):
    """A change of a run's settings: the whole set of overrides.

    Attributes:
        position: first stream id it holds for; "" while it waits for a worker.
        settings: values other than the default.
        who: name of the key, or of the machine's own user.
    """

    position: str
    settings: _Overrides
    who: str
    time: float


class RunDetectors(msgspec.Struct):
    """Settings of a run.

    Attributes:
        settings: now, values other than the default.
        changes: newest first, at most 100.
    """

    settings: _Overrides
    changes: list[DetectorChange]


class ListedRunDetectors(RunDetectors):
    """Settings of a run, and all that can be set."""

    detectors: list[DetectorInfo]


class SeverityCounts(msgspec.Struct):
    """Incidents by severity."""

    info: int = 0
    warning: int = 0
    critical: int = 0


class Trial(msgspec.Struct):
    """Findings in a run with other settings.

    Attributes:
        first_step: the first that counts, null for all.
        now, then: by detector: incidents of the run today, and with these settings.
        incidents: newest first, at most 500.
        seconds: duration of the trial.
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
