"""Rows of a run in memory: gathered for a while, and read as if they never had been."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from stabilitybackend.archive.series import SeriesKey
from stabilitybackend.lineage.changes import Placed
from stabilitybackend.points.memtable import Generation

LOSS = SeriesKey("loss", 0, 0, "")


def _rows(first: int, count: int, rank: int = 0) -> Placed:
    steps = np.arange(first, first + count)
    return Placed(0, f"r{rank}-1", rank, "n0", ["loss", "lr"], steps, steps * 0.5, np.stack([steps * 2.0, steps * 3.0]))


@pytest.mark.parametrize("sizes", [[1] * 5, [1] * 40, [3, 1, 200, 1, 1, 2], [1, 500]])
def test_rows_are_read_in_their_order_however_many_came_together(sizes: list[int]) -> None:
    generation, first = Generation("0-0", 0), 1
    for number, size in enumerate(sizes, 1):
        generation.begin(f"{number}-0", 10)
        generation.add(_rows(first, size))
        first += size
    series = generation.series(LOSS)
    assert series is not None
    steps = np.arange(1, first)
    assert (series.extent.first_step, series.extent.last_step, series.extent.rows) == (1, first - 1, first - 1)
    rows = series.rows()
    assert [rows.steps.tolist(), rows.values.tolist(), rows.times.tolist()] == [
        steps.tolist(), (steps * 2.0).tolist(), (steps * 0.5).tolist(),
    ]  # fmt: skip


def test_reading_between_two_rows_changes_nothing_of_what_is_read_later() -> None:
    apart, together = Generation("0-0", 0), Generation("0-0", 0)
    for step in range(1, 50):
        for generation in (apart, together):
            generation.begin(f"{step}-0", 10)
            generation.add(_rows(step, 1, rank=step % 3))
        assert apart.series(SeriesKey("lr", 0, step % 3, "")) is not None
    for rank in range(3):
        found = [generation.series(SeriesKey("lr", 0, rank, "")) for generation in (apart, together)]
        first, other = [one.rows() for one in found if one is not None]
        assert (first.steps.tolist(), first.values.tolist()) == (other.steps.tolist(), other.values.tolist())


def test_the_rows_since_a_frame_are_whole_while_a_thread_asks_and_more_come() -> None:
    generation = Generation("0-0", 0)
    with ThreadPoolExecutor(1) as thread:
        for step in range(1, 2_000):
            generation.begin(f"{step}-0", 10)
            generation.add(_rows(step, 1))
            if step % 50 == 0:
                asked = thread.submit(generation.since, "10-0")
                generation.begin(f"{step}-1", 10)
                generation.add(_rows(10_000 + step, 1, rank=1))
                rows = [int(one) for placed in asked.result() if placed.rank == 0 for one in placed.steps]
                assert rows == list(range(11, step + 1))
