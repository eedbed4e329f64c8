"""The data-mix drift detector: shares that move are told once, loudest after a resume; noise is not."""

from __future__ import annotations

import math
import random

import pytest

from stabilitybackend.judging.detectors.data_mix_drift import DataMixDriftDetector
from stabilitybackend.judging.detectors.engine.bank import DetectorBank
from stabilitybackend.judging.detectors.engine.base import Finding, Mark, Row

RATIO = "ratio/image_text"


def _fork(step: int, **changes: float) -> Mark:
    data = {"fork_step": step - 1, "cause": "restart", "changes": changes, "left_behind": {}}
    return Mark("fork", step, 1e9, f"the run went back to step {step - 1}", data)


def _job(
    shares: list[float], *, samples: int = 512, loss: list[float] | None = None, every: int = 1
) -> list[Row | Mark]:
    """Return rows of a job whose batches hold ``samples`` draws with these shares."""
    rng, rows = random.Random(samples), []
    for i, share in enumerate(shares):
        values = {RATIO: min(1.0, max(0.0, rng.gauss(share, math.sqrt(share * (1 - share) / samples))))}
        if loss is not None:
            values["loss"] = loss[i] * (1 + rng.gauss(0, 0.01))
        rows.append(Row(i * every, 1e9 + i, values))
    return [*rows]


def _found(items: list[Row | Mark], **settings: float) -> list[Finding]:
    bank = DetectorBank({"data_mix_drift": DataMixDriftDetector})
    bank.configure({"data_mix_drift": settings})
    found: list[Finding] = []
    for item in items:
        found += bank.mark(item) if isinstance(item, Mark) else bank.feed_row(item)
    assert not bank.failures
    return found


def test_a_share_that_moved_after_a_resume_is_an_alarm_within_five_points() -> None:
    rows = _job([0.43] * 300 + [0.55] * 100)
    first = _found([*rows[:300], _fork(300), *rows[300:]])[0]
    assert (first.severity, first.evidence["after_fork"]) == ("warning", 299)
    assert 300 <= first.onset_step <= first.step <= 305


def test_a_resume_with_the_same_shares_is_silent() -> None:
    rows = _job([0.43] * 700, samples=64)
    marks = [item for step in range(100, 700, 50) for item in (_fork(step), *rows[step : step + 50])]
    assert _found([*rows[:100], *marks]) == []


def test_a_share_that_comes_back_has_recovered() -> None:
    last = _found([*_job([0.43] * 300 + [0.6] * 64 + [0.43] * 100)])[-1]
    assert last.state == "recovered"
    assert 364 <= (last.recovered_step or 0) <= 380


def test_the_way_back_from_a_level_that_was_accepted_is_a_note() -> None:
    found = _found(_job([0.43] * 300 + [0.75] * 300 + [0.43] * 200))
    severities = {finding.onset_step: finding.severity for finding in found}
    assert list(severities.values()) == ["warning", "info"]
    assert "back at the level of before step" in found[-1].evidence["explained_by"][0]


def test_a_moderate_shift_without_a_fork_is_a_note_that_says_how_the_loss_moved_with_it() -> None:
    shares = [0.43] * 300 + [0.5] * 200
    calm = _found(_job(shares, loss=[2.5] * 500))
    moved = _found(_job(shares, loss=[2.5] * 300 + [2.9] * 200))
    assert {finding.severity for finding in calm} == {"info"}
    assert {finding.severity for finding in moved} == {"info"}
    assert moved[-1].evidence["loss_percent"] == pytest.approx(16, abs=2)


def test_a_large_sudden_shift_is_an_alarm_by_itself() -> None:
    assert _found(_job([0.43] * 300 + [0.75] * 100))[0].severity == "warning"


@pytest.mark.parametrize("stage_points", [60, 200, 400])
def test_a_mixture_that_moves_in_steps_is_reported_once_at_most(stage_points: int) -> None:
    stages = [0.2, 0.34, 0.5, 0.3, 0.22, 0.4, 0.55, 0.3]
    found = _found(_job([share for share in stages for _ in range(stage_points)]))
    assert len({finding.key for finding in found if finding.severity != "info"}) <= 1
    assert len({finding.key for finding in found}) <= 3


