"""At a resume every metric is asked whether it left its own past: a ratio that came back off is known by its values."""

from __future__ import annotations

import random

import pytest

from stabilitybackend.judging.detectors.stats.left_range import left_range
from support.resumes.resumed_job import Resumed, folded, newest

#: Names that nobody has in a table.
NAMES = ["image_to_text", "mix_img", "sampler/temperature", "visionShare"]


def restarted(name: str, seed: int, ids: bool = False) -> Resumed:
    """A job whose batches have a share of their own easier part: the sampler forgets the share at the restart."""
    rng = random.Random(seed)
    jitter = [rng.uniform(-0.02, 0.02) for _ in range(2_000)]

    def extra(step: int) -> float:
        return 0.3 * max(0.0, 1 - (step - 200) / 20) if made.again and step > 200 else 0.0

    made = Resumed(seed=seed, ids=ids)
    made.again = False  # type: ignore[attr-defined]
    shares = {name: lambda step: 0.55 + jitter[step] + extra(step)}
    made.train(1, 300, **shares)
    made.another_process()
    made.again = True  # type: ignore[attr-defined]
    made.train(201, 330, off=lambda step: -1.5 * extra(step), numerics=0.02, **shares)
    return made


@pytest.mark.parametrize("name", NAMES)
def test_a_ratio_under_any_name_is_what_differs_and_no_known_data_is_guessed(name: str) -> None:
    made = restarted(name, seed=3)
    state = folded(made.frames)
    told = [one for one in state.incidents.all() if one.kind != "process_death"]
    assert [one.kind for one in told] == ["resume_artifact"]
    assert name in told[0].title
    assert "learnt already" not in told[0].text
    parts = {part.part: part for part in newest(made.frames).parts}
    assert (parts["mixture"].known, parts["weights"].known) == ("different", "not_seen")
    assert name in parts["mixture"].why


@pytest.mark.parametrize("steps", [36, 70, 90])
@pytest.mark.parametrize("seed", range(3))
def test_a_ratio_that_each_of_two_resumes_forgets_is_named_at_the_second_too(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    jitter, second = [rng.uniform(-0.02, 0.02) for _ in range(2_000)], 200 + steps

    def extra(step: int, since: int) -> float:
        return 0.3 * max(0.0, 1 - (step - since) / 20)

    made = Resumed(seed=seed)
    made.train(1, 230, mix=lambda step: 0.55 + jitter[step])
    for since, last in ((200, second + 40), (second, second + 80)):
        made.another_process()
        made.train(
            since + 1,
            last,
            off=lambda step, since=since: -3 * extra(step, since),  # type: ignore[misc]
            numerics=0.02,
            mix=lambda step, since=since: 0.55 + jitter[step] + extra(step, since),  # type: ignore[misc]
        )
    told = [one for one in folded(made.frames).incidents.all() if one.kind in ("resume_artifact", "repeat_data")]
    assert [(one.kind, "With it mix went from" in one.text) for one in told] == [("resume_artifact", True)] * 2
    assert not any("the loader's place" in one.text for one in told), "the mixture explains it"


def test_known_data_without_another_input_is_guessed_as_before() -> None:
    made = Resumed(seed=3)
    made.train(1, 300, temperature=lambda step: 0.7 + step % 5 / 100)
    made.another_process()
    made.train(201, 330, lambda step: step + 1_000, off=lambda step: -0.4, temperature=lambda s: 0.7 + s % 5 / 100)
    told = folded(made.frames).incidents.all()
    assert [(one.kind, "learnt already" in one.text) for one in told if one.metric] == [("repeat_data", True)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ids", [True, False])
def test_weights_that_were_restored_are_never_told_to_be_others(seed: int, ids: bool) -> None:
    made = restarted("hidden", seed, ids)
    silent = Resumed(seed=seed, ids=ids)
    silent.train(1, 300)
    silent.another_process()
    rng = random.Random(seed)
    # A part of each batch is another one: its losses go together with those of before, and lie off.
    silent.train(201, 330, off=lambda step: rng.gauss(-0.08, 0.02))
    every = [newest(made.frames), newest(silent.frames)] if not ids else [newest(made.frames)]
    known = [part.known for resume in every for part in resume.parts if part.part == "weights"]
    assert set(known) <= {"not_seen", "equal"}


def test_other_weights_on_a_batch_with_the_same_id_are_told() -> None:
    made = Resumed(ids=True)
    made.train(1, 300)
    made.another_process()
    made.train(201, 330, off=lambda step: 0.1, numerics=0.001)
    assert {part.part: part.known for part in newest(made.frames).parts}["weights"] == "different"


@pytest.mark.parametrize("seed", range(3))
def test_noise_trends_and_stairs_leave_no_range(seed: int) -> None:
    rng = random.Random(seed)
    kinds = {
        "noise": lambda step: rng.gauss(5, 1),
        "tails": lambda step: rng.gauss(0, 1) / max(0.05, rng.random()),
        "counter": lambda step: 512.0 * step,
        "epoch": lambda step: float(step // 50),
        "warm-up": lambda step: 1e-5 * step,
        "rare": lambda step: float(rng.random() < 0.05),
        "constant": lambda step: 0.7,
    }
    left = []
    for _ in range(100):
        for name, of in kinds.items():
            rows = [(step, of(step)) for step in range(100, 180)]
            left += [name] if left_range(name, rows[:64], rows[64:]) else []
    assert left == []


def test_a_counter_that_begins_again_and_a_setting_that_moved_are_named() -> None:
    past = [(step, 512.0 * step) for step in range(100, 164)]
    again = left_range("samples_seen", past, [(164 + at, 512.0 * at) for at in range(8)])
    moved = left_range("k", [(step, 0.7) for step in range(64)], [(64 + at, 0.9) for at in range(8)])
    assert again is not None
    assert again.counter
    assert moved is not None
    assert moved.clause == "k went from 0.7 to 0.9 at step 64"


def test_a_step_that_the_left_branch_had_at_the_same_place_is_no_matter_of_the_resume() -> None:
    past = [(step, 0.5 + step % 3 / 100) for step in range(64)]
    since = [(64 + at, 0.8 + at % 3 / 100) for at in range(8)]
    assert left_range("stage", past, since) is not None
    assert left_range("stage", past, since, dict(since)) is None


@pytest.mark.parametrize("seed", range(3))
def test_a_second_repetition_after_a_resume_has_figures_of_its_own(seed: int) -> None:
    made = Resumed(seed=seed)
    made.train(1, 1_500)
    made.another_process()
    made.train(1_501, 2_000, lambda s: s - 1_200 if s <= 1_700 else s - 1_000, off=lambda s: -0.25, numerics=0.005)
    told = [one for one in folded(made.frames).incidents.all()[::-1] if one.kind == "repeat_data"]
    assert [abs(one.onset_step - step) < 32 for one, step in zip(told, (1_501, 1_701), strict=True)] == [True, True]
    assert [one.evidence.get("lag_points", 1_200) for one in told] == [1_200, 1_000]


def test_a_rate_that_came_back_another_one_is_told_once() -> None:
    made = Resumed(seed=3)
    made.train(1, 300)
    made.another_process()
    made.train(201, 330, off=lambda step: 0.5, lr=lambda step: 1e-4)
    (one,) = (one for one in folded(made.frames).incidents.all() if one.kind == "resume_artifact")
    assert "the learning rate is" in one.text.lower()
    assert "With it lr" not in one.text
