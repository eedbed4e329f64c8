"""A message with frames of one source or of several is folded as these frames are, one after another."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from msgspec import to_builtins

from stabilitybackend.lineage.batch import Placed
from stabilitybackend.lineage.consumer import Effects
from stabilitybackend.lineage.epochs import FIRST_ROWS
from stabilitybackend.runs.archiving import snapshot
from stabilitybackend.runs.state import RunState
from stabilitybackend.storage.archive.series import SeriesKey
from stabilitybackend.storage.points.store import StoreView
from stabilityclient.node_frames import in_stream, together
from stabilityclient.wire import Frame, encode_message
from support.job_frames import Job
from support.jobs.job_stories import Story, stories, tell


def _gathered(frames: list[Frame]) -> list[bytes]:
    """Return messages, each with as many of the next frames as are of different sources."""
    messages: list[list[Frame]] = []
    for frame in frames:
        if not messages or frame.source.source in {one.source.source for one in messages[-1]}:
            messages.append([])
        messages[-1].append(frame)
    return [encode_message(together(some) if len(some) > 1 else some[0]) for some in messages]


_Folded = tuple[bytes, list[Any], list[Any], Any, list[Any]]


def _seen(state: RunState, placed: list[Placed]) -> _Folded:
    """Return all that a run knows, and the rows that were placed."""
    rows = [(p.segment, p.source, p.names, p.steps.tolist(), p.values.tobytes()) for p in placed]
    view = state.store.view()
    stored = [(key, *_columns(view, key)) for metric in view.metrics() for key in view.keys(metric)]
    return snapshot.freeze(state), rows, state.incidents.all(), to_builtins(state.view()), stored


def _placed(changes: Effects) -> list[Placed]:
    return [placed for batch in changes.batches for placed in batch.each()]


def _columns(view: StoreView, key: SeriesKey) -> list[bytes]:
    rows = view.rows(key)
    return [column.tobytes() for column in (rows.steps, rows.values, rows.times)]


def _folded(messages: list[bytes]) -> _Folded:
    state = RunState("run", lambda: 9_000.0)
    placed = []
    for message in messages:
        placed += _placed(state.apply(in_stream(message)))
    return _seen(state, placed)


def _one_by_one(frames: list[Frame]) -> _Folded:
    """Fold frames by all rules, those for rows that just go on among them."""
    state = RunState("run", lambda: 9_000.0)
    placed = [one for frame in frames for one in _placed(state.apply(frame, replayed=False))]
    return _seen(state, placed)


@settings(deadline=None, max_examples=12)
@given(stories())
def test_any_job_gives_the_same_run_whichever_frames_travel_together(told: tuple[Story, int]) -> None:
    frames = tell(*told)
    expected = _one_by_one(frames)
    assert _folded(_gathered(frames)) == expected
    assert _folded([encode_message(frame) for frame in frames]) == expected


def test_rows_of_other_metrics_keep_their_place_among_those_of_the_ranks_beside_them() -> None:
    frames = tell([("train", 1)] * 12, 3)  # at step 12 the first and the last rank log one metric more
    assert _folded(_gathered(frames)) == _one_by_one(frames)


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_ranks_that_go_on_together_give_the_run_of_their_frames_one_by_one(rows: int) -> None:
    ranks = [Job(rank, world_size=4) for rank in range(4)]
    frames = [rank.rows(range(first, first + rows)) for first in range(1, 40 * rows, rows) for rank in ranks]
    assert _folded(_gathered(frames)) == _one_by_one(frames)


def test_a_slow_rank_and_a_spoilt_loss_are_found_alike_in_messages_of_all_ranks() -> None:
    ranks = [Job(rank, world_size=6) for rank in range(6)]
    frames = []
    for step in range(1, 420):
        for number, rank in enumerate(ranks):
            seconds = (0.9 if number == 4 else 0.2) + 0.001 * ((step + number) % 7)
            loss = math.nan if step > 400 and number == 0 else 2.0 + 1 / step
            frames.append(rank.rows([step], {"loss": [loss], "data_time_s": [seconds]}))
    folded = _folded(_gathered(frames))
    assert folded == _one_by_one(frames)
    assert {incident.kind for incident in folded[2]} == {"straggler", "nonfinite", "sdc_suspect"}


def test_ranks_that_fall_behind_end_or_begin_again_are_taken_alike_in_messages_of_all_ranks() -> None:
    ranks = [Job(rank, world_size=4) for rank in range(4)]
    frames = [rank.rows([step]) for step in range(1, 30) for rank in ranks]
    for step in range(30, 60):  # the last one is two steps behind
        frames += [rank.rows([step - 2 * (number == 3)]) for number, rank in enumerate(ranks)]
    frames += [ranks[0].rolled_back(40, "back")]
    frames += [rank.rows([step]) for step in range(41, 70) for rank in ranks]
    again = [Job(rank, start=2, world_size=4) for rank in range(4)]
    frames += [rank.event("start") for rank in again]
    frames += [rank.rows([step]) for step in range(65, 90) for rank in again]
    frames += [rank.rows([step]) for step in range(70, 74) for rank in ranks]
    assert _folded(_gathered(frames)) == _one_by_one(frames)


def test_a_consumer_that_fails_is_named_and_takes_no_row_from_the_others() -> None:
    ranks = [Job(rank, world_size=3) for rank in range(3)]
    state = RunState("run", lambda: 9_000.0)
    fails = state.summary._count

    def count(batch: Any, table: Any) -> None:
        if table.sources[0].rank == 1:
            raise RuntimeError("a mistake of ours")
        fails(batch, table)

    state.summary._count = count  # type: ignore[method-assign]
    changes = state.apply(together([rank.rows([1, 2]) for rank in ranks]))
    assert [placed.rank for placed in _placed(changes) for _ in placed.steps] == [0, 0, 1, 1, 2, 2]
    assert [len(state.store.rows(key)) for key in state.store.keys("loss")] == [2, 2, 2]
    assert "a mistake of ours" in str(state.unreadable.view())


def test_the_rows_of_a_node_are_one_batch_from_the_second_of_each_rank_on() -> None:
    state, ranks = RunState("run", lambda: 9_000.0), [Job(rank, world_size=8) for rank in range(8)]
    batches = []
    for step in range(1, 2 * FIRST_ROWS):
        for node in (ranks[:4], ranks[4:]):
            message = encode_message(together([rank.rows([step]) for rank in node]))
            batches.append(len(state.apply(in_stream(message)).batches))
    assert set(batches[3::2]) == {1}  # those of the second node; the first has the rank whose curves are judged
