"""A source whose steps are said to be no rollbacks opens no segment by them; what is inferred is listed."""

from __future__ import annotations

import pytest

from stabilitybackend.base.errors import Conflict
from stabilitybackend.lineage.batch import Placed
from stabilitybackend.lineage.branching import UNDONE_STEPS
from stabilitybackend.lineage.fold import LineageFold
from stabilitybackend.lineage.tree import undoable
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


def test_steps_that_went_back_while_their_process_ran_on_are_taken_back_all_at_once_and_later_ones_with_them() -> None:
    jobs = [Job(rank, world_size=2) for rank in (0, 1)]
    frames = [job.rows(range(1, 101)) for job in jobs]
    for back in (31, 21, 11):
        frames += [job.rows(range(back, 101)) for job in jobs]
    before = folded(*frames)
    alike = undoable("run", before.tree, 1)
    assert [one.fork_step for one in alike] == [30, 20, 10]
    after = LineageFold({UNDONE_STEPS, *(one.key for one in alike)})
    placed = [
        change
        for frame in [*frames, *(job.rows(range(5, 105)) for job in jobs)]
        for change in after.apply(frame)
        if isinstance(change, Placed)
    ]
    assert [(one.fork_step, one.undone, sorted(one.entered)) for one in after.tree][1:] == [(30, True, [0, 1])]
    effective = sorted(step for one in placed if not one.stray for step in one.steps.tolist())
    assert effective == sorted([*range(1, 105)] * 2)


def test_a_restart_is_taken_back_alone_and_not_while_another_segment_hangs_from_it() -> None:
    fold = folded(*(Job(0, start).rows(range(first, 101)) for start, first in ((1, 1), (2, 61), (3, 81))))
    assert [one.id for one in undoable("run", fold.tree, 2)] == [2]
    with pytest.raises(Conflict):
        undoable("run", fold.tree, 1)
