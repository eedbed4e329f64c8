"""A snapshot stands for the frames that it was folded from, or it is refused."""

from __future__ import annotations

import os
import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stabilitybackend.base.saving import SavedPart, pack, unpacked_list
from stabilitybackend.judging.detectors.registry import DETECTORS
from stabilitybackend.lineage.batch import Batch, Placed
from stabilitybackend.runs.archiving import snapshot
from stabilitybackend.runs.archiving.snapshot import SnapshotError
from stabilitybackend.runs.state import RunState
from stabilityclient.wire import Frame
from support.job_frames import Job
from support.jobs.job_stories import Story, stories, tell


def _now() -> float:
    return 9_000.0


class _Fold:
    """A state, and what it said of the frames."""

    def __init__(self, state: RunState | None = None) -> None:
        self.state = state or RunState("run", _now)
        self.placed: list[tuple[Any, ...]] = []
        self.rows: list[Placed] = []

    def feed(self, frames: list[Frame]) -> _Fold:
        for frame in frames:
            changes = self.state.apply(frame, replayed=False)
            rows = [placed for batch in changes.batches for placed in batch.each()]
            self.rows += rows
            self.placed += [
                _plain(p.at(p.segment, slice(row, row + 1), stray=p.stray)) for p in rows for row in range(len(p.steps))
            ]
        return self

    def restarted(self, data: bytes | None = None) -> _Fold:
        """Return this fold as a server finds it that starts again: from a snapshot and from what is stored."""
        state = snapshot.load(data or snapshot.seal(snapshot.freeze(self.state)), "run", _now)
        for placed in self.rows:
            state.store.add(Batch.of([placed]))
        state.judge.judge_again()
        state.incidents.load(self.state.incidents.all())
        state.liveness.load(self.state.incidents.all())
        state.commands.load(self.state.commands.all())
        return _Fold(state)

    def facts(self) -> dict[str, Any]:
        """Return all that anybody can ask."""
        state = self.state
        tick = state.tick()
        return {
            "segments": state.fold.tree.view().segments,
            "head": state.fold.tree.head,
            "pending": [_plain(p) for p in state.fold.pending()],
            "incidents": state.incidents.all(),
            "told": sorted(i.kind for i in tick.incidents.values()),
            "checkpoints": state.job.checkpoints(),
            "job": state.job.view(),
            "view": state.view(),
        }


def _plain(placed: Placed) -> tuple[Any, ...]:
    arrays = (placed.steps.tolist(), placed.times.tolist(), [[repr(v) for v in row] for row in placed.values.tolist()])
    return (placed.segment, placed.source, placed.rank, placed.node, placed.names, placed.stray, *arrays)


@settings(max_examples=25, deadline=None)
@given(told=stories(), where=st.floats(0, 1))
def test_a_fold_that_was_written_down_half_way_goes_on_as_if_it_had_not_been(
    told: tuple[Story, int], where: float
) -> None:
    frames = tell(*told)
    cut = round(where * len(frames))
    whole = _Fold().feed(frames)
    first = _Fold().feed(frames[:cut])
    second = first.restarted().feed(frames[cut:])
    assert first.placed + second.placed == whole.placed
    assert second.facts() == whole.facts()


def test_a_detector_goes_back_to_a_state_from_before_the_restart() -> None:
    job = Job()
    frames = [job.rows([s], {"loss": [2.0 + 0.01 * (s % 3)]}) for s in range(1, 301)]
    frames += [job.rows([s], {"loss": [9.0]}) for s in range(301, 305)]
    end = [job.rolled_back(200, "k"), *(job.rows([s], {"loss": [9.0]}) for s in range(201, 204))]
    second = _Fold().feed(frames).restarted().feed(end)
    kinds = [(i.kind, i.onset_step, i.segment) for i in second.state.incidents.all()]
    assert kinds == [("resume_artifact", 201, 1), ("spike", 301, 0)]


