"""A row of thousands of metrics costs its values: its names are hashed once, however many parts of a run want them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count

import numpy as np
import pytest

from stabilitybackend.judging.detection.run_detection import NAMES_A_SLICE
from stabilitybackend.runs.pending_frames import PendingFrames
from stabilitybackend.runs.state import RunState
from stabilityclient.node_frames import together
from stabilityclient.wire import Frame, NodeFrame, PointsBlock, SourceInfo, encode_message

WIDE = 600
ROWS = 40


class Counted(str):
    """A name that counts how often it was hashed."""

    __slots__ = ()
    hashes = 0

    def __hash__(self) -> int:
        Counted.hashes += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)


def _frame(rank: int, step: int, names: list[str]) -> Frame:
    values = np.random.default_rng([rank, step]).random(len(names))
    block = PointsBlock(names, np.array([step], "<i8").tobytes(), np.array([1e3 + step]).tobytes(), values.tobytes())
    return Frame(SourceInfo(f"r{rank}-0-1", rank, 4, rank, "n0", 1, 1.0, 0), step, step, [block])


def _of_one(step: int, names: list[str]) -> Frame | NodeFrame:
    return _frame(0, step, list(names))


def _of_four(step: int, names: list[str]) -> Frame | NodeFrame:
    return together([_frame(rank, step, list(names)) for rank in range(4)])


@pytest.mark.parametrize("message", [_of_one, _of_four])
def test_a_row_hashes_each_of_its_names_once(message) -> None:  # type: ignore[no-untyped-def]
    state = RunState("r", lambda: 2e3)
    names: list[str] = [Counted(f"layers.{at}.grad_norm") for at in range(WIDE)] + [Counted("loss")]
    messages = [message(step, names) for step in range(1, 2 * ROWS + 1)]
    for at, given in enumerate(messages):
        if at == ROWS:
            Counted.hashes = 0
        state.apply(given)
    assert len(state.store.metrics()) == len(names)
    assert Counted.hashes <= 1.2 * ROWS * len(names)


_fresh = count()


def _calls(work: Callable[[], object]) -> int:
    calls = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


def _new_row(wide: int) -> Frame:
    """Return a row whose names no other test has had."""
    return _frame(0, 1, [f"part{next(_fresh)}.{at}.attention/grad_norm" for at in range(wide)])


def _calls_a_new_name(wide: int) -> float:
    """Return the calls that the first row of a run takes, a name."""
    state, frame = RunState("r", lambda: 2e3), _new_row(wide)
    return _calls(lambda: state.apply(frame, replayed=False)) / wide


def test_a_new_name_costs_the_same_among_few_and_among_thousands() -> None:
    few, many = _calls_a_new_name(500), _calls_a_new_name(5_000)
    assert many <= 1.2 * few
    assert many <= 170  # some 130: what its words say is found once, not by each who asks


def test_what_thousands_of_new_names_tell_is_found_in_slices_before_their_row_is_folded() -> None:
    wide = 4_000
    cold = wide * _calls_a_new_name(wide)
    state, frame = RunState("r", lambda: 2e3), _new_row(wide)
    waiting = PendingFrames([("1-1", encode_message(frame))])
    names = waiting.first_met(state.metric_names)
    assert len(names) == wide
    slices = state.judge.classify_names(names)
    assert max(_calls(lambda: next(slices, None)) for _ in range(wide // NAMES_A_SLICE + 2)) < cold / 20
    assert _calls(lambda: state.apply(frame, replayed=False)) < cold / 2
    assert waiting.first_met(state.metric_names) == []
