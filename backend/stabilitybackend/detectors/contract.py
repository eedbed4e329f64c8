"""What a detector is: points go in, findings come out, and nothing else happens.

A detector is pure. It does no I/O, reads no clock, and holds a bounded state, so that the same points give the same
findings live, after a worker's restart and in a backtest. A plug-in author writes one class in one file, adds it to
``registry.py`` and runs ``checks.py`` over it: those functions are the law that every detector keeps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

__all__ = ["Detector", "Finding", "Point", "Recovery", "Severity", "State"]

State = Literal["open", "recovered", "resolved"]
Severity = Literal["info", "warning", "critical"]
Recovery = Literal["fast", "slow", "none", "pending"]


class Point(NamedTuple):
    """One value of one metric on the effective path.

    Args:
        step: training step, >= 0.
        metric: name such as ``loss`` or ``grad_norm``.
        value: the logged number; NaN and infinities are real values and stay what they are.
        time: when it was logged, unix seconds.
    """

    step: int
    metric: str
    value: float
    time: float


@dataclass(frozen=True, slots=True)
class Finding:
    """What one detector says about one event, once per change of its mind.

    All findings with the same ``key`` speak of one event; a later one replaces an earlier one whole. A detector is
    silent while nothing changed, so that a finding is worth storing.

    Args:
        detector: name of the detector.
        key: identity of the event within the run, equal for all its findings and after a re-feed, e.g.
            ``spike:loss:1234``.
        kind: one of the incident kinds of ``docs/api.md``.
        state: ``open`` while it lasts, ``recovered`` when the signal came back, ``resolved`` when it is over otherwise.
        severity: ``info``, ``warning`` or ``critical``.
        title: one short line, names kind and step.
        text: plain sentences: what happened, how large, what it means.
        onset_step: first step of the event.
        step: step at which it was first seen (``step - onset_step`` is the delay).
        now_step: step at which this finding was made.
        metric: metric concerned, or None.
        dataset: data set concerned, or None.
        rank: rank concerned, or None where it is the job as a whole.
        node: node concerned, or None.
        peak_step: step of the worst value so far, or None.
        recovered_step: first step back at the usual level, or None.
        recovery: ``pending`` while undecided, then ``fast``, ``slow`` or ``none``; None where the word has no meaning.
        score: size of the event in the detector's own unit (robust sigmas for spikes), finite.
        evidence: JSON-able facts behind the claim, a few dozen entries at most.
    """

    detector: str
    key: str
    kind: str
    state: State
    severity: Severity
    title: str
    text: str
    onset_step: int
    step: int
    now_step: int
    metric: str | None = None
    dataset: str | None = None
    rank: int | None = None
    node: str | None = None
    peak_step: int | None = None
    recovered_step: int | None = None
    recovery: Recovery | None = None
    score: float = 0.0
    evidence: dict[str, Any] = field(default_factory=dict)


class Detector(ABC):
    """Base of all detectors: scores a point before it learns from it, and never learns from the anomaly.

    Class attributes:
        name: unique, lower case, names the file.
        kinds: incident kinds that it may report.
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]

    @abstractmethod
    def wants(self, metric: str) -> bool:
        """Say whether points of this metric should come to ``update``. Must not depend on the state."""

    @abstractmethod
    def update(self, point: Point) -> list[Finding]:
        """Take the next point and return what changed, usually nothing.

        Points come in the order of their steps. The work and the memory are bounded whatever the length of the run,
        the object can be pickled at any moment, and a non-finite value never makes it deaf.
        """
