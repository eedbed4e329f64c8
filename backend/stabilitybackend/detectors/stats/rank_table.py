"""One metric of all ranks, cut in windows of steps, so that ranks are compared over the same ones."""

from __future__ import annotations

from dataclasses import dataclass, field

from stabilitybackend.detectors.engine.base import Event

#: Steps of a window at first. It doubles where a rank logs few points in it.
WINDOW_STEPS = 16

__all__ = ["WINDOW_STEPS", "RankTable", "RankWindow", "SlowRankTable"]


@dataclass(slots=True)
class RankWindow:
    """What one rank logged in its newest window, and how it compared with the others."""

    window: int
    values: list[float] = field(default_factory=list)
    #: Windows in a row in which it was slow, or was not.
    slow: int = 0
    usual: int = 0
    #: Values behind its newest window, in a row.
    late: int = 0
    onset: int = 0
    #: Whether it is part of an event, open or accepted.
    reported: bool = False
    #: What it cost of late, in windows of usual work: its excess over the others, forgotten over REMEMBERED_WINDOWS.
    cost: float = 0.0


@dataclass(slots=True)
class SlowRankTable(Event):
    """Ranks that became slow in the same window."""

    ranks: dict[int, float]
    level: float
    sigma: float
    metrics: list[str]
    windows: int = 0
    #: What the slowest of them cost since the onset: windows of usual work, and seconds, now and when it was reported.
    cost: float = 0.0
    lost_s: float = 0.0
    reported_s: float = 0.0


@dataclass(slots=True)
class RankTable:
    """One metric over all ranks, in windows of steps."""

    width: int = WINDOW_STEPS
    ranks: dict[int, RankWindow] = field(default_factory=dict)
    #: Window -> rank -> (median, points).
    done: dict[int, dict[int, tuple[float, int]]] = field(default_factory=dict)
    #: Window -> number of ranks that are in it.
    at: dict[int, int] = field(default_factory=dict)
    judged: int = -1
    #: When all ranks have come to this window, no further one is to be expected: until then windows wait.
    settled: int = 0
    event: SlowRankTable | None = None
    #: The event that recovered last, and in which window.
    last: tuple[SlowRankTable, int] | None = None

    def __post_init__(self) -> None:
        # An event that came again is the one that recovered last, also after it was saved.
        if self.last is not None and self.event == self.last[0]:
            self.event = self.last[0]

    def restart(self, width: int) -> None:
        """Begin again with windows of ``width`` steps, or at another step."""
        self.width = width
        self.ranks = {}
        self.done = {}
        self.at = {}
        self.judged = -1
        self.settled = 0
        self.last = None

    def moved(self, before: int | None, after: int | None) -> None:
        """Count a rank out of the window ``before`` and into ``after``."""
        if before is not None:
            self.at[before] -= 1
            if not self.at[before]:
                del self.at[before]
        if after is not None:
            self.at[after] = self.at.get(after, 0) + 1
