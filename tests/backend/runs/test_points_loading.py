"""Where a row belongs follows from the lineage alone: placed again without judging, all rows are where they were."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from stabilitybackend.lineage.fold import LineageFold
from stabilitybackend.runs.archiving import snapshot
from stabilitybackend.runs.archiving.points_loading import place
from stabilitybackend.runs.archiving.window import FRAME_OVERHEAD_BYTES
from stabilitybackend.runs.state import RunState
from stabilitybackend.storage.points.memtable import Generation
from stabilitybackend.storage.points.store import RunStore
from stabilitybackend.storage.points.unloaded import UnloadedPoints, merged, outline
from stabilityclient.node_frames import in_stream, together
from stabilityclient.wire import encode_message
from support.job_frames import Job
from support.jobs.job_stories import Story, stories, tell


def _folded(messages: list[bytes], cut: int) -> RunState:
    """Return the run of these messages; a generation ends before message number ``cut``."""
    state = RunState("run", lambda: 9_000.0)
    for number, message in enumerate(messages, 1):
        if number == cut:
            state.store.cut(snapshot.freeze(state))
        state.store.begin(f"{number}-0", len(message) + FRAME_OVERHEAD_BYTES)
        state.apply(in_stream(message))
    return state


def _columns(store: RunStore) -> dict[Any, list[bytes]]:
    view = store.view()
    rows = {key: view.rows(key) for metric in view.metrics() for key in view.keys(metric)}
    return {key: [part.tobytes() for part in (one.steps, one.values, one.times)] for key, one in rows.items()}


def _checked(messages: list[bytes]) -> None:
    state = _folded(messages, 1 + len(messages) // 2)
    known = merged([outline(one) for one in state.store.generations])

    points, fold = Generation(known.begin, 0), LineageFold()
    for number, message in enumerate(messages, 1):
        place(points, fold, f"{number}-0", message)
    loaded, expected = RunStore(), UnloadedPoints(known, b"")
    loaded.generations = [points]
    for key in points.keys():  # noqa: SIM118
        loaded._know(key)
    assert _columns(loaded) == _columns(state.store)
    assert outline(points) == known

    for key in expected.keys():  # noqa: SIM118
        series, there = expected.series(key), points.series(key)
        assert series is not None
        assert there is not None
        assert series.extent == there.extent


@settings(deadline=None, max_examples=15)
@given(stories())
def test_any_jobs_rows_are_placed_again_where_they_were(told: tuple[Story, int]) -> None:
    _checked([encode_message(frame) for frame in tell(*told)])


@pytest.mark.parametrize("rows", [1, 7])
def test_rows_of_many_ranks_in_one_message_are_placed_again_where_they_were(rows: int) -> None:
    ranks = [Job(rank, world_size=4) for rank in range(4)]
    _checked([
        encode_message(together([rank.rows(range(first, first + rows)) for rank in ranks]))
        for first in range(1, 20 * rows, rows)
    ])  # fmt: skip
