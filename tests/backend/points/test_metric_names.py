"""A run keeps so many names of metrics; a job that goes on making new ones is counted, and not silent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabilitybackend.judging.detection.naming.watched_names import MAX_NAMES as WATCHED
from stabilitybackend.judging.detectors.engine.row_plans import MAX_REMEMBERED_METRICS
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.metric_roles import dataset_of, mixture_of, role_of
from stabilitybackend.storage.points import metric_names
from stabilityclient.node_frames import together
from stabilityclient.wire import Frame, decode_message, encode_message
from support.job_frames import Job
from support.saved_state import taken_over


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_names, "MAX_METRICS_A_RUN", 5)


def _fed(*frames: Frame) -> RunState:
    state = RunState("run", lambda: 5_000.0)
    for number, frame in enumerate(frames, 1):
        state.store.begin(f"{number}-0", 1)
        message = decode_message(encode_message(frame))
        assert isinstance(message, Frame)
        state.apply(message)
    return state


def _values(state: RunState) -> dict[str, list[float]]:
    keys = [key for name in state.store.metrics() for key in state.store.keys(name)]
    return {key.metric: state.store.rows(key).values.tolist() for key in keys}


def test_values_under_further_names_are_left_out_and_told_and_the_job_goes_on() -> None:
    job = Job()
    state = _fed(
        *(job.rows([step], {"loss": [1.0 / step], f"grad/{step}": [0.5]}) for step in range(1, 20)),
        *(job.rows([step], {f"new/{step}": [1.0]}) for step in range(20, 30)),
    )
    view = state.view()
    assert _values(state) == {"loss": [1.0 / step for step in range(1, 20)]} | {f"grad/{n}": [0.5] for n in range(1, 5)}
    assert (view.metric_count, state.metric_names.left_out) == (5, 15 + 10)
    assert view.log_notes == [
        "A run keeps 5 names of metrics: 25 values under further names were left out, first those of 'grad/5'. Is the "
        "step, or a batch, in the names?"
    ]
    assert (view.last_step, state.step_clock.newest) == (29, 30)  # the step under way is the next one


def test_a_run_with_few_names_has_no_note() -> None:
    assert _fed(Job().rows(range(9))).view().log_notes == []


@settings(deadline=None, max_examples=60)
@given(rows=st.lists(st.sets(st.sampled_from("abcdefghij"), min_size=1), min_size=1, max_size=30))
def test_however_rows_come_the_first_names_are_kept_whole(rows: list[set[str]]) -> None:
    job, names, kept = Job(), list[str](), dict[str, list[float]]()
    frames = []
    for step, row in enumerate(map(sorted, rows)):
        frames.append(job.rows([step], {name: [float(step)] for name in row}))
        for name in row:
            names += [name] if name not in names and len(names) < 5 else []
            if name in names:
                kept.setdefault(name, []).append(float(step))
    state = _fed(*frames)
    assert _values(state) == kept
    left = taken_over(state.metric_names, metric_names.MetricNames())
    assert (left.left_out, left.note) == (state.metric_names.left_out, state.metric_names.note)


def test_the_ranks_of_a_node_share_the_names_that_are_kept() -> None:
    jobs = [Job(rank, 1, 2) for rank in range(2)]
    state = RunState("run", lambda: 5_000.0)
    for step in range(1, 9):
        row: dict[str, Any] = {"loss": [1.0], f"grad/{step}": [2.0]}
        message = together([job.rows([step], row) for job in jobs])
        state.apply(message)
    assert sorted(state.store.metrics()) == ["grad/1", "grad/2", "grad/3", "grad/4", "loss"]
    assert {len(values) for name, values in _values(state).items() if name == "loss"} == {8}


def test_readings_of_machines_are_kept_beside_a_job_that_filled_the_names() -> None:
    job, agent = Job(), Job()
    agent.info.rank, agent.info.source = None, "a1"
    state = _fed(job.rows([1], {f"m{n}": [1.0] for n in range(9)}), agent.rows([1], {"gpu/0/temp_c": [40.0]}))
    assert state.store.metrics() == ["m0", "m1", "m2", "m3", "m4", "gpu/0/temp_c"]


def test_what_is_remembered_of_a_name_has_room_for_all_that_a_run_keeps() -> None:
    # One name too many, and a row of all of them would look up each one anew.
    remembered = [role_of.cache_info().maxsize, dataset_of.cache_info().maxsize, mixture_of.cache_info().maxsize]
    assert min(*filter(None, remembered), MAX_REMEMBERED_METRICS, WATCHED) >= 20_000
