"""The throughput detector: slower for long is told once, single slow steps and reasons that are known are not."""

from __future__ import annotations

import random

import pytest

from stabilitybackend.judging.detectors.engine.bank import DetectorBank
from stabilitybackend.judging.detectors.engine.base import Finding, Mark, Row
from stabilitybackend.judging.detectors.slow_stretch import PaceTrack
from stabilitybackend.judging.detectors.throughput import ThroughputDetector


def _found(rows: list[Row | Mark], **settings: float) -> list[Finding]:
    bank = DetectorBank({"throughput": ThroughputDetector})
    bank.configure({"throughput": settings})
    found: list[Finding] = []
    for item in rows:
        found += bank.mark(item) if isinstance(item, Mark) else bank.feed_row(item)
    assert not bank.failures
    return found


def _job(factors: list[float], *, seed: int = 1, noise: float = 0.05, tokens: bool = True) -> list[Row | Mark]:
    """Return rows of a job whose steps take 2 s times the factor of each, with noise."""
    rng, time, rows = random.Random(seed), 1e9, []
    for step, factor in enumerate(factors):
        seconds = 2.0 * factor * (1 + abs(rng.gauss(0, noise)))
        time += seconds
        values = {"step_time_s": seconds} | ({"tokens_per_s": 8192 / seconds} if tokens else {})
        rows.append(Row(step, time, values))
    return [*rows]


def test_a_job_that_becomes_slower_is_told_once_for_both_metrics() -> None:
    found = _found(_job([1.0] * 200 + [1.5] * 60))
    assert {finding.key for finding in found} == {found[0].key}
    assert (found[-1].metric, found[-1].evidence["also"]) == ("tokens_per_s", ["step_time_s"])
    assert 198 <= found[0].onset_step <= 208


def test_it_says_how_much_time_was_lost() -> None:
    told = _found(_job([1.0] * 200 + [1.5] * 160, noise=0.01))[-1]
    assert told.evidence["rise_percent"] == pytest.approx(-33, abs=3)
    # Reported whenever it doubled; each of 160 points is a second slower than usual.
    assert told.evidence["lost_s"] == pytest.approx(160 * 0.75, rel=0.5)
    assert "of the job's time lost" in told.text


def test_it_recovers_when_the_speed_is_back() -> None:
    last = _found(_job([1.0] * 200 + [1.5] * 60 + [1.0] * 60))[-1]
    assert last.state == "recovered"
    assert 256 <= (last.recovered_step or 0) <= 270


def test_a_speed_that_stays_low_is_the_new_normal_after_256_points() -> None:
    found = _found(_job([1.0] * 200 + [1.5] * 800))
    assert found[-1].state == "resolved"
    assert len({finding.key for finding in found}) == 1


def test_checkpoints_evaluations_and_the_first_steps_never_alarm() -> None:
    slow = [20.0 if step % 40 == 39 or step < 5 else 8.0 if step % 25 in (0, 1, 2) else 1.0 for step in range(600)]
    assert _found(_job(slow)) == []


def test_a_larger_batch_explains_longer_steps_wherever_it_begins() -> None:
    for begins in range(200, 208):
        rows = _job([1.0] * begins + [1.6] * 200, tokens=False)
        ramp = [
            row._replace(values={**row.values, "batch_size": 256.0 if row.step < begins else 448.0})
            for row in rows
            if isinstance(row, Row)
        ]
        assert _found([*ramp]) == []


@pytest.mark.parametrize("a_point", [0.001, 0.002, 0.004])
def test_a_speed_that_wears_off_slowly_is_no_drop(a_point: float) -> None:
    assert _found(_job([1.0 + a_point * max(0, step - 200) for step in range(700)])) == []


def test_noise_of_every_size_gives_no_alarm() -> None:
    alarms = [_found(_job([1.0] * 4_000, seed=seed, noise=noise)) for seed, noise in enumerate((0.01, 0.1, 0.3, 0.8))]
    assert alarms == [[], [], [], []]


