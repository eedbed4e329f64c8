"""Puts records into frames: rows of one set of metrics become one block, column by column.

Sets that take turns (a loss each step, its timings right after it) are gathered into a block each, as long as nothing
is lost by it: steps and times don't go back, no event lies between, and no metric is in two of the sets. The server
(``lineage/blocks.py``) puts the rows back into their order by time. Data of steps (``batch`` events) goes before the
rows that it lies between, as a job knows it earlier: one block a row costs the server ten times as much.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import cast

from stabilityclient.agent.upload.reader import SpoolReader
from stabilityclient.agent.upload.records import STEP_TIME, Lost, Record, SpooledEvent, SpooledRow
from stabilityclient.secrets.messages import cleaned
from stabilityclient.wire import (
    FRAME_TARGET_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_SETS_IN_TURN,
    EventBlock,
    Frame,
    PointsBlock,
    SourceInfo,
    encode_message,
)

__all__ = ["MAX_FRAME_RECORDS", "READ_BYTES", "encoded_frame", "frame_of", "next_frame"]

#: Records in one frame, at most: a frame is the unit sent again when a connection breaks.
MAX_FRAME_RECORDS = 512
#: Bytes of spool read for one frame. A frame's body is a little smaller than its rows.
READ_BYTES = FRAME_TARGET_BYTES

#: A frame is longer than the bytes read for it where sets of thousands of names take turns: each turn has the names
#: again. Beyond this it begins anew with half of the records.
MAX_FRAME_BYTES = MAX_MESSAGE_BYTES // 2

#: Batches that go before their rows, at most: a server remembers the newest 256 of a run, and the data of a row
#: has to be among them when the row is judged.
MAX_BATCHES_AHEAD = 64

#: Rows by the names of their set, sets in the order in which they appeared.
Sets = dict[tuple[str, ...], list[SpooledRow]]

#: MessagePack's errors for half a surrogate pair or an integer beyond 64 bits (of a foreign client).
_UNSENDABLE = (ValueError, TypeError, OverflowError)


def frame_of(info: SourceInfo, records: list[Record]) -> Frame:
    """Return the frame of consecutive records, at least one.

    Numbers whose records can't be read any more travel as one event ``lost``, so that later records keep their numbers.
    """
    blocks: list[PointsBlock | EventBlock] = []
    stretch = _Stretch()
    when = 0.0
    at = 0
    for stop in [*(i for i, record in enumerate(records) if type(record) is not SpooledRow), len(records)]:
        stretch.rows += cast("list[SpooledRow]", records[at:stop])
        at = stop + 1
        record = records[stop] if stop < len(records) else None
        if isinstance(record, SpooledEvent) and stretch.takes(record):
            continue
        when = stretch.time or when
        blocks += stretch.blocks()
        stretch = _Stretch()
        if isinstance(record, SpooledEvent):
            if not stretch.takes(record):
                when = record.time
                blocks.append(_event(record))
        elif isinstance(record, Lost):
            data = {"records": record.last_seq - record.seq + 1, "reason": record.reason}
            blocks.append(EventBlock("lost", when or info.started, None, data))
    last = records[-1]
    return Frame(info, records[0].seq, last.last_seq if isinstance(last, Lost) else last.seq, blocks)


def encoded_frame(info: SourceInfo, records: list[Record]) -> tuple[Frame, bytes]:
    """Return the frame of some records, without secrets, and its bytes.

    An event that MessagePack can't hold is reported as lost.
    """
    frame = cleaned(frame_of(info, records))
    try:
        return frame, encode_message(frame)
    except _UNSENDABLE:
        frame = cleaned(frame_of(info, [_sendable(info, record) for record in records]))
        return frame, encode_message(frame)


def next_frame(info: SourceInfo, reader: SpoolReader) -> tuple[list[Record], Frame, bytes] | None:
    """Return the records that a source has next, their frame and its bytes; None where there are none now."""
    records = reader.read(MAX_FRAME_RECORDS, READ_BYTES)
    if not records:
        return None
    frame, data = encoded_frame(info, records)
    while len(data) > MAX_FRAME_BYTES and len(records) > 1:
        reader.seek(records[0].seq)
        records = reader.read(len(records) // 2, READ_BYTES)
        frame, data = encoded_frame(info, records)
    return records, frame, data


def _sendable(info: SourceInfo, record: Record) -> Record:
    try:
        encode_message(frame_of(info, [record]))
    except _UNSENDABLE as error:
        return Lost(record.seq, record.seq, f"can't be sent: {type(error).__name__}")
    return record


class _Stretch:
    """Rows, and the data of their steps, between which nothing else lies and no step goes back."""

    def __init__(self) -> None:
        self.rows: list[SpooledRow] = []
        self._batches: list[SpooledEvent] = []
        #: Rows whose steps were compared, and the highest step so far.
        self._compared = 0
        self._newest = -1

    @property
    def time(self) -> float:
        """Return the unix seconds of the newest record, 0 where there is none."""
        return max((records[-1].time for records in (self.rows, self._batches) if records), default=0.0)

    def takes(self, event: SpooledEvent) -> bool:
        """Take a step's data, and return True, where no step has gone back: else its place shows where it belongs."""
        if event.type != "batch" or event.step is None or len(self._batches) == MAX_BATCHES_AHEAD:
            return False
        for row in self.rows[self._compared :]:
            if row.step < self._newest:
                return False
            self._newest = row.step
        self._compared = len(self.rows)
        if event.step < max(self._newest, self._batches[-1].step or 0 if self._batches else 0):
            return False
        self._batches.append(event)
        return True

    def blocks(self) -> Iterator[PointsBlock | EventBlock]:
        """Yield the data of steps, then the rows by their set of metrics."""
        yield from map(_event, self._batches)
        if self.rows:
            for sets in _stretches(self.rows):
                yield from (_points(names, rows) for names, rows in sets.items())


