"""Positions of a loader are kept by step, in whatever order they come."""

from __future__ import annotations

from stabilitybackend.judging.batches.positions import Pace, Positions
from stabilitybackend.lineage.tree import PathRange

PATH = [PathRange(0, 0, None)]


def test_a_position_that_is_said_again_after_steps_that_came_late_leaves_the_pace_as_it_was() -> None:
    positions = Positions()
    for step in (*range(10, 101, 10), 5, 7):
        positions.note(0, step, 8 * step)
    positions.note(0, 100, 2_000)
    assert positions.pace(PATH, 100) == Pace(8, 8, 8)
