"""Real PyTorch jobs that come back rightly are silent, and those that do not are named."""

from __future__ import annotations

from typing import Any

import pytest

from stabilitybackend.runs.state import RunState
from support.installed import needs
from support.resumes.resumed_job import folded

pytestmark = needs("torch", "the jobs of these tests train with torch")


def resumed(but: str, **changes: Any) -> RunState:
    """Return the run of a job that trained, went back and trained on, as a server has it."""
    from support.resumes.torch_resumes import trained  # imports torch

    return folded(trained(but, **changes))


@pytest.mark.parametrize("seed", [11, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(12, 16))])
@pytest.mark.parametrize(
    ("but", "changes", "verdict"),
    [
        ("", {}, "identical"),
        pytest.param("numerics", {}, "same_data", marks=pytest.mark.soak),
        pytest.param("", {"lr_scale": 0.5}, "same_data", marks=pytest.mark.soak),
        ("", {"skip_batches": 15}, "skipped"),
    ],
    ids=["exact", "numerics", "half the rate", "skipped batches"],
)
def test_a_job_that_comes_back_as_it_should_calls_nobody(
    seed: int, but: str, changes: dict[str, Any], verdict: str
) -> None:
    state = resumed(but, seed=seed, **changes)
    resume = state.resumes.view().resumes[0]
    assert (resume.verdict, resume.grade) == (verdict, "good")
    assert [one.title for one in state.incidents.all() if one.alarm] == []


@pytest.mark.parametrize(
    ("but", "changes", "verdict", "grade", "different"),
    [
        pytest.param("optimizer", {}, "same_data", "differs", {"optimizer"}, marks=pytest.mark.soak),
        pytest.param("rate", {}, "same_data", "differs", {"learning_rate"}, marks=pytest.mark.soak),
        pytest.param("order", {}, "other_order", "differs", {"loader"}, marks=pytest.mark.soak),
        ("loader", {}, "repeated", "wrong", {"loader"}),
        ("skip", {"skip_batches": 20}, "identical", "wrong", set()),
        pytest.param("scale", {"lr_scale": 0.5}, "identical", "wrong", {"learning_rate"}, marks=pytest.mark.soak),
    ],
)
def test_what_a_job_did_not_bring_back_is_named(
    but: str, changes: dict[str, Any], verdict: str, grade: str, different: set[str]
) -> None:
    state = resumed(but, **changes)
    resume = state.resumes.view().resumes[0]
    assert (resume.verdict, resume.grade) == (verdict, grade)
    assert {part.part for part in resume.parts if part.known == "different"} == different
    assert any(one.alarm for one in state.incidents.all()) == (grade == "wrong")


@pytest.mark.soak
def test_random_numbers_that_differ_are_not_taken_for_other_weights() -> None:
    resume = resumed("rng").resumes.view().resumes[0]
    assert resume.verdict == "same_data"
    assert {part.part: part.known for part in resume.parts}["weights"] == "not_seen"