def test_after_moves_in_steps_a_share_that_jumps_at_a_resume_is_still_an_alarm() -> None:
    rows = _job([share for share in (0.2, 0.3, 0.2, 0.3, 0.2) for _ in range(100)] + [0.9] * 60)
    found = _found([*rows[:500], _fork(500), *rows[500:]])
    assert [(finding.severity, finding.onset_step) for finding in found if finding.evidence["after_fork"]] == [
        ("warning", 500)
    ]


def test_a_steady_ramp_is_one_note() -> None:
    found = _found(_job([0.2] * 300 + [0.2 + 0.3 * i / 600 for i in range(600)] + [0.5] * 300))
    assert {finding.severity for finding in found} == {"info"}
    assert len({finding.key for finding in found}) == 1


def test_all_ratios_that_move_at_once_are_one_incident() -> None:
    rows = [
        row._replace(values={**row.values, "ratio/text": 1 - row.values[RATIO]})
        for row in _job([0.43] * 300 + [0.7] * 150)
        if isinstance(row, Row)
    ]
    found = _found([*rows])
    assert len({finding.key for finding in found}) == 1
    assert list(found[-1].evidence["also"]) == ["ratio/text"]


@pytest.mark.parametrize("samples", [4, 8, 64, 4_096])
def test_the_noise_of_small_and_large_batches_gives_no_alarm(samples: int) -> None:
    assert _found(_job([0.3] * 6_000, samples=samples)) == []


def test_a_declared_change_of_the_mixture_is_a_note_that_says_so() -> None:
    rows = _job([0.43] * 300 + [0.6] * 60)
    found = _found([*rows[:300], _fork(300, mixture_weights=1.0), *rows[300:]])
    assert {finding.severity for finding in found} == {"info"}
    assert found[0].evidence["explained_by"] == ["declared at the fork: mixture_weights"]


def test_sparse_logs_are_judged_as_dense_ones_are() -> None:
    shares = [0.43] * 300 + [0.75] * 100
    (dense, *_), (sparse, *_) = _found(_job(shares)), _found(_job(shares, every=100))
    assert sparse.onset_step == 100 * dense.onset_step


def test_ratios_beyond_the_bound_are_ignored_and_counted() -> None:
    detector = DataMixDriftDetector()
    bank = DetectorBank({"data_mix_drift": lambda: detector})
    bank.feed_row(Row(0, 0.0, {f"ratio/{i}": 0.1 for i in range(70)}))
    assert detector.dropped == 6


@pytest.mark.parametrize(
    ("later", "severity"),
    [
        ((0.2, 0.48, 0.32), "warning"),
        ((0.0, 0.6, 0.4), "warning"),
        ((0.19, 0.11, 0.7), "warning"),
        ((0.2, 0.3, 0.5), "info"),
        ((0.1, 0.8, 0.1), "info"),
    ],
)
def test_new_weights_for_all_sets_are_a_note_and_one_set_that_fails_is_an_alarm(
    later: tuple[float, ...], severity: str
) -> None:
    rng, rows = random.Random(1), list[Row | Mark]()
    for step in range(450):
        drawn = rng.choices("abc", (0.5, 0.3, 0.2) if step < 350 else later, k=256)
        rows.append(Row(step, float(step), {f"ratio/{name}": drawn.count(name) / 256 for name in "abc"}))
    assert {finding.severity for finding in _found(rows)} == {severity}


@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
def test_the_source_that_failed_is_named_whichever_share_is_logged_first(order: str) -> None:
    rng, rows = random.Random(2), list[Row | Mark]()
    for step in range(450):
        drawn = rng.choices("abc", (0.5, 0.3, 0.2) if step < 350 else (0.375, 0.225, 0.4), k=512)
        rows.append(Row(step, float(step), {f"ratio/{name}": drawn.count(name) / 512 for name in order}))
    assert {(finding.metric, finding.severity) for finding in _found(rows)} == {("ratio/c", "warning")}


def test_batches_too_small_to_show_that_the_other_shares_kept_their_proportions_raise_no_alarm() -> None:
    rng, rows = random.Random(3), list[Row | Mark]()
    for step in range(450):
        drawn = rng.choices("abc", (0.5, 0.3, 0.2) if step < 350 else (0.13, 0.45, 0.42), k=16)
        rows.append(Row(step, float(step), {f"ratio/{name}": drawn.count(name) / 16 for name in "abc"}))
    assert {finding.severity for finding in _found(rows)} == {"info"}