def test_a_tenth_is_a_note_also_when_both_metrics_show_it_for_they_are_one_fact() -> None:
    factors = [1.0] * 200 + [1.14] * 90
    for tokens in (True, False):
        assert {finding.severity for finding in _found(_job(factors, noise=0.01, tokens=tokens))} == {"info"}


@pytest.mark.parametrize("speed", [0.01, 0.05, 0.2])
def test_another_program_that_takes_the_processor_for_a_while_is_not_told(speed: float) -> None:
    # Steps of 20 ms, 100 ms and 400 ms; each time some twenty seconds at half the speed.
    points = round(20 / (2 * 2.0 * speed))
    factors = [speed] * 400 + ([2 * speed] * points + [speed] * 400) * 3
    assert _found(_job(factors)) == []


@pytest.mark.parametrize("speed", [0.01, 0.05, 0.2, 1.0, 4.0])
def test_a_job_of_any_pace_that_stays_slow_is_told_within_a_minute(speed: float) -> None:
    healthy = max(400, round(100 / (2.0 * speed)))
    rows = _job([speed] * healthy + [2 * speed] * max(32, round(120 / (2 * 2.0 * speed))))
    found = _found(rows)
    begin = next(row.time for row in rows if isinstance(row, Row) and row.step == healthy)
    told = next(row.time for row in rows if isinstance(row, Row) and row.step == found[0].step)
    assert found[0].severity == "warning"
    # Two blocks of points have to be slow, however long that takes.
    assert told - begin < max(60, 24 * 4 * speed)


def test_of_slow_stretches_close_to_each_other_the_first_is_told() -> None:
    shared = [1.0] * 200 + ([1.6] * 40 + [1.0] * 60) * 4
    assert len({finding.key for finding in _found(_job(shared))}) == 1


def test_a_slow_down_that_only_one_of_the_two_shows_is_none() -> None:
    # Shorter batches: fewer tokens a second, and steps as long as ever. Larger ones: the other way round.
    for falls, rises in ((0.5, 1.0), (1.0, 2.0)):
        rows = _job([1.0] * 600, noise=0.01)
        only = [
            Row(row.step, row.time, {"tokens_per_s": row.values["tokens_per_s"] * falls,
                                     "step_time_s": row.values["step_time_s"] * rises})
            if row.step >= 300 else row for row in rows if isinstance(row, Row)
        ]  # fmt: skip
        assert _found([*only]) == []


def test_a_slow_down_that_the_time_of_a_ranks_own_work_does_not_show_is_told_by_the_time_between_rows() -> None:
    rows = [row for row in _job([1.0] * 300 + [1.6] * 300, noise=0.01) if isinstance(row, Row)]
    own = [row._replace(values={**row.values, "step_time_s": 0.3 + 0.001 * (row.step % 5)}) for row in rows]
    assert [finding.onset_step - 300 in (0, 1) for finding in _found([*own])][:1] == [True]


def test_a_higher_threshold_reports_only_worse_slow_downs() -> None:
    rows = _job([1.0] * 200 + [1.5] * 60)
    assert _found(rows, slower=0.9) != []
    assert _found(_job([1.0] * 200 + [1.3] * 60), slower=0.9) == []
    assert _found(rows, sensitivity=0.1) == []
    assert _found(_job([1.0] * 200 + [1.07] * 120, noise=0.01), sensitivity=2.0) != []


def test_of_slow_stretches_that_come_and_go_alike_the_first_is_told_and_one_that_costs_twice_as_much() -> None:
    evaluations = [1.5 if step % 300 < 40 and step >= 300 else 1.0 for step in range(1_700)]
    found = _found(_job(evaluations + [1.5] * 200))
    last = {finding.key: finding.severity for finding in found}
    assert [(int(key.split(":")[-1]) // 100, severity) for key, severity in last.items()] == [
        (3, "warning"),
        (17, "warning"),
    ]


def test_a_stretch_stands_out_from_few_usual_blocks_by_as_much_more_as_these_are_fewer_than_remembered() -> None:
    full, few = PaceTrack("step_time_s"), PaceTrack("step_time_s")
    full.usual.extend([1.0, 1.1] * 16)
    few.usual.extend([1.0, 1.1] * 8)
    assert few.spread() == pytest.approx(2 * full.spread())