def _event(event: SpooledEvent) -> EventBlock:
    return EventBlock(event.type, event.time, event.step, event.data)


def _stretches(rows: list[SpooledRow]) -> Iterator[Sets]:
    """Yield rows gathered by their set of metrics, as long as the order between the sets has no meaning."""
    # One chunk's rows of a set share their tuple of names: its identity is compared before its texts.
    if len(rows) == 1 or rows[0].names == rows[1].names:  # else there are several
        kinds = {id(names): names for _, names, _ in rows}
        if len(set(kinds.values())) == 1:
            yield {rows[0].names: rows}
            return
    sets: Sets = {}
    by_id: dict[int, list[SpooledRow]] = {}
    taken: set[str] = set()
    step, when, unpack = 0, 0.0, STEP_TIME.unpack_from
    for row in rows:
        _, names, data = row
        last_step, last_time = step, when
        step, when = unpack(data)
        goes_on = step >= last_step and when >= last_time
        if goes_on and id(names) in by_id:
            by_id[id(names)].append(row)
            continue
        if goes_on and names in sets:
            by_id[id(names)] = sets[names]
            sets[names].append(row)
            continue
        if sets and not (goes_on and len(sets) < MAX_SETS_IN_TURN and taken.isdisjoint(names)):
            yield sets
            sets, by_id, taken = {}, {}, set()
        sets[names] = by_id[id(names)] = [row]
        taken.update(names)
    yield sets


def _points(names: tuple[str, ...], rows: list[SpooledRow]) -> PointsBlock:
    """Turn rows into columns. The slices copy bit patterns, so NaN payloads and 64-bit steps are unchanged."""
    cells = array("q")
    cells.frombytes(b"".join([row.data for row in rows]))
    stride = len(names) + 2
    columns = [cells[at::stride].tobytes() for at in range(stride)]
    return PointsBlock(list(names), columns[0], columns[1], b"".join(columns[2:]))
