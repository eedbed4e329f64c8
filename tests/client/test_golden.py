"""The bytes of spool, slot and messages do not change within a protocol version."""

from __future__ import annotations

import zlib

import pytest

from stabilityclient.agent.upload.reader import SpoolReader
from stabilityclient.agent.upload.records import SpooledEvent, SpooledRow
from stabilityclient.rank_state.slot import SlotView, read_slot
from stabilityclient.spool import CHUNK_BYTES
from stabilityclient.wire import BadMessage, WrongVersion, decode_message, encode_message
from support.agent.golden_cases import GOLDEN, MESSAGES, chunk_bytes, slot_bytes


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_a_message_has_its_golden_bytes_and_reads_back(name: str) -> None:
    golden = (GOLDEN / f"message_{name}.bin").read_bytes()
    assert encode_message(MESSAGES[name]) == golden
    assert decode_message(golden) == MESSAGES[name]


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_a_message_with_any_bit_flipped_is_never_taken_for_another(name: str) -> None:
    golden = (GOLDEN / f"message_{name}.bin").read_bytes()
    for position in range(8 * len(golden)):
        damaged = bytearray(golden)
        damaged[position // 8] ^= 1 << position % 8
        try:
            message = decode_message(bytes(damaged))
        except BadMessage:
            continue
        assert message == MESSAGES[name], f"bit {position} gave {message}"


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_a_body_that_is_no_message_is_a_bad_message_also_when_its_checksum_fits(name: str) -> None:
    golden = (GOLDEN / f"message_{name}.bin").read_bytes()
    for position in range(8, len(golden)):
        for wrong in (0x00, 0x80, 0xC1, 0xFF):
            body = bytearray(golden[8:])
            body[position - 8] = wrong
            try:
                decode_message(golden[:4] + zlib.crc32(body).to_bytes(4, "little") + body)
            except BadMessage:
                continue


def test_a_message_that_is_cut_off_is_a_bad_message() -> None:
    golden = (GOLDEN / "message_frame.bin").read_bytes()
    for size in range(len(golden)):
        with pytest.raises(BadMessage):
            decode_message(golden[:size])


def test_a_node_frame_stored_by_a_build_before_the_first_release_is_read() -> None:
    stored = (GOLDEN / "message_node_frame_unreleased.bin").read_bytes()
    assert stored[2] == 2
    assert decode_message(stored) == MESSAGES["node_frame"]


def test_another_protocol_version_is_named() -> None:
    golden = bytearray((GOLDEN / "message_ack.bin").read_bytes())
    golden[2] = 9
    with pytest.raises(WrongVersion, match="version 9, expected 1:"):
        decode_message(bytes(golden))


def test_a_chunk_has_its_golden_bytes() -> None:
    assert chunk_bytes() == (GOLDEN / "chunk.bin").read_bytes()


def test_the_golden_chunk_reads_back(tmp_path) -> None:
    (tmp_path / "00000001.spool").write_bytes((GOLDEN / "chunk.bin").read_bytes().ljust(CHUNK_BYTES, b"\0"))
    records = SpoolReader(str(tmp_path)).read(100, 10**6)
    assert [type(record).__name__ for record in records] == [
        "SpooledEvent",
        "SpooledRow",
        "SpooledRow",
        "SpooledRow",
        "SpooledEvent",
    ]
    assert [record.seq for record in records] == [1, 2, 3, 4, 5]
    assert [(r.names, r.step, r.time) for r in records if isinstance(r, SpooledRow)] == [
        (("loss", "lr"), 0, 1000.25),
        (("grad_norm/ü",), 2**53 - 1, 1000.5),
        (("loss", "lr"), 1, 1000.75),
    ]
    assert records[4] == SpooledEvent(5, "checkpoint", 1001.0, 1, {"path": "/c/ü"})


_SLOT = {
    "pid": 77,
    "rank": 1,
    "world_size": 2,
    "state": 3,
    "beat": 3,
    "step": 7,
    "step_start": 1002.5,
    "phase": "évaluation" * 5 + "évaluati",
    "phase_start": 1001.0,
    "expect_s": 30.0,
    "last_seq": 12,
    "dropped": 1,
    "segment_key": "d-0123456789abcdef",
    "exception": "ValueError: nö",
    "torn": False,
    "pending": 2,
    "dump_signal": 40,
    "flags": 5,
    "probe": 5,
    "thread": 79,
    "paused": 0.0,
    "refused": 0,
    "no_room": 0,
    "forked": False,
    "waits": (0, 0.0, 0.0),
    "phases": {"data": (2, 3.0, 2.5), "évaluation" * 2 + "évaluatio": (1, 1.25, 1.25)},
}


def test_a_slot_has_its_golden_bytes() -> None:
    assert slot_bytes() == (GOLDEN / "slot.bin").read_bytes()


def test_the_golden_slot_reads_back(tmp_path) -> None:
    (tmp_path / "slot").write_bytes((GOLDEN / "slot.bin").read_bytes().ljust(4096, b"\0"))
    slot = read_slot(str(tmp_path / "slot"))
    assert isinstance(slot, SlotView)
    assert vars(slot) == _SLOT
