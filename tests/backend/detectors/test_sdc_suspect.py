"""Ranks side by side: a copy that differs and a rank that leaves the others are suspects, healthy odd jobs are not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

import numpy as np
import pytest

from stabilitybackend.base.saving import pack
from stabilitybackend.judging.detectors.engine.bank import DetectorBank
from stabilitybackend.judging.detectors.engine.base import Finding, Mark, Point
from stabilitybackend.judging.detectors.sdc_suspect import CHUNK, GATHERED_CHUNKS, SdcSuspectDetector

#: What a rank logs at a step, by (rng, step, rank).
Value = Callable[[random.Random, int, int], float]


def _points(value: Value, ranks: int, steps: int, *, metric: str = "grad_norm_local", seed: int = 1) -> list[Point]:
    rngs = [random.Random(seed * 1_000 + rank) for rank in range(ranks)]
    return [
        Point(step, metric, value(rngs[rank], step, rank), float(step), rank)
        for step in range(steps)
        for rank in range(ranks)
    ]


def _own(times: float, bad: int = 2, onset: int = 300) -> Value:
    return lambda rng, step, rank: rng.lognormvariate(0, 0.06) * (times if rank == bad and step >= onset else 1.0)


def _copy(change: Callable[[float], float] = lambda value: value, bad: int = 2, onset: int = 300) -> Value:
    def value(rng: random.Random, step: int, rank: int) -> float:
        same = random.Random(step).lognormvariate(0, 0.3)
        return change(same) if rank == bad and step >= onset else same

    return value


def _checksum(bad: int = 2, onset: int = 300, every: int = 1) -> Value:
    return lambda rng, step, rank: float(random.Random(step * every).getrandbits(32) ^ (rank == bad and step >= onset))


def _found(points: Iterable[Point], detector: SdcSuspectDetector | None = None) -> list[Finding]:
    detector = detector or SdcSuspectDetector()
    return [finding for point in points for finding in detector.update(point)]


def _facts(found: Iterable[Finding]) -> list[tuple[int | None, int, int, str, str]]:
    return [(one.rank, one.onset_step, one.step, one.severity, one.state) for one in found]


# --- copies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [3, 4, 8])
@pytest.mark.parametrize("onset", [8, 41])
def test_a_rank_with_another_checksum_than_most_is_critical_at_its_first_step(ranks: int, onset: int) -> None:
    points = _points(_checksum(onset=onset), ranks, onset + 10, metric="checksum/weights")
    assert _facts(_found(points)) == [(2, onset, onset, "critical", "open")]


def test_a_checksum_of_each_fiftieth_step_tells_the_last_step_at_which_all_were_equal() -> None:
    points = [p._replace(step=50 * p.step) for p in _points(_checksum(onset=6), 4, 9, metric="checksum/weights")]
    (found,) = _found(points)
    assert (found.rank, found.onset_step, found.evidence["whole_until"]) == (2, 300, 250)


def test_of_two_checksums_nobody_knows_which_is_wrong() -> None:
    (found,) = _found(_points(_checksum(bad=1, onset=30), 2, 40, metric="checksum/weights"))
    assert (found.rank, found.severity, found.evidence["ranks"]) == (None, "critical", [0, 1])
    assert "Two ranks alone do not tell which of them is wrong." in found.text


def test_of_two_copies_of_a_norm_the_one_that_left_its_own_past_is_named() -> None:
    drift = lambda rng, step, rank: 40 + math.sin(step / 9) + (20.0 if rank == 1 and step >= 60 else 0.0)  # noqa: E731
    (found, *_) = _found(_points(drift, 2, 70, metric="weight_norm"))
    assert (found.rank, found.onset_step, found.severity) == (1, 60, "critical")


def test_a_reduced_norm_that_differs_once_is_a_note_and_an_alarm_at_the_third_time() -> None:
    def value(rng: random.Random, step: int, rank: int) -> float:
        return _copy(lambda same: 1.5 * same)(rng, step, rank if step % 3 == 0 else 0)

    found = _found(_points(value, 4, 310, metric="grad_norm"))
    assert [(one.rank, one.severity, one.now_step) for one in found] == [(2, "info", 300), (2, "warning", 306)]


def test_a_copy_that_is_equal_again_has_recovered() -> None:
    found = _found(
        _points(
            lambda rng, step, rank: _checksum()(rng, step, rank if step < 320 else 0), 4, 400, metric="checksum/weights"
        )
    )
    assert [(one.state, one.recovered_step) for one in found] == [("open", None), ("recovered", 320)]


def test_a_copy_that_differs_on_half_of_the_ranks_is_none_any_more() -> None:
    half = lambda rng, step, rank: _copy()(rng, step, rank) + (rank % 2 if step >= 100 else 0)  # noqa: E731
    assert _found(_points(half, 8, 300, metric="grad_norm")) == []


# --- values of a rank's own -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [3, 4, 16])
@pytest.mark.parametrize("times", [0.3, 2.0, 6.0])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_rank_that_leaves_the_others_and_its_own_past_is_soon_an_alarm(ranks: int, times: float, seed: int) -> None:
    found = _found(_points(_own(times), ranks, 500, seed=seed))
    assert [(one.rank, one.severity) for one in found] == [(2, "warning")]
    assert found[0].onset_step in range(300, 303)
    assert found[0].step < 300 + CHUNK * GATHERED_CHUNKS


def test_of_two_ranks_with_other_values_neither_is_a_suspect() -> None:
    assert _found(_points(_own(6.0, 1), 2, 500)) == []


def test_several_metrics_of_one_rank_are_one_incident() -> None:
    both = zip(_points(_own(6.0), 4, 400), _points(_own(3.0), 4, 400, metric="loss_local", seed=2), strict=True)
    found = _found(point for pair in both for point in pair)
    assert {(one.rank, one.key) for one in found} == {(2, found[0].key)}
    assert found[-1].evidence["also"]


def test_ranks_that_move_together_are_no_suspects() -> None:
    def value(rng: random.Random, step: int, rank: int) -> float:
        return rng.lognormvariate(0, 0.06) * (3.0 + rank if step >= 300 else 1.0)

    assert _found(_points(value, 8, 600)) == []


def test_stretches_that_the_data_has_by_nature_are_none() -> None:
    left = [0] * 4

    def value(rng: random.Random, step: int, rank: int) -> float:
        left[rank] = left[rank] - 1 if left[rank] else (rng.randint(2, 20) if rng.random() < 0.02 else 0)
        return rng.lognormvariate(0, 0.06) * (4.0 if left[rank] else 1.0)

    assert _found(_points(value, 4, 1_500)) == []


# --- rows of ranks ----------------------------------------------------------------------------------------------------


def _tables(points: list[Point], rng: random.Random, most: int) -> Iterator[tuple[list[Point], int]]:
    """Give each rank's points in pieces; no rank is far ahead of another."""
    queues = [[p for p in points if p.rank == rank] for rank in range(1 + max(p.rank for p in points))]
    while any(queues):
        slowest = min(queue[0].step for queue in queues if queue)
        queue = rng.choice([queue for queue in queues if queue and queue[0].step <= slowest + 40])
        count = rng.randint(1, most)
        some, queue[:count] = queue[:count], []
        yield some, some[0].rank


