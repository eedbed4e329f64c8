"""Going back to a branch that was left: where the new segment hangs, and what is effective then."""

from __future__ import annotations

from typing import Any

from stabilitybackend.lineage.fold import LineageFold
from support.job_frames import Job

ROOT = {"segment": 0, "segment_key": ""}


def folded(*frames: Any) -> LineageFold:
    fold = LineageFold()
    for frame in frames:
        fold.apply(frame)
    return fold


def path(fold: LineageFold) -> list[tuple[int, int, int | None]]:
    return [(part.segment, part.first, part.last) for part in fold.tree.path()]


def test_the_left_branch_up_to_its_checkpoint_and_then_the_new_steps_are_effective() -> None:
    job = Job()
    fold = folded(
        job.rows(range(1, 298)),
        job.rolled_back(200, "c-1", command_id="c-1"),
        job.rows(range(201, 241)),
        job.rolled_back(275, "c-2", command_id="c-2", branch=ROOT),
        job.rows(range(276, 280)),
    )
    assert path(fold) == [(0, 0, 275), (2, 276, None)]
    new = fold.tree[2]
    assert (new.parent, new.fork_step, new.returns_to, new.shared_step, new.cause) == (0, 275, 0, 200, "command")
    shown = fold.tree.view().segments
    assert [(s.kept, s.discarded, s.label) for s in shown] == [(275, 22, ""), (0, 40, "R1"), (4, 0, "R2")]
    assert (fold.tree.is_dead(0, 275), fold.tree.is_dead(0, 276), fold.tree.is_dead(1, 201)) == (False, True, True)


def test_a_step_below_the_present_one_can_be_returned_to_as_well() -> None:
    job = Job()
    fold = folded(
        job.rows(range(1, 51)),
        job.rolled_back(20, "c-1"),
        job.rows(range(21, 81)),
        job.rolled_back(40, "c-2", branch=ROOT),
        job.rows(range(41, 45)),
    )
    assert path(fold) == [(0, 0, 40), (2, 41, None)]
    assert fold.tree[2].kept_step == 20


def test_an_undo_is_undone_and_that_again() -> None:
    job = Job()
    fold = folded(
        job.rows(range(1, 51)),
        job.rolled_back(20, "c-1"),
        job.rows(range(21, 41)),
        job.rolled_back(45, "c-2", branch=ROOT),
        job.rows(range(46, 61)),
        job.rolled_back(30, "c-3", branch={"segment": 1, "segment_key": "c-1"}),
        job.rows(range(31, 36)),
        job.rolled_back(55, "c-4", branch={"segment": 2, "segment_key": "c-2"}),
        job.rows(range(56, 58)),
    )
    assert [(s.parent, s.fork_step, s.kept_step) for s in list(fold.tree)[1:]] == [
        (0, 20, 20), (0, 45, 20), (1, 30, 20), (2, 55, 20),
    ]  # fmt: skip
    assert path(fold) == [(0, 0, 45), (2, 46, 55), (4, 56, None)]


def test_all_ranks_come_along_and_one_that_says_it_late_does_too() -> None:
    jobs = [Job(rank, world_size=2) for rank in (0, 1)]
    fold = LineageFold()
    for job in jobs:
        fold.apply(job.rows(range(1, 31)))
    for job in jobs:
        fold.apply(job.rolled_back(10, "c-1"))
        fold.apply(job.rows(range(11, 16)))
    fold.apply(jobs[0].rolled_back(25, "c-2", branch=ROOT))
    fold.apply(jobs[1].rows([16]))  # on its way when the other was there already
    fold.apply(jobs[0].rows([26, 27]))
    fold.apply(jobs[1].rolled_back(25, "c-2", branch=ROOT))
    fold.apply(jobs[1].rows([26, 27]))
    assert path(fold) == [(0, 0, 25), (2, 26, None)]
    assert (sorted(fold.tree[2].entered), fold.tree[2].points, len(fold.tree)) == ([0, 1], 4, 3)
    assert fold.tree[1].last_step == 16


def test_a_restart_after_it_goes_on_from_the_new_segment() -> None:
    first, second = Job(), Job(start=2)
    fold = folded(
        first.rows(range(1, 51)),
        first.rolled_back(20, "c-1"),
        first.rows(range(21, 31)),
        first.rolled_back(40, "c-2", branch=ROOT),
        first.rows(range(41, 61)),
        second.rows(range(51, 56)),
    )
    assert path(fold) == [(0, 0, 40), (2, 41, 50), (3, 51, None)]


def test_a_branch_that_nobody_knows_is_passed_over_and_the_present_one_is_forked() -> None:
    job = Job()
    fold = folded(
        job.rows(range(1, 31)),
        job.rolled_back(10, "c-1", branch={"segment": 7, "segment_key": "gone"}),
        job.rows([11]),
    )
    assert path(fold) == [(0, 0, 10), (1, 11, None)]
    assert fold.tree[1].returns_to is None
