"""Where the collectives of a job stand is found in proportion to its ranks, also while half of them are silent."""

from __future__ import annotations

from stabilitybackend.base.slices import at_once
from stabilitybackend.judging.liveness.stacks.collectives import (
    RECORDERS_AT_ONCE,
    Active,
    FlightRecorder,
    Joined,
    ProcessGroup,
    finding_wavefront,
)


class _Counted(int):
    """A rank that counts how often ranks are looked up."""

    lookups = 0

    def __hash__(self) -> int:
        _Counted.lookups += 1
        return int(self)


def lookups(count: int) -> int:
    """Return how often a rank is looked up in a job of ``count``, every second of which waits and is known to."""
    group = ProcessGroup("0", "default_pg", tuple(map(_Counted, range(count))))
    recorder = FlightRecorder((Joined(group, 9, 8),), (Active(group, 9, "all_reduce", "[4]"),))
    _Counted.lookups = 0
    front = at_once(finding_wavefront(dict.fromkeys(group.ranks[::2], recorder)))
    assert front.silent == list(range(1, count, 2))
    assert all(front.waiting(rank) is front.stuck[0] for rank in group.ranks[::2])
    return _Counted.lookups


def test_four_times_the_ranks_are_looked_up_four_times_as_often() -> None:
    assert lookups(800) < 5 * lookups(200)


def test_thousands_of_recorders_are_compared_in_portions_between_which_others_are_served() -> None:
    group = ProcessGroup("0", "default_pg", tuple(range(4 * RECORDERS_AT_ONCE)))
    recorder = FlightRecorder((Joined(group, 9, 8),), (Active(group, 9, "all_reduce", "[4]"),))
    portions = sum(1 for _ in finding_wavefront(dict.fromkeys(group.ranks, recorder)))
    assert portions > 4
