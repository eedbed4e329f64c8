"""Contract of detectors: points in, findings out.

A detector is pure. It does no I/O, reads no clock, and holds a bounded state, so that the same points give the same
findings live, after a worker's restart and in a backtest. A plug-in author writes one class in one file, registers it
and runs the checks of ``conformance.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.schema.metric_roles import LOSS, role_of

from .long_past import LongPast

if TYPE_CHECKING:
    from .context import Context
    from .row_blocks import QuietRows

__all__ = [
    "SENSITIVITY",
    "SEVERITIES",
    "Claim",
    "CurveDetector",
    "Detector",
    "DetectorSettingError",
    "Event",
    "Finding",
    "Mark",
    "Parameter",
    "Point",
    "Recovery",
    "Row",
    "Severity",
    "State",
    "fresh",
]

State = Literal["open", "recovered", "resolved"]
Severity = Literal["info", "warning", "critical"]
Recovery = Literal["fast", "slow", "none", "pending"]

#: Rising severity.
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


class Point(NamedTuple):
    """One value of one metric on the effective path.

    Args:
        step: training step, >= 0.
        metric: name such as ``loss`` or ``grad_norm``.
        value: the logged number, NaN and infinities too.
        time: of its log, unix seconds.
        rank: its writer. All points are of one rank unless the detector asked for ``every_rank``.
    """

    step: int
    metric: str
    value: float
    time: float
    rank: int = 0


class Mark(NamedTuple):
    """An event of the run at a step.

    Args:
        kind: ``fork``: a new segment of the effective path begins, or another process continues.
        step: its first step; for a fork ``fork_step + 1``.
        time: unix seconds.
        text: one plain clause, e.g. ``the run went back to step 100 (rollback)``.
        data: facts. A fork has ``fork_step``, ``cause``, ``reason``, ``changes`` (reported by the command or the job),
            ``last_step`` (end of the discarded branch) and ``left_behind``: metric -> list of (step, value), the first
            points after ``fork_step`` of that branch, for ``loss`` and the losses of data sets.
    """

    kind: str
    step: int
    time: float
    text: str
    data: Mapping[str, Any]


class Row(NamedTuple):
    """All values of one row of a rank.

    Args:
        step, time, rank: as in ``Point``.
        values: metric -> value.
    """

    step: int
    time: float
    values: Mapping[str, float]
    rank: int = 0


class DetectorSettingError(ValueError):
    """A detector's setting is unknown or out of its range."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One number that tunes a detector.

    Args:
        default: the value of the published scores.
        low, high: its range, both included.
        unit: e.g. ``robust sigmas``, ``points``, ``fraction``.
        text: one sentence: its effect, and that of a higher value.
    """

    default: float
    low: float
    high: float
    unit: str
    text: str

    def check(self, name: str, value: object) -> float:
        """Return ``value`` as a number in range.

        Raises:
            DetectorSettingError: no number, or out of range.
        """
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.low <= value <= self.high:
            raise DetectorSettingError(
                f"{name} is {value!r}, expected a number from {self.low:g} to {self.high:g} {self.unit}"
            )
        return float(value)


#: The one parameter of every detector.
SENSITIVITY = Parameter(
    1.0,
    0.0,
    4.0,
    "",
    "Thresholds are divided by it: 2 finds events half as high, 0.5 only twice as high; 0 opens none.",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """State of one event of a detector, once per change.

    All findings with the same ``key`` are about one event; a later one replaces an earlier one whole. A detector is
    silent without a change, so that a finding is worth storing.

    Args:
        detector: name of the detector.
        key: identity of the event within the run, equal for all its findings and after a re-feed, e.g.
            ``spike:loss:1234``.
        kind: one of the incident kinds of ``docs/api.md``.
        state: ``open`` while it lasts, ``recovered`` when the signal is normal again, ``resolved`` for any other end.
        severity: ``info``, ``warning`` or ``critical``.
        title: one short line, names kind and step.
        text: plain sentences: event, size, meaning.
        onset_step: first step of the event.
        step: of its detection (``step - onset_step`` is the delay).
        now_step: of this finding.
        metric, dataset, node: concerned ones, or None.
        rank: concerned one, or None for the job as a whole.
        peak_step: step of the worst value so far, or None.
        recovered_step: first step back at the usual level, or None.
        recovery: ``pending`` while undecided, then ``fast``, ``slow`` or ``none``; None where it has no meaning.
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