def _as_table(detector: SdcSuspectDetector, some: list[Point], ranks: list[int]) -> list[tuple[float, Finding]]:
    names = list(dict.fromkeys(p.metric for p in some))
    rows = [p for p in some if p.metric == names[0]]
    values = np.array([[p.value for p in some if p.metric == name] for name in names])
    return detector.update_table(
        names, np.array([p.step for p in rows]), np.array([p.time for p in rows]), values, ranks
    )


@pytest.mark.parametrize("value", [_own(6.0), _checksum(), _copy(lambda v: 1.5 * v)], ids=["own", "checksum", "copy"])
def test_however_rows_are_cut_and_whoever_comes_first_the_same_is_found(value: Value) -> None:
    points = _points(value, 4, 400)
    one_by_one = _found(points)
    for seed in range(3):
        single, table, expected, found = SdcSuspectDetector(), SdcSuspectDetector(), list[Finding](), list[Finding]()
        for some, rank in _tables(points, random.Random(seed), 30):
            expected += _found(some, single)
            found += [finding for _, finding in _as_table(table, some, [rank])]
        assert found == expected
        assert [one[:2] for one in _facts(found)[:1]] == [one[:2] for one in _facts(one_by_one)[:1]]


def test_a_row_of_each_rank_at_once_is_the_same_as_one_after_another() -> None:
    points = _points(_own(6.0), 8, 400)
    detector = SdcSuspectDetector()
    steps = [list(some) for _, some in groupby(points, key=lambda point: point.step)]
    at_once = [finding for some in steps for _, finding in _as_table(detector, some, [p.rank for p in some])]
    assert at_once == _found(points)


