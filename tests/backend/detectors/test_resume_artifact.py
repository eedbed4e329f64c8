"""The resume-artefact detector: a loss that comes back higher is told with what differs; a clean resume is silent."""

from __future__ import annotations

import random
from typing import Any

import pytest

from stabilitybackend.judging.detectors.engine.bank import DetectorBank
from stabilitybackend.judging.detectors.engine.base import Finding, Mark, Row
from stabilitybackend.judging.detectors.engine.context import Claim
from stabilitybackend.judging.detectors.resume_artifact import ResumeArtifactDetector

FORK = 300


def _mark(step: int = FORK, left: list[tuple[int, float]] | None = None, **changes: Any) -> Mark:
    data = {"fork_step": step - 1, "cause": "restart", "changes": changes, "left_behind": {"loss": left or []}}
    return Mark("fork", step, 1e9, f"the run went back to step {step - 1}", data)


def _rows(bump: list[float], *, noise: float = 0.01, seed: int = 1, **after: float) -> list[Row]:
    """Return a job whose loss is raised by the fractions of ``bump`` from FORK on; ``after`` are metrics since then."""
    rng = random.Random(seed)
    usual = {"lr": 3e-4, "grad_norm": 0.5}
    rows = []
    for step in range(FORK + 200):
        rise = bump[step - FORK] if FORK <= step < FORK + len(bump) else 0.0
        values = {"loss": 2.5 * (1 + rise) * (1 + rng.gauss(0, noise)), **usual}
        rows.append(Row(step, 1e9 + step, values | (after if step >= FORK else {})))
    return rows


def _found(rows: list[Row], mark: Mark | None, bank: DetectorBank | None = None, **settings: float) -> list[Finding]:
    bank = bank or DetectorBank({"resume_artifact": ResumeArtifactDetector})
    bank.configure({"resume_artifact": settings})
    found: list[Finding] = []
    for row in rows:
        if mark is not None and row.step == mark.step:
            found += bank.mark(mark)
        found += bank.feed_row(row)
    assert not bank.failures
    return found


BUMP = [0.08 * 0.9**i for i in range(60)]


def test_a_bump_after_a_fork_is_found_within_five_points_and_recovers() -> None:
    first, *_, last = _found(_rows(BUMP), _mark())
    assert (first.kind, first.severity, first.onset_step) == ("resume_artifact", "warning", FORK)
    assert first.step <= FORK + 4
    assert (last.state, last.recovery) == ("recovered", "slow")


def test_an_explosion_right_after_a_fork_is_told_at_its_second_point_and_is_critical_while_it_stays() -> None:
    found = _found(_rows([1.5] * 150), _mark())
    assert (found[0].step, found[0].severity) == (FORK + 1, "warning")
    assert next(finding.now_step for finding in found if finding.severity == "critical") <= FORK + 51


def test_the_same_bump_without_a_fork_is_not_its_business() -> None:
    assert _found(_rows(BUMP), None) == []


@pytest.mark.parametrize("noise", [0.0005, 0.01, 0.1])
def test_a_clean_resume_is_silent(noise: float) -> None:
    assert [f for seed in range(8) for f in _found(_rows([], noise=noise, seed=seed), _mark())] == []


def test_a_small_rise_in_much_noise_is_found_by_twelve_points_together() -> None:
    found = _found(_rows([0.21] * 40, noise=0.06), _mark())
    assert found[0].severity == "warning"


def test_a_rise_near_the_noise_is_found_by_more_points_together_and_its_size_is_theirs() -> None:
    found = _found(_rows([0.09] * 50, noise=0.06), _mark())
    assert found[0].severity == "warning"
    assert found[0].evidence["rise_percent"] == pytest.approx(9, abs=3)


def test_a_rise_far_below_the_noise_is_found_against_a_left_branch_on_the_same_data() -> None:
    clean, bumped = _rows([], noise=0.05), _rows([0.05] * 60, noise=0.05)
    left = [(row.step, row.values["loss"]) for row in clean[FORK : FORK + 60]]
    assert _found(bumped, _mark(left=left))[0].evidence["above_left_branch"] == pytest.approx(0.125, rel=0.2)
    assert _found(clean, _mark(left=left)) == []


def test_one_odd_batch_after_a_resume_is_silent() -> None:
    assert _found(_rows([0.0, 0.0, 0.6, 0.0, 0.0, 0.0, 0.5]), _mark()) == []


def test_a_rise_that_the_left_branch_had_at_the_same_steps_is_not_the_resumes_doing() -> None:
    rows = _rows(BUMP)
    left = [(row.step, row.values["loss"]) for row in rows[FORK : FORK + 60]]
    assert _found(rows, _mark(left=left)) == []


