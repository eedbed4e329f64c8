"""Rows of thousands of names: their cost, and what of them is stored."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import stabilityclient
from stabilityclient.agent.upload.framing import next_frame
from stabilityclient.agent.upload.reader import SpoolReader
from stabilityclient.metrics.schemas import MAX_NAMES, Schemas
from stabilityclient.spool import SpoolWriter
from stabilityclient.wire import MAX_MESSAGE_BYTES, PointsBlock, SourceInfo
from support.agent.spooled import stored

Start = Callable[..., stabilityclient.Run]


def _named(width: int, name: str = "layer.{}/grad_norm") -> dict[str, float]:
    return {name.format(index): float(index) for index in range(width)}


def _cost_a_name(run: stabilityclient.Run, metrics: dict[str, Any], calls: int) -> float:
    """Return the least CPU of a call, seconds a name."""
    best = float("inf")
    for step in range(calls):
        begin = time.thread_time()
        run.log(step, metrics)
        best = min(best, time.thread_time() - begin)
    return best / len(metrics)


def test_a_name_costs_no_more_in_a_wide_row_than_in_a_narrow_one(start: Start) -> None:
    run = start()
    narrow = _cost_a_name(run, _named(400), 50)

    wide = {width: _cost_a_name(run, _named(width), 20) / narrow for width in (513, 5_000, MAX_NAMES)}

    assert max(wide.values()) < 6, wide


def test_a_row_of_twenty_thousand_names_is_one_row_in_each_chunk(start: Start) -> None:
    run = start()
    metrics = _named(MAX_NAMES)

    for step in range(12):
        run.log(step, metrics)
    run.finish()

    rows = stored(run.folder).rows()
    assert [(step, row) for step, _, row in rows] == [(step, metrics) for step in range(12)]


def test_a_row_whose_names_are_too_long_for_a_chunk_is_stored_whole_in_several(start: Start) -> None:
    run = start()
    metrics = _named(MAX_NAMES, "layer.{}/" + "x" * 150)

    run.log(1, metrics)
    run.log(2, metrics)
    run.finish()

    rows = stored(run.folder).rows()
    for step in (1, 2):
        assert {name: value for at, _, row in rows if at == step for name, value in row.items()} == metrics


def test_frames_of_wide_rows_that_take_turns_stay_below_the_limit_of_a_message(tmp_path: Path) -> None:
    (home := tmp_path / "sources" / "r0-1-1").mkdir(parents=True)
    writer = SpoolWriter(str(home), 2**30, print)
    shared = ("loss",)
    sets = [shared + tuple(f"{part}.{index}/" + "x" * 180 for index in range(2_000)) for part in ("a", "b")]
    for step in range(40):
        writer.append_row(sets[step % 2], step, 1.0, [float(step)] * 2_001)
    reader = SpoolReader(str(home), gap_wait_s=0)

    frames = []
    while (found := next_frame(SourceInfo("r0-1-1"), reader)) is not None:
        frames.append(found)

    blocks = [block for _, frame, _ in frames for block in frame.blocks if isinstance(block, PointsBlock)]
    steps = [step for block in blocks for step in memoryview(block.steps).cast("q")]
    assert steps == list(range(40))
    assert max(len(data) for _, _, data in frames) < MAX_MESSAGE_BYTES
    writer.close()


def test_names_beyond_the_bound_are_refused_in_words_and_the_known_ones_stay(
    start: Start, quiet: None, caplog: pytest.LogCaptureFixture
) -> None:
    run = start()

    run.log(1, _named(MAX_NAMES + 50))
    run.log(2, {"a/new/name": 1.0, "layer.3/grad_norm": 2.0})
    run.finish()

    rows = stored(run.folder).rows()
    assert [(step, len(row)) for step, _, row in rows] == [(1, MAX_NAMES), (2, 1)]
    assert f"50 metrics are beyond the {MAX_NAMES:,} names that a run can have" in caplog.text


def test_a_refused_name_costs_the_same_however_many_names_are_known() -> None:
    few, full = Schemas(2**24), Schemas(2**24)
    full.of(tuple(_named(MAX_NAMES)))

    def refused(name: str) -> None:
        with suppress(ValueError):
            full.of((name,))

    kept = _cpu_of([lambda n=n: few.of((f"new/{n}",)) for n in range(200)])
    assert _cpu_of([lambda n=n: refused(f"new/{n}") for n in range(200)]) < 10 * kept
    with pytest.raises(ValueError, match="names beyond"):
        full.of(("one/more",))


def _cpu_of(calls: list[Callable[[], object]]) -> float:
    """Return the least CPU seconds of a call."""
    took = []
    for call in calls:
        begin = time.thread_time()
        call()
        took.append(time.thread_time() - begin)
    return min(took)
