"""However the rows of a run are cut into batches, its state, its findings and its snapshots are the same."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import to_builtins

from stabilitybackend.lineage import joining
from stabilitybackend.runs import pending_frames
from stabilitybackend.runs.archiving.window import FRAME_OVERHEAD_BYTES
from stabilitybackend.runs.detector_settings import DetectorSettings
from stabilitybackend.runs.pending_frames import PendingFrames
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.detectors import DetectorChange
from stabilityclient.node_frames import together
from stabilityclient.wire import Frame, PointsBlock, encode_message
from support.job_frames import Job
from support.jobs.job_stories import MOVES, Story, stories, tell


def _rows_of(frame: Frame) -> list[Frame]:
    """Return a frame for each row of a frame, or the frame itself where it is an event."""
    (block,) = frame.blocks
    if not isinstance(block, PointsBlock):
        return [frame]
    steps, times = (np.frombuffer(one, "<i8") for one in (block.steps, block.times))
    values, rows = np.frombuffer(block.values, "<i8").reshape(len(block.names), len(steps)), []
    for at in range(len(steps)):
        columns = [np.ascontiguousarray(one).tobytes() for one in (steps[at], times[at], values[:, at])]
        seq = frame.first_seq + at
        rows.append(Frame(frame.source, seq, seq, [PointsBlock(block.names, *columns)]))
    return rows


def _row_by_row(frames: Sequence[Frame], *, nodes: bool) -> list[bytes]:
    """Return messages of a row a rank: of all ranks that log in turn, or of each rank alone."""
    messages: list[bytes] = []
    for _, some in groupby(frames, key=lambda frame: (type(frame.blocks[0]), len(_rows_of(frame)))):
        ranks: list[list[Frame]] = []
        for frame in [*some, None]:
            if frame is None or frame.source.source in {rank[0].source.source for rank in ranks}:
                for row in zip(*ranks, strict=True):
                    if nodes and len(row) > 1:
                        messages.append(encode_message(together(row)))
                    else:
                        messages += [encode_message(one) for one in row]
                ranks = []
            if frame is not None:
                ranks.append(_rows_of(frame))
    return messages


class _Run:
    """A run whose messages come in batches.

    Args:
        changes: positions at which detectors get another setting.
        limit_bytes: of a generation.
        applied: up to there it is replayed.
    """

    def __init__(self, changes: Sequence[int], limit_bytes: int, applied: int) -> None:
        self.state = RunState("run", lambda: 9_000.0)
        nowhere: Any = SimpleNamespace(redis=None)
        self.settings = DetectorSettings("run", nowhere, nowhere, nowhere, nowhere)
        self.settings._changes = [
            DetectorChange(f"{at}-0", {"curve": {"sensitivity": 1.0 + 0.5 * (number % 2)}}, "ada", 1.0)
            for number, at in enumerate(sorted(changes))
        ]
        self.limit_bytes, self.applied = limit_bytes, f"{applied}-0"
        #: Its state after each call.
        self.frozen: dict[str, Any] = {}
        self.rows: list[tuple[Any, ...]] = []
        self.cuts: list[str] = []

    def take(self, messages: Sequence[tuple[str, bytes]], *, look: bool = True) -> None:
        waiting = PendingFrames(messages)
        while waiting:
            room = self.limit_bytes - self.state.store.open.bytes
            found = waiting.fold(self.state, self.settings, self._begin, self.applied, room)
            newest, _ = waiting.newest
            for placed in [one for batch in found.batches for one in batch.each()]:
                for at, step in enumerate(placed.steps.tolist()):
                    row = (placed.source, step, placed.values[:, at].tobytes(), placed.names, placed.stray)
                    self.rows.append((placed.segment, *row))
            if look:
                self.frozen[newest] = (_parts(self.state), to_builtins(self.state.incidents.all()))
            if self.state.store.open.bytes >= self.limit_bytes:
                self.state.store.cut(b"")
                self.cuts.append(newest)

    def _begin(self, frame_id: str, size: int, ahead: int) -> None:
        self.state.store.begin(frame_id, size + FRAME_OVERHEAD_BYTES, ahead)

    def seen(self) -> tuple[Any, ...]:
        """Return all that the run knows, in points the order of arrival as well."""
        state, view = self.state, self.state.store.view()
        stored = [
            (key, *(column.tobytes() for column in (rows.steps, rows.values, rows.times)))
            for metric in view.metrics() for key in view.keys(metric) for rows in [view.rows(key)]
        ]  # fmt: skip
        came = sorted(
            (rows.placed.names, rows.placed.rank, int(order))
            for generation in state.store.generations
            for rows in generation.stretch(generation.start).tables
            for order in rows.order
        )
        marks = [generation.stretch(generation.start).marks.tolist() for generation in state.store.generations]
        return _parts(state), to_builtins(state.view()), stored, came, marks, sorted(self.rows), self.cuts


def _parts(state: RunState) -> dict[str, Any]:
    """Return all that a snapshot holds, by the consumers' names for it."""
    return {part.name: part for part in state.saved()}


def _numbered(messages: Sequence[bytes]) -> list[tuple[str, bytes]]:
    return [(f"{number}-0", message) for number, message in enumerate(messages, 1)]


def _batches(messages: Sequence[Any], sizes: Sequence[int]) -> Iterator[Sequence[Any]]:
    at = 0
    for size in chain(sizes, [len(messages)]):
        yield messages[at : at + size]
        at += size