@pytest.mark.parametrize("calm", [5, 80])
def test_a_rise_while_the_rate_that_came_back_is_off_is_of_the_resume_and_names_the_rate(calm: int) -> None:
    found = _found(_rows([0.0] * calm + BUMP, lr=3e-3), _mark())
    assert (found[0].severity, found[0].onset_step) == ("warning", FORK)
    assert len({finding.key for finding in found}) == 1
    assert found[-1].evidence["causes"][0] == "the learning rate is 0.003; at the fork step it was 0.0003"


@pytest.mark.parametrize("rate", [3e-3, 3e-5, 0.0])
def test_a_rate_that_came_back_off_is_left_to_another_detector_while_the_loss_is_calm(rate: float) -> None:
    assert _found(_rows([], lr=rate), _mark()) == []


def test_a_declared_learning_rate_is_no_cause() -> None:
    found = _found(_rows(BUMP, lr=1.5e-4), _mark(lr_scale=0.5))
    assert found[-1].evidence["causes"] == []


def test_a_gradient_norm_that_jumped_points_to_the_optimizer() -> None:
    found = _found(_rows(BUMP, grad_norm=4.0), _mark())
    assert "was the optimizer's state restored?" in found[0].evidence["causes"][0]


def test_a_share_that_drifted_points_to_the_sampler_and_leaves_the_alarm_to_the_drift() -> None:
    rows = [
        row._replace(values={**row.values, "ratio/image_text": 0.43 if row.step < FORK else 0.6}) for row in _rows(BUMP)
    ]
    first = _found(rows, _mark())[0]
    assert "ratio/image_text went from 0.43 to 0.6" in first.evidence["causes"][0]
    assert (first.severity, first.evidence["explained_by"]) == ("info", ["ratio/image_text drifted"])


def test_declared_skipped_batches_excuse_a_small_rise() -> None:
    found = _found(_rows(BUMP), _mark(skip_batches=100))
    assert {finding.severity for finding in found} == {"info"}
    assert found[0].evidence["explained_by"] == ["declared: skip_batches = 100"]


def test_a_rise_that_does_not_come_back_ends_after_200_points_and_gives_its_claim_back() -> None:
    bank = DetectorBank({"resume_artifact": ResumeArtifactDetector})
    found = _found(_rows([0.3] * 200), _mark(), bank)
    assert (found[-1].state, found[-1].recovery, found[-1].severity) == ("resolved", "none", "critical")
    assert bank.context.claimed("loss", "spike") is None


def test_an_event_that_another_detector_follows_is_left_to_it() -> None:
    bank = DetectorBank({"resume_artifact": ResumeArtifactDetector})
    bank.context.claim("loss", Claim("spike", "spike:loss:300", "spike", 300))
    assert _found(_rows(BUMP), _mark(), bank) == []


def test_a_learning_rate_that_steps_after_a_gap_counts_as_a_resume_without_a_mark() -> None:
    rows = _rows(BUMP, lr=3e-5)
    late = [row._replace(time=row.time + (3_600 if row.step >= FORK else 0)) for row in rows]
    assert _found(rows, None) == []
    assert [finding.severity for finding in _found(late, None)][:1] == ["warning"]


def test_a_rise_after_steps_that_repeat_the_left_branch_exactly_is_not_put_down_to_the_resume() -> None:
    rows = _rows([0.0] * 24 + [0.2] * 60)
    repeated = [(row.step, row.values["loss"]) for row in rows[FORK : FORK + 24]]
    assert _found(rows, _mark(left=repeated)) == []
    assert _found(rows, _mark(left=repeated[:2])) != []


def test_a_rise_long_after_the_fork_is_put_down_to_it_while_the_rate_is_off() -> None:
    late = [0.0] * 80 + [0.1] * 60
    assert _found(_rows(late), _mark()) == []
    assert [finding.severity for finding in _found(_rows(late, lr=9e-4), _mark())][:1] == ["warning"]


def test_sensitivity_finds_smaller_bumps() -> None:
    small = _rows([0.008] * 60, noise=0.008)
    assert _found(small, _mark()) == []
    assert _found(small, _mark(), sensitivity=2.0) != []


def test_a_loss_that_stays_a_tenth_higher_after_a_resume_needs_a_decision() -> None:
    assert [f.severity for f in _found(_rows([0.15] * 200), _mark())][-1] == "critical"
    assert [f.severity for f in _found(_rows([0.06] * 200), _mark())][-1] == "warning"
