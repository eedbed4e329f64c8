"""Frames of several sources as one NodeFrame, and back. Agent and server import it, the training process never does."""

from __future__ import annotations

from collections.abc import Sequence

from stabilityclient.wire import (
    BadMessage,
    EventBlock,
    Frame,
    FramePart,
    NodeFrame,
    PointsBlock,
    decode_message,
)

__all__ = ["apart", "frame_of", "frames_in", "in_stream", "together"]


def frames_in(message: bytes) -> list[Frame]:
    """Return the frames in the bytes of a Frame or NodeFrame; raise as ``in_stream``."""
    read = in_stream(message)
    return [read] if isinstance(read, Frame) else apart(read)


def in_stream(message: bytes) -> Frame | NodeFrame:
    """Return an entry of a run's stream.

    Raises:
        BadMessage: it is no such message, or can't be read.
    """
    read = decode_message(message)
    if isinstance(read, Frame | NodeFrame):
        return read
    raise BadMessage(f"{type(read).__name__} in the stream, expected Frame or NodeFrame")


def together(frames: Sequence[Frame]) -> NodeFrame:
    """Return frames, each of another source, as one message; ``apart`` gives them back as they are."""
    numbers: dict[tuple[str, ...], int] = {}
    tables: list[list[PointsBlock]] = []
    parts = []
    for frame in frames:
        blocks: list[tuple[int, int] | EventBlock] = []
        for block in frame.blocks:
            if isinstance(block, EventBlock):
                blocks.append(block)
                continue
            if not block.steps:
                continue
            number = numbers.setdefault(tuple(block.names), len(tables))
            if number == len(tables):
                tables.append([])
            tables[number].append(block)
            blocks.append((number, len(block.steps) // 8))
        parts.append(FramePart(frame.source, frame.first_seq, frame.last_seq, blocks))
    return NodeFrame(parts, [_table(blocks) for blocks in tables])


def apart(node_frame: NodeFrame) -> list[Frame]:
    """Return the frames in a message that ``decode_message`` has read, each of its source."""
    at = [0] * len(node_frame.tables)
    return [frame_of(node_frame, part, at) for part in node_frame.parts]


def frame_of(node_frame: NodeFrame, part: FramePart, at: list[int]) -> Frame:
    """Return the frame that is ``part`` of a message.

    Args:
        at: rows that the parts before it took of each table; those that it takes are added.
    """
    blocks: list[PointsBlock | EventBlock] = []
    for block in part.blocks:
        if isinstance(block, EventBlock):
            blocks.append(block)
            continue
        number, rows = block
        blocks.append(_rows(node_frame.tables[number], at[number], rows))
        at[number] += rows
    return Frame(part.source, part.first_seq, part.last_seq, blocks)


def _table(blocks: list[PointsBlock]) -> PointsBlock:
    """Return the rows of blocks of one set of metrics, block after block."""
    if len(blocks) == 1:
        return blocks[0]
    lengths = [len(block.steps) for block in blocks]
    values = b"".join(
        block.values[at * length : (at + 1) * length]
        for at in range(len(blocks[0].names))
        for block, length in zip(blocks, lengths, strict=True)
    )
    steps, times = (b"".join([getattr(block, name) for block in blocks]) for name in ("steps", "times"))
    return PointsBlock(blocks[0].names, steps, times, values)


def _rows(table: PointsBlock, first: int, rows: int) -> PointsBlock:
    """Return some consecutive rows of a table."""
    whole, start, stop = len(table.steps), 8 * first, 8 * (first + rows)
    if stop - start == whole:
        return table
    values = b"".join([table.values[at + start : at + stop] for at in range(0, len(table.values), whole)])
    return PointsBlock(table.names, table.steps[start:stop], table.times[start:stop], values)
