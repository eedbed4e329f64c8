"""A rate above its own past is found before the loss moves; every schedule that people use is silent."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from stabilitybackend.judging.detectors.engine.bank import DetectorBank
from stabilitybackend.judging.detectors.engine.base import Finding, Mark, Row
from stabilitybackend.judging.detectors.learning_rate import LearningRateDetector

STEPS = 3_000


def cosine(step: float, steps: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))


SCHEDULES: dict[str, Callable[[int], float]] = {
    "warm-up and cosine": lambda s: min(1, s / 100) * cosine(s, STEPS),
    "cosine with restarts": lambda s: cosine(s % 500, 500),
    "restarts that get longer": lambda s: cosine(s % 200, 200) if s < 200 else cosine((s - 200) % 1_000, 1_000),
    "restarts with a higher warm-up": lambda s: (1 + s // 1_000 / 5) * min(1, s % 1_000 / 100) * cosine(s % 1_000, 1e3),
    "cyclic": lambda s: 1 - 0.9 * abs(s % 400 / 200 - 1),
    "cyclic, halved each time": lambda s: 0.1 + 0.9 * (1 - abs(s % 400 / 200 - 1)) * 0.5 ** (s // 400),
    "one cycle": lambda s: s / 900 if s < 900 else cosine(s - 900, STEPS - 900),
    "steps": lambda s: 0.1 ** (s // 1_000),
    "warm-up, stable, decay": lambda s: min(1, s / 200) * (1 if s < 2_400 else (STEPS - s) / 600),
    "warm-up in stairs": lambda s: min(1, (1 + s // 150) / 8),
    "stairs and cosine": lambda s: min(1, (1 + s // 150) / 8) * cosine(s // 150, 40),
    "inverse root": lambda s: min((s + 1) ** -0.5, (s + 1) * 400**-1.5),
    "range test": lambda s: 1.005**s / 1e6,
    "constant": lambda s: 1.0,
    "zero": lambda s: 0.0,
}  # fmt: skip


#: Of a second warm-up that goes higher, points enough to see that it is one.
FEWEST = {"restarts with a higher warm-up": 15}


def found_in(rates: Sequence[tuple[int, float]], *marks: Mark, **more: Sequence[float]) -> list[Finding]:
    bank, due = DetectorBank({"learning_rate": LearningRateDetector}), list(marks)
    found: list[Finding] = []
    for at, (step, rate) in enumerate(rates):
        while due and due[0].step <= step:
            found += bank.mark(due.pop(0))
        values = {"lr": rate} | {name: column[at] for name, column in more.items()}
        found += bank.feed_row(Row(step, 1e9 + step, values))
    return found


def scheduled(name: str, until: int = STEPS, every: int = 1) -> list[tuple[int, float]]:
    return [(step, 1e-3 * SCHEDULES[name](step)) for step in range(0, until, every)]


def fork(step: int, **changes: Any) -> Mark:
    data = {
        "fork_step": step,
        "cause": "restart",
        "reason": "",
        "changes": changes,
        "last_step": step,
        "left_behind": {},
    }
    return Mark("fork", step + 1, 0.0, f"the run went on after step {step}", data)


@pytest.mark.parametrize("every", [1, 7, 37, 150])
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_is_silent_however_rarely_it_is_logged(name: str, every: int) -> None:
    every = min(every, FEWEST.get(name, every))
    assert found_in(scheduled(name, every=every)) == []


@pytest.mark.parametrize("digits", [2, 3, 6])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_rate_that_is_logged_rounded_is_silent(name: str, digits: int) -> None:
    assert found_in([(step, float(f"{rate:.{digits}g}")) for step, rate in scheduled(name)]) == []


@pytest.mark.parametrize("name", ["warm-up and cosine", "constant", "warm-up, stable, decay", "one cycle"])
@pytest.mark.parametrize("every", [1, 10])
def test_a_rate_that_creeps_is_found_with_the_step_at_which_it_left_its_schedule(name: str, every: int) -> None:
    left = 1_500
    rates = scheduled(name, left)
    rates += [(left + i, rates[-1][1] * 1.012**i) for i in range(400)]
    found = found_in(rates[::every])
    assert (found[-1].severity, found[-1].state) == ("warning", "open")
    assert left <= found[0].onset_step <= left + every
    assert found[0].now_step <= left + 130  # of 400 steps


def test_a_jump_above_the_former_maximum_is_told_at_once_and_its_end_as_well() -> None:
    rates = [(step, rate * (40 if 1_500 <= step < 1_520 else 1)) for step, rate in scheduled("warm-up and cosine")]
    found = found_in(rates)
    assert [(one.severity, one.state, one.onset_step, one.now_step) for one in found] == [
        ("warning", "open", 1_500, 1_500),
        ("warning", "recovered", 1_500, 1_520),
    ]


def test_a_note_that_stays_higher_counts_as_usual_in_the_end() -> None:
    rates = [(step, rate * (1.5 if step >= 1_000 else 1)) for step, rate in scheduled("warm-up, stable, decay", 2_000)]
    rates = [(step, rate * (0.9 if 900 <= step < 1_000 else 1)) for step, rate in rates]
    assert [one.state for one in found_in(rates)] == ["open", "resolved"]


@pytest.mark.parametrize(
    ("times", "severity"), [(10.0, "warning"), (2.5, "warning"), (0.1, "warning"), (0.4, "info"), (0.0, "warning")]
)
def test_a_rate_that_comes_back_from_a_resume_ten_times_off_is_told(times: float, severity: str) -> None:
    rates = [(step, rate * (times if step > 2_500 else 1)) for step, rate in scheduled("warm-up and cosine")]
    found = found_in(rates, fork(2_500))
    assert (found[0].severity, found[0].onset_step, found[0].evidence["after_fork"]) == (severity, 2_501, 2_500)
    assert found[0].now_step <= 2_502


@pytest.mark.parametrize("mended", [1_700, 2_400, STEPS])
@pytest.mark.parametrize("times", [10.0, 4.0, 0.1, 0.01])
@pytest.mark.parametrize("name", ["constant", "warm-up and cosine", "inverse root", "warm-up, stable, decay"])
def test_a_rate_far_off_after_a_resume_is_open_until_it_is_back_on_its_schedule(
    name: str, times: float, mended: int
) -> None:
    resumed = 1_250  # in the middle of a cosine
    rates = [(at, rate * (times if resumed < at <= mended else 1)) for at, rate in scheduled(name)]
    found = found_in(rates, fork(resumed))
    by_decay = next((at for at, rate in rates if resumed < at and times > 1 and rate <= rates[resumed][1]), STEPS)
    again = next((at for at, rate in rates if resumed < at and times < 1 and rate >= rates[resumed][1] / 3), STEPS)
    end = min(mended + 1, by_decay, again)
    assert [one.state for one in found][-1] == ("open" if end >= STEPS else "recovered")
    assert found[-1].recovered_step is None or abs(found[-1].recovered_step - end) <= 40


def test_a_rate_that_rose_to_three_times_its_maximum_is_open_while_it_stays_there() -> None:
    rates = [(step, rate * (3 if step >= 1_000 else 1)) for step, rate in scheduled("warm-up, stable, decay", 2_000)]
    rates = [(step, rate * (0.9 if 900 <= step < 1_000 else 1)) for step, rate in rates]
    assert {one.state for one in found_in(rates)} == {"open"}


def test_rows_in_bulk_end_a_rate_that_is_off_at_the_row_at_which_it_comes_back() -> None:
    rates = [rate * (10 if 1_250 < step <= 2_000 else 1) for step, rate in scheduled("warm-up and cosine")]
    bank = DetectorBank({"learning_rate": LearningRateDetector})
    steps = list(range(STEPS))
    bank.feed_rows(["lr"], steps[:1_251], [1e9 + step for step in steps[:1_251]], {"lr": rates[:1_251]}, 0)
    bank.mark(fork(1_250))
    later = bank.feed_rows(["lr"], steps[1_251:], [1e9 + step for step in steps[1_251:]], {"lr": rates[1_251:]}, 0)
    assert [(one.state, one.now_step) for _, one in later] == [("open", 1_251), ("recovered", 2_001)]


def test_a_rate_of_0_after_a_resume_is_not_taken_for_usual_and_its_end_is_told() -> None:
    rates = [(step, rate * (0 if 1_500 < step <= 2_400 else 1)) for step, rate in scheduled("constant")]
    found = found_in(rates, fork(1_500))
    assert [(one.state, one.title) for one in found] == [
        ("open", "Learning rate 0 after the resume at step 1501"),
        ("recovered", "Learning rate 0 after the resume at step 1501"),
    ]


@pytest.mark.parametrize("digits", [2, 6])
@pytest.mark.parametrize("growth", [1.005, 1.01, 1.05])
@pytest.mark.parametrize(("warm_up", "stood"), [(100, 40), (20, 60), (100, 63), (0, 50), (500, 60)])
def test_a_rate_that_creeps_after_any_plateau_is_a_warning_at_twice_its_top(
    warm_up: int, stood: int, growth: float, digits: int
) -> None:
    rates = [min(1.0, (step + 1) / warm_up) if warm_up else 1.0 for step in range(warm_up + stood)]
    rates += [growth ** (at + 1) for at in range(1_100)]
    found = found_in([(step, float(f"{1e-3 * rate:.{digits}g}")) for step, rate in enumerate(rates)])
    twice = warm_up + stood + math.log(2) / math.log(growth)
    warned = next(one for one in found if one.severity == "warning")
    assert warned.now_step <= twice + 2 + (0.1 / (growth - 1) if digits == 2 else 0)
    assert abs(found[0].onset_step - (warm_up + stood)) <= 0.2 / (growth - 1) + 1


def test_a_warm_up_that_holds_at_its_start_is_silent() -> None:
    rates = [min(1.0, max(0.001, (step - 30) / 400)) for step in range(1_000)]
    assert found_in([(step, 1e-3 * rate) for step, rate in enumerate(rates)]) == []


def test_a_rate_that_comes_back_as_declared_or_in_a_second_warm_up_is_silent() -> None:
    before = scheduled("warm-up and cosine", 1_501)
    declared = [(step, 5 * rate) for step, rate in scheduled("warm-up and cosine") if step > 1_500]
    again = [
        (step, rate * min(1, (step - 1_500) / 80)) for step, rate in scheduled("warm-up and cosine") if step > 1_500
    ]
    assert found_in([*before, *declared], fork(1_500, lr_scale=5.0)) == []
    assert found_in([*before, *again], fork(1_500)) == []


def test_a_rate_that_rises_with_the_batch_is_silent() -> None:
    rates = [(step, rate * (2 if step >= 1_000 else 1)) for step, rate in scheduled("warm-up and cosine")]
    assert found_in(rates, batch_size=[64 if step < 1_000 else 256 for step, _ in rates]) == []


def test_of_several_parameter_groups_the_first_is_judged() -> None:
    rates = scheduled("warm-up and cosine")
    assert found_in(rates, **{"lr-AdamW": [50 * rate for _, rate in reversed(rates)]}) == []


def test_a_rate_that_creeps_on_is_told_with_what_it_is_and_not_with_what_it_was() -> None:
    rates = [(step, 1e-3 * 1.01 ** max(0, step - 200)) for step in range(700)]
    found = found_in(rates)
    assert [one.severity for one in found[-2:]] == ["warning", "warning"]
    assert len({one.key for one in found}) == 1
    assert found[-1].evidence["level_after"] > 0.5 * rates[-1][1]
    assert len(found) <= 2 + math.log2(rates[-1][1] / 1e-3)


@pytest.mark.parametrize(
    ("times", "words"), [(10.0, "at 0.003, 10 times the 0.0003 before"), (0.1, "1/10 of the 0.0003")]
)
def test_a_rate_that_came_back_off_is_told_with_both_values(times: float, words: str) -> None:
    rates = [(step, 3e-4) for step in range(200)] + [(step, 3e-4 * times) for step in range(200, 300)]
    found = found_in(rates, fork(199))
    assert words in found[-1].text


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_a_metric_of_that_name_that_is_noise_is_no_schedule_and_at_most_one_note(seed: int, noise: float) -> None:
    rng = random.Random(seed)
    found = found_in([(step, 1e-3 * abs(1 + rng.gauss(0, noise))) for step in range(1_500)])
    assert {one.severity for one in found} <= {"info"}
    assert len({one.key for one in found}) <= 1
