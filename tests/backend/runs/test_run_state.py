"""What one frame changes does not depend on how much the agent put into it."""

from __future__ import annotations

import math

import pytest

from stabilitybackend.lineage.checkpoints import CheckpointBook
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.commands import CommandRequest
from stabilityclient.wire import Frame, Health
from support.job_frames import Job


def _ordered(job: Job) -> RunState:
    state = RunState("run", lambda: 1010.0)
    slot = {"rank": 0, "source": job.info.source, "pid": 1, "alive": True, "state": "running", "step": 20}
    state.agents.health(Health("a1", "n0", 1010.0, [slot]))
    for frame in (job.rows(range(1, 11)), job.event("checkpoint", 10, path="c/10"), job.rows(range(11, 21))):
        state.apply(frame, replayed=False)
    state.issue(CommandRequest("rollback", to_step=10), command_id="c-1", issuer="ada")
    return state


@pytest.mark.parametrize("in_one", [False, True], ids=["frame by frame", "all in one frame"])
def test_a_rollback_is_done_at_its_first_new_point_however_much_comes_with_it(in_one: bool) -> None:
    job = Job()
    state = _ordered(job)
    frames = [
        job.event("command", 21, command_id="c-1", attempt=1, state="ready"),
        job.rolled_back(10, "c-1", command_id="c-1"),
        job.event("command", 21, command_id="c-1", attempt=1, state="acted"),
        job.rows([11, 12]),
        job.event("checkpoint", 12, path="c/12"),
        job.rows([13, 14]),
    ]
    if in_one:
        frames = [Frame(job.info, frames[0].first_seq, frames[-1].last_seq, [b for f in frames for b in f.blocks])]
    for frame in frames:
        state.apply(frame, replayed=False)
    command = state.commands.get("c-1")
    assert command is not None
    assert (command.state, command.segment, command.first_step) == ("done", 1, 11)


@pytest.mark.parametrize("in_one", [False, True], ids=["frame by frame", "all in one frame"])
def test_a_spike_that_was_thrown_away_is_found_however_much_came_with_it(in_one: bool) -> None:
    job, state = Job(), RunState("run", lambda: 1010.0)
    losses = [2.0 + step % 7 / 100 for step in range(100)] + [9.0 + step % 5 / 10 for step in range(20)]
    frames = [
        job.rows(range(120), {"loss": losses}),
        job.rows(range(90, 130), {"loss": losses[:40]}),
    ]
    if in_one:
        frames = [Frame(job.info, 1, frames[-1].last_seq, [block for frame in frames for block in frame.blocks])]
    for frame in frames:
        state.apply(frame, replayed=False)
    assert [(i.kind, i.onset_step, i.segment, i.dead) for i in state.incidents.all()] == [("spike", 100, 0, True)]


def test_steps_that_a_rollback_repeats_make_no_step_longer() -> None:
    job = Job()
    state = RunState("run", lambda: 1010.0)
    for frame in (job.rows(range(1, 101)), job.rolled_back(10, "k"), job.rows(range(11, 31)), job.rows(range(31, 51))):
        state.apply(frame, replayed=False)
    (stretch,) = state.stretches.all()
    assert (stretch.first_step, stretch.last_step) == (1, 50)
    assert stretch.step_s == pytest.approx(0.1, rel=0.02)


def test_a_run_says_in_a_field_that_two_processes_are_one_rank() -> None:
    state, twin = RunState("run", lambda: 1010.0), {"what": "twins", "why": "rank 0 has two processes", "do": ""}
    slot = {"rank": 0, "source": "r0-1-9", "alive": True, "state": "running", "pid": 9, "step": 5}
    said = []
    for time, blind in ((1008.0, []), (1009.0, [twin]), (1010.0, [])):
        state.agents.health(Health("a1", "n0", time, [dict(slot)], {"blind": blind}))
        said.append(state.view().twins)
    assert said == [False, True, False]


def test_a_run_says_when_its_ranks_logged_first_and_last_by_their_own_clock() -> None:
    job, state = Job(), RunState("run", lambda: 9e9)
    assert (state.view().began, state.view().logged) == (None, None)
    for steps in (range(1, 11), range(5, 21)):
        state.apply(job.rows(steps), replayed=True)
    first, second = state.stretches.span or (0.0, 0.0)
    assert first < second < 2000.0  # the job's clock stands at a thousand seconds, the server's far beyond
    assert (state.view().began, state.view().logged) == (first, second)


def test_a_checkpoint_that_comes_while_an_incident_is_open_is_suggested_without_a_look_at_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, state = Job(), RunState("run", lambda: 1010.0)
    state.apply(job.rows(range(1, 101)), replayed=False)
    state.apply(job.rows(range(101, 104), {"loss": [math.nan] * 3}), replayed=False)
    monkeypatch.delattr(CheckpointBook, "__iter__")
    monkeypatch.delattr(CheckpointBook, "__reversed__")
    for step in (40, 90, 102):
        state.apply(job.event("checkpoint", step, path=f"c/{step}"), replayed=False)
    (incident,) = state.incidents.all()
    assert (incident.kind, incident.suggestion.to_step, state.unreadable.note) == ("nonfinite", 90, "")


@pytest.mark.parametrize("rows_a_frame", [1, 7, 200])
def test_the_wait_for_a_spike_turns_into_a_rollback_at_its_step_however_rows_were_cut(rows_a_frame: int) -> None:
    job, state = Job(), RunState("run", lambda: 1010.0)
    state.apply(job.event("checkpoint", 0, path="c/0"), replayed=False)
    losses = [2.0 + step % 7 / 100 if step < 100 else 9.0 - 0.02 * (step - 100) for step in range(160)]
    for at in range(0, 160, rows_a_frame):
        state.apply(
            job.rows(range(at, min(160, at + rows_a_frame)), {"loss": losses[at : at + rows_a_frame]}), replayed=False
        )
    (spike,) = state.incidents.all()
    assert spike.suggestion is not None
    assert (spike.kind, spike.onset_step, spike.recovery) == ("spike", 100, "pending")
    assert (spike.suggestion.action, spike.suggestion.until_step, spike.suggestion.skip_range) == (
        "roll_back", None, [100, 200],
    )  # fmt: skip
