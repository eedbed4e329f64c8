"""Runs laid over each other have the x = 0 that was asked for, or the answer says which run has none."""

from __future__ import annotations

from typing import Any

import pytest

from stabilitybackend.base.errors import BadRequest
from stabilitybackend.storage.query.compare import Align, ComparedRun, parse_forks
from stabilitybackend.storage.query.compare import compare as compare_with
from stabilitybackend.storage.query.request import SeriesRequest
from support.job_frames import Job
from support.points.naive_store import NaiveRun

REQUEST = SeriesRequest.of(["loss"], rank="primary")


def _run(*forks: int, fork: int | None = None) -> ComparedRun:
    """Return a run of ten steps, then two more after each of ``forks``."""
    job, run = Job(), NaiveRun()
    run.feed(job.rows(range(1, 11)))
    for number, step in enumerate(forks):
        run.feed(job.rolled_back(step, f"r{number}"))
        run.feed(job.rows([step + 1, step + 2]))
    return ComparedRun("a", "A", run.store, run.lineage, "loss", fork)


def compare(run: ComparedRun, request: SeriesRequest, align: Align) -> dict[str, Any]:
    return compare_with(run, run, request, align)


def _xs(run: ComparedRun, align: Align) -> list[list[float]]:
    return [series["xs"].tolist() for series in compare(run, REQUEST, align)["series"]]


def test_by_step_nothing_moves() -> None:
    assert _xs(_run(), "step") == [list(range(1, 11))]


def test_of_a_curve_that_is_moved_behind_the_window_nothing_is_shown() -> None:
    job = Job()
    run = NaiveRun([job.rows(range(10))])
    moved = ComparedRun("a", "A", run.store, run.lineage, "loss", shift=100)
    windows = [SeriesRequest.of(["loss"], start=start, stop=start + 9, points=points)
               for start in (0, 95, 100) for points in (None, 100)]  # fmt: skip
    shown = [[each["xs"].tolist() for each in compare(moved, one, "step")["series"]] for one in windows]
    assert shown == [[], [], [[*range(100, 105)]], [[*range(100, 105)]], [[*range(100, 110)]], [[*range(100, 110)]]]


def test_by_fork_the_step_of_the_newest_rollback_is_zero() -> None:
    found = compare(_run(7, 4), REQUEST, "fork")
    assert (found["offset"], found["fork_step"]) == (4, 4)
    assert [series["xs"].tolist() for series in found["series"]] == [[-3, -2, -1, 0], [1, 2]]


def test_by_fork_of_a_named_segment() -> None:
    assert compare(_run(7, 4, fork=1), REQUEST, "fork")["fork_step"] == 7


def test_by_time_the_first_point_of_the_run_is_zero() -> None:
    (xs,) = _xs(_run(), "time")
    assert xs == pytest.approx([0.1 * i for i in range(10)], abs=1e-6)


def test_only_the_lowest_rank_is_compared() -> None:
    run = NaiveRun(Job(rank).rows([1, 2]) for rank in (2, 1))
    found = compare(ComparedRun("a", "A", run.store, run.lineage, "loss"), REQUEST, "step")
    assert [series["rank"] for series in found["series"]] == [1]


def test_a_run_without_points_is_an_empty_one() -> None:
    run = NaiveRun()
    empty = ComparedRun("a", "A", run.store, run.lineage, None)
    assert [compare(empty, REQUEST, align)["series"] for align in ("step", "time")] == [[], []]


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (_run(), "run a has no rollback: align=fork expects one in every run"),
        (_run(7, fork=0), "run a begins with segment 0, which is no rollback"),
        (_run(7, fork=2), "fork of run a is 2, expected 1 to 1"),
    ],
)
def test_a_run_that_can_not_be_aligned_by_fork_is_named_with_a_way_out(run: ComparedRun, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        compare(run, REQUEST, "fork")
    assert caught.value.message.startswith(message)
    assert caught.value.hint


def test_forks_are_given_once_a_run() -> None:
    assert parse_forks([], ["a", "b"], "step") == [None, None]
    assert parse_forks(["3", "newest"], ["a", "b"], "fork") == [3, None]


@pytest.mark.parametrize(
    ("forks", "align", "message"),
    [
        (["1"], "fork", "fork is given 1 times for 2 runs, expected once a run"),
        (["1", "x"], "fork", "fork of run b is 'x', expected the id of a segment or newest"),
        (["1", "1"], "step", "fork is given and align is step, expected align=fork"),
    ],
)
def test_wrong_forks_are_named(forks: list[str], align: Align, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        parse_forks(forks, ["a", "b"], align)
