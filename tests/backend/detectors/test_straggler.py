"""The straggler detector: the slow rank is named, whatever the order of arrival; noise and waiting are not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import groupby, pairwise

import pytest

from stabilitybackend.judging.detectors.engine.base import Finding, Mark, Point
from stabilitybackend.judging.detectors.stats.rank_table import WINDOW_STEPS, RankPast, RankTable, SlowRankTable
from stabilitybackend.judging.detectors.straggler import StragglerDetector, reports_own_work


def _job(
    ranks: int, steps: int, slow: dict[int, float] | None = None, *, metric: str = "data_time_s", every: int = 1
) -> list[Point]:
    """Return the times of all ranks; ``slow`` ranks take that much longer from step 320 on."""
    rng = random.Random(ranks)
    points = []
    for step in range(0, steps, every):
        for rank in range(ranks):
            factor = (slow or {}).get(rank, 1.0) if step >= 320 else 1.0
            points.append(Point(step, metric, 0.2 * factor * rng.lognormvariate(0, 0.1), 0.0, rank))
    return points


def _times(ranks: int, steps: int, seconds: Callable[[int, int], float]) -> list[Point]:
    return [
        Point(step, "data_time_s", seconds(step, rank), 0.0, rank) for step in range(steps) for rank in range(ranks)
    ]


def _found(points: list[Point], detector: StragglerDetector | None = None) -> list[Finding]:
    detector = detector or StragglerDetector()
    return [finding for point in points for finding in detector.update(point)]


def test_the_slow_rank_is_named_with_how_much_slower_it_is() -> None:
    found = _found(_job(16, 640, {11: 1.5}))
    assert {(one.rank, one.onset_step, one.key) for one in found} == {(11, 320, "straggler:data_time_s:320")}
    assert found[0].evidence["rise_percent"] == pytest.approx(50, abs=10)


@pytest.mark.parametrize(("ranks", "within"), [(4, 60), (8, 50), (32, 50)])
@pytest.mark.parametrize("slower", [1.3, 2.0])
@pytest.mark.parametrize("seed", [11, 12])
def test_a_rank_that_becomes_slow_is_soon_an_alarm(ranks: int, within: int, slower: float, seed: int) -> None:
    rng = random.Random(seed)
    times = _times(ranks, 800, lambda step, rank: 0.2 * rng.lognormvariate(0, 0.03))
    slow = [p._replace(value=p.value * (slower if p.rank == 2 and p.step >= 501 else 1.0)) for p in times]
    (first, *_) = [one for one in _found(slow) if one.severity == "warning"]
    assert (first.rank, first.now_step <= 501 + within) == (2, True)
    assert first.evidence["lost_s"] == pytest.approx(0.2 * (slower - 1) * (first.now_step - 501), rel=0.4)


@pytest.mark.parametrize("slower", [1.2, 1.6])
def test_a_rank_that_was_slower_from_its_first_step_on_is_a_note(slower: float) -> None:
    points = [p._replace(value=p.value * (slower if p.rank == 3 else 1.0)) for p in _job(8, 3_200)]
    assert {one.severity for one in _found(points)} == {"info"}


def test_the_longer_ranks_take_turns_by_nature_the_longer_one_has_to_be_slow() -> None:
    table = RankTable(usual=600, past={0: RankPast(slow=5, slow_windows=5, before=80, slow_excess=0.3)})
    event = SlowRankTable("data_time_s", 0, 0, "info", {0: 0.4}, 0.2, 0.01, ["data_time_s"])
    new = table.is_new(event, 8)
    table.turns, table.turn_windows = 6, 48
    assert (new, table.is_new(event, 8)) == (True, False)
    table.past[0].slow_windows = 80
    assert table.is_new(event, 8)


#: Healthy jobs with odd data: what a rank needs for a step, seconds, by (rng, step, rank).
_ODD = {
    "lengths": lambda rng, step, rank: 0.2 * rng.lognormvariate(0, 0.4),
    "uneven": lambda rng, step, rank: 0.2 * rng.lognormvariate(0, 0.3) * (1.25 if rank == 3 else 1.0),
    "rank 0 logs": lambda rng, step, rank: 0.2 * rng.lognormvariate(0, 0.03) + (0.05 if rank == 0 else 0.0),
    "rank 0 evaluates": lambda rng, step, rank: (
        0.2 * rng.lognormvariate(0, 0.03) + (4.0 if rank == 0 and step % 50 == 49 else 0.0)
    ),
    "rank 0 saves": lambda rng, step, rank: (
        0.2 * rng.lognormvariate(0, 0.03) * (1.3 if rank == 0 and step >= 200 and step % 200 < 20 else 1.0)
        + (3.0 if rank == 0 and step % 200 == 0 else 0.0)
    ),
    "heavy tails": lambda rng, step, rank: 0.18 + 0.02 * min(rng.paretovariate(1.3), 100.0),
}


@pytest.mark.parametrize("odd", _ODD)
@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_healthy_job_with_odd_data_has_no_alarm(odd: str, ranks: int, seed: int) -> None:
    rng = random.Random(seed)
    assert {one.severity for one in _found(_times(ranks, 1_600, lambda s, r: _ODD[odd](rng, s, r)))} <= {"info"}


@pytest.mark.parametrize("turn", [32, 64])
def test_ranks_that_are_slow_in_turn_are_no_alarm_and_one_that_stays_is(turn: int) -> None:
    points = [p._replace(value=p.value * (1.3 if p.step // turn % 8 == p.rank else 1.0)) for p in _job(8, 3_200)]
    assert {one.severity for one in _found(points)} <= {"info"}
    stays = [p._replace(value=p.value * (1.3 if p.rank == 5 and p.step >= 1_600 else 1.0)) for p in points]
    assert {one.rank for one in _found(stays) if one.severity != "info"} == {5}


def test_the_order_in_which_ranks_arrive_changes_nothing() -> None:
    points = _job(8, 960, {2: 1.6})
    rng, queues, shuffled = random.Random(5), [[p for p in points if p.rank == rank] for rank in range(8)], []
    while any(queues):
        slowest = min(queue[0].step for queue in queues if queue)
        ready = [queue for queue in queues if queue and queue[0].step <= slowest + 64]
        queue = rng.choice(ready)
        shuffled += queue[:20]
        del queue[:20]
    in_order, mixed = _found(points), _found(shuffled)
    assert [(f.key, f.rank, f.score) for f in mixed] == [(f.key, f.rank, f.score) for f in in_order]


def test_columns_of_points_say_the_same_as_their_points_one_by_one() -> None:
    points = _job(8, 960, {2: 1.6})
    points[1_000] = points[1_000]._replace(value=math.nan)
    single, column, rng = StragglerDetector(), StragglerDetector(), random.Random(4)
    found = []
    queues = [[p for p in points if p.rank == rank] for rank in range(8)]
    expected = []
    while any(queues):
        for queue in queues:
            count = rng.randint(1, 20)
            some, queue[:count] = queue[:count], []
            expected += [(p.time, f) for p in some for f in single.update(p)]
            if some:
                steps, values, times = [p.step for p in some], [p.value for p in some], [p.time for p in some]
                found += column.update_column(some[0].metric, steps, values, times, some[0].rank)
    assert found == expected
    assert {finding.rank for _, finding in found} == {2}


def test_ranks_that_become_slow_together_are_one_incident() -> None:
    found = _found(_job(16, 640, {8: 1.6, 9: 1.7, 10: 1.6, 11: 2.2}))
    assert len({finding.key for finding in found}) == 1
    assert found[0].rank == 11


def test_two_metrics_of_one_slow_rank_are_one_incident() -> None:
    data, forward = _job(8, 640, {3: 1.6}), _job(8, 640, {3: 1.6}, metric="forward_s")
    found = _found([point for pair in zip(data, forward, strict=True) for point in pair])
    assert {(one.rank, one.key) for one in found} == {(3, found[0].key)}


def test_a_rank_that_keeps_up_again_has_recovered() -> None:
    points = _job(8, 640, {3: 1.6}) + [p._replace(step=p.step + 640) for p in _job(8, 320)]
    last = _found(points)[-1]
    assert (last.state, last.recovered_step) == ("recovered", 640)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8, 64])
def test_equal_ranks_give_no_alarm_however_many_they_are(ranks: int) -> None:
    assert _found(_job(ranks, 1_280)) == []


def test_two_ranks_are_told_apart_by_a_larger_factor_only() -> None:
    assert _found(_job(2, 640, {1: 1.3})) == []
    assert {finding.rank for finding in _found(_job(2, 640, {1: 1.8}))} == {1}


def test_sparse_logs_are_judged_in_wider_windows() -> None:
    found = _found(_job(8, 32_000, {5: 1.6}, every=20))
    assert {finding.rank for finding in found} == {5}


@pytest.mark.parametrize("metric", ["allreduce_time_s", "comm_time_s", "barrier_wait_time_s", "loss", "tokens_per_s"])
def test_times_of_waiting_are_not_watched(metric: str) -> None:
    assert not StragglerDetector().wants(metric)


def test_a_rank_that_is_gone_does_not_stop_the_others_from_being_judged() -> None:
    points = [p for p in _job(8, 1_280, {5: 1.6}) if p.rank != 0 or p.step < 200]
    assert {finding.rank for finding in _found(points)} == {5}


def test_a_rank_that_was_slow_before_a_fork_is_still_the_same_incident() -> None:
    detector = StragglerDetector()
    found = _found(_job(8, 640, {3: 1.6}), detector)
    found += detector.note(Mark("fork", 501, 0.0, "the run went back to step 500", {"fork_step": 500}))
    found += _found([point for point in _job(8, 960, {3: 1.6}) if point.step > 500], detector)
    assert len({finding.key for finding in found}) == 1


def test_ranks_beyond_the_bound_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stabilitybackend.judging.detectors.straggler.MAX_RANKS", 4)
    detector = StragglerDetector()
    _found(_job(6, 10), detector)
    assert detector.dropped == 20


def test_a_rank_that_comes_and_goes_is_one_incident() -> None:
    points = [p._replace(value=p.value * (2.0 if p.rank == 2 and p.step // 160 % 2 else 1.0)) for p in _job(8, 1_600)]
    found = _found(points)
    assert len({finding.key for finding in found}) == 1
    assert [state for state, _ in groupby(finding.state for finding in found)][:3] == ["open", "recovered", "open"]


def test_less_than_a_millisecond_delays_nobody() -> None:
    assert _found([p._replace(value=p.value / 1_000) for p in _job(8, 640, {3: 2.0})]) == []


@pytest.mark.parametrize(
    ("name", "own"), [("data_time_s", True), ("forward_s", True), ("step_time_s", False), ("iteration_time_s", False)]
)
def test_the_time_of_a_whole_step_is_not_that_of_a_ranks_own_work(name: str, own: bool) -> None:
    assert reports_own_work(("loss", name)) == own


@pytest.mark.parametrize(("meets", "waits"), [(True, True), (False, False)])
def test_whether_the_others_wait_for_a_slow_rank_is_told_by_when_it_comes_to_a_step(meets: bool, waits: bool) -> None:
    points, clocks = [], [0.0] * 8
    for step in range(160):
        own = [(0.3 if rank == 3 and step >= 96 else 0.2) + 0.001 * ((step + rank) % 7) for rank in range(8)]
        clocks = [max(clocks) + max(own)] * 8 if meets else [one + more for one, more in zip(clocks, own, strict=True)]
        points += [Point(step, "compute_time_s", own[rank], 1e9 + clocks[rank], rank) for rank in range(8)]
    told = _found(sorted(points, key=lambda point: point.time))
    assert {(one.rank, one.evidence["waits"]) for one in told} == {(3, waits)}
    assert all(("All ranks wait for it." in one.text) == waits for one in told)
    assert all(("The others do not wait for it" in one.text) != waits for one in told)


@pytest.mark.parametrize("resumes", [1, 4])
@pytest.mark.parametrize("within", range(8))
def test_resumes_at_any_step_leave_a_slow_rank_as_soon_an_alarm(within: int, resumes: int) -> None:
    rng, detector = random.Random(within), StragglerDetector()

    def seconds(step: int, rank: int) -> float:
        return 0.2 * rng.lognormvariate(0, 0.03) * (1.6 if rank == 2 and step >= 800 else 1.0)

    begins = [0, *(240 + 120 * number + within for number in range(resumes)), 1_000]
    found: list[Finding] = []
    for first, last in pairwise(begins):
        detector.note(Mark("fork", first, 0.0, "", {}))
        for step in range(first, last):
            found += [
                one
                for rank in range(8)
                for one in detector.update(Point(step, "step_time_s", seconds(step, rank), 0.0, rank))
            ]
    assert found[0].step <= 800 + 3 * WINDOW_STEPS
