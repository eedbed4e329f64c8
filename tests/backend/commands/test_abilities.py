"""Only what a job says that it can change is offered, and an order for something else is refused with words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stabilitybackend.acting.commands.abilities import Handlers
from stabilitybackend.acting.commands.commands import CommandBook
from stabilitybackend.acting.commands.request import JobView
from stabilitybackend.acting.commands.rollback_offer import back_to
from stabilitybackend.base.errors import BadRequest
from stabilitybackend.schema.commands import CommandRequest, Rollback
from support.checkpoints import checkpoint
from support.stored.incident import stored

JOB = JobView(269, 0.1, 1, 0, "", [], agents=1)


def handlers(*said: Any) -> Handlers:
    found = Handlers()
    for rank, can in enumerate(said):
        found.event("handler", rank, {"can": can, "branches": True})
        found.event("obeys", rank, {"orders": ["stop"]})
    return found


def issued(handler: Handlers, **asked: Any) -> Rollback:
    job, request = replace(JOB, handler=handler), CommandRequest("rollback", to_step=200, **asked)
    command = CommandBook("run").issue(request, job, command_id="c-1", issuer="ada", now=0.0)
    assert isinstance(command, Rollback)
    return command


def test_a_job_that_can_not_go_back_is_refused_with_the_true_reason() -> None:
    known = Handlers()
    known.event("start", 0, {})
    assert known.no_rollback(1) == ""  # nothing is known of a client that does not say which orders it obeys
    known.event("start", 0, {"says_orders": True})
    assert known.no_rollback(1) == (
        "the job has not said that it looks for orders, as a loop over run.steps() or with run.boundary() does"
    )
    known.event("obeys", 0, {"orders": ["stop"]})
    without = "the job has no rollback handler (@run.on_rollback, run.can_roll_back)"
    assert known.no_rollback(1) == without
    with pytest.raises(BadRequest) as refused:
        issued(known)
    assert (refused.value.message, refused.value.code) == (without, "job_cannot")
    known.event("handler", 0, {"can": [], "branches": True})
    assert known.no_rollback(1) == ""
    known.event("start", 1, {"says_orders": True})
    assert known.no_rollback(2).startswith("rank 1 has not said")


def test_a_job_that_was_started_again_says_anew_what_it_can() -> None:
    known = handlers(["seed"])
    known.event("start", 0, {"says_orders": True})
    assert "has not said that it looks for orders" in known.no_rollback(1)


def test_a_client_older_than_the_word_for_it_is_taken_by_its_handler_alone() -> None:
    known = Handlers()
    known.event("handler", 0, {"can": ["seed"]})
    assert (known.no_rollback(1), known.is_old) == ("", True)
    assert "the stabilityclient of the job is older" in known.no_return(1)


def test_what_one_rank_can_not_is_not_offered() -> None:
    assert sorted(handlers(["lr_scale", "seed", "skip_range"], ["seed", "nonsense"]).cannot()) == [
        "lr_scale", "skip_batches", "skip_range",
    ]  # fmt: skip
    assert sorted(handlers(["seed"], None).cannot()) == ["lr_scale", "seed", "skip_batches", "skip_range"]


def test_what_the_job_said_that_it_can_not_is_refused_and_what_it_can_is_named() -> None:
    with pytest.raises(BadRequest) as refused:
        issued(handlers(["seed", "skip_batches"]), lr_scale=0.5, seed=3)
    assert "lr_scale given" in refused.value.message
    assert "it can seed, skip_batches" in refused.value.message
    assert (refused.value.status, refused.value.code) == (422, "job_cannot")


def test_what_changes_nothing_is_never_refused() -> None:
    assert issued(handlers([]), lr_scale=1.0, skip_batches=0).unpromised == []


def test_what_a_bare_handler_is_asked_for_is_ordered_with_a_note() -> None:
    command = issued(handlers(None), lr_scale=0.5)
    assert (command.lr_scale, command.unpromised) == (0.5, ["lr_scale"])
    assert "has not said that it can change lr_scale" in command.history[0].detail


def test_nothing_is_suggested_that_the_job_can_not() -> None:
    spike = stored("spike", metric="loss", onset_step=220, recovery="none")
    free, bound = (back_to([spike], [checkpoint(200)], 269, None, cannot) for cannot in ({}, handlers(None).cannot()))
    assert (free.to_step, free.skip_batches, free.lr_scale, free.cannot) == (200, 120, 0.5, {})
    assert (bound.to_step, bound.skip_batches, bound.lr_scale) == (200, None, None)
    assert bound.checkpoints[0].skip_batches is None
    assert "does not promise to leave out" in bound.text


def test_the_range_of_bad_batches_is_offered_to_a_job_that_can_leave_out_one() -> None:
    spike = stored("spike", metric="loss", onset_step=220, recovery="none")
    able = [handlers(can).cannot() for can in (["skip_range"], ["skip_batches"], ["skip_batches", "skip_range"])]
    offers = [back_to([spike], [checkpoint(200)], 269, None, cannot) for cannot in able]
    left_out = [(one.skip_range, one.skip_batches) for one in offers]
    assert left_out == [([220, 320], None), (None, 120), ([220, 320], 120)]
    assert issued(handlers(["skip_range"]), skip_range=[220, 320]).skip_range == (220, 320)
