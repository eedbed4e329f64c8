"""The effective curve is right after every way of going back, and nothing that was logged is lost."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabilitybackend.lineage.batch import Batch, Placed
from stabilitybackend.lineage.epochs import FIRST_ROWS
from stabilitybackend.lineage.fold import LineageFold
from stabilitybackend.storage.points.store import RunStore
from stabilityclient.wire import Frame
from support.job_frames import Job
from support.points.full_curve import entries


class Run:
    """A fold and a store, fed with frames."""

    def __init__(self, frames: Iterable[Frame] = (), undone: Collection[str] = ()) -> None:
        self.fold, self.store = LineageFold(undone), RunStore()
        self.feed(frames)

    def feed(self, frames: Iterable[Frame]) -> Run:
        for frame in frames:
            for change in self.fold.apply(frame):
                if isinstance(change, Placed):
                    self.store.add(Batch.of([change]))
        return self

    def effective(self, metric: str = "loss", rank: int = 0) -> dict[int, tuple[int, float]]:
        """Return step -> (segment, value); fails if a step is there twice."""
        found: dict[int, tuple[int, float]] = {}
        for entry in entries(self.store, self.fold, metric):
            if entry.rank == rank:
                assert not entry.dead
                for step, value in zip(entry.steps.tolist(), entry.values.tolist(), strict=True):
                    assert step not in found, f"step {step} is in the effective curve twice"
                    found[step] = (entry.segment, value)
        return found

    def steps(self, rank: int = 0) -> list[int]:
        return sorted(self.effective(rank=rank))

    def dead(self, rank: int = 0) -> dict[int, list[int]]:
        """Return segment -> its dead steps."""
        found: dict[int, list[int]] = {}
        for entry in entries(self.store, self.fold, "loss", "all"):
            if entry.dead and entry.rank == rank:
                found.setdefault(entry.segment, []).extend(entry.steps.tolist())
        return found

    def forks(self) -> list[tuple[int | None, int, str]]:
        return [(s.parent, s.fork_step, s.cause) for s in self.fold.tree][1:]


def test_the_first_message_of_a_process_is_placed_at_once_after_its_first_rows() -> None:
    job, fold = Job(), LineageFold()
    placed = [change for change in fold.apply(job.rows(list(range(512)))) if isinstance(change, Placed)]
    assert [len(one.steps) for one in placed] == [1] * FIRST_ROWS + [512 - FIRST_ROWS]


def test_a_run_that_never_goes_back_is_one_segment_in_full() -> None:
    job = Job()
    run = Run([job.rows(range(1, 51)), job.rows(range(51, 101))])
    assert run.steps() == list(range(1, 101))
    assert run.forks() == []


def test_a_declared_rollback_keeps_the_fork_step_and_replaces_what_came_after() -> None:
    job = Job()
    run = Run([job.rows(range(1, 101)), job.rolled_back(60, "k"), job.rows(range(61, 81))])
    assert run.steps() == list(range(1, 81))
    assert {s: run.effective()[s][0] for s in (60, 61)} == {60: 0, 61: 1}
    assert run.dead() == {0: list(range(61, 101))}


def test_just_after_a_rollback_no_dead_point_is_on_the_effective_curve() -> None:
    job = Job()
    run = Run([job.rows(range(1, 101)), job.rolled_back(60, "k")])
    assert run.steps() == list(range(1, 61))


def test_rolling_back_twice_to_the_same_step_hangs_both_tries_from_the_same_parent() -> None:
    job = Job()
    run = Run([job.rows(range(1, 101)), job.rolled_back(60, "a"), job.rows(range(61, 91))])
    run.feed([job.rolled_back(60, "b"), job.rows(range(61, 71))])
    assert run.forks() == [(0, 60, "declared"), (0, 60, "declared")]
    assert run.steps() == list(range(1, 71))
    assert run.dead() == {0: list(range(61, 101)), 1: list(range(61, 91))}


def test_a_rollback_inside_a_rollback_keeps_the_part_before_its_own_fork() -> None:
    job = Job()
    run = Run([job.rows(range(1, 101)), job.rolled_back(60, "a"), job.rows(range(61, 91))])
    run.feed([job.rolled_back(75, "b"), job.rows(range(76, 101))])
    curve = run.effective()
    assert [curve[s][0] for s in (60, 61, 75, 76, 100)] == [0, 1, 1, 2, 2]
    assert sorted(curve) == list(range(1, 101))


def test_a_rollback_past_an_earlier_fork_hangs_from_the_older_segment() -> None:
    job = Job()
    run = Run([job.rows(range(1, 101)), job.rolled_back(60, "a"), job.rows(range(61, 91))])
    run.feed([job.rolled_back(30, "b"), job.rows(range(31, 41))])
    assert run.forks()[1][:2] == (0, 30)
    assert run.steps() == list(range(1, 41))
    assert run.dead()[1] == list(range(61, 91))


@pytest.mark.parametrize("first", [0, 1])
def test_a_rollback_to_step_0_leaves_only_what_was_before_it(first: int) -> None:
    job = Job()
    run = Run([job.rows(range(first, 101)), job.rolled_back(0, "a"), job.rows(range(1, 21))])
    assert run.steps() == list(range(first, 21))


def test_two_ranks_that_declare_the_same_rollback_share_one_segment() -> None:
    jobs = [Job(rank, world_size=2) for rank in (0, 1)]
    run = Run([job.rows(range(1, 101)) for job in jobs])
    run.feed([jobs[0].rolled_back(60, "a"), jobs[0].rows(range(61, 71))])
    run.feed([jobs[1].rolled_back(60, "a"), jobs[1].rows(range(61, 71))])
    assert len(run.fold.tree) == 2
    assert run.steps(0) == run.steps(1) == list(range(1, 71))


def test_late_points_of_a_dead_segment_land_in_that_segment() -> None:
    jobs = [Job(rank, world_size=2) for rank in (0, 1)]
    run = Run([jobs[0].rows(range(1, 101)), jobs[1].rows(range(1, 91))])
    run.feed([jobs[0].rolled_back(60, "a"), jobs[0].rows(range(61, 71))])
    run.feed([jobs[1].rows(range(91, 101)), jobs[1].rolled_back(60, "a"), jobs[1].rows(range(61, 71))])
    assert run.dead(1) == {0: list(range(61, 101))}
    assert run.steps(1) == list(range(1, 71))


def test_a_rank_whose_first_word_comes_after_the_rollback_still_began_before_it() -> None:
    jobs = [Job(rank, world_size=2) for rank in (0, 1)]
    run = Run([jobs[0].rows(range(1, 101)), jobs[0].rolled_back(60, "a"), jobs[0].rows(range(61, 71))])
    run.feed([jobs[1].rows(range(1, 101)), jobs[1].rolled_back(60, "a"), jobs[1].rows(range(61, 71))])
    assert run.steps(1) == list(range(1, 71))
    assert run.dead(1) == {0: list(range(61, 101))}
    assert [sorted(s.entered) for s in run.fold.tree] == [[0, 1], [0, 1]]


def test_a_rare_row_of_a_rank_that_was_logged_before_the_rollback_stays_on_the_dead_branch() -> None:
    jobs = [Job(rank, world_size=2) for rank in (0, 1)]
    run = Run([jobs[0].rows(range(1, 101)), jobs[0].rolled_back(60, "a"), jobs[0].rows(range(61, 71))])
    run.feed([jobs[1].rows([70])])
    assert run.dead(1) == {0: [70]}


def test_a_restart_from_an_earlier_step_is_a_new_segment_without_a_word() -> None:
    run = Run([Job(0, 1).rows(range(1, 101)), Job(0, 2).rows(range(61, 81))])
    assert run.forks() == [(0, 60, "restart")]
    assert run.steps() == list(range(1, 81))


def test_a_restart_that_goes_on_at_the_next_step_stays_in_its_segment() -> None:
    run = Run([Job(0, 1).rows(range(1, 101)), Job(0, 2).rows(range(101, 121))])
    assert run.forks() == []
    assert run.steps() == list(range(1, 121))


def test_a_restart_that_repeats_only_the_last_step_forks_before_it() -> None:
    again = Job(0, 2)
    run = Run([Job(0, 1).rows(range(1, 101)), again.rows(range(100, 111))])
    assert run.forks() == [(0, 99, "restart")]
    assert run.effective()[100][1] == again.value(100)


def test_both_ranks_of_a_restarted_job_share_the_segment() -> None:
    run = Run([Job(rank, 1, 2).rows(range(1, 101)) for rank in (0, 1)])
    again = [Job(rank, 2, 2) for rank in (0, 1)]
    run.feed([again[0].rows([61]), again[1].rows([61]), again[1].rows([62, 63]), again[0].rows([62, 63, 64])])
    assert run.forks() == [(0, 60, "restart")]
    assert (run.steps(0), run.steps(1)) == (list(range(1, 65)), list(range(1, 64)))


def test_a_rank_that_logs_rarely_follows_the_restart_of_the_others() -> None:
    run = Run([Job(0, 1, 2).rows(range(1, 101)), Job(1, 1, 2).rows([50])])
    again = [Job(rank, 2, 2) for rank in (0, 1)]
    again[1].wait(4.0)
    run.feed([again[0].rows(range(61, 121)), again[1].rows([100])])
    assert run.effective(rank=1)[100][0] == 1


def test_a_restart_takes_its_checkpoint_as_the_fork_step_when_it_logs_every_tenth_step() -> None:
    job = Job(0, 1)
    run = Run([job.rows(range(10, 501, 10)), job.event("checkpoint", 405, path="c/405")])
    run.feed([Job(0, 2).rows(range(410, 601, 10))])
    assert run.forks() == [(0, 405, "restart")]


def test_one_stray_low_step_does_not_fork_the_run_and_is_kept() -> None:
    job = Job()
    run = Run([job.rows(range(1, 101)), job.rows([5]), job.rows(range(101, 121))])
    assert run.forks() == []
    assert run.steps() == list(range(1, 121))
    assert run.dead() == {0: [5]}


def test_two_loops_that_take_turns_on_one_metric_never_fork_the_run() -> None:
    job = Job()
    run = Run([job.rows(range(1, 101))])
    run.feed([job.rows([low if odd else 100 + low]) for low in range(5, 30) for odd in (True, False)])
    assert run.forks() == []


def test_a_stray_first_step_of_a_new_process_does_not_fork_the_run() -> None:
    again = Job(0, 2)
    run = Run([Job(0, 1).rows(range(1, 101)), again.rows([0]), again.rows(range(101, 111))])
    assert run.forks() == []
    assert run.steps() == list(range(1, 111))


def test_a_loop_that_goes_back_without_a_word_forks_once_its_steps_go_on() -> None:
    job = Job()
    run = Run([job.rows(range(1, 101)), job.rows([61]), job.rows([62])])
    assert run.forks() == []
    run.feed([job.rows([63]), job.rows(range(64, 81))])
    assert run.forks() == [(0, 60, "restart")]
    assert run.steps() == list(range(1, 81))


def test_another_metric_logged_late_for_an_earlier_step_is_no_rollback() -> None:
    job = Job()
    run = Run([job.rows(range(1, 101)), job.rows([90], {"eval/loss": [1.0]}), job.rows(range(101, 111))])
    assert run.forks() == []
    assert list(run.effective("eval/loss")) == [90]


def test_a_metric_logged_after_a_rollback_for_a_step_before_it_goes_to_the_parent() -> None:
    job = Job()
    run = Run([job.rows(range(1, 101)), job.rolled_back(60, "a"), job.rows([61, 62])])
    run.feed([job.rows([55], {"eval/loss": [1.0]})])
    assert run.effective("eval/loss") == {55: (0, 1.0)}


def test_each_row_of_a_step_that_is_logged_twice_is_effective() -> None:
    run = Run([Job().rows([1, 2, 2, 3], {"loss": [1.0, 2.0, 9.0, 3.0]})])
    [entry] = entries(run.store, run.fold, "loss")
    assert (entry.dead, entry.steps.tolist(), entry.values.tolist()) == (False, [1, 2, 2, 3], [1.0, 2.0, 9.0, 3.0])


def test_a_restarted_job_that_makes_the_same_rollback_again_gets_a_segment_of_its_own() -> None:
    first, second = Job(0, 1), Job(0, 2)
    run = Run([first.rows(range(1, 101)), first.rolled_back(60, "d-1"), first.rows(range(61, 111))])
    run.feed([second.rows(range(111, 121)), second.rolled_back(60, "d-1"), second.rows(range(61, 71))])
    assert len(run.fold.tree) == 3
    assert run.steps() == list(range(1, 71))
    assert run.effective()[65][0] == 2


def test_a_checkpoint_of_a_dead_branch_at_the_same_path_is_no_longer_offered_once_it_is_written_over() -> None:
    job = Job()
    run = Run([job.rows(range(1, 101)), job.event("checkpoint", 80, path="c/80"), job.rolled_back(60, "a")])
    run.feed([job.rows(range(61, 91)), job.event("checkpoint", 80, path="c/80")])
    assert [(c.step, c.segment, c.available) for c in run.fold.checkpoints] == [(80, 0, False), (80, 1, True)]


def test_an_agents_points_go_to_the_segment_that_holds_their_step() -> None:
    job, agent = Job(), Job()
    agent.info.rank, agent.info.source = None, "a1"
    run = Run([job.rows(range(1, 101)), job.rolled_back(60, "a"), job.rows([61])])
    run.feed([agent.rows([60, 61], {"gpu/0/util_pct": [10.0, 20.0]})])
    found = entries(run.store, run.fold, "gpu/0/util_pct")
    assert [(s.segment, s.rank, s.steps.tolist()) for s in found] == [(0, None, [60]), (1, None, [61])]


def test_an_inferred_segment_can_be_undone_and_its_low_steps_are_strays() -> None:
    job = Job()
    frames = [job.rows(range(1, 101)), job.rows(range(1, 31)), job.rows(range(101, 121))]
    run = Run(frames)
    assert run.forks() == [(0, 0, "restart")]
    again = Run(frames, undone=[run.fold.tree[1].key])
    assert again.fold.tree.head == 0
    assert again.steps() == list(range(1, 121))
    assert again.dead() == {0: list(range(1, 31))}


def test_of_two_restarts_to_the_same_step_the_one_that_is_named_is_undone() -> None:
    job = Job()
    frames = [job.rows(range(10)), job.rows(range(5, 12)), job.rows(range(5, 14))]
    keys = [segment.key for segment in Run(frames).fold.tree]
    again = Run(frames, undone=[keys[2]])
    assert [segment.undone for segment in again.fold.tree] == [False, False, True]


def test_undoing_one_segment_leaves_the_numbers_of_the_others() -> None:
    job = Job()
    frames = [job.rows(range(1, 101)), job.rows(range(1, 31)), job.rows(range(101, 121))]
    frames += [job.rolled_back(110, "k"), job.rows([111])]
    again = Run(frames, undone=[Run(frames).fold.tree[1].key])
    assert [(s.id, s.key, s.undone) for s in again.fold.tree][1:] == [(1, "u-r0-1-1", True), (2, "k", False)]
    assert again.steps() == list(range(1, 112))


def test_a_fork_that_was_taken_back_and_a_launch_that_went_on_take_no_number() -> None:
    job = Job()
    frames = [job.rows(range(1, 101)), job.rows(range(1, 31)), job.rows(range(101, 121))]
    frames += [job.rolled_back(110, "k"), job.rows(range(111, 131)), job.rows(range(121, 141))]
    undone = Run(frames).fold.tree[1].key
    labels = [[one.label for one in Run(frames, undone=kept).fold.tree.view().segments] for kept in ([], [undone])]
    assert labels == [["", "S1", "R1", "S2"], ["", "", "R1", "S1"]]


@st.composite
def _stories(draw: st.DrawFn) -> list[tuple[str, int]]:
    """Return what a job does: ("train", n steps), ("declare", back), ("restart", back)."""
    return draw(
        st.lists(
            st.one_of(
                st.tuples(st.just("train"), st.integers(3, 30)),
                st.tuples(st.sampled_from(["declare", "restart"]), st.integers(1, 40)),
            ),
            min_size=1,
            max_size=12,
        )
    )


@settings(max_examples=150, deadline=None)
@given(story=_stories(), cut=st.integers(1, 7))
def test_the_effective_curve_equals_that_of_a_model_that_writes_over_its_past(
    story: list[tuple[str, int]], cut: int
) -> None:
    job, starts, step, model, logged = Job(), 1, 0, {}, 0
    run = Run()
    for number, (what, amount) in enumerate(story):
        if what == "train":
            steps = list(range(step + 1, step + amount + 1))
            for at in range(0, len(steps), cut):
                run.feed([job.rows(steps[at : at + cut])])
            model |= {s: job.value(s) for s in steps}
            step, logged = steps[-1], logged + amount
        else:
            step = max(step - amount, 0)
            model = {s: v for s, v in model.items() if s <= step}
            if what == "declare":
                run.feed([job.rolled_back(step, f"k{number}")])
            else:
                starts += 1
                job = Job(0, starts)
            steps = list(range(step + 1, step + 5))  # a restart shows only once the job goes on
            run.feed([job.rows(steps)])
            model |= {s: job.value(s) for s in steps}
            step, logged = steps[-1], logged + 4
    assert {s: v for s, (_, v) in run.effective().items()} == model
    every = entries(run.store, run.fold, "loss", "all")
    assert sum(len(entry.steps) for entry in every) == logged
    segments = run.fold.tree.view().segments
    assert sum(one.kept for one in segments) == len(model)
    assert {one.id: one.discarded for one in segments if one.discarded} == {
        segment: len(steps) for segment, steps in run.dead().items()
    }
