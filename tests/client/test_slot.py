"""The slot: what is written reads back whole, and what can't be read has a reason."""

from __future__ import annotations

import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stabilityclient.guard import Guard
from stabilityclient.rank_state.phase import Phase
from stabilityclient.rank_state.slot import MAX_NAMES, MAX_PHASES, SLOT_BYTES, Slot, SlotView, read_slot
from support.agent.golden_cases import GOLDEN


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[Slot]:
    slot = Slot(str(tmp_path / "slot"), pid=1, rank=0, world_size=1, started=0.0)
    yield slot
    slot.close()


def _seen(tmp_path: Path) -> SlotView:
    seen = read_slot(str(tmp_path / "slot"))
    assert isinstance(seen, SlotView), seen
    return seen


def _phase(slot: Slot, name: str, expect_s: float | None = None) -> Phase:
    return Phase(slot, Guard(strict=True), name, expect_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Both clocks of a phase: ``wall`` and ``mono``."""
    clock = {"wall": 1000.0, "mono": 50.0}
    monkeypatch.setattr("stabilityclient.rank_state.phase.time", lambda: clock["wall"])
    monkeypatch.setattr("stabilityclient.rank_state.phase.monotonic", lambda: clock["mono"])
    return clock


def _pass(clock: dict[str, float], seconds: float) -> None:
    clock["wall"] += seconds
    clock["mono"] += seconds


# --- reading -----------------------------------------------------------------------------------------------------


def test_a_slot_reads_whole_while_it_is_written(slot: Slot, tmp_path: Path) -> None:
    slot.set_step(0, 0.0)  # a read may come before the thread's first step
    stop = threading.Event()

    def write() -> None:
        step = 0
        while not stop.is_set():
            step += 1
            slot.set_step(step, float(step))
            slot.show(b"p%d" % step, float(step), float(step))
            with _phase(slot, "data"):
                pass

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(2000):
            seen = _seen(tmp_path)
            assert seen.step == int(seen.step_start)
            assert seen.phase in ("", "data", f"p{int(seen.expect_s)}")
            assert seen.torn or seen.phases.keys() <= {"data"}
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(before)


def test_a_heartbeat_between_the_two_stores_of_a_step_leaves_the_slot_whole(slot: Slot, tmp_path: Path) -> None:
    pack = slot._pack_step

    def interrupted(*fields: Any) -> None:
        pack(*fields)
        slot.write()

    slot._pack_step = interrupted
    slot.set_step(5, 2.0)
    assert (_seen(tmp_path).torn, _seen(tmp_path).step) == (False, 5)


def _version(number: int) -> bytes:
    golden = bytearray((GOLDEN / "slot.bin").read_bytes().ljust(SLOT_BYTES, b"\0"))
    golden[8:12] = number.to_bytes(4, "little")
    return bytes(golden)


def _with(at: int, code: str, value: Any) -> bytes:
    golden = bytearray((GOLDEN / "slot.bin").read_bytes().ljust(SLOT_BYTES, b"\0"))
    struct.pack_into("<" + code, golden, at, value)
    return bytes(golden)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "0 bytes, expected 4096"),
        (b"SBSLOT01", "8 bytes"),
        (_version(2)[:-1], "4095 bytes"),
        (b"x" * 4096, "something else"),
        (b"\0" * 4096, "something else"),
        (_version(0), "version 0, expected 2"),
        (_version(3), "version 3, expected 2"),
        (_with(16, "i", -1), "rank -1"),
        (_with(24, "I", 77), "state 77"),
        (_with(40, "q", -9), "step -9"),
        (_with(48, "d", float("nan")), "nan"),
        (_with(56, "d", 1e300), "1e+300"),
        (_with(64, "d", float("inf")), "inf"),
    ],
)
def test_what_is_no_slot_has_a_reason(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "slot").write_bytes(content)
    seen = read_slot(str(tmp_path / "slot"))
    assert isinstance(seen, str)
    assert words in seen


def test_a_slot_that_is_not_there_or_may_not_be_read_has_a_reason(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    reasons = [read_slot(str(tmp_path / name)) for name in ("missing", "folder", "folder/x/y")]
    missing = "there is no slot file (yet)"
    assert reasons == [missing, "the slot file can't be read: Is a directory", missing]


def test_a_slot_torn_by_a_death_is_read_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "slot").write_bytes(_with(216, "I", 1234))
    assert (_seen(tmp_path).torn, _seen(tmp_path).step) == (True, 7)


def test_no_flipped_byte_makes_the_reader_raise(tmp_path: Path) -> None:
    golden = (GOLDEN / "slot.bin").read_bytes().ljust(SLOT_BYTES, b"\0")
    for at in (*range(260), *range(768, 800), *range(1024, 1100)):
        damaged = bytearray(golden)
        damaged[at] ^= 0xFF
        (tmp_path / "slot").write_bytes(damaged)
        assert isinstance(read_slot(str(tmp_path / "slot")), SlotView | str)


def test_a_half_written_phase_is_left_out_and_the_others_stay(slot: Slot, tmp_path: Path) -> None:
    with _phase(slot, "data"):
        pass
    with _phase(slot, "forward"):
        pass
    whole = bytearray((tmp_path / "slot").read_bytes())
    struct.pack_into("<Q", whole, 1024 + 32, 99)
    (tmp_path / "slot").write_bytes(whole)
    assert list(_seen(tmp_path).phases) == ["forward"]


# --- phases ------------------------------------------------------------------------------------------------------


def test_a_nested_phase_has_its_own_time_and_its_parent_the_rest(
    slot: Slot, tmp_path: Path, clock: dict[str, float]
) -> None:
    for inner_s in (3.0, 1.0):
        with _phase(slot, "eval"):
            _pass(clock, 2.0)
            with _phase(slot, "data"):
                _pass(clock, inner_s)
            _pass(clock, 0.5)
    assert _seen(tmp_path).phases == {"eval": (2, 5.0, 2.5), "data": (2, 4.0, 3.0)}


@pytest.mark.parametrize("jump", [-1e6, 1e6])
def test_a_clock_that_jumps_changes_no_duration(
    slot: Slot, tmp_path: Path, clock: dict[str, float], jump: float
) -> None:
    with _phase(slot, "data"):
        _pass(clock, 2.0)
        clock["wall"] += jump
    assert _seen(tmp_path).phases == {"data": (1, 2.0, 2.0)}


def test_an_outer_phase_comes_back_with_what_is_right_for_its_budget(
    slot: Slot, tmp_path: Path, clock: dict[str, float]
) -> None:
    def shown() -> tuple[str, float, float]:
        seen = _seen(tmp_path)
        return seen.phase, seen.phase_start - 1000.0, seen.expect_s

    with _phase(slot, "checkpoint", expect_s=600):
        _pass(clock, 100.0)
        with _phase(slot, "data"):
            inside = shown()  # allowed what the declared phase has left, not what "data" learned in training
            _pass(clock, 50.0)
            with _phase(slot, "upload", expect_s=5):
                own = shown()
            again = shown()
        declared = shown()
    with _phase(slot, "eval"):
        _pass(clock, 10.0)
        with _phase(slot, "forward"):
            _pass(clock, 1.0)
        learned = shown()  # its own time counts: its stays are learned as own time
    assert (inside, own, again) == (("data", 100.0, 500.0), ("upload", 150.0, 5.0), ("data", 150.0, 450.0))
    assert (declared, learned, shown()) == (("checkpoint", 0.0, 600.0), ("eval", 161.0, 0.0), ("", 161.0, 0.0))


def test_a_declared_phase_that_is_overdue_declares_nothing_longer_inside(
    slot: Slot, tmp_path: Path, clock: dict[str, float]
) -> None:
    with _phase(slot, "checkpoint", expect_s=10):
        _pass(clock, 11.0)
        with _phase(slot, "data"):
            assert 0 < _seen(tmp_path).expect_s < 0.01


def test_phases_beyond_the_table_are_counted_as_other_and_shown_by_their_name(slot: Slot, tmp_path: Path) -> None:
    for number in range(3 * MAX_NAMES):
        with _phase(slot, f"phase {number}"):
            assert _seen(tmp_path).phase == f"phase {number}"
    phases = _seen(tmp_path).phases
    assert list(phases) == [f"phase {number}" for number in range(MAX_PHASES - 1)] + ["other"]
    assert phases["other"][0] == 3 * MAX_NAMES - (MAX_PHASES - 1)
    assert len(slot.phases.known) == MAX_NAMES


@pytest.mark.parametrize("name", ["", "é" * 1000, "\ud800", "a\0b", 7, None])
def test_any_name_of_a_phase_is_harmless(slot: Slot, tmp_path: Path, name: Any) -> None:
    with _phase(slot, name):
        assert _seen(tmp_path).phase == str(name).encode("utf-8", "replace")[:64].split(b"\0")[0].decode()
    assert _seen(tmp_path).phase == ""


@pytest.mark.parametrize("expect_s", [-1, 0, float("nan"), float("inf"), 1e300])
def test_a_declared_time_that_can_not_be_declares_nothing(slot: Slot, tmp_path: Path, expect_s: float) -> None:
    with _phase(slot, "data", expect_s):
        assert _seen(tmp_path).expect_s == 0.0


def test_phases_that_end_out_of_order_leave_no_ended_phase_behind(slot: Slot, tmp_path: Path) -> None:
    outer, inner, again = _phase(slot, "outer"), _phase(slot, "inner"), _phase(slot, "again")
    outer.__enter__()
    inner.__enter__()
    outer.__exit__()
    assert _seen(tmp_path).phase == "inner"
    inner.__exit__()
    with again, again:  # one object entered twice
        assert _seen(tmp_path).phase == "again"
    assert _seen(tmp_path).phase == ""
    assert {name: entry[0] for name, entry in _seen(tmp_path).phases.items()} == {"outer": 1, "inner": 1, "again": 1}


def test_a_phase_of_another_thread_is_counted_but_not_shown_as_what_the_rank_does(slot: Slot, tmp_path: Path) -> None:
    seen: list[str] = []

    def save() -> None:
        with _phase(slot, "checkpoint"):
            seen.append(_seen(tmp_path).phase)

    with _phase(slot, "forward"):
        thread = threading.Thread(target=save)
        thread.start()
        thread.join()
    assert (seen, set(_seen(tmp_path).phases)) == (["forward"], {"forward", "checkpoint"})


def test_the_loop_may_run_in_another_thread_than_init(slot: Slot, tmp_path: Path) -> None:
    seen: list[object] = []

    def train() -> None:
        with _phase(slot, "forward"):
            view = _seen(tmp_path)
            seen.append((view.phase, view.thread == threading.get_native_id()))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert seen == [("forward", True)]
