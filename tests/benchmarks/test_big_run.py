"""The benchmarks' big run is what it says: the same each time, and of the shape that its story tells."""

from __future__ import annotations

import importlib
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from stabilitybackend.lineage.fold import LineageFold
from stabilityclient.wire import PointsBlock, decode_message, encode_message

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
STEPS = 8_300


@pytest.fixture
def big_run(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("big_run")


def test_the_fold_finds_every_rollback_of_the_story_declared_or_not(big_run: ModuleType) -> None:
    story = big_run.tell_story(STEPS)
    fold = LineageFold()

    for frame in big_run.frames(story):
        fold.apply(decode_message(encode_message(frame)))

    forks = [segment.fork_step for segment in fold.tree][1:]
    assert forks == [stretch.first - 1 for stretch in story.stretches[1:]]
    assert story.rollbacks == 50
    assert sum(later < earlier for earlier, later in pairwise(forks)) == 3


def test_planted_values_stand_at_their_steps_and_were_logged_once(big_run: ModuleType) -> None:
    story = big_run.tell_story(STEPS)
    logged: dict[tuple[str, int], list[float]] = {}

    for frame in big_run.frames(story):
        for block in frame.blocks:
            if isinstance(block, PointsBlock):
                steps = np.frombuffer(block.steps, "<i8")
                values = np.frombuffer(block.values, "<f8").reshape(len(block.names), len(steps))
                for plant in story.plants:
                    found = values[block.names.index(plant.metric)][steps == plant.step]
                    logged.setdefault((plant.metric, plant.step), []).extend(found.tolist())

    found = [[str(value) for value in logged[plant.metric, plant.step]] for plant in story.plants]
    assert found == [[str(plant.value)] for plant in story.plants]


def test_the_same_seed_gives_the_same_bytes(big_run: ModuleType) -> None:
    first, second = (b"".join(map(encode_message, big_run.frames(big_run.tell_story(STEPS)))) for _ in range(2))

    assert first == second
