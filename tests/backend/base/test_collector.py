"""How long Python's collector of cycles stops the server, and what it still finds."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from stabilitybackend.base import collector as module
from stabilitybackend.base.collector import MAX_SHARE, NEW_OBJECTS, SET_ASIDE_FROM_S, CycleCollector

#: Containers that a large job keeps.
HELD = 150_000
#: What is set aside by the clock of these tests, containers.
SET_ASIDE_FROM = 10_000


class Walking:
    """A clock that the containers advance that a collection goes through, and the test."""

    def __init__(self) -> None:
        self.now = 0.0

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def __call__(self) -> float:
        self.now += len(gc.get_objects()) * SET_ASIDE_FROM_S / SET_ASIDE_FROM  # noqa: TID251
        return self.now


class Cycle:
    """Refers to itself: only the collector frees it."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture
def clock() -> Walking:
    return Walking()


@pytest.fixture
def collector(clock: Walking) -> Iterator[CycleCollector]:
    found = CycleCollector(clock)
    found.start()
    try:
        yield found
    finally:
        found.stop()


def hold(count: int = HELD) -> list[list[int]]:
    """Return many containers: the collector comes by while they are made."""
    return [[at] for at in range(count)]


def dropped() -> list[weakref.ref[Cycle]]:
    """Return references to cycles that were set aside while they were needed, and no longer are."""
    cycles = [Cycle() for _ in range(10)]
    kept = hold()
    refs = [weakref.ref(cycle) for cycle in cycles]
    del cycles, kept
    return refs


def alive(refs: list[weakref.ref[Cycle]]) -> int:
    return sum(ref() is not None for ref in refs)


def test_however_much_is_held_no_look_goes_through_more_than_what_is_new(collector: CycleCollector) -> None:
    looked_at: list[int] = []

    def note(phase: str, facts: dict[str, int]) -> None:
        if phase == "start":
            looked_at.append(len(gc.get_objects()))  # noqa: TID251

    gc.callbacks.append(note)
    try:
        held = hold()
    finally:
        gc.callbacks.remove(note)
    assert len(held) == HELD
    assert max(looked_at) < 2 * (NEW_OBJECTS + SET_ASIDE_FROM)


def test_what_takes_the_place_of_what_is_freed_is_looked_at_in_small_portions(
    collector: CycleCollector, clock: Walking
) -> None:
    held = hold(10 * SET_ASIDE_FROM)
    most = 0
    for at in range(len(held)):  # as many are freed as are made: by itself the collector does not come by
        held[at] = [at]
        if at % (SET_ASIDE_FROM // 10) == 0:
            clock.wait(1.0)
            collector.collect_new()
            most = max(most, len(gc.get_objects()))  # noqa: TID251
    assert most < 2 * SET_ASIDE_FROM


@pytest.mark.soak
def test_what_the_start_made_is_never_looked_at(collector: CycleCollector) -> None:
    assert len(gc.get_objects()) < 5_000 < gc.get_freeze_count()  # noqa: TID251


def test_cycles_that_are_new_are_freed_as_ever(collector: CycleCollector) -> None:
    refs = [weakref.ref(Cycle()) for _ in range(10)]
    hold()
    assert alive(refs) == 0


@pytest.mark.soak
def test_what_is_set_aside_is_freed_once_nothing_refers_to_it(collector: CycleCollector) -> None:
    held = hold()
    before = gc.get_freeze_count()
    held.clear()
    assert before - gc.get_freeze_count() > HELD // 2


def test_a_cycle_that_was_set_aside_is_freed_when_nobody_is_connected(collector: CycleCollector) -> None:
    refs = dropped()
    collector.tend(quiet=False)
    assert alive(refs) == 10
    collector.tend(quiet=True)
    assert alive(refs) == 0


@pytest.mark.soak
def test_everything_is_looked_at_once_for_what_was_set_aside(collector: CycleCollector) -> None:
    hold()
    for _ in range(3):
        collector.tend(quiet=True)
    assert collector.full_collections == 1


@pytest.mark.soak
def test_where_somebody_is_always_connected_what_is_set_aside_stays_bounded(
    collector: CycleCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SET_ASIDE", HELD // 2)
    refs, held = dropped(), hold()
    collector.tend(quiet=False)
    assert (alive(refs), len(held)) == (0, HELD)


@pytest.mark.soak
def test_pauses_are_told_by_what_was_looked_at() -> None:
    times = iter(range(1_000_000))
    collector = CycleCollector(lambda: next(times))
    collector.start()
    try:
        hold()
        assert (collector.longest_s["new"], collector.longest_s["all"]) == (1, 0)
        collector.tend(quiet=True)
        assert collector.longest_s["all"] == 1
        assert collector.pauses_s > 10
    finally:
        collector.stop()


@pytest.mark.soak
def test_at_the_end_the_collector_is_left_to_itself() -> None:
    before = (gc.get_threshold(), list(gc.callbacks))
    collector = CycleCollector()
    collector.start()
    collector.stop()
    assert (gc.get_threshold(), list(gc.callbacks)) == before


def test_collecting_what_is_new_takes_a_bounded_share_of_the_time(collector: CycleCollector, clock: Walking) -> None:
    held = hold(SET_ASIDE_FROM // 2)  # few enough to be gone through again each time
    before, begin = collector.pauses_s, clock.now
    for _ in range(2_000):
        clock.wait(0.001)
        collector.collect_new()
    assert held
    assert 0 < collector.pauses_s - before < 2 * MAX_SHARE * (clock.now - begin)