def test_a_death_that_was_over_before_the_restart_stays_over() -> None:
    job, again = Job(0, 1), Job(0, 2)
    first = _Fold().feed([job.rows([1, 2, 3]), job.event("exception", 3, type="RuntimeError", message="gone")])
    first.state.tick()
    frozen = first.restarted()
    first.feed([again.event("start", 3), again.rows([4, 5])])
    first.state.tick()
    stored = first.state.incidents.all()
    assert [i.state for i in stored] == ["resolved"]
    state = snapshot.load(snapshot.seal(snapshot.freeze(frozen.state)), "run", _now)
    state.incidents.load(stored)
    state.liveness.load(stored)
    assert state.liveness.status(_now())[0] != "crashed"
    assert not state.tick().incidents


def test_no_agent_is_lost_because_the_server_was_away() -> None:
    from stabilityclient.wire import Health

    job = Job()
    now = [1_000.0]
    state = RunState("run", lambda: now[0])
    state.apply(job.rows([1, 2, 3]), replayed=False)
    slot = {"rank": 0, "source": job.info.source, "pid": 1, "alive": True, "state": "running", "step": 3}
    state.agents.health(Health("a1", "n0", 1_000.0, [slot]))
    now[0] = 5_000.0
    later = snapshot.load(snapshot.seal(snapshot.freeze(state)), "run", lambda: now[0])
    assert not later.tick().incidents
    assert later.view().status == "running"


def _small() -> RunState:
    state = RunState("run", _now)
    state.apply(Job().rows(range(1, 101)), replayed=False)
    return state


@settings(max_examples=100, deadline=None)
@given(at=st.integers(0, 10**9), flip=st.integers(1, 255))
def test_a_flipped_byte_anywhere_is_refused(at: int, flip: int) -> None:
    data = bytearray(_SMALL)
    data[at % len(data)] ^= flip
    with pytest.raises(SnapshotError):
        snapshot.load(bytes(data), "run", _now)


_FROZEN = snapshot.freeze(_small())
_SMALL = snapshot.seal(_FROZEN)


@pytest.mark.parametrize("cut", [0, 5, 17, 18, 100, -1])
def test_a_truncated_snapshot_is_refused(cut: int) -> None:
    with pytest.raises(SnapshotError, match="snapshot"):
        snapshot.load(_SMALL[:cut], "run", _now)


@settings(max_examples=200, deadline=None)
@given(at=st.integers(0, 10**9), flip=st.integers(1, 255))
def test_a_flipped_byte_under_a_good_checksum_gives_a_state_or_is_refused(at: int, flip: int) -> None:
    data = bytearray(_FROZEN)
    data[at % len(data)] ^= flip
    try:
        state = snapshot.load(snapshot.seal(bytes(data)), "run", _now)
    except SnapshotError:
        return
    assert isinstance(state, RunState)


