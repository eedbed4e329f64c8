"""What a resume brought back is decided by the numbers of both branches, and what is not known is not guessed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from stabilitybackend.schema.resumes import Resume
from support.resumes.resumed_job import Resumed, folded, newest

#: A permutation of all batches: another order of the same data.
OTHER_ORDER = random.Random(3).sample(range(3_000), 3_000)


def known(resume: Resume) -> dict[str, str]:
    return {part.part: part.known + ("*" if part.ordered else "") for part in resume.parts}


def job(*, ids: bool = False) -> Resumed:
    """A job that trained 300 steps."""
    made = Resumed(ids=ids)
    made.train(1, 300)
    return made


def incidents(made: Resumed) -> list[tuple[str, str]]:
    found = folded(made.frames).incidents.all()
    return [(one.kind, one.title) for one in found if one.detector == "resumes"]


def test_an_exact_replay_brings_everything_back_and_shows_that_the_job_is_deterministic() -> None:
    made = job()
    made.back(200)
    made.train(201, 340)
    resume = newest(made.frames)
    assert (resume.verdict, resume.grade, resume.points, resume.equal_points) == ("identical", "good", 100, 100)
    assert known(resume) == {
        "weights": "equal", "optimizer": "equal", "learning_rate": "equal", "rng": "equal", "loader": "equal",
        "mixture": "not_seen", "environment": "equal",
    }  # fmt: skip
    view = folded(made.frames).resumes.view()
    assert (view.determinism.known, incidents(made)) == ("equal", [])


@pytest.mark.parametrize(("fork", "ids"), [(0, False), (8, True), (40, False), (40, True)])
def test_an_exact_replay_is_one_however_early_it_begins_and_however_smoothly_the_loss_falls(
    fork: int, ids: bool
) -> None:
    made = Resumed(ids=ids)
    falls: dict[str, Any] = {
        "off": lambda step: 40 / (1 + step / 10) - made.loss(step, step) + 1e-3 * math.sin(step**2)
    }
    made.train(1, 90, **falls)
    made.back(fork)
    made.train(fork + 1, 80, **falls)
    resume = newest(made.frames)
    assert (resume.verdict, resume.grade, resume.equal_points) == ("identical", "good", resume.points)
    assert folded(made.frames).resumes.view().determinism.known == "equal"


def test_equal_losses_that_are_written_too_coarsely_are_no_exact_replay() -> None:
    made = Resumed(ids=True)
    falls: dict[str, Any] = {"off": lambda step: round(2 - step / 30, 1) - made.loss(step, step)}
    made.train(1, 60, **falls)
    made.back(30)
    made.train(31, 55, **falls)
    resume = newest(made.frames)
    assert (resume.verdict, resume.grade, resume.equal_points) == ("same_data", "good", resume.points)
    assert "as finely as they are written" in resume.text
    assert folded(made.frames).resumes.view().determinism.known == "not_seen"


def test_the_same_batches_with_other_numerics_are_recognised_by_their_own_noise() -> None:
    made = job()
    made.back(200)
    made.train(201, 340, numerics=0.004)
    resume = newest(made.frames)
    assert (resume.verdict, resume.grade, resume.equal_points) == ("same_data", "good", 0)
    assert resume.r is not None
    assert resume.r > 0.95
    assert (known(resume)["loader"], known(resume)["rng"]) == ("equal", "not_seen")
    assert folded(made.frames).resumes.view().determinism.known == "different"


def test_lower_losses_on_the_same_batches_are_no_proof_of_other_weights() -> None:
    made = Resumed(ids=True)
    made.train(1, 300)
    made.back(200)
    made.train(201, 340, off=lambda step: -0.3)
    resume = newest(made.frames)
    assert (resume.verdict, resume.grade, known(resume)["weights"]) == ("same_data", "differs", "not_seen")
    assert "numerics" not in resume.text
    assert "the loss is computed otherwise" in next(part.why for part in resume.parts if part.part == "weights")


def test_another_order_is_shown_and_calls_nobody() -> None:
    made = job()
    made.back(200)
    made.train(201, 340, lambda step: OTHER_ORDER[step])
    resume = newest(made.frames)
    assert (resume.verdict, resume.grade, known(resume)["loader"]) == ("other_order", "differs", "different")
    assert incidents(made) == []


def test_another_order_that_was_ordered_by_a_seed_is_as_it_should_be() -> None:
    made = job()
    made.back(200, seed=7)
    made.train(201, 340, lambda step: OTHER_ORDER[step])
    resume = newest(made.frames)
    assert (resume.verdict, resume.grade) == ("other_order", "good")
    assert (known(resume)["loader"], known(resume)["rng"]) == ("different*", "different*")


def test_the_optimizer_is_known_to_be_another_where_the_first_step_is_exact_and_the_second_is_not() -> None:
    made = Resumed()
    made.train(1, 300, grad_norm=lambda step: 1 + step % 7 / 10)
    made.back(200)
    made.train(201, 340, off=lambda step: 0.3 * 0.95 ** (step - 202) if step > 201 else 0.0,
               grad_norm=lambda step: 1 + step % 7 / 10)  # fmt: skip
    resume = newest(made.frames)
    assert (resume.verdict, resume.grade) == ("same_data", "differs")
    assert (known(resume)["weights"], known(resume)["optimizer"]) == ("equal", "different")


def test_batches_that_come_again_are_an_incident_with_how_far_back_they_are() -> None:
    made = job()
    made.another_process()
    made.train(281, 450, lambda step: step - 280)
    resume = newest(made.frames)
    assert (resume.verdict, resume.grade) == ("repeated", "wrong")
    assert resume.shift is not None
    assert resume.shift.steps == -280
    assert len(folded(made.frames).incidents.of({"repeat_data"})) == 1


def test_epochs_in_one_order_are_no_repetition_of_the_resume() -> None:
    made = Resumed()
    made.train(1, 400, lambda step: step % 150)
    made.another_process()
    made.train(391, 560, lambda step: step % 150)
    resume = newest(made.frames)
    assert (resume.verdict, resume.grade, incidents(made)) == ("identical", "good", [])


@pytest.mark.parametrize("ids", [False, True], ids=["by the loss", "by batch ids"])
def test_skipped_batches_are_checked_to_have_been_skipped(ids: bool) -> None:
    made = job(ids=ids)
    made.back(200, skip_batches=20)
    made.train(201, 340, lambda step: step + 20)
    resume = newest(made.frames)
    assert (resume.verdict, resume.grade) == ("skipped", "good")
    assert resume.skip is not None
    assert (resume.skip.batches, resume.skip.known, incidents(made)) == (20, "equal", [])


@pytest.mark.parametrize("ids", [False, True], ids=["by the loss", "by batch ids"])
def test_skipped_batches_that_were_fed_all_the_same_are_an_incident(ids: bool) -> None:
    made = job(ids=ids)
    made.back(200, skip_batches=20)
    made.train(201, 340, numerics=0.004)
    resume = newest(made.frames)
    assert resume.skip is not None
    assert (resume.grade, resume.skip.known) == ("wrong", "different")
    assert incidents(made) == [("order_not_followed", "Declared change not followed after step 200")]


RANGE = [240, 259]


@pytest.mark.parametrize("ids", [False, True], ids=["by the loss", "by batch ids"])
def test_a_range_that_was_left_out_is_seen_although_the_batches_before_it_came_again(ids: bool) -> None:
    made = job(ids=ids)
    made.back(200, skip_range=RANGE)
    made.train(201, 340, lambda step: step if step < RANGE[0] else step + 20, numerics=0.004)
    resume = newest(made.frames)
    assert resume.skip is not None
    assert (resume.grade, resume.skip.batches, resume.skip.known, incidents(made)) == ("good", 20, "equal", [])


@pytest.mark.parametrize("ids", [False, True], ids=["by the loss", "by batch ids"])
def test_a_range_that_was_fed_all_the_same_is_an_incident(ids: bool) -> None:
    made = job(ids=ids)
    made.back(200, skip_range=RANGE)
    made.train(201, 340, numerics=0.004)
    resume = newest(made.frames)
    assert resume.skip is not None
    assert (resume.grade, resume.skip.batches, resume.skip.known) == ("wrong", 20, "different")


def test_a_range_that_has_not_come_yet_is_not_judged() -> None:
    made = job()
    made.back(200, skip_range=RANGE)
    made.train(201, 238)
    resume = newest(made.frames)
    assert resume.skip is not None
    assert (resume.verdict, resume.skip.known, incidents(made)) == ("identical", "not_seen", [])


def test_another_rate_that_was_declared_is_nothing_wrong_with_the_resume() -> None:
    made = job()
    made.back(200, lr=3e-3)
    made.train(201, 340, lr=lambda step: 10 * 3e-4 * (1 - step / 2_000))
    assert (newest(made.frames).grade, incidents(made)) == ("differs", [])


@pytest.mark.parametrize(("old", "wrong"), [(1e-2, True), (3e-4, False)], ids=["off from its first point", "was left"])
def test_a_rate_is_wrong_that_comes_back_wrong_and_not_where_the_left_branch_had_left_it(
    old: float, wrong: bool
) -> None:
    made = Resumed()
    made.train(1, 210, lr=lambda step: old)
    made.train(211, 400, lr=lambda step: 1e-2)
    made.back(200)
    made.train(201, 400, lr=lambda step: 3e-4)
    rates = folded(made.frames).incidents.of({"learning_rate"})
    assert [one.severity for one in rates if one.onset_step == 201] == ["warning"] * wrong


def test_the_advice_of_an_order_that_was_not_carried_out_is_to_correct_the_handler() -> None:
    made = job()
    made.back(200, lr_scale=0.5)
    made.train(201, 340)
    (incident,) = folded(made.frames).incidents.of({"order_not_followed"})
    assert incident.text == "The learning rate was to be × 0.5, and is × 1, the old rate, at 8 common steps."
    assert incident.suggestion is not None
    assert (incident.suggestion.action, incident.suggestion.text.partition(":")[0]) == (
        "inspect", "What was ordered did not happen",
    )  # fmt: skip


def ordered(made: Resumed, applied: object = None, **changes: object) -> None:
    """Go back to step 200 by a command."""
    made.frames.append(made.job.rolled_back(200, "c-1", cause="command", command_id="c-1", changes=changes))
    if applied is not None:
        made.frames.append(made.job.event("command", 300, command_id="c-1", state="acted", applied=applied))


def denied(made: Resumed) -> list[tuple[str, str, str]]:
    return [(one.change, one.ordered, one.observed) for one in newest(made.frames).not_followed]


WARM_UP = 3e-4 / 260


@pytest.mark.parametrize(
    ("old", "new", "observed"),
    [
        (lambda s: 3e-4, lambda s: 3e-4, "× 1, the old rate, at 100 common steps"),
        (lambda s: 3e-4, lambda s: 0.75e-4, "× 0.25 at 100 common steps"),
        (lambda s: 3e-4, lambda s: 1.5e-4 if s < 203 else 3e-4, "× 1, the old rate, at 100 common steps"),
        (lambda s: WARM_UP * min(s, 260), lambda s: 0.5 * WARM_UP * min(s, 260), None),
        (lambda s: 3e-4, lambda s: 1.5e-4 * min(1.0, (s - 200) / 1_000), None),
        (lambda s: 3e-4, lambda s: 3e-4 if s < 204 else 1.5e-4, None),
        (lambda s: math.nan, lambda s: math.nan, None),
    ],
    ids=["ignored", "applied twice", "set again by the schedule", "within a warm-up", "a warm-up of its own",
         "some steps later", "not logged"],
)  # fmt: skip
def test_an_ordered_rate_that_did_not_come_is_an_incident_unless_the_schedule_moves(
    old: Callable[[int], float], new: Callable[[int], float], observed: str | None
) -> None:
    made = Resumed()
    made.train(1, 300, lr=old)
    ordered(made, lr_scale=0.5)
    made.train(201, 340, lr=new)
    assert denied(made) == ([("lr_scale", "× 0.5", observed)] if observed else [])
    said = folded(made.frames).incidents.of({"order_not_followed"})
    assert [one.title for one in said] == (["Order not followed after step 200"] if observed else [])
    made.train(341, 500, lr=new)
    made.back(250, "d-2")
    made.train(251, 260, lr=new)
    over = folded(made.frames).incidents.of({"order_not_followed"})
    assert [one.state for one in (*said, *over)] == (["open", "resolved"] if observed else [])


@pytest.mark.parametrize(
    ("changes", "applied", "found"),
    [
        ({"skip_batches": 20}, {"skip_batches": 12}, [("skip_batches", "without the next 20 batches")]),
        ({"seed": 7}, {}, [("seed", "seed 7")]),
        ({"seed": 7}, {"seed": "the data are read in one order: nothing to shuffle"}, []),
        ({"seed": 7}, {"note": "loaded"}, []),
        ({"seed": 7}, {"seed": 7}, []),
        ({"seed": 7}, None, []),
    ],
    ids=["fewer", "nothing", "refused in words", "of other things", "as ordered", "no report"],
)
def test_what_the_job_itself_reports_to_be_otherwise_is_an_incident_and_a_refusal_is_none(
    changes: dict[str, object], applied: object, found: list[tuple[str, str]]
) -> None:
    made = Resumed()
    made.train(1, 204)  # too little of the branch that was left to see it in the loss
    ordered(made, applied, **changes)
    made.train(201, 340, OTHER_ORDER.__getitem__)
    assert [one[:2] for one in denied(made)] == found
    assert len(incidents(made)) == len(found)


def test_whether_batches_were_skipped_is_not_guessed() -> None:
    made = job()
    made.back(290, skip_batches=20)
    made.train(291, 400, lambda step: step + 20)
    resume = newest(made.frames)
    assert resume.skip is not None
    assert (resume.verdict, resume.skip.known, incidents(made)) == ("not_comparable", "not_seen", [])


@pytest.mark.parametrize(
    ("declared", "times", "grade", "found"),
    [
        ({"lr_scale": 0.5}, 0.5, "good", 0),
        ({"lr_scale": 0.5}, 1.0, "wrong", 1),
        ({}, 10.0, "wrong", 1),
        ({}, 0.7, "differs", 0),
    ],
)
def test_the_rate_is_held_against_what_was_ordered(
    declared: dict[str, float], times: float, grade: str, found: int
) -> None:
    made = job()
    made.back(200, **declared)
    made.train(201, 340, lr=lambda step: times * 3e-4 * (1 - step / 2_000))
    assert newest(made.frames).grade == grade
    assert len([one for one in folded(made.frames).incidents.all() if one.alarm]) == found, "said once, by whoever"


@pytest.mark.parametrize(
    ("to_step", "times"),
    [(280, 0.5), (280, 0.25), (150, 0.5)],
    ids=["of the schedule", "of the rate that it has", "of a checkpoint from before the first change"],
)
def test_a_second_scale_of_the_rate_may_be_of_the_schedule_or_of_what_there_was(to_step: int, times: float) -> None:
    made = job()
    made.back(200, "d-1", lr_scale=0.5)
    made.train(201, 340, lr=lambda step: 0.5 * 3e-4 * (1 - step / 2_000))
    made.back(to_step, "d-2", lr_scale=0.5)
    made.train(to_step + 1, 400, lr=lambda step: times * 3e-4 * (1 - step / 2_000))
    assert (newest(made.frames).grade, known(newest(made.frames))["learning_rate"]) == ("good", "different*")


def test_batch_ids_tell_another_order_from_other_data() -> None:
    shuffled, other = job(ids=True), job(ids=True)
    order = list(range(201, 301))
    random.Random(1).shuffle(order)
    shuffled.back(200)
    shuffled.train(201, 300, lambda step: order[step - 201])
    other.back(200)
    other.train(201, 300, lambda step: step + 2_000)
    assert [newest(made.frames).verdict for made in (shuffled, other)] == ["other_order", "other_data"]


def test_ids_that_are_made_otherwise_since_the_resume_are_not_compared() -> None:
    made = job(ids=True)
    made.back(200)
    made.ids = "other tokenizer "
    made.train(201, 340)
    assert newest(made.frames).verdict == "other_data"
    split = job(ids=True)
    split.back(200)
    split.parts = 2
    split.train(201, 340)
    resume = newest(split.frames)
    assert (resume.verdict, resume.ids) == ("identical", 0)
    assert "2 parts make a batch now, 1 before: batch ids can't be compared." in resume.text


def test_a_loss_by_another_name_is_compared() -> None:
    made = Resumed(loss="objective/total")
    made.frames.append(made.job.event("names", roles={"loss": "objective/total"}))
    made.train(1, 300)
    made.back(200)
    made.train(201, 340)
    resume = newest(made.frames)
    assert (resume.verdict, resume.loss) == ("identical", "objective/total")


def test_a_share_that_lies_elsewhere_is_known_to_be_another() -> None:
    made = Resumed()
    made.train(1, 300, **{"ratio/image_text": lambda step: 0.5 + step % 3 / 100})
    made.back(200)
    made.train(201, 340, lambda step: OTHER_ORDER[step], **{"ratio/image_text": lambda step: 0.8 + step % 4 / 100})
    assert (known(newest(made.frames))["mixture"], newest(made.frames).verdict) == ("different", "other_data")


def test_where_nothing_was_trained_twice_nothing_is_claimed() -> None:
    made = job()
    made.another_process(world_size=4)
    made.train(301, 400)
    resume = newest(made.frames)
    assert (resume.verdict, resume.grade, resume.points) == ("not_comparable", "unknown", 0)
    assert set(known(resume).values()) == {"not_seen"}
    assert (resume.world_before, resume.world_after) == (1, 4)
