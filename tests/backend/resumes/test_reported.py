"""What a job's processes report of themselves is compared on both sides of a resume, and never guessed."""

from __future__ import annotations

from typing import Any

import pytest

from stabilitybackend.judging.resumes.reported import environment_changes
from stabilitybackend.schema.resumes import PartSeen, Resume
from support.resumes.resumed_job import Resumed, folded, newest

OLD = {"torch": "2.4.0", "cudnn": "90100", "git": "a" * 40, "ranks": "1"}


def part(resume: Resume, name: str) -> PartSeen:
    return next(one for one in resume.parts if one.part == name)


def relaunched(
    after: dict[str, Any] | None, *, numerics: float = 0.003, variables: dict[str, str] | None = None, skip: int = 0
) -> Resume:
    """Return the resume of a job that was started again, with what its second process reports."""
    made = Resumed()
    made.frames.append(made.job.event("environment", entries=OLD, variables={}))
    made.train(1, 300)
    made.another_process()
    made.train(241, 260, numerics=numerics)
    if after is not None:
        made.frames.append(made.job.event("environment", entries=after, variables=variables or {}))
    made.train(261, 460, lambda step: step + skip, numerics=numerics)
    return newest(made.frames)


def test_the_same_data_with_other_numerics_on_another_version_says_so() -> None:
    resume = relaunched({**OLD, "torch": "2.5.1", "cudnn": "90300"})
    assert (resume.verdict, resume.grade) == ("same_data", "good")
    assert "The environment is another: cudnn 90100 → 90300; torch 2.4.0 → 2.5.1." in resume.text
    assert part(resume, "environment").known == "different"
    assert [(one.name, one.before, one.since) for one in resume.environment or ()] == [
        ("cudnn", "90100", "90300"), ("torch", "2.4.0", "2.5.1"),
    ]  # fmt: skip


def test_an_environment_that_one_side_did_not_report_is_not_seen() -> None:
    resume = relaunched(None)
    assert (part(resume, "environment").known, resume.environment) == ("not_seen", None)


def test_a_package_that_was_imported_later_is_no_difference_but_a_variable_that_was_set_is() -> None:
    resume = relaunched({**OLD, "datasets": "3.0"}, variables={"NVIDIA_TF32_OVERRIDE": "0"})
    assert [(one.name, one.before, one.since) for one in resume.environment or ()] == [
        ("$NVIDIA_TF32_OVERRIDE", "not set", "0")
    ]
    assert (part(relaunched(dict(OLD)), "environment").known, relaunched(dict(OLD)).environment) == ("equal", [])


def test_of_a_process_that_reports_its_environment_again_and_again_the_first_report_counts() -> None:
    made = Resumed()
    made.frames += [made.job.event("environment", entries={"torch": f"2.{at}"}) for at in range(4)]
    reported = folded(made.frames).resumes.reported
    assert reported.environments([made.job.info.source]) == [{"torch": "2.0"}]


def test_of_an_entry_that_is_another_on_each_node_the_first_few_are_named() -> None:
    nodes = [{"driver": f"{number:03}" * 60} for number in range(100)]
    [changed] = environment_changes([{"driver": "550"}], nodes) or ()
    assert (changed.before, changed.since) == ("550", " and ".join(f"{n:03}" * 60 for n in range(3)) + " and more")


def test_nodes_that_compute_with_the_same_are_one_environment_to_compare() -> None:
    made, processes = Resumed(), []
    for _ in range(50):
        processes.append(made.job.info.source)
        made.frames.append(made.job.event("environment", entries=OLD))
        made.another_process()
    assert folded(made.frames).resumes.reported.environments(processes) == [OLD]


def test_a_job_whose_environment_changed_is_not_called_not_deterministic() -> None:
    made = Resumed()
    made.frames.append(made.job.event("environment", entries=OLD))
    made.train(1, 300)
    made.another_process()
    made.frames.append(made.job.event("environment", entries={**OLD, "torch": "2.5.1"}))
    made.train(241, 460, numerics=0.003)
    assert folded(made.frames).resumes.view().determinism.known == "not_seen"


