"""Two ranks, any story, any order of arrival between them: each rank's effective curve is that of a naive model."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from stabilitybackend.lineage.batch import Batch, Placed
from stabilitybackend.lineage.fold import LineageFold
from stabilitybackend.storage.points.store import RunStore
from stabilityclient.wire import Frame
from support.job_frames import Job
from support.points.full_curve import entries

#: Stories told per order of arrival.
STORIES = 60


class _Story:
    """What a job of two ranks does, and what the effective curve of each must then be.

    Args:
        draw: decides.
        strides: rank -> it logs each so many steps.
    """

    def __init__(self, draw: random.Random, strides: tuple[int, int] = (1, 1)) -> None:
        self.frames: tuple[list[Frame], list[Frame]] = ([], [])
        self.model: tuple[dict[int, float], dict[int, float]] = ({}, {})
        self.logged = [0, 0]
        jobs, starts, step = [Job(0, 1, 2), Job(1, 1, 2)], 1, 0
        for number in range(draw.randint(1, 8)):
            what = draw.choice(["train", "declare", "ordered", "restart"])
            if what != "train":
                step = max(step - draw.randint(1, 40), 0)
                for curve in self.model:
                    for dead in [s for s in curve if s > step]:
                        del curve[dead]
            if what == "restart":
                starts += 1
                jobs = [Job(0, starts, 2), Job(1, starts, 2)]
            elif what != "train":
                data = {"command_id": f"k{number}"} if what == "ordered" else {}
                for rank in (0, 1):
                    self.frames[rank].append(jobs[rank].rolled_back(step, f"k{number}", **data))
            length = draw.randint(4 * max(strides), 30 + 4 * max(strides))
            for rank in (0, 1):
                steps = [s for s in range(step + 1, step + length + 1) if s % strides[rank] == 0]
                while steps:
                    part, steps = steps[:7], steps[7:]
                    self.frames[rank].append(jobs[rank].rows(part))
                    self.model[rank].update({s: jobs[rank].value(s) for s in part})
                    self.logged[rank] += len(part)
            step += length

    def in_turns(self) -> Iterator[Frame]:
        """Both ranks at once, as a healthy agent sends them."""
        for pair in itertools.zip_longest(*self.frames):
            yield from (frame for frame in pair if frame is not None)

    def as_imported(self) -> Iterator[Frame]:
        """Source after source, oldest first: an import, or a backlog after the server was away."""
        for _, frames in itertools.groupby(
            sorted((f for each in self.frames for f in each), key=lambda f: (f.source.started, f.source.rank)),
            key=lambda f: f.source.source,
        ):
            yield from frames

    def at_random(self, draw: random.Random) -> Iterator[Frame]:
        """Any order between the ranks: one node's link lags."""
        left = [list(reversed(frames)) for frames in self.frames]
        while left[0] or left[1]:
            rank = draw.choice([rank for rank in (0, 1) if left[rank]])
            yield left[rank].pop()


def _check(story: _Story, frames: Iterator[Frame]) -> None:
    fold, store = LineageFold(), RunStore()
    for frame in frames:
        for change in fold.apply(frame):
            if isinstance(change, Placed):
                store.add(Batch.of([change]))
    effective: tuple[dict[int, float], dict[int, float]] = ({}, {})
    for entry in entries(store, fold, "loss"):
        assert entry.rank is not None
        for step, value in zip(entry.steps.tolist(), entry.values.tolist(), strict=True):
            assert step not in effective[entry.rank], f"step {step} is in the effective curve twice"
            effective[entry.rank][step] = value
    assert effective == story.model
    every = entries(store, fold, "loss", "all")
    assert [sum(len(e.steps) for e in every if e.rank == rank) for rank in (0, 1)] == story.logged


@pytest.mark.parametrize("strides", [(1, 1), (1, 5), (10, 10)])
@pytest.mark.parametrize("seed", range(STORIES))
def test_ranks_that_arrive_one_after_the_other_give_the_curve_of_the_model(seed: int, strides: tuple[int, int]) -> None:
    story = _Story(random.Random(seed), strides)
    _check(story, story.as_imported())


@pytest.mark.parametrize("seed", range(STORIES))
def test_ranks_that_arrive_together_give_the_curve_of_the_model(seed: int) -> None:
    story = _Story(random.Random(seed))
    _check(story, story.in_turns())


@pytest.mark.parametrize("seed", range(STORIES))
def test_ranks_that_arrive_in_any_order_give_the_curve_of_the_model(seed: int) -> None:
    story = _Story(random.Random(seed))
    _check(story, story.at_random(random.Random(seed)))


def test_a_rank_joins_the_restart_of_its_own_launch_though_the_head_has_gone_on() -> None:
    old, new = [Job(rank, 1, 2) for rank in (0, 1)], [Job(rank, 2, 2) for rank in (0, 1)]
    fold = LineageFold()
    for frame in (
        *(job.rows(range(1, 101)) for job in old),
        new[0].rows(range(61, 91)),
        new[0].rolled_back(70, "k"),
        new[0].rows(range(71, 81)),
        new[1].rows(range(61, 91)),
        new[1].rolled_back(70, "k"),
    ):
        list(fold.apply(frame))
    assert [(s.parent, s.fork_step, s.cause, sorted(s.entered)) for s in fold.tree][1:] == [
        (0, 60, "restart", [0, 1]),
        (1, 70, "declared", [0, 1]),
    ]


def test_the_fork_of_a_restart_moves_down_when_a_rank_shows_that_it_began_earlier() -> None:
    old, new = [Job(rank, 1, 2) for rank in (0, 1)], [Job(rank, 2, 2) for rank in (0, 1)]
    fold = LineageFold()
    for frame in (
        old[0].rows(range(1, 101)),
        old[1].rows(range(5, 101, 5)),
        new[1].rows([65, 70, 75, 80]),
        new[0].rows(range(62, 81)),
    ):
        list(fold.apply(frame))
    assert [(s.fork_step, sorted(s.entered)) for s in fold.tree][1:] == [(61, [0, 1])]
