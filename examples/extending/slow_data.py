"""A detector: steps that wait for data. Logs ``data_s``, the seconds that a step waited for its batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from stabilitybackend.hooks import hook
from stabilitybackend.judging.detectors.engine.base import Detector, Event, Finding, Point, Row, State
from stabilitybackend.judging.detectors.engine.synthetic import rows

WAIT_S = 1.0  # longer waits are slow
POINTS = 10  # so many in a row open an incident, and close it


class SlowDataDetector(Detector):
    """Opens one incident when ten steps in a row waited longer than a second for data, recovered after ten that did
    not."""

    name: ClassVar[str] = "slow_data"
    kinds: ClassVar[tuple[str, ...]] = ("throughput",)
    title: ClassVar[str] = "Slow data"

    onset: int = -1
    in_a_row: int = 0
    is_open: bool = False

    def wants(self, metric: str) -> bool:
        return metric == "data_s"

    def update(self, point: Point) -> list[Finding]:
        if math.isnan(point.value):
            return []
        slow = point.value * self.settings["sensitivity"] > WAIT_S
        if slow == self.is_open:
            self.in_a_row = 0
            return []
        self.in_a_row += 1
        if not self.is_open and self.in_a_row == 1:
            self.onset = point.step
        if self.in_a_row < POINTS:
            return []
        self.is_open, self.in_a_row = slow, 0
        state: State = "open" if slow else "recovered"
        event = Event(point.metric, self.onset, self.onset + POINTS - 1, "warning")
        title = f"Steps wait for data since step {self.onset}"
        text = f"Steps waited longer than {WAIT_S:g} s for data. Look at the loader's workers and its storage."
        back = None if slow else point.step - POINTS + 1
        return [self.finding(event, point.step, state, title=title, text=text, recovered_step=back)]

    @classmethod
    def story(cls) -> Sequence[Row]:
        return rows("data_s", [0.1] * 50 + [3.0] * 30 + [0.1] * 20)


@hook
def detectors() -> list[type[Detector]]:
    return [SlowDataDetector]