def restored(saved: dict[str, str], back: dict[str, str], *, before: dict[str, str] | None = None) -> Resume:
    """Return the resume of a job that went back to step 240 with some random states, on rank 0 and on rank 3."""
    made = Resumed()
    made.train(1, 200)
    if before is not None:
        made.frames.append(made.job.event("checkpoint", 200, path="/c/200", rng=before))
    made.train(201, 240)
    made.frames.append(made.job.event("checkpoint", 240, path="/c/240", rng=saved))
    made.train(241, 300)
    made.back(240)
    made.frames.append(made.job.event("restored", 240, rng=back))
    made.train(241, 460, numerics=0.003)
    return newest(made.frames)


@pytest.mark.parametrize(
    ("back", "before", "known", "words"),
    [
        ({"torch": "aa", "python": "bb"}, None, "equal", "python, torch: the state of the checkpoint of step 240"),
        ({"torch": "cc", "python": "bb"}, None, "different", "not the state of the checkpoint of step 240 on 1 rank"),
        ({"torch": "aa", "python": "cc"}, {"torch": "dd", "python": "bb"}, "equal", "python differs, but nothing drew"),
        ({"cuda": "aa"}, None, "not_seen", "no states reported"),
        ({}, None, "not_seen", "no states reported"),
    ],
    ids=["back", "another", "not drawn from", "other generators", "none"],
)
def test_random_states_are_compared_at_the_step_of_the_checkpoint(
    back: dict[str, str], before: dict[str, str] | None, known: str, words: str
) -> None:
    rng = part(restored({"torch": "aa", "python": "bb"}, back, before=before), "rng")
    assert rng.known == known
    assert words in rng.why


def test_a_generator_that_had_not_moved_since_its_process_began_is_no_difference_after_its_first_checkpoint() -> None:
    made = Resumed()
    made.train(1, 240)
    made.another_process()
    made.frames.append(made.job.event("restored", 240, rng={"torch": "1", "python": "aa"}))
    made.train(241, 280)
    made.frames.append(made.job.event("checkpoint", 280, path="/c/280", rng={"torch": "2", "python": "aa"}))
    made.train(281, 300)
    made.another_process()
    made.frames.append(made.job.event("restored", 280, rng={"torch": "2", "python": "bb"}))
    made.train(281, 400, numerics=0.003)
    rng = part(newest(made.frames), "rng")
    assert (rng.known, rng.why.partition("; ")[2]) == ("equal", "python differs, but nothing drew from it")


def test_states_that_a_process_saves_again_as_it_loaded_them_are_held_against_those_that_it_was_to_load() -> None:
    made = Resumed()
    made.train(1, 240)
    made.frames.append(made.job.event("checkpoint", 240, path="/c/240", rng={"torch": "aa"}))
    made.train(241, 300)
    made.another_process()
    made.frames.append(made.job.event("restored", 240, rng={"torch": "bb"}))
    made.frames.append(made.job.event("checkpoint", 240, path="/c/240", rng={"torch": "bb"}))
    made.train(241, 400, numerics=0.003)
    assert part(newest(made.frames), "rng").known == "different"


def test_a_rank_that_got_the_random_states_of_another_one_is_named() -> None:
    made, other = Resumed(), Resumed()
    other.job.info.rank, other.job.info.source = 3, "r3-1"
    made.train(1, 240)
    made.frames += [
        one.job.event("checkpoint", 240, path="/c", rng={"cuda": f"{at}"}) for at, one in ((0, made), (3, other))
    ]
    made.train(241, 300)
    made.back(240)
    made.frames += [other.job.rolled_back(240, "d-1")]
    made.frames += [one.job.event("restored", 240, rng={"cuda": "0"}) for one in (made, other)]
    made.train(241, 460, numerics=0.003)
    resume = newest(made.frames)
    assert (part(resume, "rng").known, resume.grade) == ("different", "differs")
    assert "on 2 ranks: cuda on rank 3" in part(resume, "rng").why


