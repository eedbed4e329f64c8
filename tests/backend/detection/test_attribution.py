"""Who moved first, and the data set that carries the rise: named alone only where it is alone."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from stabilitybackend.judging.detection.attribution import Attribution, attribute, part_of, watched

ONSET, NOW = 200, 206
LEVELS = {"code": 1.2, "prose": 2.4, "digits": 0.6}

Shape = Callable[[int], float]


def calm(step: int) -> float:
    return 1.0


def rising(by: float, start: int = ONSET) -> Shape:
    return lambda step: 1.0 + (by if step >= start else 0.0)


def broken(start: int) -> Shape:
    return lambda step: math.nan if step >= start else 1.0


def curve(level: float, shape: Shape, seed: int, every: int = 1, noise: float = 0.02) -> list[tuple[int, float]]:
    rng = random.Random(seed)
    return [(step, level * shape(step) * (1 + rng.gauss(0, noise))) for step in range(0, NOW + 1, every)]


def losses(shapes: dict[str, Shape], every: int = 1, seed: int = 7) -> dict[str, list[tuple[int, float]]]:
    return {
        f"loss/{name}": curve(level, shapes.get(name, calm), seed + i, every)
        for i, (name, level) in enumerate(LEVELS.items())
    }


def named(shapes: dict[str, Shape], **settings: int) -> Attribution:
    return attribute(losses(shapes, **settings), ONSET)


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("every", [1, 2])
def test_the_data_set_that_rises_alone_is_named(name: str, every: int) -> None:
    found = named({name: rising(0.8)}, every=every)
    assert (found.dataset, found.datasets) == (name, (name,))


def test_when_all_rise_at_once_none_is_named_and_all_are_listed() -> None:
    found = named(dict.fromkeys(LEVELS, rising(0.5)))
    assert found.dataset is None
    assert set(found.datasets) == set(LEVELS)


@pytest.mark.parametrize(("every", "name"), [(1, None), (2, "code")])
def test_where_all_leave_their_range_at_one_step_and_others_carry_a_quarter_none_is_named(
    every: int, name: str | None
) -> None:
    found = named({"code": rising(20.0), "prose": rising(3.5), "digits": rising(3.5)}, every=every)
    assert found.dataset == name  # of a row of two steps nobody knows which of them it was


def test_the_one_that_carries_most_is_named_where_the_others_only_follow() -> None:
    found = named({"code": rising(1.5), "prose": rising(0.3, ONSET + 2), "digits": rising(0.3, ONSET + 2)})
    assert (found.dataset, found.datasets[0]) == ("code", "code")
    assert found.moved[0].dataset == "code"
    assert [move.onset_step for move in found.moved] == [ONSET, ONSET + 2, ONSET + 2]


def test_a_learning_rate_that_jumps_is_the_doing_of_no_data_set() -> None:
    series = losses({"code": rising(0.9), "prose": rising(0.2, ONSET + 2)})
    rate = [(step, 1e-3 if step < ONSET - 1 else 2e-2) for step in range(NOW + 1)]
    assert attribute(series, ONSET).dataset == "code"
    assert attribute(series | {"lr": rate}, ONSET).dataset is None
    assert attribute(losses({"code": rising(0.9)}) | {"lr": rate}, ONSET).dataset is None


def test_a_mixture_that_changes_or_a_cause_that_all_have_is_the_doing_of_no_data_set() -> None:
    series = losses({"code": rising(0.9)})
    shares = [(step, 0.3 + 0.001 * (step % 3) if step < ONSET else 0.7) for step in range(NOW + 1)]
    assert attribute(series | {"ratio/code": shares}, ONSET).dataset is None
    assert attribute(series, ONSET, all_alike=True).dataset is None


@pytest.mark.parametrize("name", LEVELS)
def test_the_data_set_with_the_lowest_loss_is_not_blamed_for_what_all_have(name: str) -> None:
    found = attribute(losses(dict.fromkeys(LEVELS, rising(0.3)) | {name: rising(0.9)}), ONSET)
    assert found.dataset is None


def test_what_a_data_set_carries_is_its_own_change_and_not_its_change_in_percent() -> None:
    carried = {move.dataset: move.share for move in named(dict.fromkeys(LEVELS, rising(0.5))).moved}
    assert carried["prose"] == pytest.approx(2.4 / sum(LEVELS.values()), abs=0.05)


def test_a_noisy_data_set_that_moves_within_its_noise_is_not_named() -> None:
    series = losses({"digits": rising(0.5)})
    series["loss/prose"] = curve(2.4, rising(0.1), 3, noise=0.3)
    assert attribute(series, ONSET).dataset == "digits"


def test_one_data_set_is_no_choice() -> None:
    found = attribute({"loss/code": curve(1.0, rising(2.0), 1)}, ONSET)
    assert (found.dataset, found.datasets) == (None, ())
    assert [move.metric for move in found.moved] == ["loss/code"]


def test_nothing_is_named_when_no_data_set_left_its_range() -> None:
    series = losses({}) | {"loss": curve(1.4, rising(0.5), 3)}
    found = attribute(series, ONSET)
    assert (found.dataset, found.datasets) == (None, ())
    assert [move.metric for move in found.moved] == ["loss"]


def test_known_shares_of_the_data_weigh_the_rises() -> None:
    series = losses({"code": rising(0.5), "prose": rising(0.5)})
    shares = {"code": 0.9, "prose": 0.05, "digits": 0.05}
    series |= {f"ratio/{name}": [(step, share) for step in range(NOW + 1)] for name, share in shares.items()}
    carried = {move.dataset: move.share for move in attribute(series, ONSET).moved if move.dataset}
    assert carried["code"] is not None
    assert carried["code"] > 0.8


def test_the_first_data_set_that_is_not_a_number_is_named() -> None:
    found = named({"prose": broken(ONSET), "code": broken(ONSET + 2), "digits": rising(3.0)})
    assert (found.dataset, found.datasets) == ("prose", ("prose",))
    assert found.moved[0].rise_percent is None


def test_where_all_end_at_one_step_an_outlier_before_it_names_nobody() -> None:
    series = losses(dict.fromkeys(LEVELS, broken(ONSET)))
    before = {ONSET - 6: 1.3, ONSET - 5: 1.1}
    series["loss/code"] = [(step, value * before.get(step, 1.0)) for step, value in series["loss/code"]]
    found = attribute(series, ONSET)
    assert found.dataset is None
    assert {move.onset_step for move in found.moved} == {ONSET}


def test_the_noisier_of_two_that_rose_together_is_not_taken_for_one_that_follows() -> None:
    named = [
        attribute(
            {
                "loss/code": curve(1.8, rising(0.9), seed),
                "loss/prose": curve(2.4, rising(0.35), seed + 50, noise=0.12),
            },
            ONSET,
        ).dataset
        for seed in range(50)
    ]
    assert named.count(None) >= 48


def test_a_data_set_that_is_missing_from_many_batches_is_not_taken_for_broken() -> None:
    series = losses({"prose": rising(0.8)})
    series["loss/code"] = [(step, math.nan if step % 3 else value) for step, value in series["loss/code"]]
    assert attribute(series, ONSET).dataset == "prose"


def test_a_fall_is_attributed_like_a_rise() -> None:
    series = losses({"digits": rising(-0.4)})
    assert attribute(series, ONSET, falling=True).dataset == "digits"
    assert attribute(series, ONSET).datasets == ()


def test_who_moved_first_comes_first_with_the_size_of_its_move() -> None:
    series = losses({}) | {
        "loss": curve(2.0, rising(0.5), 1, noise=0.001),
        "grad_norm": curve(1.0, rising(4.0, ONSET - 3), 2),
        "lr": [(step, 1e-3) for step in range(NOW + 1)],
    }
    moved = attribute(series, ONSET).moved
    assert [(move.metric, move.onset_step) for move in moved] == [("grad_norm", ONSET - 3), ("loss", ONSET)]
    assert moved[1].rise_percent == pytest.approx(50, abs=2)
    assert set(moved[1].as_dict()) == {"metric", "onset_step", "rise_percent", "from", "to"}


def test_an_outlier_some_points_before_the_onset_is_not_its_beginning() -> None:
    series = losses({"code": rising(0.8)})
    series["loss/prose"][ONSET - 4] = (ONSET - 4, 9.0)
    found = attribute(series, ONSET)
    assert found.dataset == "code"
    assert [move.onset_step for move in found.moved] == [ONSET]


@pytest.mark.parametrize("values", [[], [math.nan] * 50, [0.0] * 207, [1e308] * 207, [5.0]])
def test_odd_series_are_passed_over(values: list[float]) -> None:
    series = losses({"code": rising(0.8)}) | {"loss/odd": list(enumerate(values))}
    assert attribute(series, ONSET).dataset == "code"


def test_attribution_is_right_for_nine_of_ten_seeds_at_the_second_point() -> None:
    seeds = range(50)
    early = [
        attribute({n: rows[: ONSET + 2] for n, rows in losses({"prose": rising(0.3)}, seed=9 * s).items()}, ONSET)
        for s in seeds
    ]
    assert sum(found.dataset == "prose" for found in early) >= 45


def test_a_loss_of_a_part_is_known_by_both_spellings() -> None:
    names = ["loss/code", "train/loss/web", "loss_cm4", "loss_scale", "train_loss", "loss", "loss_train", "lr"]
    assert [part_of(name) for name in names] == ["code", "web", "cm4", None, None, None, None, None]


def test_another_way_to_write_the_whole_loss_is_no_part_of_it() -> None:
    whole = ["loss_step", "loss_epoch", "train/loss_per_token", "loss_smoothed", "loss_running_mean", "loss_raw"]
    assert [part_of(name) for name in whole] == [None] * len(whole)


def test_of_many_metrics_the_telling_ones_are_watched() -> None:
    many = [f"layer.{i}.weight" for i in range(1_000)] + [f"ratio/{i}" for i in range(100)]
    names = watched([*many, "loss/code", "grad_norm", "max_logit", "loss"], "loss")
    assert names[:3] == ["loss", "grad_norm", "loss/code"]
    assert len(names) == 64
    assert not any(name.startswith("layer") for name in names)
