"""The clock that silence is measured by goes on evenly whatever somebody sets the machine's clock to."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from stabilitybackend.base.steady_clock import MAX_RATE, SteadyClock


class Times:
    """The machine's clock, and the seconds that passed."""

    def __init__(self) -> None:
        self.off, self.passed = 1e9, 0.0

    def wall(self) -> float:
        return self.off + self.passed

    def clock(self) -> SteadyClock:
        return SteadyClock(self.wall, lambda: self.passed)


@given(st.lists(st.tuples(st.floats(0.0, 10.0), st.sampled_from([-3600.0, -5.0, 0.0, 5.0, 3600.0])), min_size=1))
def test_as_much_time_passes_by_it_as_passes_but_a_twentieth(moments: list[tuple[float, float]]) -> None:
    times = Times()
    clock = times.clock()
    read = [(times.passed, clock())]
    for passes, step in moments:
        times.passed, times.off = times.passed + passes, times.off + step
        read.append((times.passed, clock()))
    for (passed, seen), (passed_then, seen_then) in pairwise(read):
        passes = passed_then - passed
        assert abs(seen_then - seen - passes) <= MAX_RATE * passes + 1e-5


def test_it_comes_to_what_the_clock_was_set_to() -> None:
    times = Times()
    clock = times.clock()
    times.off += 5.0
    for _ in range(110):
        times.passed += 1.0
        clock()
    assert clock() == times.wall()
