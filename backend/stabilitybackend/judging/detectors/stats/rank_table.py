"""One metric of all ranks, in common windows of steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stabilitybackend.judging.detectors.engine.base import Event

from .levels import LARGEST
from .own_past import TIMES, more_than_before
from .robust import median

#: Steps of a window at first. It doubles where a rank logs few points in it.
WINDOW_STEPS = 8
#: Windows in a row that make an event, and that end it.
CONFIRM_WINDOWS = 2
#: False alarms of a healthy job for each step of each rank: 0.2 in 10,000.
FALSE_A_STEP = 0.2 / 10_000
#: A rank slow for so many windows is accepted: the event is closed and the rank not reported again until it has been
#: usual. One that is slow again within as many continues its event. Costs of a rank are forgotten over as many.
REMEMBERED_WINDOWS = 128

__all__ = [
    "CONFIRM_WINDOWS", "REMEMBERED_WINDOWS", "WINDOW_STEPS", "RankPast", "RankTable", "RankWindow", "SlowRankTable",
]  # fmt: skip


@dataclass(slots=True)
class RankWindow:
    """Points of one rank in its newest window."""

    window: int
    values: list[float] = field(default_factory=list)
    #: Its entry into the window, by the clock of the log.
    began: float = 0.0
    #: Values behind its newest window, in a row.
    late: int = 0
    #: Whether it was there when the window began: its first one, after each start, may hold only the end of a window.
    whole: bool = False


@dataclass(slots=True)
class RankPast:
    """Comparisons of one rank with the others so far."""

    #: Windows in a row in which it was slow, or was not.
    slow: int = 0
    usual: int = 0
    #: The first in windows of the usual length.
    slow_windows: int = 0
    onset: int = 0
    #: Whether it is part of an event, open or accepted.
    reported: bool = False
    #: Its recent cost, in windows of usual work: excess over the others, forgotten over REMEMBERED_WINDOWS.
    cost: float = 0.0
    #: Windows before the present turn: without any, a change is unproved.
    before: int = 0
    #: Mean excess over the others in these, and in the windows of the present turn, as fractions.
    past_excess: float = 0.0
    slow_excess: float = 0.0
    #: Delay after the others into the newest window, and into the last usual one, seconds.
    late_s: float = 0.0
    usual_late_s: float | None = None

    @property
    def has_changed(self) -> bool:
        """Return whether it was there before, and is further above the others now than its own past allows."""
        return self.before >= CONFIRM_WINDOWS and self.slow_excess >= TIMES * self.past_excess

    def remember(self, excess: float, windows: int) -> None:
        """Take finished windows, by the rank's excess over the others."""
        self.before += windows
        self.past_excess += (excess - self.past_excess) * windows / self.before

    def end_turn(self) -> None:
        """End the turn of a slow rank."""
        if self.slow:
            self.remember(self.slow_excess, self.slow_windows)
        self.slow, self.slow_windows, self.slow_excess, self.reported = 0, 0, 0.0, False


@dataclass(slots=True)
class SlowRankTable(Event):
    """Ranks that became slow in the same window."""

    ranks: dict[int, float]
    level: float
    sigma: float
    metrics: list[str]
    windows: int = 0
    #: Seconds of work of the slowest of them since the onset; their cost, now and at the report.
    lasted_s: float = 0.0
    lost_s: float = 0.0
    reported_s: float = 0.0
    #: Whether the others wait for them; None for unknown.
    waits: bool | None = None

    def refine(self, times: Mapping[int, float], level: float) -> None:
        """Add a further window to the times of its ranks and of the others: means, in which chance fades."""
        part = 1 / (self.windows + CONFIRM_WINDOWS)
        self.level += (level - self.level) * part
        for rank in self.ranks.keys() & times.keys():
            self.ranks[rank] += (times[rank] - self.ranks[rank]) * part


