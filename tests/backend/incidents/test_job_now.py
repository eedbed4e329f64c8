"""What is offered about an open incident depends on the job: whether it is there, and can go back on order."""

from __future__ import annotations

from stabilitybackend.judging.incidents.incidents import IncidentBook
from stabilitybackend.judging.incidents.rollback_target import UsableOf
from stabilitybackend.judging.incidents.suggestion import JobNow
from stabilitybackend.schema.incidents import Incident, decoded, encoded, shown
from support.checkpoints import checkpoint
from support.stored.incident import stored

SAVED = UsableOf([checkpoint(150)])
WHY = "the job has no rollback handler (@run.on_rollback, run.can_roll_back)"


def book() -> IncidentBook:
    found = IncidentBook("run")
    found.load([
        stored("divergence", metric="loss", onset_step=220, now_step=300),
        stored("process_death", onset_step=300, now_step=300),
        stored("straggler", onset_step=200, now_step=300),
    ])  # fmt: skip
    found.refresh_suggestions(SAVED, 1.0)
    return found


def of(found: IncidentBook, kind: str) -> Incident:
    (incident,) = found.of({kind})
    return incident


def test_a_job_that_can_not_go_back_is_advised_a_restart_with_the_reason_and_offered_no_rollback() -> None:
    found = book()
    before = of(found, "divergence")
    assert before.suggestion is not None
    assert (before.suggestion.action, "roll_back" in shown(before).actions) == ("roll_back", True)
    changed = found.job_is(JobNow(no_rollback=WHY), SAVED, 2.0)
    now = decoded(encoded(of(found, "divergence")))
    assert now in changed
    assert now.suggestion is not None
    assert (now.suggestion.action, "roll_back" in shown(now).actions) == ("restart", False)
    assert "tart the job again from the checkpoint of step 150" in now.suggestion.text
    assert now.suggestion.text.endswith(f"A rollback can't be ordered: {WHY}.")
    found.job_is(JobNow(), SAVED, 3.0)
    assert of(found, "divergence").suggestion == before.suggestion


def test_a_run_that_ended_gets_no_advice_but_about_how_it_ended() -> None:
    found = book()
    found.job_is(JobNow(over=True, no_rollback="this run has ended"), SAVED, 2.0)
    told = {one.kind: one.suggestion for one in found.all()}
    assert (told["divergence"], told["straggler"]) == (None, None)
    assert told["process_death"] is not None
    assert told["process_death"].checklist == []  # nothing was resumed
    assert not any("roll_back" in shown(one).actions for one in found.all())


def test_the_job_as_it_was_already_changes_nothing() -> None:
    found = book()
    found.job_is(JobNow(over=True), SAVED, 2.0)
    assert found.job_is(JobNow(over=True), SAVED, 3.0) == []
