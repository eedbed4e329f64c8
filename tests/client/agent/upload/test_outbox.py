"""Frames that leave together: one part of each source, so that a server never has to refuse the message."""

from __future__ import annotations

import struct
from pathlib import Path

from stabilityclient.agent.sources import Source
from stabilityclient.agent.upload.uplink import Outbox
from stabilityclient.node_frames import frames_in
from stabilityclient.wire import Frame, PointsBlock, SourceInfo, encode_message


def _frame(info: SourceInfo, seq: int) -> Frame:
    block = PointsBlock(["loss"], struct.pack("<q", seq), struct.pack("<d", 1.0), struct.pack("<d", 2.0))
    return Frame(info, seq, seq, [block])


async def test_a_source_that_has_more_before_its_part_has_left_has_it_sent_in_a_message_of_its_own(
    tmp_path: Path,
) -> None:
    infos = [SourceInfo(f"r{rank}-1", rank, 2, rank, "n0", 1, 1.0, 0) for rank in (0, 1)]
    first, second = (Source(tmp_path / info.source, info, 0) for info in infos)
    outbox, sent = Outbox([first, second]), list[bytes]()  # type: ignore[arg-type]

    async def send(data: bytes) -> None:
        sent.append(data)

    outbox.begin(send)
    for source, seq in ((first, 1), (second, 1), (second, 2), (first, 2)):
        frame = _frame(source.info, seq)
        await outbox.put(source, frame, encode_message(frame), full=False)
    await outbox.flush()

    arrived = [[(frame.source.source, frame.first_seq) for frame in frames_in(message)] for message in sent]
    assert arrived == [[("r0-1", 1), ("r1-1", 1)], [("r1-1", 2), ("r0-1", 2)]]
    assert [source.in_flight[-1][3] for source in (first, second)] == [2, 2]