def test_reports_of_an_earlier_resume_are_not_taken_for_this_one() -> None:
    made = Resumed()
    made.train(1, 240)
    made.frames.append(made.job.event("checkpoint", 240, path="/c", rng={"torch": "aa"}))
    made.train(241, 300)
    made.back(240, "d-1")
    made.frames.append(made.job.event("restored", 240, rng={"torch": "aa"}))
    made.train(241, 300, numerics=0.003)
    made.back(260, "d-2")
    made.train(261, 460, numerics=0.003)
    assert part(newest(made.frames), "rng").known == "not_seen"


def loaded(*positions: tuple[int, int, Any], feed: int = 0, ids: bool = False, **changes: Any) -> Resume:
    """Return the resume of a job that trains to 240 and goes on in another process; ``(first, last, position of a
    step)`` of each process, after which it dies."""
    made = Resumed(ids=ids)
    made.train(1, 100)
    for number, (first, last, place) in enumerate(positions):
        if number:
            made.another_process()
        for step in range(first, last + 1):
            made.frames.append(made.job.event("batch", step, position=place(step)))
        made.train(first, last, numerics=0.003)
    return newest(made.frames)


def went(resume: Resume) -> tuple[str, int | None]:
    assert resume.position is not None
    return resume.position.went, resume.position.by


def test_a_loader_that_goes_on_or_not_is_told_by_its_own_position_where_nothing_was_trained_twice() -> None:
    first = (101, 240, lambda step: 32 * step)
    begun = loaded(first, (241, 400, lambda step: 32 * (step - 240)))
    assert (went(begun), begun.grade) == (("began_again", -7680), "differs")
    assert part(begun, "loader").why == "position 32 at step 241, where 7,712 was due"
    good = loaded(first, (241, 400, lambda step: 32 * step))
    assert (went(good), part(good, "loader").known, good.verdict) == (("goes_on", 0), "equal", "not_comparable")
    assert went(loaded(first, (241, 400, lambda step: 32 * step + 320))) == ("skipped", 320)
    assert went(loaded(first, (241, 400, lambda step: 32 * step - 640))) == ("repeats", -640)


def test_positions_of_packed_batches_go_on_within_what_a_step_takes() -> None:
    first = (101, 240, lambda step: 32 * step + step * 7 % 5)
    assert went(loaded(first, (241, 400, lambda step: 32 * step + step * 7 % 5)))[0] == "goes_on"
    assert went(loaded(first, (241, 400, lambda step: 32 * step + 64)))[0] == "skipped"


def test_a_position_that_begins_again_with_the_next_pass_over_the_data_is_no_difference() -> None:
    first = (101, 240, lambda step: 32 * ((step - 1) % 80 + 1))
    assert went(loaded(first, (241, 400, lambda step: 32 * ((step - 1) % 80 + 1))))[0] == "not_seen"


def test_a_text_is_compared_with_that_of_the_same_step() -> None:
    made = Resumed()
    for first, last, shard in ((1, 300, "a"), (241, 460, "b")):
        for step in range(first, last + 1):
            made.frames.append(made.job.event("batch", step, position=f"{shard}:{step}"))
        made.train(first, last, numerics=0.003)
        made.another_process()
    assert went(newest(made.frames)) == ("elsewhere", None)


def test_batches_left_out_on_order_are_so_by_the_position_too() -> None:
    made = Resumed()
    for step in range(1, 301):
        made.frames.append(made.job.event("batch", step, position=step))
    made.train(1, 300)
    made.back(240, skip_batches=30)
    for step in range(241, 400):
        made.frames.append(made.job.event("batch", step, position=step + 30))
    made.train(241, 399, lambda step: step + 30)
    resume = newest(made.frames)
    assert resume.position is not None
    assert (went(resume), resume.position.ordered) == (("skipped", 30), True)


def test_a_job_that_reports_no_position_has_none() -> None:
    assert relaunched(None).position is None