@dataclass(frozen=True, slots=True)
class Claim:
    """One detector's claim of an event of a metric: others stay silent about it.

    Args:
        detector, key, kind, onset_step: as in its findings.
        ended_step: last step of the event; None while it is open.
        back: it ended because the metric was back at its level.
    """

    detector: str
    key: str
    kind: str
    onset_step: int
    ended_step: int | None = None
    back: bool = False


@dataclass(slots=True)
class Event:
    """Event of a detector; most detectors add fields.

    Args:
        metric: of the event and its key.
        onset, seen: first step, and step of the detection.
        severity: the worst so far.
    """

    metric: str
    onset: int
    seen: int
    severity: Severity


class Detector(Stateful, ABC):
    """Base of all detectors: scores a point before it learns from it, and never learns from the anomaly.

    The state between two points are annotated attributes of its class, each with its initial value (``fresh`` makes
    lists, dicts and deques): they are saved with the run and rewound with it. Results of ``configured`` and constants
    have no annotation.

    Class attributes:
        name: unique, lower case, names the file.
        kinds: incident kinds that it may report.
        title: a few words for a list of detectors.
        parameters: ``sensitivity`` first. The constructor takes them by name.
        every_rank: whether it gets the points of all ranks. Such a detector judges machines and not the model: a
            rollback does not rewind it, it only gets the mark.
        side_by_side: whether such a detector compares ranks at one step: it gets tables (``update_table``).
        remembers: whether it keeps a byte a point of the whole run in ``past``; few do.
        version: of its state. Raise it when an attribute gets another meaning: then it alone judges the past again.

    Attributes:
        context: shared facts besides its points (``context.py``), set by the bank.
        past: memory of the whole run besides its state (``long_past.py``); the bank keeps it.

    Args:
        settings: parameters by name; the others have their default.

    Raises:
        DetectorSettingError: a setting is unknown or out of range.
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    title: ClassVar[str] = ""
    parameters: ClassVar[Mapping[str, Parameter]] = {"sensitivity": SENSITIVITY}
    every_rank: ClassVar[bool] = False
    side_by_side: ClassVar[bool] = False
    remembers: ClassVar[bool] = False

    def __init__(self, **settings: float) -> None:
        from .context import Context  # the context knows marks, which are part of this contract

        super().__init__()
        self.context: Context = Context()
        self.past = LongPast()
        self.settings: dict[str, float] = {}
        self.configure(settings)

    def configure(self, settings: Mapping[str, float]) -> None:
        """Set parameters by name, the others to their default, at any time: the state stays.

        Raises:
            DetectorSettingError: a setting is unknown or out of range; nothing is changed then.
        """
        unknown = sorted(set(settings) - set(self.parameters))
        if unknown:
            raise DetectorSettingError(
                f"detector {self.name} has no {unknown[0]!r}, expected one of {', '.join(self.parameters)}"
            )
        self.settings = {
            name: parameter.check(f"{self.name}.{name}", settings.get(name, parameter.default))
            for name, parameter in self.parameters.items()
        }
        self.configured()

    def configured(self) -> None:  # a hook that most detectors need not fill
        """Derive thresholds after a change of the settings, so that ``update`` need not."""

    @abstractmethod
    def wants(self, metric: str) -> bool:
        """Return whether ``update`` takes points of this metric. Must not depend on the state."""

    @abstractmethod
    def update(self, point: Point) -> list[Finding]:
        """Take the next point and return changed findings, usually none.

        Points come in the order of their steps. Work and memory are bounded for any length of the run, the state can be
        saved at any moment, and a non-finite value never silences it.
        """

    def take_quiet(self, rows: QuietRows, start: int, stop: int) -> int:
        """Take as many quiet rows as possible, and return the index after the last one.

        The same as ``update`` for each wanted point of each row, where that would find nothing, claim nothing, read
        nothing of ``context`` and change only this detector's own state. The row after them comes by ``update``, so
        that too few are slower and not wrong. Only a detector whose class itself has ``update`` is fed like this: a
        subclass with another ``update`` gets the rows one by one.

        Args:
            start, stop: range of the rows.
        """
        return start

    def update_column(
        self, metric: str, steps: Sequence[int], values: Sequence[float], times: Sequence[float], rank: int
    ) -> list[tuple[float, Finding]]:
        """Take many points of one metric and rank, and return changed findings, each with the time of its point.

        The same as ``update`` for each. Only detectors with ``every_rank`` are fed like this: with thousands of ranks a
        faster override pays off.
        """
        found = []
        for step, value, time in zip(steps, values, times, strict=True):
            found += [(time, finding) for finding in self.update(Point(step, metric, value, time, rank))]
        return found

    def update_turn(self, metric: str, steps: Sequence[int], values: Sequence[float], ranks: Sequence[int]) -> bool:
        """Take a point of each of some ranks, as ``update`` for each, where none of them shows anything.

        Returns:
            False, with nothing taken, where one may.
        """
        return False

    def update_table(
        self, names: Sequence[str], steps: NDArray[np.int64], times: NDArray[np.float64],
        values: NDArray[np.float64], ranks: Sequence[int],
    ) -> list[tuple[float, Finding]]:  # fmt: skip
        """Take rows of one set of metrics and return changed findings, each with the time of its row.

        The same as ``update`` for each point. Only detectors that compare ranks ``side_by_side`` are fed like this.

        Args:
            names: all metrics of the rows. values: (metrics, rows).
            ranks: of the rows, or the one that all are of.
        """
        found = []
        for row, (step, time) in enumerate(zip(steps.tolist(), times.tolist(), strict=True)):
            rank = ranks[row if len(ranks) > 1 else 0]
            for name, value in zip(names, values[:, row].tolist(), strict=True):
                if self.wants(name):
                    found += [(time, finding) for finding in self.update(Point(step, name, value, time, rank))]
        return found

    @classmethod
    def story(cls) -> Sequence[Row | Mark]:
        """Return one run in which the detector finds exactly one event, as input of the conformance checks.

        At most 2,000 rows, the same ones each time (``synthetic.py`` helps to make them). Empty where the curves of
        ``curves.eventful`` are events for this detector.
        """
        return ()

    # --- the life of an event -----------------------------------------------------------------------------------

    def key(self, metric: str, onset: int) -> str:
        """Return the key of the event of ``metric`` that began at ``onset``."""
        return f"{self.name}:{metric}:{onset}"

    def claim(self, metric: str, onset: int, ended: int | None = None, of: str = "", *, back: bool = False) -> None:
        """Claim an event of ``metric``: other detectors stay silent about it until it ends.

        Args:
            onset, ended: its first step, and its end.
            of: the metric in the event's key, if another one.
            back: it ended because the metric was back at its level.
        """
        key = self.key(of or metric, onset)
        self.context.claim(metric, Claim(self.name, key, self.kinds[0], onset, ended, back))

    def finding(self, event: Event, now_step: int, state: State, **facts: Any) -> Finding:
        """Return the present finding of ``event``.

        Args:
            facts: further fields of ``Finding``; ``metric`` if it is not the one in the event's key.
        """
        every: dict[str, Any] = {"metric": event.metric, "onset_step": event.onset, "step": event.seen, **facts}
        key = self.key(event.metric, event.onset)
        return Finding(self.name, key, self.kinds[0], state, event.severity, now_step=now_step, **every)

    def note(self, mark: Mark) -> list[Finding]:
        """Take an event of the run, after the points before it and before those after it."""
        return []


class CurveDetector(Detector):
    """Base of those that judge one curve: the first metric of its role; its second spelling is ignored.

    Class attributes:
        role: of the metric, by ``metric_roles.py``.
    """

    role: ClassVar[str] = LOSS
    _metric: str = ""

    def wants(self, metric: str) -> bool:
        return role_of(metric) == self.role

    def _is_another(self, metric: str) -> bool:
        """Return whether ``metric`` is not the judged one; the first wanted one becomes it."""
        if not self._metric and self.wants(metric):
            self._metric = metric
        return metric != self._metric
