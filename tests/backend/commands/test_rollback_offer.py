"""The rollback that a run offers: before every open incident that one would go back for, the same for everybody."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from stabilitybackend.acting.commands.commands import CommandBook
from stabilitybackend.acting.commands.request import JobView
from stabilitybackend.acting.commands.rollback_offer import MAX_OFFERED, back_to
from stabilitybackend.base.errors import Conflict, NotFound
from stabilitybackend.judging.incidents.affecting import affects_weights, damaged_by
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.commands import Command, CommandRequest
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.lineage import Offer
from stabilityclient.wire import Frame
from support.checkpoints import checkpoint
from support.job_frames import Job
from support.saved_state import taken_over
from support.stored.incident import stored


def incident(onset: int = 220, kind: str = "spike", **changes: Any) -> Incident:
    like = {
        "incident_id": f"i-{kind}-{onset}",
        "metric": "loss",
        "onset_step": onset,
        "recovery": "pending" if kind == "spike" else None,
        "evidence": {"now_step": 269},
    }
    return stored(kind, **like | changes)


TWO = [checkpoint(250), checkpoint(200)]


def chosen(offer: Offer) -> tuple[Any, ...]:
    return offer.to_step, offer.skip_batches, offer.incident_id


def test_the_newest_checkpoint_from_before_the_open_spike_is_offered() -> None:
    offer = back_to([incident()], TWO, 269)
    assert chosen(offer) == (200, 120, "i-spike-220")
    assert [(one.step, one.skip_batches, one.where) for one in offer.checkpoints] == [
        (250, 70, "30 steps after the onset"),
        (200, 120, "20 steps before the onset"),
    ]


def test_all_who_ask_get_the_same_whatever_incident_they_look_at() -> None:
    incidents = [incident(220), incident(240, "divergence"), incident(100, "plateau")]
    assert {chosen(back_to(incidents, TWO, 269, about)) for about in (None, *incidents)} == {(200, 120, "i-spike-220")}


def test_an_open_incident_that_began_earlier_moves_the_offer_of_every_other_one() -> None:
    incidents = [incident(220), incident(150, "divergence")]
    assert chosen(back_to(incidents, [*TWO, checkpoint(100)], 269))[0] == 100


def test_the_skip_grows_with_the_run() -> None:
    assert back_to([incident()], TWO, 400).skip_batches == 420


def test_without_an_open_incident_the_newest_checkpoint_is_offered_and_nothing_is_skipped() -> None:
    for over in ({"state": "recovered"}, {"dead": True}, {"severity": "info"}):
        assert chosen(back_to([incident(**over)], TWO, 269)) == (250, None, None)


def test_who_looks_at_a_spike_that_is_over_is_offered_the_checkpoint_before_it() -> None:
    over = incident(state="recovered", recovery="slow", recovered_step=240)
    assert chosen(back_to([over], TWO, 269, over)) == (200, 70, "i-spike-220")


def test_no_checkpoint_from_before_the_onset_is_no_suggestion() -> None:
    offer = back_to([incident()], [checkpoint(250)], 269)
    assert (offer.to_step, offer.skip_batches) == (None, None)
    assert "No checkpoint is sure to be from before" in offer.text
    assert [one.step for one in offer.checkpoints] == [250]


def test_a_job_without_checkpoints_is_offered_none() -> None:
    assert back_to([], [], None).checkpoints == []
    assert back_to([incident()], [], 269).to_step is None


def test_step_0_is_a_checkpoint_like_any_other() -> None:
    assert chosen(back_to([incident(5, evidence={"now_step": 5})], [checkpoint(0)], 30)) == (0, 105, "i-spike-5")


def test_what_can_not_be_loaded_is_not_offered() -> None:
    gone = [checkpoint(210, available=False), checkpoint(205, dead=True), checkpoint(300), *TWO]
    offer = back_to([incident()], gone, 269)
    assert [one.step for one in offer.checkpoints] == [250, 200]


def test_the_suggested_checkpoint_is_offered_however_many_came_after_the_onset() -> None:
    many = [checkpoint(step) for step in range(400, 220, -1)]
    offer = back_to([incident()], [*many, *TWO], 500)
    assert len(offer.checkpoints) == MAX_OFFERED + 1
    assert offer.checkpoints[-1].step == offer.to_step == 200


def test_a_level_that_was_meant_spoils_no_checkpoint() -> None:
    meant = incident(100, "level_shift", suggestion={"action": "none", "to_step": None})
    advised = incident(100, "level_shift", suggestion={"action": "roll_back", "to_step": 90})
    assert [damaged_by(250, affects_weights([one])) is None for one in (meant, advised)] == [True, False]


# --- ordering it -----------------------------------------------------------------------------------------------------

JOB = JobView(269, 0.1, 1, 0, "", TWO, agents=1, affects_weights=[incident()])


def issued(to_step: int, job: JobView = JOB, **more: Any) -> Command:
    request = CommandRequest("rollback", to_step, **more)
    return CommandBook("run").issue(request, job, command_id="c-1", issuer="ada", now=0.0)


def test_a_checkpoint_from_inside_is_refused_with_the_incident_and_the_last_good_one() -> None:
    with pytest.raises(Conflict) as refused:
        issued(250)
    assert refused.value.message == (
        "the checkpoint of step 250 was saved 30 steps after the onset of an open spike (step 220): it may hold the "
        "damage already (incident i-spike-220)"
    )
    assert "the last good one is that of step 200" in refused.value.hint
    assert (refused.value.status, refused.value.code) == (409, "inside_incident")


@pytest.mark.parametrize(
    ("to_step", "job", "more"),
    [
        (250, JOB, {"accept_inside_incident": True}),
        (200, JOB, {}),
        (250, replace(JOB, affects_weights=[]), {}),
    ],
    ids=["accepted", "before", "nothing open"],
)
def test_all_else_is_ordered(to_step: int, job: JobView, more: dict[str, Any]) -> None:
    assert issued(to_step, job, **more).to_step == to_step


def test_a_job_that_announces_no_checkpoints_is_asked_alike() -> None:
    with pytest.raises(Conflict, match="open spike"):
        issued(250, replace(JOB, checkpoints=[]))


# --- in a run's state ------------------------------------------------------------------------------------------------


def rows(job: Job, first: int, last: int, *, spoilt_from: int | None = None) -> Frame:
    steps = range(first, last + 1)
    spoilt = last + 1 if spoilt_from is None else spoilt_from
    return job.rows(steps, {"loss": [2 + 0.01 * math.sin(1.7 * s) + 4 * (s >= spoilt) for s in steps]})


def test_after_a_rollback_the_next_spike_is_gone_back_for_like_the_first() -> None:
    job, state = Job(), RunState("run", lambda: 5_000.0)

    def feed(*frames: Frame) -> tuple[Any, ...]:
        for frame in frames:
            state.apply(frame, replayed=False)
        offer = state.job.offer()
        return offer.to_step, offer.skip_batches, [one.step for one in offer.checkpoints]

    saved = [job.event("checkpoint", step, path=f"c/{step}") for step in (0, 200)]
    assert feed(saved[0], rows(job, 1, 200), saved[1]) == (200, None, [200, 0])
    spoilt = rows(job, 201, 269, spoilt_from=220)
    assert feed(spoilt, job.event("checkpoint", 250, path="c/250")) == (200, 120, [250, 200, 0])
    back = job.rolled_back(200, "c-1", command_id="c-1")
    assert feed(back, rows(job, 201, 240)) == (200, None, [200, 0])
    assert {c.step: c.inside for c in state.job.checkpoints()}[250] is None  # it is on the branch that was left
    later = rows(job, 241, 430, spoilt_from=400)
    assert feed(job.event("checkpoint", 240, path="c/240"), later) == (240, 260, [240, 200, 0])


def test_what_the_ranks_say_that_they_can_is_offered_and_kept_in_a_snapshot() -> None:
    state, second = (RunState("run", lambda: 5_000.0) for _ in range(2))
    for rank, can in enumerate((["lr_scale", "seed"], ["seed"])):
        state.apply(Job(rank, world_size=2).event("handler", can=can), replayed=False)
    assert sorted(state.job.offer().cannot) == ["lr_scale", "skip_batches", "skip_range"]
    assert taken_over(state.handlers, second.handlers) == state.handlers


def test_an_incident_that_is_none_is_not_found() -> None:
    with pytest.raises(NotFound, match="has no incident 'i-nobody'"):
        RunState("run", lambda: 5_000.0).job.offer("i-nobody")
