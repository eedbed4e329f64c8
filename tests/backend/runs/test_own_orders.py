"""The server asks for the batch behind a spike once, while the job can still have it, and where the job wants that."""

from __future__ import annotations

import math
from typing import Any

import pytest

from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.commands import CommandRequest, ShowBatches
from stabilityclient.wire import Health
from support.job_frames import Job


def _state(now: float) -> RunState:
    state = RunState("run", lambda: now)
    state.agents.health(Health("a1", "n0", now, []))
    return state


def _nan_at_60(state: RunState, *, replayed: bool = False, **ring: Any) -> list[Any]:
    """Fold a job whose loss is NaN at step 60; return the commands that it led to."""
    job = Job()
    found: dict[str, Any] = {}
    losses = {"loss": [2.0 + step % 7 / 100 for step in range(1, 60)] + [math.nan]}
    frames = [job.event("start"), job.event("keeps_batches", **ring), job.rows(range(1, 61), losses)]
    for frame in [*frames, job.rows([61, 62, 63], {"loss": [2.0] * 3})]:
        found |= state.apply(frame, replayed=replayed).commands
    return list(found.values())


def test_a_nan_has_its_batch_asked_for_once_with_its_step() -> None:
    state = _state(1_010.0)
    (command,) = _nan_at_60(state, last=8, on_spike=True)
    assert isinstance(command, ShowBatches)
    (incident,) = state.incidents.all()
    assert (command.step, command.incident_id, command.issuer) == (60, incident.incident_id, "stabilityboard")
    again = _state(1_010.0)
    again.commands.load(state.commands.all())
    assert _nan_at_60(again, last=8, on_spike=True) == []


@pytest.mark.parametrize(
    ("now", "more"),
    [(1_010.0, {"on_spike": False}), (9_000.0, {"on_spike": True}), (1_010.0, {"on_spike": True, "replayed": True})],
    ids=["the job does not want it", "a backlog of hours", "frames of before a restart"],
)
def test_nobody_is_asked_where_it_is_not_wanted_or_too_late(now: float, more: dict[str, Any]) -> None:
    assert _nan_at_60(_state(now), last=8, **more) == []


def test_who_orders_it_for_an_incident_gets_the_step_of_that() -> None:
    state = _state(1_010.0)
    _nan_at_60(state, last=8)
    (incident,) = state.incidents.all()
    request = CommandRequest("show_batches", incident_id=incident.incident_id)
    command: Any = state.issue(request, command_id="c-1", issuer="ada")
    assert (command.step, command.world_size) == (60, 1)


def test_of_ranks_that_read_one_batch_the_one_that_keeps_it_is_waited_for() -> None:
    state = _state(1_010.0)
    keeper, *others = (Job(rank, world_size=4) for rank in range(4))
    for frame in (keeper.event("keeps_batches", last=8), *(job.rows(range(1, 9)) for job in (keeper, *others))):
        state.apply(frame, replayed=False)
    command: Any = state.issue(CommandRequest("show_batches", step=8), command_id="c-1", issuer="ada")
    for job, said in (*((job, "rejected") for job in others), (keeper, "acted")):
        state.apply(job.event("command", 8, command_id="c-1", state=said, detail="8 samples"), replayed=False)
    assert (command.state, list(command.ranks)) == ("done", ["0"])