class _Runs:
    """Writes a folder when it is unpickled."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (self.place,))


def test_a_snapshot_of_the_versions_that_were_pickles_is_passed_over_and_nothing_of_it_runs(tmp_path: Path) -> None:
    pickled = pickle.dumps(_Runs(str(tmp_path / "made")))
    body = zlib.compress(pickled)
    old = struct.pack("<4sH8sQI", b"SBST", 5, bytes(8), len(pickled), zlib.crc32(body)) + body
    with pytest.raises(SnapshotError, match="version 5, this server writes 6"):
        snapshot.load(old, "run", _now)
    with pytest.raises(SnapshotError, match="holds no parts"):
        snapshot.load(snapshot.seal(pickled), "run", _now)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("content", [None, {}, [], 1, [1, 2], [["lineage", 1, b"", b""]], [["lineage"]]])
def test_a_snapshot_of_something_else_is_refused(content: object) -> None:
    with pytest.raises(SnapshotError):
        snapshot.load(snapshot.seal(msgspec.msgpack.encode(content)), "run", _now)


def test_another_version_is_refused_by_name() -> None:
    data = bytearray(_SMALL)
    data[4:6] = (snapshot.VERSION + 1).to_bytes(2, "little")
    with pytest.raises(SnapshotError, match=f"version {snapshot.VERSION + 1},"):
        snapshot.load(bytes(data), "run", _now)


# --- parts of other versions -----------------------------------------------------------------------------------------

_PRIMARY = [name for name, make in DETECTORS.items() if not make().every_rank]
_OWN = {f"detectors.{name}" for name in _PRIMARY}
_OTHERS = sorted(part.name for part in _small().saved() if part.name not in _OWN | {"detectors.context"})


def _with(frozen: bytes, change: Callable[[SavedPart], SavedPart | None]) -> bytes:
    """Return a snapshot of ``frozen`` with its parts changed, and without those for which None is returned."""
    parts = [changed for part in unpacked_list(frozen).values() if (changed := change(part)) is not None]
    return snapshot.seal(pack(parts))


@pytest.mark.parametrize("name", _OTHERS)
def test_a_part_of_another_version_makes_the_frames_the_only_source(name: str) -> None:
    raised = _with(_FROZEN, lambda part: replace(part, version=part.version + 1) if part.name == name else part)
    other = _with(_FROZEN, lambda part: replace(part, shape=bytes(8)) if part.name == name else part)
    lacks = _with(_FROZEN, lambda part: None if part.name == name else part)
    for data in (raised, other, lacks):
        with pytest.raises(SnapshotError, match=name.rpartition(".")[2]):
            snapshot.load(data, "run", _now)


@pytest.mark.parametrize("name", _PRIMARY)
def test_a_detector_of_another_version_is_named_and_the_others_are_taken_up(name: str) -> None:
    loaded = snapshot.load(
        _with(
            _FROZEN, lambda part: replace(part, version=part.version + 1) if part.name == f"detectors.{name}" else part
        ),
        "run",
        _now,
    )
    assert list(loaded.judge.unfit) == [name]


@settings(max_examples=40, deadline=None)
@given(told=stories(), where=st.floats(0, 1), names=st.sets(st.sampled_from(sorted(_OWN)), min_size=1))
@pytest.mark.soak
def test_detectors_that_judge_the_past_again_find_what_they_would_have_found(
    told: tuple[Story, int], where: float, names: set[str]
) -> None:
    frames = tell(*told)
    cut = round(where * len(frames))
    whole = _Fold().feed(frames)
    first = _Fold().feed(frames[:cut])
    data = _with(snapshot.freeze(first.state), lambda part: None if part.name in names else part)
    second = first.restarted(data).feed(frames[cut:])
    assert second.facts() == whole.facts()


def test_an_open_spike_goes_on_under_its_key_when_its_detector_judged_the_past_again() -> None:
    job = Job()
    frames = [job.rows([s], {"loss": [2.0 + 0.01 * (s % 3)]}) for s in range(1, 301)]
    frames += [job.rows([s], {"loss": [9.0 + 0.1 * (s % 3)]}) for s in range(301, 306)]
    end = [job.rows([s], {"loss": [2.0 + 0.01 * (s % 3)]}) for s in range(306, 330)]
    first = _Fold().feed(frames)
    data = _with(snapshot.freeze(first.state), lambda part: None if part.name == "detectors.curve" else part)
    second = first.restarted(data).feed(end)
    found = [(i.kind, i.onset_step, i.state) for i in second.state.incidents.all()]
    assert found == [("spike", 301, "recovered")]
    assert second.facts() == first.feed(end).facts()


def test_a_snapshot_that_unpacks_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_STATE_BYTES", 1_000_000)
    with pytest.raises(SnapshotError, match="expected at most"):
        snapshot.load(snapshot.seal(bytes(2_000_000)), "run", _now)


def test_a_segment_undone_since_makes_the_frames_the_only_source() -> None:
    job = Job()
    state = _Fold().feed([job.rows(range(1, 101)), job.rows(range(1, 31))]).state
    key = state.fold.tree[1].key
    with pytest.raises(SnapshotError, match=key):
        snapshot.load(snapshot.seal(snapshot.freeze(state)), "run", _now, undone=[key])


def test_a_segment_undone_that_the_snapshot_never_saw_does_not_matter() -> None:
    loaded = snapshot.load(_SMALL, "run", _now, undone=["u-r0-9-1"])
    assert loaded.fold.undone == {"u-r0-9-1"}
