"""A run has one advice, and it goes back to before everything that is open or was given up, whatever happened to it."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stabilitybackend.acting.commands.rollback_offer import back_to
from stabilitybackend.judging.incidents.affecting import damage_intervals, earliest_step
from stabilitybackend.judging.incidents.rollback_target import GUARD_STEPS, UsableOf
from stabilitybackend.judging.incidents.suggest import suggest
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.kinds import KINDS, kind_of
from stabilitybackend.schema.lineage import Checkpoint
from support.checkpoints import checkpoint
from support.stored.incident import stored

NOW = 3_000
OF_MODEL = [name for name, kind in KINDS.items() if kind.rollback_helps]
STEPS = st.integers(0, NOW)


@st.composite
def incidents(draw: st.DrawFn) -> list[Incident]:
    """Return the incidents of a run, oldest first, of all kinds that one goes back for."""
    found = []
    for number, onset in enumerate(sorted(draw(st.lists(STEPS, min_size=1, max_size=6)))):
        state = draw(st.sampled_from(["open", "open", "recovered", "resolved"]))
        band = draw(st.integers(0, 200))
        evidence: dict[str, Any] = {"now_step": draw(st.integers(onset, NOW))}
        if band:
            evidence["onset_band"] = [max(0, onset - band), onset]
        dead = draw(st.booleans()) and draw(st.booleans())
        if dead:
            evidence["rolled_back_to"] = draw(st.integers(0, onset))
            evidence["rolled_back_into"] = draw(st.integers(1, 4))
        if draw(st.booleans()):
            evidence["moved_first"] = [{"metric": "grad_norm", "onset_step": max(0, onset - draw(st.integers(0, 9)))}]
        found.append(
            stored(
                draw(st.sampled_from(OF_MODEL)),
                incident_id=f"i-{number}",
                severity=draw(st.sampled_from(["info", "warning", "critical"])),
                state=state,
                dead=dead,
                segment=draw(st.integers(0, 4)),
                metric=draw(st.sampled_from(["loss", "grad_norm"])),
                onset_step=onset,
                step=onset,
                recovery=draw(st.sampled_from([None, "pending", "none"])),
                recovered_step=onset + draw(st.integers(1, 500)) if state == "recovered" else None,
                evidence=evidence,
            )
        )
    return found


CHECKPOINTS = st.lists(
    st.builds(checkpoint, STEPS, available=st.booleans(), dead=st.booleans()), max_size=12, unique_by=lambda c: c.step
)


def advised(every: list[Incident], checkpoints: list[Checkpoint]) -> list[Incident]:
    """Return the incidents with their suggestions."""
    known = UsableOf(checkpoints)
    return [replace(one, suggestion=suggest(one, known, NOW, every)) for one in every]


def harms(one: Incident) -> bool:
    """Whether weights from after its first sign may be ill: it is open or was given up, and counts."""
    accepted = one.state == "resolved" and not kind_of(one.kind).root_cause
    return (one.state == "open" or accepted) and not one.dead and one.severity != "info"


@given(incidents(), CHECKPOINTS)
@settings(deadline=None)
def test_the_advised_checkpoint_is_older_than_the_first_sign_of_all_that_is_open_or_was_given_up(
    every: list[Incident], checkpoints: list[Checkpoint]
) -> None:
    steps = [one.suggestion.to_step for one in advised(every, checkpoints) if one.suggestion is not None]
    signs = [earliest_step(one) for one in every if harms(one)]
    there = {c.step for c in checkpoints if c.usable}
    assert [step for step in steps if step is not None and (step not in there or step >= min(signs))] == []


@given(incidents(), CHECKPOINTS)
@settings(deadline=None)
def test_no_checkpoint_from_inside_of_damage_that_came_back_is_advised_where_an_older_one_is_from_outside(
    every: list[Incident], checkpoints: list[Checkpoint]
) -> None:
    spoiled = damage_intervals(every)
    outside = {c.step for c in checkpoints if c.usable and not any(first <= c.step < over for first, over in spoiled)}
    steps = {one.suggestion.to_step for one in advised(every, checkpoints) if one.suggestion is not None} - {None}
    begun = [first for first, over in spoiled for step in steps if first <= step < over]
    assert [step for step in outside if begun and step < min(begun) - GUARD_STEPS] == []


@given(incidents(), CHECKPOINTS)
@settings(deadline=None)
def test_all_open_incidents_of_a_run_have_one_advice(every: list[Incident], checkpoints: list[Checkpoint]) -> None:
    found = [
        one.suggestion for one in advised(every, checkpoints) if one.suggestion is not None and one.suggestion.leads
    ]
    ways = {(s.action, s.to_step, str(s.skip_range), s.lr_scale, s.reseed, s.until_step, s.leads) for s in found}
    assert len(ways) <= 1


@given(incidents(), CHECKPOINTS)
@settings(deadline=None)
def test_only_the_advice_of_the_run_names_a_checkpoint_and_the_offer_names_the_same(
    every: list[Incident], checkpoints: list[Checkpoint]
) -> None:
    found = advised(every, checkpoints)
    to = {one.suggestion.to_step for one in found if one.suggestion is not None and one.suggestion.leads}
    without = {one.suggestion.to_step for one in found if one.suggestion is not None and not one.suggestion.leads}
    assert without <= {None}
    assert to in (set(), {back_to(found, checkpoints, NOW).to_step})


@given(incidents(), CHECKPOINTS, st.integers(0, 500))
@settings(deadline=None)
def test_whoever_waits_is_told_until_when_and_never_waits_for_a_step_that_has_come(
    every: list[Incident], checkpoints: list[Checkpoint], later: int
) -> None:
    known = UsableOf(checkpoints)
    found = [suggest(one, known, NOW + later, every) for one in every]
    assert [
        s.until_step for s in found if s is not None and s.until_step is not None and s.until_step <= NOW + later
    ] == []


@given(incidents(), CHECKPOINTS)
@settings(deadline=None)
def test_no_batch_from_before_the_first_bad_one_is_left_out(
    every: list[Incident], checkpoints: list[Checkpoint]
) -> None:
    first = min((one.onset_step for one in every if harms(one)), default=0)
    ranges = [one.suggestion.skip_range for one in advised(every, checkpoints) if one.suggestion is not None]
    assert [skipped for skipped in ranges if skipped is not None and skipped[0] < first] == []


@given(incidents())
@settings(deadline=None)
def test_where_no_checkpoint_is_clean_none_is_advised_and_that_is_said(every: list[Incident]) -> None:
    first = min((earliest_step(one) for one in every if harms(one)), default=0)
    found = advised(every, [checkpoint(step) for step in range(first, NOW, 100)])
    of_run = [one.suggestion for one in found if one.suggestion is not None and one.suggestion.leads]
    assert [(s.to_step, s.action) for s in of_run if s.to_step is not None or s.action == "roll_back"] == []
    said = ("No checkpoint from before", "No checkpoint is sure to be from before")
    assert [s.text for s in of_run if not any(words in s.text for words in said)] == []
