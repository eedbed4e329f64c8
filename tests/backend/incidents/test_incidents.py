"""The incident book: one incident per event, through rewinds, re-feeds and restarts; and what it advises."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import asdict

from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.incidents import incidents
from stabilitybackend.judging.incidents.incidents import IncidentBook
from stabilitybackend.judging.incidents.rollback_target import UsableOf
from stabilitybackend.schema.incidents import RolledBack, as_json, decoded, encoded
from stabilitybackend.schema.lineage import Checkpoint
from stabilitybackend.schema.runs import WorstIncident
from stabilitybackend.schema.severity import NotBack
from support.checkpoints import checkpoint


def spike(onset: int = 200, **changes: Any) -> Finding:
    finding = Finding(
        detector="spike",
        key=f"spike:loss:{onset}",
        kind="spike",
        state="open",
        severity="warning",
        title=f"Loss spike at step {onset}",
        text="It rose.",
        onset_step=onset,
        step=onset + 1,
        now_step=onset + 1,
        metric="loss",
        peak_step=onset + 1,
        recovery="pending",
        score=12.0,
        evidence={"peak": 5.0},
    )
    return replace(finding, **changes)


def recovered(onset: int = 200, at: int = 206) -> Finding:
    return spike(
        onset,
        state="recovered",
        severity="info",
        recovery="fast",
        recovered_step=at,
        now_step=at + 4,
        text="It is over.",
    )


def hang(step: int = 200) -> Finding:
    key = f"hang:{step}:r0-1-1"
    return Finding("liveness", key, "hang", "open", "critical", "The job hangs", "It stands.", step, step, step)


def apply(book: IncidentBook, finding: Finding, *, time: float = 1.0, checkpoints: Any = (), segment: int = 0) -> Any:
    changed = book.apply(finding, segment=segment, time=time, checkpoints=UsableOf(checkpoints))
    return next((one for one in changed if one.key == finding.key), None)


def rolled_back(book: IncidentBook, fork_step: int, time: float, segment: int, reason: str) -> Any:
    """Segment 0 was left after a step."""
    return book.rolled_back({0: fork_step}, time, RolledBack(fork_step, segment, reason), fork_step)


def advice(onset: int, checkpoints: list[Checkpoint], **changes: Any) -> dict[str, Any]:
    incident = apply(IncidentBook("run"), spike(onset, **changes), checkpoints=checkpoints)
    return asdict(incident.suggestion)


@pytest.mark.parametrize(
    ("ended", "missing"),
    [
        (spike(state="resolved", evidence={"level_after": 5.0}), NotBack("loss", 200)),
        (spike(state="resolved", evidence={"level_after": 5.0}, dataset="code"), NotBack("loss of code", 200)),
        (spike(state="resolved", evidence={"level_after": 5.0, "regained": True}), None),
        (spike(state="resolved", evidence={"level_after": 5.0}, severity="info"), None),
        (spike(), None),
        (recovered(), None),
    ],
    ids=["accepted", "of a data set", "came back", "a note", "open", "recovered"],
)
def test_the_metric_of_an_alarm_that_ended_without_it_coming_back_is_named(
    ended: Finding, missing: NotBack | None
) -> None:
    book = IncidentBook("run")
    apply(book, ended)
    assert book.not_back() == missing
    rolled_back(book, 100, 2.0, 1, "spike")
    assert book.not_back() is None, "a rollback left it behind"


def test_incidents_near_a_step_or_a_time_are_found_by_their_kind() -> None:
    book = IncidentBook("run")
    apply(book, hang(100), time=5.0)
    apply(book, hang(900), time=50.0)
    apply(book, spike(110), time=5.0)
    near = [(step, kind) for step, kind, _ in book.near({"hang"}, 90, 120, 40.0, 60.0, but="")]
    assert near == [(100, "hang"), (900, "hang")]
    assert book.near({"hang"}, 90, 120, 0.0, 1.0, but="hang:100:r0-1-1") == []


def test_findings_of_one_key_are_one_incident_with_growing_versions() -> None:
    book = IncidentBook("run")
    opened = apply(book, spike(), time=10.0)
    over = apply(book, recovered(), time=12.0)
    assert opened.incident_id == over.incident_id
    assert (opened.version, over.version) == (1, 2)
    assert (over.opened, over.updated, over.resolved) == (10.0, 12.0, 12.0)
    assert [incident.recovery for incident in book.all()] == ["fast"]


def test_a_finding_that_says_nothing_new_changes_nothing() -> None:
    book = IncidentBook("run")
    apply(book, spike())
    assert apply(book, spike(), time=9.0) is None
    assert apply(book, spike(now_step=230), time=9.0) is None
    assert book.all()[0].version == 1


def test_a_hundred_spikes_are_a_hundred_incidents_in_one_train() -> None:
    book = IncidentBook("run")
    for nth in range(100):
        apply(book, spike(200 + 50 * nth), time=600.0 * nth)
        apply(book, recovered(200 + 50 * nth, 206 + 50 * nth), time=600.0 * nth + 60)
    inside = sorted(book.all(), key=lambda one: one.onset_step)
    assert {one.train for one in inside} == {inside[0].incident_id}
    assert [one.nth for one in inside] == list(range(1, 101))


@pytest.mark.parametrize(
    "changes",
    [{"metric": "loss/code"}, {"severity": "critical"}, {"kind": "divergence"}],
    ids=["another metric", "graver", "another kind"],
)
def test_what_is_not_like_the_first_is_in_no_train_of_it(changes: dict[str, Any]) -> None:
    book = IncidentBook("run")
    first = apply(book, spike(), time=10.0)
    other = apply(book, spike(900, **changes), time=20.0)
    assert first.train == first.incident_id
    assert other.train in ("", other.incident_id)


def test_a_spike_long_after_the_last_one_begins_a_train_of_its_own() -> None:
    book = IncidentBook("run")
    trains = [apply(book, spike(200 + at), time=3_600.0 * at).train for at in (0, 3, 6, 11)]
    assert [trains.index(train) for train in trains] == [0, 0, 0, 3]


def test_one_of_a_train_that_gets_critical_leaves_it_and_alerts() -> None:
    book = IncidentBook("run")
    apply(book, spike(), time=1.0)
    second = apply(book, spike(900), time=2.0)
    graver = apply(book, spike(900, severity="critical", recovery="none", now_step=1_000), time=3.0)
    assert (second.nth, graver.nth, graver.train) == (2, 2, graver.incident_id)


def test_points_fed_again_do_not_take_an_incident_back() -> None:
    book = IncidentBook("run")
    apply(book, spike())
    apply(book, recovered())
    assert apply(book, spike(), time=20.0) is None
    assert book.all()[0].state == "recovered"


def test_the_id_depends_on_the_event_and_not_on_who_computes_it() -> None:
    ids = {apply(IncidentBook("run"), spike()).incident_id for _ in range(2)}
    others = {
        apply(IncidentBook("other"), spike()).incident_id,
        apply(IncidentBook("run"), spike(), segment=1).incident_id,
        apply(IncidentBook("run"), spike(201)).incident_id,
        apply(IncidentBook("run"), hang()).incident_id,
    }
    assert len(ids) == 1
    assert len(ids | others) == 5


def test_a_loaded_book_goes_on_where_the_stored_one_was() -> None:
    book = IncidentBook("run")
    apply(book, spike(), time=1.0)
    apply(book, spike(300), time=2.0)
    stored = [decoded(encoded(incident)) for incident in book.all()]
    again = IncidentBook("run")
    again.load(reversed(stored))
    assert again.all() == book.all()
    assert apply(again, spike(), time=3.0) is None
    assert apply(again, recovered(), time=3.0).version == stored[-1].version + 1


def test_all_is_newest_first() -> None:
    book = IncidentBook("run")
    apply(book, spike(200), time=1.0)
    apply(book, spike(300), time=2.0)
    assert [incident.onset_step for incident in book.all()] == [300, 200]


def test_a_rollback_resolves_what_began_on_the_dead_branch_and_leaves_the_rest() -> None:
    book = IncidentBook("run")
    apply(book, spike(100), time=1.0)
    apply(book, recovered(100, at=106), time=2.0)
    apply(book, spike(200), time=3.0)
    changed = rolled_back(book, 150, 9.0, 1, "bad data")
    assert [(i.onset_step, i.state, i.dead, i.resolved) for i in changed] == [(200, "resolved", True, 9.0)]
    assert changed[0].rolled_back == RolledBack(150, 1, "bad data")
    assert changed[0].suggestion is None
    assert "went back to step 150" in changed[0].text
    assert rolled_back(book, 150, 10.0, 2, "again") == []


def test_the_same_step_on_the_new_branch_is_a_new_incident() -> None:
    book = IncidentBook("run")
    first = apply(book, spike(200))
    rolled_back(book, 150, 9.0, 1, "bad data")
    second = apply(book, spike(200), segment=1, time=12.0)
    assert first.incident_id != second.incident_id
    assert [(i.dead, i.state) for i in book.all()] == [(False, "open"), (True, "resolved")]
    assert book.open_count() == 1


def test_what_became_known_on_the_dead_branch_about_an_older_incident_is_taken_back() -> None:
    book = IncidentBook("run")
    apply(book, spike(200))
    apply(book, recovered(200, at=260))
    changed = rolled_back(book, 230, 9.0, 1, "changed my mind")
    assert [(i.state, i.recovery, i.recovered_step, i.dead) for i in changed] == [("open", "pending", None, False)]
    again = apply(book, recovered(200, at=240), segment=1)
    assert (again.recovered_step, again.segment) == (240, 0)


def test_what_ended_on_the_dead_branch_is_open_again_whatever_its_kind() -> None:
    book = IncidentBook("run")
    apply(book, spike(200, kind="nonfinite", recovery=None))
    over = {"kind": "nonfinite", "recovery": None, "state": "recovered", "recovered_step": 206, "now_step": 216}
    apply(book, spike(200, **over))
    apply(book, spike(200, **over | {"now_step": 240, "text": "It is said better now."}))
    assert rolled_back(book, 220, 9.0, 1, "x") == []
    [changed] = rolled_back(book, 205, 9.0, 2, "x")
    assert (changed.state, changed.recovered_step, changed.resolved) == ("open", None, None)
    assert changed.text.endswith("the run went back to step 205.")


def test_what_nobody_had_seen_at_the_fork_is_dead_and_lives_again_when_it_is_seen_again() -> None:
    book = IncidentBook("run")
    slow = spike(200, step=300, now_step=300)
    first = apply(book, slow)
    [changed] = rolled_back(book, 250, 9.0, 1, "x")
    assert (changed.dead, changed.state) == (True, "resolved")
    again = apply(book, replace(slow, step=280, now_step=280))
    assert (again.incident_id, again.dead, again.state, again.step) == (
        first.incident_id, False, "open", 280
    )  # fmt: skip
    assert again.version > changed.version


def test_a_rollback_does_not_undo_what_happened_to_a_process() -> None:
    book = IncidentBook("run")
    apply(book, hang(200))
    assert [(i.state, i.dead) for i in rolled_back(book, 150, 9.0, 1, "x")] == [("open", True)]
    over = replace(hang(200), state="resolved", text="It goes on.")
    assert apply(book, over).state == "resolved"


def test_incidents_of_other_segments_are_not_touched_by_a_rollback() -> None:
    book = IncidentBook("run")
    apply(book, spike(200), segment=3)
    assert rolled_back(book, 150, 9.0, 1, "x") == []


def test_the_worst_open_incident_is_the_newest_of_the_highest_severity() -> None:
    book = IncidentBook("run")
    assert book.worst() is None
    apply(book, spike(100), time=1.0)
    apply(book, spike(200), time=2.0)
    apply(book, spike(300, severity="info"), time=3.0)
    newest = book.all()[1]
    assert book.worst() == WorstIncident(
        newest.incident_id, "spike", "warning", newest.title, newest.since, False, "wait"
    )
    hung = apply(book, hang(150), time=1.5)
    assert book.worst() == WorstIncident(hung.incident_id, "hang", "critical", hung.title, hung.since, False, "inspect")


def test_the_first_who_acknowledges_stands() -> None:
    book = IncidentBook("run")
    incident_id = apply(book, spike()).incident_id
    assert book.acknowledge(incident_id, "ada", 5.0).acknowledged_by == "ada"  # type: ignore[union-attr]
    again = book.acknowledge(incident_id, "bob", 6.0)
    assert again is not None
    assert (again.acknowledged_by, again.acknowledged, again.version) == ("ada", 5.0, 2)
    assert book.acknowledge("i-unknown", "ada", 5.0) is None


def test_non_finite_evidence_is_spelled_as_the_api_does_and_large_evidence_is_cut() -> None:
    evidence = {"peak": math.inf, "list": [math.nan, 1.0] * 100, "long": "x" * 10_000, "odd": object()}
    incident = apply(IncidentBook("run"), spike(evidence=evidence))
    text = json.dumps(as_json(incident), allow_nan=False)
    assert incident.evidence["peak"] == "Infinity"
    assert incident.evidence["list"][:2] == ["NaN", 1.0]
    assert len(text) < 10_000


def test_the_book_is_bounded_and_keeps_what_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incidents, "MAX_INCIDENTS", 50)
    book = IncidentBook("run")
    apply(book, spike(1), time=0.0)
    for i in range(100):
        apply(book, spike(10 + 20 * i), time=float(i))
        apply(book, recovered(10 + 20 * i, at=12 + 20 * i), time=float(i))
    assert len(book.all()) == 50
    assert book.dropped == 51
    assert book.all()[-1].onset_step == 1


def test_the_suggested_checkpoint_is_the_newest_from_before_the_onset() -> None:
    suggestion = advice(200, [checkpoint(step) for step in (50, 100, 150, 199, 200, 225)])
    assert (suggestion["action"], suggestion["to_step"]) == ("wait", 150)
    assert (suggestion["skip_batches"], suggestion["skip_range"]) == (150, [200, 300])
    assert "step 150" in suggestion["text"]
    assert suggestion["lr_scale"] is None


def test_checkpoints_that_are_gone_or_dead_are_not_suggested() -> None:
    suggestion = advice(200, [checkpoint(100), checkpoint(150, available=False), checkpoint(175, dead=True)])
    assert suggestion["to_step"] == 100


def test_in_a_long_run_the_suggestion_goes_a_hundred_steps_back() -> None:
    every_50 = [checkpoint(step) for step in range(0, 5_000, 50)]
    suggestion = advice(4_990, every_50)
    assert (suggestion["to_step"], suggestion["skip_range"]) == (4_850, [4_990, 5_090])
    assert "PaLM" in suggestion["source"]
    assert advice(4_990, [checkpoint(4_950)])["to_step"] == 4_950


def test_without_a_checkpoint_nothing_is_promised() -> None:
    suggestion = advice(200, [checkpoint(250)])
    assert (suggestion["action"], suggestion["to_step"]) == ("wait", None)


def test_a_spike_that_is_over_asks_for_nothing() -> None:
    book = IncidentBook("run")
    apply(book, spike(), checkpoints=[checkpoint(100)])
    over = apply(book, recovered(), checkpoints=[checkpoint(100)])
    assert (over.suggestion.action, over.suggestion.to_step) == ("none", None)


def test_suggestions_follow_the_checkpoints_and_only_what_changed_is_returned() -> None:
    book = IncidentBook("run")
    apply(book, spike(200))
    apply(book, spike(50))
    apply(book, recovered(50, 56))
    changed = book.refresh_suggestions(UsableOf([checkpoint(100)]), 7.0)
    assert [(i.onset_step, i.suggestion.to_step, i.updated) for i in changed] == [(200, 100, 7.0)]
    assert book.refresh_suggestions(UsableOf([checkpoint(100)]), 8.0) == []
    gone = book.refresh_suggestions(UsableOf([checkpoint(100, available=False)]), 9.0)
    assert [i.suggestion.action for i in gone] == ["wait"]


def test_the_worst_open_incident_is_the_gravest_and_of_equals_the_newest() -> None:
    book = IncidentBook("run")
    assert book.worst() is None
    assert apply(book, hang(10), time=1.0).severity == "critical"
    newer = apply(book, hang(20), time=2.0)
    apply(book, spike(severity="warning"), time=3.0)
    named = WorstIncident(newer.incident_id, newer.kind, newer.severity, newer.title, newer.since, advice="inspect")
    assert (book.worst(), book.open_count()) == (named, 3)


@pytest.mark.parametrize(
    ("status", "open_", "named"),
    [
        ("stalled", ["agent_lost", "hang", "hang", "spike"], 2),
        ("crashed", ["hang", "process_death"], 1),
        ("unreachable", ["hang", "agent_lost"], 1),
        ("crashed", ["agent_lost", "hang"], 1),  # what stops a job first where the status speaks of none of them
        ("stalled", ["spike", "straggler", "gpu_fault"], None),
    ],
)
def test_a_status_is_about_the_newest_incident_of_its_kind(status: str, open_: list[str], named: int | None) -> None:
    book = IncidentBook("run")
    found = [
        apply(book, replace(hang(10 + at), kind=kind, key=f"{kind}:{at}", severity="warning"), time=float(at))
        for at, kind in enumerate(open_)
    ]
    apply(book, replace(hang(90), key="over", state="resolved"), time=99.0)
    assert book.stopper(status) == (None if named is None else found[named].incident_id)


def test_what_is_over_or_only_worth_knowing_is_not_the_worst() -> None:
    book = IncidentBook("run")
    apply(book, spike(50, severity="info"))
    apply(book, spike(200))
    apply(book, recovered())
    assert (book.worst(), book.open_count()) == (None, 0)


@pytest.mark.parametrize(
    ("kind", "action"), [("hang", "inspect"), ("agent_lost", "wait"), ("process_death", "restart")]
)
def test_incidents_about_processes_get_advice_of_their_own(kind: str, action: str) -> None:
    incident = apply(IncidentBook("run"), replace(hang(), kind=kind), checkpoints=[checkpoint(100)])
    assert incident.suggestion.action == action


def test_the_kind_of_one_incident_may_change_and_it_stays_the_same_incident() -> None:
    book, curve = IncidentBook("run"), {"detector": "curve", "key": "curve:loss:200"}
    first = apply(book, spike(**curve))
    last = apply(
        book,
        spike(**curve, kind="divergence", severity="critical", title="Loss climbs since step 200", now_step=260),
    )
    assert (last.incident_id, last.version, last.opened) == (first.incident_id, 2, first.opened)
    assert (last.kind, last.title, last.severity) == ("divergence", "Loss climbs since step 200", "critical")
    assert [one.incident_id for one in book.all()] == [first.incident_id]


def test_what_an_older_version_opened_is_gone_on_with_under_its_id() -> None:
    book = IncidentBook("run")
    old = apply(book, spike())
    over = recovered()
    now = apply(book, replace(over, detector="curve", key="curve:loss:201", onset_step=201, severity="warning"))
    other = apply(book, spike(600, detector="curve", key="curve:loss:600"))
    assert (now.incident_id, now.state, now.detector) == (old.incident_id, "recovered", "curve")
    assert other.incident_id != old.incident_id
