"""Puts records into frames: consecutive rows of one set become one block, column by column."""

from __future__ import annotations

from array import array
from itertools import groupby

from stabilityclient.agent.records import Event, Lost, Record, Row
from stabilityclient.wire import FRAME_TARGET_BYTES, EventBlock, Frame, PointsBlock, SourceInfo, encode_message

__all__ = ["MAX_FRAME_RECORDS", "READ_BYTES", "encoded_frame", "frame_of"]

#: Records in one frame, at most: a frame is what is sent again when a connection breaks.
MAX_FRAME_RECORDS = 512
#: Bytes of spool read for one frame. A frame's body is a little smaller than the rows it came from.
READ_BYTES = FRAME_TARGET_BYTES

#: What MessagePack says to half a surrogate pair or to an integer beyond 64 bits (a foreign or older client wrote it).
_UNSENDABLE = (ValueError, TypeError, OverflowError)


def frame_of(info: SourceInfo, records: list[Record]) -> Frame:
    """Return the frame of consecutive records, at least one.

    Numbers whose records can't be read any more travel as one event ``lost``, so that what follows keeps its numbers.
    """
    blocks: list[PointsBlock | EventBlock] = []
    when = 0.0
    for key, group in groupby(records, key=_kind):
        if isinstance(key, tuple):
            rows = [record for record in group if isinstance(record, Row)]
            when = rows[-1].time
            blocks.append(_points(key, rows))
            continue
        for record in group:
            if isinstance(record, Event):
                when = record.time
                blocks.append(EventBlock(record.type, record.time, record.step, record.data))
            elif isinstance(record, Lost):
                data = {"records": record.last_seq - record.seq + 1, "reason": record.reason}
                blocks.append(EventBlock("lost", when or info.started, None, data))
    last = records[-1]
    return Frame(info, records[0].seq, last.last_seq if isinstance(last, Lost) else last.seq, blocks)


def encoded_frame(info: SourceInfo, records: list[Record]) -> tuple[Frame, bytes]:
    """Return the frame of some records and its bytes; an event that MessagePack can't hold is told as lost."""
    frame = frame_of(info, records)
    try:
        return frame, encode_message(frame)
    except _UNSENDABLE:
        frame = frame_of(info, [_sendable(info, record) for record in records])
        return frame, encode_message(frame)


def _sendable(info: SourceInfo, record: Record) -> Record:
    try:
        encode_message(frame_of(info, [record]))
    except _UNSENDABLE as error:
        return Lost(record.seq, record.seq, f"can't be sent: {type(error).__name__}")
    return record


def _kind(record: Record) -> tuple[str, ...] | str:
    return record.names if isinstance(record, Row) else type(record).__name__


def _points(names: tuple[str, ...], rows: list[Row]) -> PointsBlock:
    """Turn rows into columns. The slices copy bit patterns, so NaN payloads and 64-bit steps stay what they are."""
    cells = array("q")
    cells.frombytes(b"".join([row.data for row in rows]))
    stride = len(names) + 2
    columns = [cells[at::stride].tobytes() for at in range(stride)]
    return PointsBlock(list(names), columns[0], columns[1], b"".join(columns[2:]))
