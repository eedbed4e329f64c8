"""The GPUs of one run: reports about them, and faults that are over by time alone."""

from __future__ import annotations

from collections.abc import Generator, Mapping

from stabilitybackend.base.stateful import Stateful
from stabilitybackend.judging.gpus.watch import GPU_EVENTS, GpuWatch
from stabilitybackend.lineage.changes import LineageEvent
from stabilitybackend.lineage.consumer import Consumer, Effects
from stabilitybackend.runs.step_clock import StepClock

__all__ = ["Gpus"]


class Gpus(Consumer):
    """Findings about the GPUs of a run."""

    reads = (StepClock,)
    events = GPU_EVENTS

    def __init__(self, step_clock: StepClock) -> None:
        self.watch = GpuWatch()
        self._step_clock = step_clock

    def state(self) -> Mapping[str, Stateful]:
        return {"gpus": self.watch}

    def event(self, event: LineageEvent, effects: Effects) -> None:
        effects.found += [(event.time, finding) for finding in self.watch.event(event, self._step_clock.newest)]

    def tick(self, now: float, effects: Effects) -> Generator[None]:
        effects.found += [(now, finding) for finding in self.watch.tick(now)]
        yield
