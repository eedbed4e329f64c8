"""Frames of several ranks in one message are the same frames when they are taken apart."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stabilityclient.node_frames import apart, frames_in, together
from stabilityclient.wire import (
    Ack,
    BadMessage,
    EventBlock,
    Frame,
    FramePart,
    NodeFrame,
    PointsBlock,
    SourceInfo,
    encode_message,
)

_SETS = (["loss", "lr"], ["step_time_s"], ["lr", "loss"])


def _block(names: list[str], first: int, rows: int) -> PointsBlock:
    steps = array("q", range(first, first + rows)).tobytes()
    times = array("d", [step + 0.5 for step in range(first, first + rows)]).tobytes()
    values = array("d", [first + at for at in range(rows * len(names))]).tobytes()
    return PointsBlock(names, steps, times, values)


_BLOCKS = st.one_of(
    st.builds(_block, st.sampled_from(_SETS), st.integers(0, 1000), st.integers(1, 4)),
    st.builds(EventBlock, st.just("batch"), st.floats(0, 10), st.integers(0, 9)),
)


def _frames(blocks: list[list[PointsBlock | EventBlock]]) -> list[Frame]:
    return [Frame(SourceInfo(f"r{rank}-1-1", rank), 1, 1 + rank, some) for rank, some in enumerate(blocks)]


@given(st.lists(st.lists(_BLOCKS, min_size=1, max_size=5), min_size=2, max_size=6).map(_frames))
def test_what_is_put_together_comes_apart_as_it_was(frames: list[Frame]) -> None:
    assert frames_in(encode_message(together(frames))) == frames


def test_the_rows_of_all_ranks_are_one_table_for_each_set_of_metrics() -> None:
    frames = _frames([[_block(_SETS[0], 1, 2), _block(_SETS[1], 1, 2)], [_block(_SETS[0], 1, 3)]])
    assert [(table.names, len(table.steps) // 8) for table in together(frames).tables] == [(_SETS[0], 5), (_SETS[1], 2)]
    assert apart(together(frames)) == frames


def _node_frame(*taken: list[tuple[int, int]], sources: tuple[int, ...] = (0, 1), first: int = 1) -> NodeFrame:
    parts = [
        FramePart(SourceInfo(f"r{rank}-1-1", rank), first, 2, list(blocks))
        for rank, blocks in zip(sources, taken, strict=True)
    ]
    return NodeFrame(parts, [_block(_SETS[0], 1, 4)])


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (_node_frame([(0, 2)], [(0, 1)]), r"take \[3\] rows of tables with \[4\]"),
        (_node_frame([(0, 2)], [(0, 3)]), r"take \[5\] rows of tables with \[4\]"),
        (_node_frame([(1, 2)], [(0, 2)]), "2 rows of table 1, expected 1 or more of 0 to 0"),
        (_node_frame([(-1, 2)], [(0, 2)]), "2 rows of table -1"),
        (_node_frame([(0, 5)], [(0, -1)]), "-1 rows of table 0"),
        (_node_frame([(0, 2)], [(0, 2)], sources=(0, 0)), "2 parts of 1 sources"),
        (_node_frame([(0, 4)], sources=(0,)), "1 parts of 1 sources, expected 2 to 256"),
        (_node_frame([(0, 2)], [(0, 2)], first=0), r"frame numbers 0\.\.2"),
    ],
)
def test_a_message_whose_parts_do_not_fit_its_tables_is_refused(message: NodeFrame, said: str) -> None:
    with pytest.raises(BadMessage, match=said):
        frames_in(encode_message(message))


def test_what_is_no_frame_is_named() -> None:
    with pytest.raises(BadMessage, match="Ack in the stream, expected Frame or NodeFrame"):
        frames_in(encode_message(Ack("r0-1-1", 1)))
