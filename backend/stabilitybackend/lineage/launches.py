"""Finds which processes were started together: a launch is one start of the whole job, at most one process a rank.

Certain facts have priority: a rank has one process a launch; on one node a launch has one restart count; nothing starts
in a launch of which a process has ended; ranks wait for each other in the first step. Among the launches that are left
the one with the nearest start in time is meant. While a process has no row it may still come to another launch.

Undecidable cases: of two launches that follow each other more closely than the processes of one launch do, in which
one a rank was started that died before its first message in the other; and to which launch rows belong that come before
any message of the earlier process of their rank and of the other ranks of their launch.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from stabilitybackend.base.stateful import Stateful, fresh
from stabilityclient.wire import SourceInfo

__all__ = ["Launch", "Launches"]

#: Longest logging of a rank before the last one of its launch has started, seconds: its settings, for one.
AHEAD_S = 0.5
#: Launches looked at on either side of a start in time; a rank that stayed away for more of them joins none.
NEAR_LAUNCHES = 8


@dataclass(frozen=True)
class _ProcessStart:
    """Evidence of the launch of a process; ``generation`` is its launcher's restart count."""

    source: str
    rank: int
    node: str
    started: float
    generation: int


@dataclass(eq=False)
class Launch:
    """One start of the job.

    Attributes:
        members: rank -> source. firm: those of them that have rows, so that they stay where they are.
        starts: of its processes, unix seconds, rising. firm_starts: of those of them that have rows.
        generations: node -> restart count of its processes there that have rows.
        ended: when the first of its processes ended, as far as reported, unix seconds.
        trained: log time at which one of its ranks reached a second step, infinite before that.
        newest: log time of its newest row.
        segment: the segment that it opened, None while it continues in the one of the launch before.
        at: the newest segment that one of its ranks is in, None before its first row.
        first_step: the least first step of its ranks, None before its first row.
    """

    members: dict[int, str] = field(default_factory=dict)
    firm: set[str] = field(default_factory=set)
    starts: list[float] = field(default_factory=list)
    firm_starts: list[float] = field(default_factory=list)
    generations: dict[str, int] = field(default_factory=dict)
    ended: float = float("inf")
    trained: float = float("inf")
    newest: float = float("-inf")
    segment: int | None = None
    at: int | None = None
    first_step: int | None = None

    @property
    def began(self) -> float:
        """When it was started, unix seconds: the median of its processes, since one of them may not be its own."""
        starts = self.firm_starts or self.starts
        return starts[len(starts) // 2]

    def distance(self, start: _ProcessStart, but: _ProcessStart | None = None) -> float:
        """Return the seconds to the nearest start of another rank but ``but``, of one that has rows if any has."""
        for starts in (self.firm_starts, self.starts):
            at = bisect_left(starts, start.started)
            near = starts[max(at - 2, 0) : at + 3]
            for one in (start, but):
                if one is not None and one.started in near and self.members.get(one.rank) == one.source:
                    near.remove(one.started)
            if near:
                return min(abs(other - start.started) for other in near)
        return float("inf")

    def may_hold(self, start: _ProcessStart) -> bool:
        """Return whether no fact is against ``start`` being of this launch."""
        held = self.members.get(start.rank, start.source)
        if (held != start.source and held in self.firm) or start.started > self.ended:
            return False
        return self.generations.get(start.node, start.generation) == start.generation

    def ran_without(self, start: _ProcessStart, first_row: float) -> bool:
        """Return whether ranks of it trained before ``start``, or ``start`` had logged before they were started.

        Ranks of one launch wait for each other in the first step. Where they do not, they still run together.
        """
        return self.trained < start.started >= self.newest or self.starts[-1] > first_row + AHEAD_S


class Launches(Stateful):
    """The launches of a run, by their start."""

    _launches: list[Launch] = fresh(list)
    _starts: dict[str, _ProcessStart] = fresh(dict)
    #: Rank -> starts of its processes and their sources, rising.
    _ranks: dict[int, list[tuple[float, str]]] = fresh(dict)

    def __init__(self) -> None:
        super().__init__()
        self._of: dict[str, Launch] = {}

    def restored(self) -> None:
        self._of = {source: launch for launch in self._launches for source in launch.members.values()}

    def of(self, source: str) -> Launch | None:
        """Return the present launch of a source, None for an agent."""
        return self._of.get(source)

    def started_with(self, source: str) -> tuple[str, ...]:
        """Return the sources of the launch of ``source``, itself among them; none where it has no launch."""
        launch = self._of.get(source)
        return () if launch is None else tuple(launch.members.values())

    def saw(self, info: SourceInfo) -> None:
        """Note the start of a process."""
        if info.rank is not None:
            self._starts[info.source] = _ProcessStart(info.source, info.rank, info.node, info.started, info.generation)
            starts = self._ranks.setdefault(info.rank, [])
            insort(starts, (info.started, info.source))
            at = starts.index((info.started, info.source))
            if at and starts[at - 1][1] in self._of[starts[at - 1][1]].firm:
                self.ended(starts[at - 1][1], info.started)
            self.settle(info.source)

    def settle(self, source: str, first_row: float = float("inf")) -> Launch:
        """Return the launch of ``source``; ask again while nothing rests on the answer: more facts may arrive.

        Args:
            first_row: log time of its first row, once received.
        """
        start, now = self._starts[source], self._of.get(source)
        if now is not None and source in now.firm:
            return now
        found = self._nearest(start, first_row)
        if now is not None and (found is now or (found is None and not now.ran_without(start, first_row))):
            return now
        if now is not None:
            self._leave(now, start)
        if found is None:
            found = Launch()
        other = found.members.get(start.rank)
        if other is not None:
            self._leave(found, self._starts[other])
        self._join(found, start)
        if other is not None:
            self.settle(other)
        if len(found.starts) == 1:
            self._draw(found, start)
        return found

    def _draw(self, new: Launch, start: _ProcessStart) -> None:
        """Let processes without a row that were put to a launch before the one of ``start`` was found move there."""
        at = self._launches.index(new)
        for other in (*self._launches[max(at - 1, 0) : at], *self._launches[at + 1 : at + 2]):
            halfway = bisect_left(other.starts, (other.began + start.started) / 2)
            nearer = other.starts[halfway:] if start.started > other.began else other.starts[:halfway]
            if nearer:
                drawn = {source for source in other.members.values() if self._starts[source].started in nearer}
                for source in drawn - other.firm:
                    self.settle(source)

    def ended(self, source: str, time: float) -> None:
        """Note that the process of ``source`` ended."""
        launch = self._of.get(source)
        if launch is not None:
            launch.ended = min(launch.ended, time)

    def forget(self, source: str) -> None:
        """A source is remembered no longer."""
        start = self._starts.get(source)
        if start is not None:
            self._leave(self._of[source], start)
            del self._starts[source]
            self._ranks[start.rank].remove((start.started, source))

    def again(self, source: str) -> bool:
        """Return whether the rank of ``source`` has had an earlier process."""
        start = self._starts[source]
        return self._ranks[start.rank][0] < (start.started, source)

    def before(self, launch: Launch) -> Launch | None:
        """Return the newest launch before ``launch`` that has a row."""
        at = self._launches.index(launch)
        return next((one for one in reversed(self._launches[:at]) if one.at is not None), None)

    def undecided(self, launch: Launch) -> bool:
        """Return whether a launch shortly before ``launch`` has held rows: their place is undecided."""
        at = self._launches.index(launch)
        return any(one.firm and one.at is None for one in self._launches[max(at - NEAR_LAUNCHES, 0) : at])

    def after(self, launch: Launch) -> Launch | None:
        """Return the next launch after ``launch`` that has a row."""
        if launch is self._launches[-1]:
            return None
        at = self._launches.index(launch)
        return next((one for one in self._launches[at + 1 :] if one.at is not None), None)

    def _nearest(self, start: _ProcessStart, first_row: float) -> Launch | None:
        at = bisect_left(self._launches, start.started, key=lambda launch: launch.began)
        near = self._launches[max(at - NEAR_LAUNCHES, 0) : at + NEAR_LAUNCHES]
        fitting = [launch for launch in near if launch.may_hold(start) and self._nearer(start, launch)]
        starts = self._ranks[start.rank]
        mine = starts.index((start.started, start.source))
        # The processes of a rank are of launches that follow each other as they do.
        low = starts[mine - 1][0] if mine else float("-inf")
        high = starts[mine + 1][0] if mine + 1 < len(starts) else float("inf")
        fitting = [launch for launch in fitting if low < launch.began < high or start.source in launch.firm]
        if mine:
            fitting = [launch for launch in fitting if not launch.ran_without(start, first_row)]
        return min(fitting, key=lambda launch: launch.distance(start), default=None)

    def _nearer(self, start: _ProcessStart, launch: Launch) -> bool:
        """Return whether ``start`` has a better claim on its rank's place in ``launch`` than who has it now."""
        other = self._starts[launch.members.get(start.rank, start.source)]
        if other is start:
            return True
        return launch.distance(start, other) < launch.distance(other)

    def firm(self, source: str) -> None:
        """Note that ``source`` has a row: its launch is certain."""
        launch = self._of[source]
        if source not in launch.firm:
            self._launches.remove(launch)
            launch.firm.add(source)
            start = self._starts[source]
            launch.generations[start.node] = start.generation
            insort(launch.firm_starts, start.started)
            insort(self._launches, launch, key=lambda one: one.began)
            starts = self._ranks[start.rank]
            after = starts[starts.index((start.started, source)) + 1 :]
            if after:  # a rank is started again only when its process before has ended
                launch.ended = min(launch.ended, after[0][0])

    def _join(self, launch: Launch, start: _ProcessStart) -> None:
        if launch.starts:
            self._launches.remove(launch)
        insort(launch.starts, start.started)
        insort(self._launches, launch, key=lambda one: one.began)
        launch.members[start.rank] = start.source
        self._of[start.source] = launch

    def _leave(self, launch: Launch, start: _ProcessStart) -> None:
        self._launches.remove(launch)
        launch.starts.remove(start.started)
        if start.source in launch.firm:
            launch.firm.remove(start.source)
            launch.firm_starts.remove(start.started)
        if launch.members.get(start.rank) == start.source:
            del launch.members[start.rank]
        del self._of[start.source]
        if launch.starts:
            insort(self._launches, launch, key=lambda one: one.began)
