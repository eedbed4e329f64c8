"""What is known of batches does not depend on how an agent cuts its frames."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Iterator

import pytest

from stabilitybackend.runs.state import RunState
from stabilityclient.agent.upload.framing import frame_of
from stabilityclient.agent.upload.records import Record, SpooledEvent, SpooledRow
from stabilityclient.wire import Frame, SourceInfo


def _records(steps: Iterable[int], ahead: int, every: int) -> Iterator[Record]:
    """Yield what a job logs that has its loader ``ahead`` steps, and an id at each ``every``-th."""
    seq, when = 0, 1_000.0
    for step in steps:
        seq, when = seq + 2, when + 0.1
        if (step + ahead) % every == 0:
            data = {"fingerprint": f"{0x9E3779B97F4A7C15 * (step + ahead + 1) % 2**64:016x}", "of": "ids", "samples": 4}
            yield SpooledEvent(seq - 1, "batch", when, step + ahead, data)
        yield SpooledRow(seq, ("loss",), struct.pack("<qdd", step, when + 0.05, 2.0 + 0.01 * (step % 7)))


def _fold(rank: int, records: list[Record], sizes: Iterator[int]) -> RunState:
    state, at = RunState("run", lambda: 5_000.0), 0
    info = SourceInfo(f"r{rank}-1", rank, 1, 0, "n0", 1, 1_000.0)
    while at < len(records):
        size = next(sizes)
        frame = frame_of(info, records[at : at + size])
        state.apply(Frame(info, at + 1, at + len(records[at : at + size]), frame.blocks), replayed=False)
        at += size
    return state


def _known(state: RunState) -> tuple[object, ...]:
    batches, path = state.batches, state.fold.tree.path()
    ids = [batches.ids.on(path, step) for step in range(400)]
    segments = [(one.id, one.parent, one.fork_step) for one in state.fold.tree]
    found = [(one.kind, one.onset_step, one.state) for one in state.incidents.all()]
    return ids, segments, batches.repeats.judged, batches.repeats.repeated, batches.passed_over, found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("ahead", "every"), [(0, 1), (1, 1), (0, 8)])
def test_frame_borders_change_nothing_of_what_is_known_of_batches(seed: int, ahead: int, every: int) -> None:
    rng = random.Random(seed)
    back = rng.randrange(90, 160)
    records = list(_records([*range(200), *range(back, 300)], ahead, every))  # the loop goes back, and says nothing
    one_by_one = _fold(0, records, iter(lambda: 1, 0))
    in_frames = _fold(0, records, iter(lambda: rng.randrange(1, 128), 0))
    assert len(one_by_one.fold.tree) == 2
    assert _known(in_frames) == _known(one_by_one)