@dataclass(slots=True)
class RankTable:
    """One metric over all ranks, in windows of steps."""

    width: int = WINDOW_STEPS
    ranks: dict[int, RankWindow] = field(default_factory=dict)
    #: Window -> rank -> (median, points, entry of the rank).
    done: dict[int, dict[int, tuple[float, int, float]]] = field(default_factory=dict)
    #: Window -> number of ranks in it.
    at: dict[int, int] = field(default_factory=dict)
    judged: int = -1
    #: Once all ranks have reached this window, no further one is expected: until then windows wait.
    settled: int = 0
    #: Compared windows, and the results of each rank in them.
    compared: int = 0
    #: Usual windows of single ranks; times that one was slow and recovered, and their number of windows.
    usual: int = 0
    turns: int = 0
    turn_windows: int = 0
    past: dict[int, RankPast] = field(default_factory=dict)
    event: SlowRankTable | None = None
    #: Whether the clock of the log has the entries of ranks into windows; else whether their waiting was measured.
    clocked: bool = False
    measured: bool = False
    #: The last recovered event, and the number of windows compared by then.
    last: tuple[SlowRankTable, int] | None = None

    def __post_init__(self) -> None:
        # A returned event is the one that recovered last, also after it was saved.
        if self.last is not None and self.event == self.last[0]:
            self.event = self.last[0]

    def restart(self, width: int) -> None:
        """Restart with windows of ``width`` steps, or at another step; results of ranks stay."""
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

    # --- how ranks compare ---------------------------------------------------------------------------------------

    def take(
        self, times: Mapping[int, float], limit: float, level: float, start: int, whole_s: float, windows: int = 1
    ) -> dict[int, float]:
        """Take a window and return newly slow ranks, with their times.

        Args:
            times: rank -> seconds. limit, level: threshold of a slow rank, and usual time.
            start: the window's first step.
            whole_s: base of a rank's excess, 0.0 for the usual time.
            windows: its length in usual ones.
        """
        self.compared += 1
        for number in times:
            self.past.setdefault(number, RankPast())
        slow: dict[int, float] = {}
        for number, past in list(self.past.items()):
            value = times.get(number)
            past.cost *= 1 - 1 / REMEMBERED_WINDOWS
            if value is not None and value > limit:
                past.onset = start if not past.slow else past.onset
                past.slow, past.usual, past.slow_windows = past.slow + 1, 0, past.slow_windows + windows
                past.slow_excess += (_above(value, level) - past.slow_excess) * windows / past.slow_windows
                past.cost += (value - level) / (whole_s or level) if level > 0 else LARGEST
                if past.slow >= CONFIRM_WINDOWS and not past.reported:
                    slow[number] = value
            elif value is None or not past.reported or value < 0.5 * (level + limit):  # back is below the opening level
                past.usual += 1
                if past.usual >= CONFIRM_WINDOWS or not past.reported:
                    self.turns += bool(past.slow)
                    self.turn_windows += past.slow_windows
                    past.end_turn()
                if value is not None:
                    self.usual += windows
                    past.remember(_above(value, level), windows)
                if value is None and not past.slow:
                    del self.past[number]  # it is gone
        others = self._others() if slow else 0.0
        return {number: value for number, value in slow.items() if self.past[number].cost > others}

    def came(self, began: Mapping[int, float]) -> None:
        """Take the entry of each rank into the newest window."""
        self.clocked = True
        usual = median(list(began.values()))
        for number in began.keys() & self.past.keys():
            past = self.past[number]
            past.late_s = began[number] - usual
            if not past.slow or past.usual_late_s is None:
                past.usual_late_s = past.late_s

    def is_waited_for(self, event: SlowRankTable) -> bool | None:
        """Return whether the others wait for the ranks of an event, None for unknown.

        Awaited ranks reach a step no later than the others; another one falls behind by its excess.
        """
        if not self.clocked:
            return self.measured or None
        known = [self.past[number] for number in event.ranks if number in self.past]
        behind = max((past.late_s - (past.usual_late_s or 0.0) for past in known), default=0.0)
        before = max((past.slow_windows for past in known), default=0) - 1  # the newest one has only begun
        needed = before * self.width * (max(event.ranks.values()) - event.level)
        return behind <= needed / 2

    def lose(self, event: SlowRankTable, times: Mapping[int, float], steps: float) -> None:
        """Count a window of so many steps in which the others waited for the slowest of an event."""
        slowest = max((times[n] for n in self._slow(event) if n in times), default=event.level)
        event.lasted_s += steps * slowest
        event.lost_s += steps * (slowest - event.level)

    def is_new(self, event: SlowRankTable, steps: float) -> bool:
        """Return whether an event exceeds the natural turns of the job's ranks, in windows of ``steps``.

        Ranks that are usual or slow by turns are a chain of two states. The rates of beginning and continuing a turn
        come from the job's past, by Laplace's rule of succession: without data each is one in two. An event is more
        when less than FALSE_A_STEP of all windows would begin a turn as long. A rank that was always above the others,
        with longer data or as the logger of all, has not changed.
        """
        worst = [past for past in (self.past[n] for n in self._slow(event)) if past.has_changed]
        begins = (self.turns + 1) / (self.usual + 2)
        goes_on = (self.turn_windows - self.turns + 1) / (self.turn_windows + 2)
        length = max((past.slow_windows for past in worst), default=0)
        costs = max((past.cost for past in worst), default=0.0)
        return length > 0 and begins * goes_on ** (length - 1) <= FALSE_A_STEP * steps and costs >= self._others()

    def _slow(self, event: SlowRankTable) -> list[int]:
        """Return the presently slow ranks of an event."""
        return [number for number in event.ranks if number in self.past and self.past[number].slow]

    def _others(self) -> float:
        """Return the cost that a slow rank must exceed: other ranks may have been slow before."""
        return more_than_before(past.cost for past in self.past.values() if not past.slow)


def _above(value: float, level: float) -> float:
    """Return the excess of a time over the usual one, as a fraction."""
    return value / level - 1 if level > 0 else LARGEST