def test_a_rank_that_is_gone_does_not_stop_the_others_from_being_compared() -> None:
    points = [p for p in _points(_own(6.0), 5, 1_600) if p.rank != 4 or p.step < 100]
    assert {one.rank for one in _found(points)} == {2}


def test_steps_that_ranks_do_not_share_are_not_compared() -> None:
    points = [p._replace(step=4 * p.step + p.rank) for p in _points(_own(6.0), 4, 400)]
    assert _found(points) == []


def test_several_rows_of_a_rank_at_one_step_are_one() -> None:
    points = _points(_own(6.0), 4, 400)
    twice = [q for p in points for q in (p._replace(metric="loss_local", value=1.0), p)]
    assert _facts(_found(twice)) == _facts(_found(points))


def test_a_job_that_went_back_is_still_the_same_incident() -> None:
    detector = SdcSuspectDetector()
    found = _found(_points(_own(6.0), 4, 400), detector)
    found += detector.note(Mark("fork", 201, 0.0, "the run went back to step 200", {"fork_step": 200}))
    again = [p for p in _points(_own(6.0, onset=0), 4, 500) if p.step > 200]
    assert len({one.key for one in found + _found(again, detector)}) == 1


def test_metrics_that_one_rank_alone_logs_leave_room_for_those_that_are_compared() -> None:
    points = _points(_own(6.0), 4, 400)
    alone = [p._replace(metric=f"layer/{i}") for p in points if p.rank == 0 and p.step < 5 for i in range(40)]
    assert {one.rank for one in _found(alone + points)} == {2}


def test_the_state_of_thousands_of_ranks_is_a_kilobyte_a_rank() -> None:
    detector, ranks = SdcSuspectDetector(), 2_048
    names, rng = [f"m{i}" for i in range(12)], np.random.default_rng(1)
    for step in range(40):
        values = rng.lognormal(0, 0.1, (12, ranks))
        detector.update_table(names, np.full(ranks, step), np.full(ranks, 0.0), values, list(range(ranks)))
    assert len(pack(detector)) < 2_048 * ranks


def test_a_server_that_stops_goes_on_as_if_nothing_had_been() -> None:
    points, at = _points(_own(6.0), 4, 400), 1_237
    bank = DetectorBank({"sdc_suspect": SdcSuspectDetector}, in_order=False)
    first = [f for p in points[:at] for f in bank.feed(p)]
    other = DetectorBank({"sdc_suspect": SdcSuspectDetector}, in_order=False)
    assert other.restore("bank", {part.name: part for part in bank.saved("bank")}) == {}
    assert first + [f for p in points[at:] for f in other.feed(p)] == _found(points)


def test_a_metric_that_stays_infinite_is_no_error_and_no_finding() -> None:
    detector, found = SdcSuspectDetector(), []
    for step in range(300):
        for rank in range(4):
            found += detector.update(Point(step, "grad_norm", math.inf if step > 5 else 1.5, float(step), rank))
    assert found == []
