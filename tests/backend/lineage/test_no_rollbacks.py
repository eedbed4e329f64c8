"""A source whose steps are said to be no rollbacks opens no segment by them; what is inferred is listed."""

from __future__ import annotations

from stabilitybackend.lineage.fold import LineageFold
from support.job_frames import Job


def folded(*frames: object) -> LineageFold:
    fold = LineageFold()
    for frame in frames:
        fold.apply(frame)  # type: ignore[arg-type]
    return fold


def test_steps_that_go_back_after_no_rollbacks_open_no_segment_and_stay_effective() -> None:
    first, again = Job(0, 1), Job(0, 2)
    fold = folded(
        first.event("no_rollbacks"),
        first.rows(range(1, 101)),
        first.rows(range(51, 81)),
        again.event("no_rollbacks"),
        again.rows(range(41, 61)),
    )
    assert [(s.id, s.points) for s in fold.tree] == [(0, 150)]
    assert fold.pending() == []


def test_a_rollback_that_is_declared_after_no_rollbacks_is_one() -> None:
    job = Job()
    fold = folded(job.event("no_rollbacks"), job.rows(range(1, 101)), job.rolled_back(60, "k"), job.rows(range(61, 71)))
    assert [(s.fork_step, s.cause, s.points) for s in fold.tree][1:] == [(60, "declared", 10)]


def test_what_was_inferred_is_listed_with_its_fork_step_and_what_was_declared_is_not() -> None:
    first, again = Job(0, 1), Job(0, 2)
    fold = folded(
        first.rows(range(1, 101)),
        first.rows(range(51, 81)),
        first.rolled_back(70, "k"),
        first.rows(range(71, 75)),
        again.rows(range(61, 66)),
    )
    assert [(s.fork_step, s.first_step, s.inferred) for s in fold.tree.view().inferred()] == [
        (50, 51, "steps"),
        (60, 61, "start"),
    ]
