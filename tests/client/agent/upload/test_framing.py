"""How records become frames: rows by their set of metrics, and nothing that the order of rows tells is lost."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

from stabilityclient.agent.upload.framing import encoded_frame, frame_of
from stabilityclient.agent.upload.records import Record, SpooledEvent, SpooledRow
from stabilityclient.wire import EventBlock, PointsBlock, SourceInfo

INFO = SourceInfo("r0-1-1", 0, 1, "node", 1, 0.0)
TRAIN, TIMES = ("loss", "grad_norm"), ("step_time_s",)


def _rows(*calls: tuple[tuple[str, ...], int]) -> list[Record]:
    return [
        SpooledRow(seq, names, struct.pack(f"<qd{len(names)}d", step, seq / 8, *(seq + i for i in range(len(names)))))
        for seq, (names, step) in enumerate(calls, 1)
    ]


def _blocks(records: Sequence[Record]) -> list[tuple[str, list[int]] | str]:
    return [
        (block.names[0], array("q", block.steps).tolist()) if isinstance(block, PointsBlock) else block.type
        for block in frame_of(INFO, list(records)).blocks
    ]


def test_sets_that_take_turns_are_gathered_into_a_block_each() -> None:
    records = _rows(*[(names, step) for step in range(1, 5) for names in (TRAIN, TIMES)])
    assert _blocks(records) == [("loss", [1, 2, 3, 4]), ("step_time_s", [1, 2, 3, 4])]


def test_a_gathered_block_holds_the_times_and_values_of_its_rows() -> None:
    block = frame_of(INFO, _rows((TRAIN, 1), (TIMES, 1), (TRAIN, 2), (TIMES, 2))).blocks[0]
    assert isinstance(block, PointsBlock)
    assert array("d", block.times).tolist() == [1 / 8, 3 / 8]
    assert array("d", block.values).tolist() == [1.0, 3.0, 2.0, 4.0]


def test_rows_are_not_gathered_over_a_step_that_goes_back() -> None:
    records = _rows((TRAIN, 8), (TIMES, 8), (TRAIN, 9), (TRAIN, 5), (TIMES, 5), (TRAIN, 6))
    assert _blocks(records) == [("loss", [8, 9]), ("step_time_s", [8]), ("loss", [5, 6]), ("step_time_s", [5])]


def test_rows_are_not_gathered_where_two_sets_share_a_metric() -> None:
    records = _rows((TRAIN, 1), (("loss", "lr"), 1), (TRAIN, 2))
    assert _blocks(records) == [("loss", [1]), ("loss", [1]), ("loss", [2])]


def test_rows_are_not_gathered_over_an_event() -> None:
    first, second, third, fourth = _rows((TRAIN, 1), (TIMES, 1), (TRAIN, 2), (TIMES, 2))
    event = SpooledEvent(3, "checkpoint", 0.3, 1, {"path": "/c"})
    assert _blocks([first, second, event, third, fourth]) == [
        ("loss", [1]), ("step_time_s", [1]), "checkpoint", ("loss", [2]), ("step_time_s", [2]),
    ]  # fmt: skip


def test_two_sets_in_turn_take_hardly_more_bytes_than_one() -> None:
    both = _rows(*[(names, step) for step in range(256) for names in (TRAIN, TIMES)])
    one = _rows(*[((*TRAIN, *TIMES), step) for step in range(256)])
    assert len(encoded_frame(INFO, both)[1]) < 1.5 * len(encoded_frame(INFO, one)[1])
    assert not any(isinstance(block, EventBlock) for block in frame_of(INFO, both).blocks)


def _with_batches(*steps: tuple[int, int]) -> list[Record]:
    """Return a batch and a row for each pair of their steps."""
    found: list[Record] = []
    for seq, (batch, step) in enumerate(steps):
        found.append(SpooledEvent(2 * seq + 1, "batch", seq / 4, batch, {}))
        found += [row._replace(seq=2 * seq + 2) for row in _rows((TRAIN, step)) if isinstance(row, SpooledRow)]
    return found


def test_what_steps_saw_goes_before_their_rows_so_that_these_are_one_block() -> None:
    assert _blocks(_with_batches((1, 1), (2, 2), (3, 3))) == [*["batch"] * 3, ("loss", [1, 2, 3])]
    assert _blocks(_with_batches((2, 1), (3, 2))) == ["batch", "batch", ("loss", [1, 2])]


def test_what_a_step_saw_keeps_its_place_where_steps_go_back() -> None:
    expected = ["batch", "batch", ("loss", [8, 9]), "batch", "batch", ("loss", [5, 6])]
    assert _blocks(_with_batches((8, 8), (9, 9), (5, 5), (6, 6))) == expected
    assert _blocks([*_rows((TRAIN, 8), (TRAIN, 5)), *_with_batches((8, 8))]) == [
        ("loss", [8, 5]), "batch", ("loss", [8]),
    ]  # fmt: skip
