"""What the detectors of a run are told: the primary rank's effective rows, the forks between them, and what again."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabilitybackend.base.saving import restore
from stabilitybackend.judging.detection import run_detection
from stabilitybackend.judging.detectors.engine.base import Detector, Finding, Mark, Point, fresh
from stabilitybackend.lineage.lineage import Lineage
from stabilitybackend.runs.state import RunState
from stabilitybackend.storage.points.points import Points
from stabilityclient.agent.upload.framing import frame_of
from stabilityclient.agent.upload.records import SpooledRow
from stabilityclient.wire import Frame
from support.job_frames import Job


class Listener(Detector):
    """Remembers all that it is told."""

    name: ClassVar[str] = "listener"
    kinds: ClassVar[tuple[str, ...]] = ("spike",)

    heard: list[tuple[Any, ...]] = fresh(list)

    def wants(self, metric: str) -> bool:
        return metric in ("loss", "grad_norm")

    def update(self, point: Point) -> list[Finding]:
        self.heard.append((point.step, point.metric, point.value) if not self.every_rank else (point.rank, point.step))
        return []

    def note(self, mark: Mark) -> list[Finding]:
        left = {metric: [list(point) for point in points] for metric, points in mark.data["left_behind"].items()}
        data = {"fork_step": mark.data["fork_step"], "cause": mark.data["cause"], "left_behind": left}
        self.heard.append((mark.kind, mark.step, data))
        return []


class EveryRank(Listener):
    """Hears all ranks."""

    name: ClassVar[str] = "every_rank"
    every_rank: ClassVar[bool] = True


@pytest.fixture(autouse=True)
def listeners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_detection, "DETECTORS", {"listener": Listener, "every_rank": EveryRank})


def told(frames: Sequence[Frame], state: RunState | None = None) -> RunState:
    state = RunState("run", lambda: 1e6) if state is None else state
    for frame in frames:
        state.apply(frame, replayed=False)
    return state


def heard(state: RunState, name: str = "listener") -> list[Any]:
    parts = {part.name: part for part in state.judge.saved()}
    again = Listener() if name == "listener" else EveryRank()
    restore(again, parts[f"detectors.{name}" if name == "listener" else f"ranks.{name}"], name)
    return again.heard


def losses(*points: tuple[int, float]) -> list[Any]:
    return [(step, "loss", value) for step, value in points]


def test_a_fork_is_told_right_before_its_first_row_with_what_the_old_branch_had_logged() -> None:
    job = Job()
    frames = [job.rows([1, 2, 3, 4], {"loss": [4.0, 3.0, 2.0, 9.0]}), job.rolled_back(2, "k")]
    state = told([*frames, job.rows([3, 4], {"loss": [2.5, 2.4]})])
    fork = ("fork", 3, {"fork_step": 2, "cause": "declared", "left_behind": {"loss": [[3, 2.0], [4, 9.0]]}})
    assert heard(state) == [*losses((1, 4.0), (2, 3.0)), fork, *losses((3, 2.5), (4, 2.4))]


def test_a_fork_that_another_rank_speaks_of_first_tells_all_that_the_primary_rank_left_behind() -> None:
    first, other = Job(0, world_size=2), Job(1, world_size=2)
    frames = [
        first.rows([1, 2], {"loss": [4.0, 3.0]}),
        other.rows([1, 2, 3, 4], {"loss": [1.0, 1.0, 1.0, 1.0]}),
        other.rolled_back(2, "k"),
        first.rows([3, 4], {"loss": [2.0, 9.0]}),
        first.rolled_back(2, "k"),
        first.rows([3], {"loss": [2.5]}),
    ]
    fork = ("fork", 3, {"fork_step": 2, "cause": "declared", "left_behind": {"loss": [[3, 2.0], [4, 9.0]]}})
    assert heard(told(frames)) == [*losses((1, 4.0), (2, 3.0)), fork, *losses((3, 2.5))]


def test_going_back_twice_to_one_step_tells_each_time_of_the_branch_that_was_left_last() -> None:
    job = Job()
    frames = [job.rows([1, 2], {"loss": [4.0, 3.0]})]
    for turn, value in enumerate((5.0, 6.0)):
        frames += [job.rolled_back(1, f"k{turn}"), job.rows([2], {"loss": [value]})]
    fork = ("fork", 2, {"fork_step": 1, "cause": "declared", "left_behind": {"loss": [[2, 5.0]]}})
    assert heard(told(frames)) == [*losses((1, 4.0)), fork, *losses((2, 6.0))]


def test_another_process_that_goes_on_where_the_last_one_ended_is_told_as_a_resume() -> None:
    first, second = Job(start=1), Job(start=2)
    state = told([first.rows([1, 2], {"loss": [4.0, 3.0]}), second.rows([3, 4], {"loss": [2.0, 1.0]})])
    fork = ("fork", 3, {"fork_step": 2, "cause": "resume", "left_behind": {}})
    assert heard(state) == [*losses((1, 4.0), (2, 3.0)), fork, *losses((3, 2.0), (4, 1.0))]


def test_a_resume_is_told_again_after_a_rollback_to_behind_it_and_forgotten_after_one_to_before_it() -> None:
    first, second = Job(start=1), Job(start=2)
    frames = [first.rows([1, 2], {"loss": [4.0, 3.0]}), second.rows([3, 4], {"loss": [2.0, 1.0]})]
    behind = told([*frames, second.rolled_back(3, "k"), second.rows([4], {"loss": [7.0]})])
    before = told([*frames, second.rolled_back(1, "k"), second.rows([2], {"loss": [7.0]})])
    assert [entry[2]["cause"] for entry in heard(behind) if entry[0] == "fork"] == ["resume", "declared"]
    assert [entry[2]["cause"] for entry in heard(before) if entry[0] == "fork"] == ["declared"]


def test_detectors_of_every_rank_hear_all_ranks_and_the_others_only_the_lowest() -> None:
    frames = [Job(rank, world_size=3).rows([1], {"loss": [1.0 * rank]}) for rank in (0, 1, 2)]
    state = told(frames)
    assert heard(state) == losses((1, 0.0))
    assert heard(state, "every_rank") == [(0, 1), (1, 1), (2, 1)]


def test_a_lower_rank_that_comes_late_is_the_one_that_is_judged_from_the_beginning() -> None:
    late, early = Job(0, world_size=2), Job(1, world_size=2)
    frames = [early.rows([1, 2, 3], {"loss": [9.0, 9.0, 9.0]}), late.rows([1, 2], {"loss": [1.0, 2.0]})]
    assert heard(told(frames)) == losses((1, 1.0), (2, 2.0))


@settings(max_examples=60, deadline=None)
@given(
    moves=st.lists(st.tuples(st.integers(1, 12), st.floats(0, 1)), min_size=1, max_size=5),
    cuts=st.randoms(use_true_random=False),
)
@pytest.mark.soak
def test_neither_frame_borders_nor_a_restart_of_the_server_change_what_detectors_hear(
    moves: list[tuple[int, float]], cuts: Any
) -> None:
    whole, pieces = Job(), Job()
    plain = RunState("run", lambda: 1e6)
    broken = RunState("run", lambda: 1e6)
    last = 0
    for turn, (count, back) in enumerate(moves):
        steps = list(range(last + 1, last + count + 1))
        rows = {"loss": [turn + step / 100 for step in steps], "grad_norm": [1.0 * step for step in steps]}
        told([whole.rows(steps, rows)], plain)
        while steps:
            some = cuts.randint(1, len(steps))
            told([pieces.rows(steps[:some], {name: values[:some] for name, values in rows.items()})], broken)
            steps, rows = steps[some:], {name: values[some:] for name, values in rows.items()}
        saved = {part.name: part for part in broken.judge.saved()}
        broken.judge.__init__(broken[Lineage], broken[Points])  # type: ignore[misc]
        broken.judge.restore(saved)
        fork = int(back * (last + count))
        told([whole.rolled_back(fork, f"k{turn}")], plain)
        told([pieces.rolled_back(fork, f"k{turn}")], broken)
        last = fork
    assert heard(broken) == heard(plain)


@settings(max_examples=80, deadline=None)
@given(
    calls=st.lists(
        st.tuples(st.sampled_from([("loss",), ("grad_norm", "lr"), ("x",)]), st.integers(-3, 2)), min_size=2
    ),
    cuts=st.randoms(use_true_random=False),
)
def test_rows_of_several_sets_in_turn_are_heard_in_one_order_however_they_are_framed(
    calls: list[tuple[tuple[str, ...], int]], cuts: Any
) -> None:
    info, records, step = Job().info, [], 10
    for seq, (names, move) in enumerate(calls, 1):
        step = max(0, step + move)
        values = [seq + i / 8 for i in range(len(names))]
        records.append(SpooledRow(seq, names, struct.pack(f"<qd{len(names)}d", step, 100.0 + seq, *values)))
    single = told([frame_of(info, [record]) for record in records])
    framed = RunState("run", lambda: 1e6)
    while records:
        some = cuts.randint(1, len(records))
        told([frame_of(info, records[:some])], framed)
        records = records[some:]
    assert heard(framed) == heard(single)
    assert sorted(map(str, heard(framed, "every_rank"))) == sorted(map(str, heard(single, "every_rank")))
    assert framed.fold.tree.view().segments == single.fold.tree.view().segments
