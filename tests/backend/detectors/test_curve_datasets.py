"""One data set alone: what its loss does while the whole loss hardly shows it."""

from __future__ import annotations

import math
import random

import pytest

from stabilitybackend.judging.detectors.curve.detector import CurvesDetector
from stabilitybackend.judging.detectors.curve.engine import BLOCK
from stabilitybackend.judging.detectors.engine.bank import DetectorBank
from stabilitybackend.judging.detectors.engine.base import Finding, Mark, Row
from stabilitybackend.judging.detectors.engine.synthetic import noisy

BEGIN, POINTS, SETS = 400, 640, 8
Curves = dict[str, list[float]]


def curves(seed: int = 1, points: int = POINTS) -> Curves:
    """Eight data sets of equal share, each with noise of 2 % around a level of its own."""
    return {f"set{i}": noisy(points, seed=100 * seed + i, sigma=0.02, level=1.0 + 0.2 * i) for i in range(SETS)}


def found_in(sets: Curves, *marks: Mark, **settings: list[float]) -> list[Finding]:
    """Feed the data sets and their mean, the whole loss, to those that judge losses; return what is loud."""
    bank = DetectorBank({"curve": CurvesDetector})
    found = [finding for mark in marks for finding in bank.mark(mark)]
    for step, row in enumerate(zip(*sets.values(), strict=True)):
        values = {f"loss/{name}": value for name, value in zip(sets, row, strict=True)}
        present = [value for value in row if math.isfinite(value)]
        values |= {name: each[step] for name, each in settings.items()}
        found += bank.feed_row(Row(step, 1e9 + step, {"loss": sum(present) / len(present), **values}))
    assert bank.failures == {}
    return [finding for finding in found if finding.severity != "info"]


def raised(sets: Curves, names: list[str], rise: float, ramp: int = 1) -> Curves:
    """Raise some data sets by a fraction from BEGIN on, within ``ramp`` points."""
    return {
        name: [value * (1 + rise * min(1.0, max(0, i - BEGIN + 1) / ramp)) for i, value in enumerate(values)]
        if name in names
        else values
        for name, values in sets.items()
    }


def test_a_jump_of_one_data_set_alone_is_one_warning_with_its_name() -> None:
    found = found_in(raised(curves(), ["set1"], 0.15))
    assert {(finding.dataset, finding.severity) for finding in found} == {("set1", "warning")}
    assert list(dict.fromkeys(finding.kind for finding in found)) == ["spike", "level_shift"]
    assert abs(found[0].onset_step - BEGIN) <= 3
    assert len({finding.key for finding in found}) == 1
    assert "It makes up 12.5 % of the data." in found[0].text


@pytest.mark.parametrize("part", [1.0, 0.5])
def test_where_the_least_noisy_of_all_that_rose_shows_it_first_none_is_named(part: float) -> None:
    sets = {f"set{i}": noisy(POINTS, seed=940 + i, sigma=0.015 if i == 0 else 0.25) for i in range(3)}
    others = raised(sets, ["set1", "set2"], 0.15 * part)
    found = found_in({**others, "set0": raised(sets, ["set0"], 0.15)["set0"]})
    assert {(finding.metric, finding.dataset) for finding in found} == {("loss", None)}
    assert not any(name in finding.title + finding.text for finding in found for name in sets)


def test_a_climb_of_one_data_set_alone_is_a_divergence_of_it() -> None:
    found = found_in(raised(curves(2), ["set0"], 0.15, ramp=120))
    assert {(finding.kind, finding.dataset) for finding in found} == {("divergence", "set0")}


def test_a_climb_that_the_whole_loss_shows_later_is_closed_for_the_data_set() -> None:
    found = found_in(raised(curves(2), ["set0"], 1.5, ramp=200))
    last = {(finding.detector, finding.metric): finding.state for finding in found}
    assert last == {("curve", "loss/set0"): "resolved", ("curve", "loss"): "open"}


def test_a_rise_of_all_data_sets_is_one_event_of_the_whole_loss() -> None:
    sets = curves(3)
    found = found_in(raised(sets, list(sets), 0.12))
    assert {(finding.metric, finding.dataset) for finding in found} == {("loss", None)}


def test_what_hardly_moves_the_whole_loss_is_a_note() -> None:
    assert found_in(raised(curves(4), ["set0"], 0.05)) == []


@pytest.mark.parametrize("setting", ["seq_len", "batch_size"])
@pytest.mark.parametrize("rise", [0.1, 0.2])
def test_one_data_set_alone_at_a_step_of_a_setting_is_no_alarm(setting: str, rise: float) -> None:
    stepped = [256.0 if i < BEGIN else 512.0 for i in range(POINTS)]
    sets = raised(curves(6), ["set2"], rise)
    assert {finding.dataset for finding in found_in(sets)} == {"set2"}
    assert found_in(sets, **{setting: stepped}) == []


def test_a_data_set_weighs_as_much_as_the_job_declared() -> None:
    shares = {"set0": 0.44, **{f"set{i}": 0.08 for i in range(1, SETS)}}
    mark = Mark("mixture", 0, 1e9, "declared", {"shares": shares, "unit": "tokens"})
    (one,) = {finding.dataset for finding in found_in(raised(curves(4), ["set0"], 0.12), mark)}
    assert one == "set0"


def test_healthy_data_sets_that_come_late_or_seldom_are_silent() -> None:
    sets, dice = curves(5, 1_000), random.Random(5)
    sets["set1"] = [math.nan if i < 300 else value + 2.0 * 0.99 ** (i - 300) for i, value in enumerate(sets["set1"])]
    sets["set2"] = [value if dice.random() < 0.1 else math.nan for value in sets["set2"]]
    assert [finding.key for finding in found_in(sets) if finding.metric != "loss"] == []


def test_the_whole_loss_is_back_only_when_the_data_set_that_rose_with_it_is() -> None:
    quiet = curves(6, 1_000)
    sets = {**quiet, "set0": [loss * (3.0 if 400 <= at < 800 else 1.0) for at, loss in enumerate(quiet["set0"])]}
    others = [name for name in sets if name != "set0"]
    for at in range(460, 800):  # the others make up for it
        for name in others:
            sets[name][at] -= 2.0 * quiet["set0"][at] / len(others)
    found = [finding for finding in found_in(sets) if finding.key == "curve:loss:400"]
    assert {finding.state for finding in found if finding.now_step < 800} == {"open"}
    assert any("The loss of set0 has not come back" in finding.text for finding in found)
    assert found[-1].state == "recovered"
    assert 800 <= found[-1].recovered_step <= 800 + BLOCK