def _compared(messages: Sequence[bytes], sizes: Sequence[int], *facts: Any) -> _Run:
    """Fold messages in batches and one by one; assert that it is the same after each that ended a batch."""
    alone, at_once = _Run(*facts), _Run(*facts)
    for some in _batches(_numbered(messages), sizes):
        at_once.take(some)
    for one in _numbered(messages):
        alone.take([one], look=one[0] in at_once.frozen)
    assert at_once.frozen == alone.frozen
    assert at_once.seen() == alone.seen()
    return at_once


@settings(deadline=None, max_examples=16)
@given(
    stories((*MOVES, "spike", "train")),
    st.booleans(),
    st.lists(st.integers(1, 90), max_size=12),
    st.lists(st.integers(1, 600), max_size=3),
    st.sampled_from([3_000, 20_000, 10**9]),
    st.integers(0, 200),
)
def test_any_job_is_the_same_run_however_many_messages_wait(
    told: tuple[Story, int], nodes: bool, sizes: list[int], changes: list[int], limit_bytes: int, applied: int
) -> None:
    _compared(_row_by_row(tell(*told), nodes=nodes), sizes, changes, limit_bytes, applied)


@settings(deadline=None, max_examples=16)
@given(stories((*MOVES, "spike", "train")), st.integers(1, 40))
def test_any_job_is_the_same_run_however_large_its_batches_may_be(told: tuple[Story, int], most: int) -> None:
    states = []
    for rows in (most, joining.MAX_ROWS):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(joining, "MAX_ROWS", rows)
            patch.setattr(pending_frames, "MAX_ROWS", rows)
            run = _Run([], 10**9, 0)
            run.take(_numbered(_row_by_row(tell(*told), nodes=True)), look=False)
            states.append(run.seen())
    assert states[0] == states[1]


@settings(deadline=None, max_examples=16)
@given(stories((*MOVES, "spike", "train")))
def test_any_job_is_the_same_run_whether_its_frames_hold_a_row_or_many(told: tuple[Story, int]) -> None:
    frames, runs = tell(*told), []
    for some in (frames, [row for frame in frames for row in _rows_of(frame)]):
        run = _Run([], 10**9, 0)
        run.take(_numbered([encode_message(frame) for frame in some]), look=False)
        frozen, view, stored, came, _, rows, _ = run.seen()
        runs.append((frozen, view, stored, came, rows, to_builtins(run.state.incidents.all())))
    assert runs[0] == runs[1]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of messages that were folded at once."""
    counts, apply = list[int](), RunState.apply

    def noted(state: RunState, *messages: Any, **options: Any) -> Any:
        counts.append(len(messages))
        return apply(state, *messages, **options)

    monkeypatch.setattr(RunState, "apply", noted)
    return counts


def _messages(step: int, ranks: Sequence[Job], loss: float, names: Sequence[str]) -> list[bytes]:
    """Return what a node of two ranks and one of the others send for a step."""
    rows = []
    for number, job in enumerate(ranks):
        shares = {name: [loss * (1 + 0.01 * ((7 * step + 3 * at) % 11))] for at, name in enumerate(names)}
        rows.append(job.rows([step], {"loss": [loss], "lr": [1e-3], **shares} if number < 3 else {"tokens": [step]}))
    return [encode_message(together(rows[:2])), encode_message(together(rows[2:]))]


def _noisy(step: int) -> float:
    return 2.0 + 0.02 * ((7 * step) % 13 - 6) / 6 + 1 / (1 + step)


@pytest.mark.parametrize(("size", "applied"), [(5, 0), (16, 610), (90, 681)])
def test_spikes_and_losses_that_are_no_numbers_are_the_same_findings_in_batches(
    size: int, applied: int, at_once: list[int]
) -> None:
    ranks, messages = [Job(rank, world_size=4) for rank in range(4)], []
    for step in range(1, 420):
        loss = math.nan if step in (300, 371) else _noisy(step) * (3 if 340 <= step < 345 else 1)
        messages += _messages(step, ranks, loss, ["loss/web", "loss/code"])
    run = _compared(messages, [size] * (len(messages) // size), [], 10**9, applied)
    assert {incident.kind for incident in run.state.incidents.all()} == {"nonfinite", "spike"}
    assert max(at_once) == size


def test_a_setting_that_comes_while_messages_wait_holds_from_the_next_one(at_once: list[int]) -> None:
    job = Job()
    messages = [encode_message(job.rows([step], {"loss": [_noisy(step)]})) for step in range(1, 200)]
    messages += [encode_message(job.rows([step], {"loss": [3 * _noisy(step)]})) for step in range(200, 240)]
    before, after = (_Run([], 10**9, 0) for _ in range(2))
    for run, wait in ((before, len(messages)), (after, 1)):
        for some in _batches(_numbered(messages[:180]), [wait]):
            run.take(some)
        run.settings._changes = [DetectorChange("180-0", {"curve": {"sensitivity": 0.0}}, "ada", 1.0)]
        for some in _batches([*_numbered(messages)][180:], [1] * wait if run is after else [wait]):
            run.take(some)
    assert before.seen() == after.seen()
    assert [incident.kind for incident in before.state.incidents.all() if incident.kind == "spike"] == []
    assert max(at_once) > 20


def test_ranks_that_tell_the_time_of_their_own_work_and_large_nodes_are_the_same_in_batches() -> None:
    ranks = [Job(rank, world_size=80) for rank in range(80)]
    messages = [encode_message(together([job.rows([step]) for job in ranks])) for step in range(1, 30)]
    messages += [encode_message(ranks[0].rows([step], {"data_time_s": [0.1]})) for step in range(30, 60)]
    _compared(messages, [], [], 10**9, 0)
