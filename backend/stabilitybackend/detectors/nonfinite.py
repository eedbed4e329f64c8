"""Finds NaN and infinite values in the loss or the gradient norm."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .contract import Detector, Finding, Point, Severity

#: Metrics that are watched. A non-finite learning rate or throughput is a logging fault, not a training fault.
WATCHED = ("loss", "grad_norm")
#: Steps in a row that must be finite before the event counts as recovered.
RECOVERED_AFTER_STEPS = 10
#: A new non-finite value within this many steps seen after the recovery continues the same event.
REOPEN_WITHIN_STEPS = 20

__all__ = ["NonfiniteDetector"]


@dataclass(slots=True)
class _Event:
    onset: int
    first_value: str
    last_bad: int
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    clean_from: int | None = None
    closed: bool = False


class NonfiniteDetector(Detector):
    """Opens one incident at the first NaN or infinity, recovered once ten steps in a row are finite.

    Idea: a non-finite loss is never noise, so there is no threshold and no warm-up. A non-finite ``grad_norm`` alone
    is a warning, because mixed-precision loss scaling skips such steps as routine; the loss itself is critical at
    once.

    Source: the event table in the project's detection notes; Megatron-LM's and Lightning's loss checks treat it alike.

    Example:
        >>> detector = NonfiniteDetector()
        >>> found = [detector.update(Point(s, "loss", v, 0.0)) for s, v in enumerate([2.0, 1.9, math.nan, math.nan])]
        >>> [(f.key, f.severity, f.onset_step) for findings in found for f in findings]
        [('nonfinite:2', 'critical', 2)]
    """

    name: ClassVar[str] = "nonfinite"
    kinds: ClassVar[tuple[str, ...]] = ("nonfinite",)

    def __init__(self, **settings: float) -> None:
        super().__init__(**settings)
        self._event: _Event | None = None
        self._step: int | None = None
        self._clean = 0

    def wants(self, metric: str) -> bool:
        return metric in WATCHED

    def update(self, point: Point) -> list[Finding]:
        if point.metric not in WATCHED:
            return []
        found: list[Finding] = []
        if point.step != self._step:
            found = self._end_of_step(point.step)
            self._step = point.step
        if not math.isfinite(point.value):
            found += self._bad(point)
        return found

    def _bad(self, point: Point) -> list[Finding]:
        said = _spell(point.value)
        event = self._event
        news = event is None or event.closed
        if event is None:
            event = self._event = _Event(onset=point.step, first_value=said, last_bad=point.step)
        event.closed = False
        event.clean_from = None
        event.last_bad = point.step
        self._clean = 0
        if point.metric not in event.counts:
            event.counts[point.metric] = {}
            news = True
        counts = event.counts[point.metric]
        counts[said] = counts.get(said, 0) + 1
        return [self._finding(event, point.step)] if news else []

    def _end_of_step(self, step: int) -> list[Finding]:
        """Judge the step that just ended, before the first point of ``step``."""
        event = self._event
        if event is None or self._step is None or event.last_bad == self._step:
            return []
        self._clean += 1
        if event.clean_from is None:
            event.clean_from = self._step
        if not event.closed and self._clean >= RECOVERED_AFTER_STEPS:
            event.closed = True
            return [self._finding(event, step)]
        if event.closed and self._clean >= RECOVERED_AFTER_STEPS + REOPEN_WITHIN_STEPS:
            self._event = None
            self._clean = 0
        return []

    def _finding(self, event: _Event, now_step: int) -> Finding:
        loss = "loss" in event.counts
        metric = "loss" if loss else "grad_norm"
        severity: Severity = "critical" if loss and not event.closed else "warning"
        total = sum(sum(counts.values()) for counts in event.counts.values())
        what = "loss" if loss else "gradient norm"
        text = (
            f"The {what} was {event.first_value} at step {event.onset}"
            if event.onset == event.last_bad
            else (f"The {what} is not finite since step {event.onset} ({total} values)")
        )
        if event.closed:
            text += f"; it has been finite again since step {event.clean_from}."
        elif loss:
            text += ". From here on the weights may be lost: go back to a checkpoint before this step."
        else:
            text += (
                ". The loss is still finite: with fp16 loss scaling this can be routine, otherwise the loss follows."
            )
        evidence: dict[str, Any] = {
            "values": {name: dict(counts) for name, counts in event.counts.items()},
            "last_nonfinite_step": event.last_bad,
        }
        return Finding(
            detector=self.name,
            key=f"nonfinite:{event.onset}",
            kind="nonfinite",
            state="recovered" if event.closed else "open",
            severity=severity,
            title=f"{'Loss' if loss else 'Gradient norm'} not finite since step {event.onset}",
            text=text,
            onset_step=event.onset,
            step=event.onset,
            now_step=now_step,
            metric=metric,
            peak_step=event.onset,
            recovered_step=event.clean_from if event.closed else None,
            score=float(total),
            evidence=evidence,
        )


def _spell(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
