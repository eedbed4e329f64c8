"""Random stories of steps that go back: the curve, the rollbacks and the counts are those that the job knows."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from stabilitybackend.base.saving import part_of, restore
from stabilitybackend.lineage.batch import Batch, Placed
from stabilitybackend.lineage.fold import LineageFold
from stabilitybackend.storage.points.store import RunStore
from support.jobs.step_stories import StepStory
from support.points.full_curve import entries

#: Stories in every run of the tests, and in a soak; STORY_SEED begins elsewhere.
STORIES, SOAKED = 60, 1_000
_SEED = int(os.environ.get("STORY_SEED", "0"))


def folded(story: StepStory, seed: int) -> tuple[LineageFold, RunStore, list[Placed]]:
    """Fold a story, with restarts of the server in it."""
    draw, fold, store, placed = random.Random(seed), LineageFold(), RunStore(), list[Placed]()
    for frame in story.frames():
        for change in fold.apply(frame):
            if isinstance(change, Placed):
                store.add(Batch.of([change]))
                placed.append(change)
        if draw.random() < 0.02:
            saved, fold = part_of("lineage", fold), LineageFold()
            restore(fold, saved, "lineage")
    return fold, store, placed


def check(seed: int) -> None:
    story = StepStory(random.Random(seed))
    fold, store, placed = folded(story, seed)
    why = f"story {seed}: {story.what}"
    for number, rank in enumerate(story.ranks):
        drawn = {
            step: value
            for entry in entries(store, fold, "loss")
            if entry.rank == number
            for step, value in zip(entry.steps.tolist(), entry.values.tolist(), strict=True)
        }
        assert drawn == rank.loss, why
        strays = sum(len(one.steps) for one in placed if one.stray and one.rank == number)
        assert strays == rank.strays, why
    counted = Counter(
        step
        for one in placed
        if "val/loss" in one.names and not one.stray
        for step in one.steps.tolist()
        if not fold.tree.is_dead(one.segment, step)
    )
    assert counted == story.ranks[0].counted, why
    assert sum(segment.went_back for segment in fold.tree) == story.rollbacks, why
    assert fold.pending() == [], why


@pytest.mark.parametrize("seed", range(_SEED, _SEED + STORIES))
def test_a_story_of_steps_that_go_back_is_told_as_the_job_knows_it(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("seed", range(_SEED, _SEED + STORIES, 3))
def test_a_story_of_one_rank_is_told_alike_however_its_rows_are_cut(seed: int) -> None:
    places = []
    for longest in (1, 7, 100):
        story, fold = StepStory(random.Random(seed), ranks=1), LineageFold()
        rows = [change for frame in story.frames(longest) for change in fold.apply(frame) if isinstance(change, Placed)]
        places.append([(one.segment, one.stray, one.aside, one.names, step) for one in rows for step in one.steps])
    assert places[0] == places[1] == places[2]


@pytest.mark.soak
def test_a_thousand_stories_are_told_as_the_job_knows_them() -> None:
    for seed in range(_SEED, _SEED + SOAKED):
        check(seed)
