"""A run's state: its worst open incident, else its phase, with one word, tone, shape and place in lists."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from stabilitybackend.runs.shown_state import stated
from stabilitybackend.schema.runs import STATUSES, RunStatus, RunView, WorstIncident
from stabilitybackend.schema.severity import (
    INCIDENT_APPEARANCES,
    PHASE_APPEARANCES,
    SHAPES,
    IncidentStatus,
    NotBack,
    RunPhase,
    Severity,
    ShownState,
    served,
)


def _run(status: RunStatus = "running", worst: WorstIncident | None = None, **more: Any) -> RunView:
    return RunView(status=status, worst_incident=worst, logged=90.0, agents=1, last_step=5, **more)


def _worst(severity: Severity = "critical", *, acknowledged: bool = False) -> WorstIncident:
    return WorstIncident("i-1", "hang", severity, "The job hangs", 42.0, acknowledged)


def _order(run: RunView) -> int:
    return stated(run).state.order


def test_the_table_has_a_row_for_every_severity_status_and_phase() -> None:
    assert set(INCIDENT_APPEARANCES) == set(get_args(Severity))
    assert {frozenset(rows) for rows in INCIDENT_APPEARANCES.values()} == {frozenset(get_args(IncidentStatus))}
    assert set(PHASE_APPEARANCES) == set(get_args(RunPhase))


def test_every_tone_has_a_shape_of_its_own() -> None:
    assert len(set(SHAPES.values())) == len(SHAPES)
    rows = [*PHASE_APPEARANCES.values(), *(row for one in INCIDENT_APPEARANCES.values() for row in one.values())]
    assert all(row.shape == SHAPES[row.tone] for row in rows)


def test_the_worst_open_incident_is_the_state_and_the_phase_stays_beside_it() -> None:
    assert stated(_run("stalled", _worst())).state == ShownState(
        "Hang", "critical", "octagon", 0, 42.0, "i-1", "stalled", "open", "sick"
    )


def test_a_run_that_somebody_stopped_by_hand_is_over_and_no_crash() -> None:
    state = stated(_run("stopped")).state
    assert (state.word, state.tone, state.condition) == ("stopped by hand", "calm", "over")


def test_without_an_incident_the_phase_is_the_state() -> None:
    assert stated(_run(), "checkpointing", 80.0).state == ShownState(
        "checkpointing", "good", "tick", 20, 80.0, None, "checkpointing", None, "well"
    )


@pytest.mark.parametrize("status", STATUSES)
def test_every_status_has_a_phase(status: RunStatus) -> None:
    assert stated(_run(status)).state.phase in PHASE_APPEARANCES


def test_a_run_of_which_nothing_came_is_not_lost() -> None:
    assert stated(RunView()).state.word == "no data yet"


def test_the_sick_come_first_then_what_was_sick_at_its_end_then_the_healthy_then_the_ended() -> None:
    critical, seen, warning = _worst(), _worst(acknowledged=True), _worst("warning")
    runs = [
        _run("stalled", critical), _run("stalled", seen), _run("running", warning), _run("unreachable"),
        _run("finished", critical), _run("finished", warning), _run("running"), _run("finished"),
    ]  # fmt: skip
    orders = [_order(run) for run in runs]
    assert orders == sorted(set(orders))


def test_a_run_that_an_older_server_stored_gets_its_state_when_it_is_read() -> None:
    stored = b'{"status":"crashed","worst_incident":{"incident_id":"i","kind":"hang","severity":"warning","title":"t"}}'
    state = stated(msgspec.json.decode(stored, type=RunView)).state
    assert (state.word, state.tone, state.since, state.phase) == ("Hang", "warning", None, "crashed")


@pytest.mark.parametrize(("status", "looks"), [("running", ("info", "disc")), ("finished", ("calm", "ring"))])
def test_a_run_whose_loss_has_not_come_back_has_no_green_tick(status: RunStatus, looks: tuple[str, str]) -> None:
    missing = NotBack("loss of code", 250)
    state = stated(_run(status), "training", 80.0, missing).state
    assert (state.not_back, (state.tone, state.shape)) == (missing, looks)
    assert stated(_run(status, state=state)).state.not_back == missing


def test_read_again_a_run_keeps_the_phase_that_its_ranks_had() -> None:
    once = stated(_run(), "evaluating", 80.0)
    assert stated(once).state == once.state


def test_the_pages_get_the_table_as_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(served())) == served()
