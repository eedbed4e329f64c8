"""One figure of a page: what was measured, the aim, whether it is met, and the load of the machine meanwhile."""

from __future__ import annotations

import math
import os
import statistics
from dataclasses import dataclass, field

__all__ = ["HEAD", "Figure", "quantile"]

HEAD = f"{'':<54}{'median':>9}{'lowest':>9}{'highest':>9}{'floor':>8}  {'aim':<14}{'':<8}{'load':>5}"


def quantile(values: list[float], part: float) -> float:
    """Return the smallest value that at least ``part`` of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(part * len(values)) - 1)]


def _load() -> float:
    return os.getloadavg()[0]


@dataclass
class Figure:
    """What was measured.

    Attributes:
        what, unit: of the values. values: each measurement.
        aim: greatest that is wanted; None: only stated. judged: which of the values is held against it: ``median``,
            ``p95`` or ``highest``.
        floor: the median of what is the least that could be, or of a peer; None: there is none.
        load: the machine's load average of the last minute.
    """

    what: str
    values: list[float]
    unit: str = "ms"
    aim: float | None = None
    judged: str = "median"
    floor: float | None = None
    load: float = field(default_factory=_load)

    @property
    def result(self) -> float:
        """What is held against the aim."""
        if self.judged == "median":
            return statistics.median(self.values)
        return quantile(self.values, 0.95) if self.judged == "p95" else max(self.values)

    @property
    def met(self) -> bool:
        """Whether the aim is met; a figure without one meets it."""
        return self.aim is None or self.result <= self.aim

    def line(self) -> str:
        """Return the figure as a line of the table."""
        numbers = "".join(
            _short(one, 9) for one in (statistics.median(self.values), min(self.values), max(self.values))
        )
        floor = _short(self.floor, 8) if self.floor is not None else " " * 8
        aim = word = ""
        if self.aim is not None:
            aim = f"<= {self.aim:g}" + ("" if self.judged == "median" else f" {self.judged}")
            word = "met" if self.met else "MISSED"
            if self.judged == "p95":
                word += f" {self.result:.0f}"
        what = f"{self.what}, {self.unit}"
        return f"{what:<54}{numbers}{floor}  {aim:<14}{word:<8}{self.load:>5.1f}"


def _short(value: float, width: int) -> str:
    return f"{value:>{width}.0f}" if abs(value) >= 100 else f"{value:>{width}.1f}"
