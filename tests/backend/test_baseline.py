"""The baseline keeps its windows in order as it goes; its numbers are those of sorting them each time."""

from __future__ import annotations

import math
import pickle
import statistics
from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from stabilitybackend.detectors.baseline import NEWEST_POINTS, RECENT_POINTS, WINDOW_POINTS, RobustBaseline

_VALUES = st.lists(
    st.one_of(st.floats(-10, 10), st.sampled_from([0.0, 2.0, 2.5]), st.integers(0, 4).map(float)),
    min_size=1,
    max_size=300,
)


@settings(max_examples=60, deadline=None)
@given(values=_VALUES, cut=st.integers(0, 300))
def test_the_location_is_the_least_of_three_medians_also_after_a_restart(values: list[float], cut: int) -> None:
    baseline = RobustBaseline()
    seen: deque[float] = deque(maxlen=WINDOW_POINTS)
    for i, value in enumerate(values):
        if i == cut:
            baseline = pickle.loads(pickle.dumps(baseline))
        baseline.learn(value)
        seen.append(value)
        newest = list(seen)
        expected = min(statistics.median(newest[-size:]) for size in (WINDOW_POINTS, RECENT_POINTS, NEWEST_POINTS))
        assert math.isclose(baseline.location(), expected, abs_tol=1e-12)


def test_a_new_level_forgets_the_old_one() -> None:
    baseline, fresh = RobustBaseline(), RobustBaseline()
    for i in range(200):
        baseline.learn(5.0 + 0.1 * (i % 3))
    level = [2.0 + 0.01 * (i % 4) for i in range(64)]
    baseline.restart(level)
    for value in level:
        fresh.learn(value)
    assert (baseline.location(), baseline.level(), baseline.scale()) == (fresh.location(), fresh.level(), fresh.scale())
