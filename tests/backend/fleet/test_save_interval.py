"""What saving costs is measured, and the interval that is advised is the one at which least time is lost."""

from __future__ import annotations

import random

import pytest

from stabilitybackend.fleet.rollback_cost import OWN_INTERRUPTIONS, best_interval_s, save_interval
from stabilitybackend.schema.rollback_cost import SaveInterval
from support.stops import NO_STOPS, stops

HOUR = 3600.0


def _saves(*times: float, took_s: float | None = 12.0, segment: int = 0) -> list[tuple[int, int, float, float | None]]:
    return [(segment, step, time, took_s) for step, time in enumerate(times)]


def _lost_share(every_s: float, save_s: float, mtbi_s: float, seed: int) -> float:
    """Train until 400 interruptions that come at random; return the share of the time that was no training."""
    dice, time, useful = random.Random(seed), 0.0, 0.0
    for _ in range(400):
        until = dice.expovariate(1 / mtbi_s)
        whole = int(until // (every_s + save_s))
        useful += whole * every_s
        time += until
    return 1 - useful / time


@pytest.mark.parametrize(("save_s", "mtbi_s"), [(12.0, 6 * HOUR), (120.0, 3 * HOUR), (2.0, HOUR)])
def test_a_job_that_is_interrupted_at_random_loses_least_near_the_best_interval(save_s: float, mtbi_s: float) -> None:
    best = best_interval_s(save_s, mtbi_s)
    lost = {share: _lost_share(best * share, save_s, mtbi_s, seed=7) for share in (0.25, 0.5, 1.0, 2.0, 4.0)}
    assert min(lost, key=lost.__getitem__) == 1.0
    told = save_interval(_saves(0.0, best, took_s=save_s), stops(10, 10 * mtbi_s), NO_STOPS[1], 1)
    assert told is not None
    assert told.best_cost == pytest.approx(lost[1.0], rel=0.15)


def test_a_save_that_takes_longer_than_the_job_lives_is_advised_no_oftener_than_that() -> None:
    assert best_interval_s(100.0, 150.0) == 150.0


def test_what_saving_costs_is_told_from_the_runs_own_interruptions_where_it_has_enough() -> None:
    found = save_interval(_saves(0.0, 600.0, 1200.0, 1800.0), stops(4, 24 * HOUR), stops(100, HOUR), 8)
    assert found == SaveInterval(
        saves=4, interval_s=600.0, save_s=12.0, share=0.02, mtbi_s=6 * HOUR, interruptions=4, interruptions_of="run",
        best_s=720.0, cost=12 / 600 + 600 / (12 * HOUR), best_cost=12 / 720 + 720 / (12 * HOUR),
    )  # fmt: skip


def test_with_too_few_of_its_own_those_of_all_count_by_their_gpu_hours() -> None:
    own, everybodys = stops(OWN_INTERRUPTIONS - 1, HOUR), stops(10, 80 * HOUR, ranks=4)
    found = save_interval(_saves(0.0, 600.0), own, everybodys, 16)
    assert found is not None
    assert (found.interruptions_of, found.interruptions, found.mtbi_s) == ("all", 10, 2 * HOUR)


def test_where_nothing_was_ever_interrupted_nothing_is_advised() -> None:
    found = save_interval(_saves(0.0, 600.0), *NO_STOPS, 1)
    assert found is not None
    assert (found.share, found.mtbi_s, found.best_s, found.cost) == (0.02, None, None, None)


def test_where_no_phase_tells_the_time_of_a_save_only_the_interval_is_known() -> None:
    found = save_interval(_saves(0.0, 600.0, took_s=None), stops(9, HOUR), NO_STOPS[1], 1)
    assert found is not None
    assert (found.saves, found.interval_s, found.save_s, found.best_s) == (0, 600.0, None, None)


def test_time_between_segments_is_no_interval_and_a_step_saved_twice_is_saved_once() -> None:
    first = [(0, 1, 0.0, 5.0), (0, 1, 5.0, 7.0), (0, 2, 600.0, 12.0)]
    found = save_interval([*first, (1, 2, 90_000.0, 12.0), (1, 3, 90_600.0, 12.0)], *NO_STOPS, 1)
    assert found is not None
    assert (found.interval_s, found.save_s, found.saves) == (600.0, 12.0, 4)
    assert save_interval(first[:2], *NO_STOPS, 1) is None
