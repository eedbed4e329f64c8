"""Rows of a run in memory: gathered for a while, and read as if they never had been."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event, Lock
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabilitybackend.lineage.batch import Batch, Placed, Table
from stabilitybackend.storage.archive.series import Rows, SeriesKey
from stabilitybackend.storage.points import row_table
from stabilitybackend.storage.points.memtable import Generation
from stabilitybackend.storage.points.row_table import RowTable
from stabilityclient.wire import SourceInfo

LOSS = SeriesKey("loss", 0, 0, "")


def _rows(first: int, count: int, rank: int = 0) -> Placed:
    steps = np.arange(first, first + count)
    return Placed(0, f"r{rank}-1", rank, "n0", ["loss", "lr"], steps, steps * 0.5, np.stack([steps * 2.0, steps * 3.0]))


@pytest.mark.parametrize("sizes", [[1] * 5, [1] * 40, [3, 1, 200, 1, 1, 2], [1, 500]])
def test_rows_are_read_in_their_order_however_many_came_together(sizes: list[int]) -> None:
    generation, first = Generation("0-0", 0), 1
    for number, size in enumerate(sizes, 1):
        generation.begin(f"{number}-0", 10)
        generation.add(Batch.of([_rows(first, size)]))
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
            generation.add(Batch.of([_rows(step, 1, rank=step % 3)]))
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
            generation.add(Batch.of([_rows(step, 1)]))
            if step % 50 == 0:
                asked = thread.submit(generation.since, "10-0")
                generation.begin(f"{step}-1", 10)
                generation.add(Batch.of([_rows(10_000 + step, 1, rank=1)]))
                rows = [int(one) for placed in asked.result() if placed.rank == 0 for one in placed.steps]
                assert rows == list(range(11, step + 1))


class _WatchedLock:
    """A lock that sets an event when a thread has to wait for it."""

    def __init__(self, waits: Event) -> None:
        self._lock, self._waits = Lock(), waits

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._waits.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _archived(generation: Generation) -> list[int]:
    return [len(rows) for _, rows in generation.contents()]


def _drawn(generation: Generation) -> list[int]:
    series = [generation.series(SeriesKey(name, 0, 0, "")) for name in ("loss", "lr")]
    return [len(one.rows()) for one in series if one is not None]


def _written_down(generation: Generation) -> list[int]:
    return [len(rows.order) for rows in generation.stretch(generation.start).tables for _ in rows.placed.names]


def _outlined(generation: Generation) -> list[int]:
    return [table.rows for table in generation.outlines() for _ in table.names]


@pytest.mark.parametrize("read", [_archived, _drawn, _written_down, _outlined])
def test_rows_are_read_whole_by_a_thread_while_another_one_puts_them_into_columns(
    read: Callable[[Generation], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    generation, asked, decided = Generation("0-0", 0), list[Future[list[int]]](), Event()
    generation.begin("1-0", 10)
    generation.add(Batch.of([_rows(1, 15)]))
    extend = RowTable._extend

    def beside(table: RowTable, *rows: Any) -> None:
        asked.append(thread.submit(read, generation))
        asked[0].add_done_callback(lambda _: decided.set())
        decided.wait()  # until the other thread has read, or waits
        extend(table, *rows)

    monkeypatch.setattr(row_table, "_COLUMNS", _WatchedLock(decided))
    monkeypatch.setattr(RowTable, "_extend", beside)
    with ThreadPoolExecutor(1) as thread:
        assert generation.series(LOSS) is not None
        assert asked[0].result() == [15, 15]


def _in_step(step: int, ranks: list[int]) -> Batch:
    count, infos = len(ranks), [SourceInfo(f"r{rank}-1", rank, node="n0") for rank in ranks]
    values = np.array([[[2.0 * step + 100 * rank for rank in ranks]], [[3.0 * step for _ in ranks]]])
    steps, times = np.full((1, count), step), 0.5 * np.array([ranks]) + step
    order = np.arange(count)[None, :]
    return Batch(0, [Table(infos, ["loss", "lr"], steps, times, values, order)], count, count)


def _columns(rows: Rows) -> list[list[float]]:
    return [rows.steps.tolist(), rows.values.tolist(), rows.times.tolist()]


def _held(generation: Generation) -> dict[SeriesKey, list[list[float]]]:
    found = {key: _columns(rows) for key, rows in generation.contents()}
    assert list(found) == generation.keys()
    for key, columns in found.items():
        series = generation.series(key)
        assert series is not None
        assert _columns(series.rows()) == columns
    return found


def _since(generation: Generation, frame_id: str) -> list[tuple[int | None, int, list[float]]]:
    some = generation.since(frame_id)
    return sorted((p.rank, int(p.steps[at]), p.values[:, at].tolist()) for p in some for at in range(len(p.steps)))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.sets(st.integers(0, 4), min_size=1)), min_size=1, max_size=60),
    st.integers(0, 60),
)
def test_rows_in_step_are_read_as_if_each_had_come_by_itself(came: list[tuple[int, set[int]]], cut: int) -> None:
    together, apart = Generation("0-0", 0), Generation("0-0", 0)
    begin = together.place
    for number, (back, ranks) in enumerate(came, 1):
        rows = _in_step(max(0, number - back), sorted(ranks))
        for generation in (together, apart):
            generation.begin(f"{number}-0", 10)
        together.add(rows)
        for placed in rows.each():
            apart.add(Batch.of([placed]))
        if number == cut:
            begin = together.place
    again = Generation("0-0", 0)
    if begin.frames == 0:
        again.put_back(together.stretch(begin))
    whole = _held(apart)
    assert _held(together) == whole
    assert (together.order, together.values) == (apart.order, apart.values)
    assert _since(together, f"{cut}-0") == _since(apart, f"{cut}-0")
    assert begin.frames or _held(again) == whole
