"""A command is fenced, idempotent, expires, and is done only when every rank acted and the first new point is here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from stabilitybackend.acting.commands.commands import MAX_ATTEMPTS, CommandBook
from stabilitybackend.acting.commands.progress import progress_of
from stabilitybackend.acting.commands.request import JobView
from stabilitybackend.base.errors import BadRequest, Conflict
from stabilitybackend.schema.commands import Command, CommandRequest
from stabilitybackend.schema.events import CommandReport
from support.checkpoints import checkpoint

JOB = JobView(
    running_step=200,
    step_time_s=0.1,
    world_size=2,
    head=0,
    head_key="",
    checkpoints=[checkpoint(150), checkpoint(100)],
    agents=1,
)


def _asked(to_step: int, **more: Any) -> CommandRequest:
    return CommandRequest("rollback", to_step, **more)


def _issued(request: CommandRequest | None = None, job: JobView = JOB) -> tuple[CommandBook, Command]:
    book = CommandBook("run")
    return book, book.issue(request or _asked(150), job, command_id="c-1", issuer="ada", now=1000.0)


def _say(book: CommandBook, rank: int, state: str, step: int = 205, attempt: int = 1) -> None:
    book.on_event(rank, step, CommandReport("c-1", state, attempt), 1001.0)


def test_a_command_names_its_boundary_fence_expiry_and_checkpoint() -> None:
    _, command = _issued()
    shown = msgspec.to_builtins(command)
    assert {k: shown[k] for k in ("state", "apply_at_step", "fence", "expires", "checkpoint", "world_size")} == {
        "state": "pending",
        "apply_at_step": 205,
        "fence": {"segment": 0, "segment_key": ""},
        "expires": 1600.0,
        "checkpoint": "c/150",
        "world_size": 2,
    }


def test_no_rollback_is_ordered_while_two_processes_are_one_rank() -> None:
    with pytest.raises(Conflict, match="rank 0 has two processes"):
        _issued(job=replace(JOB, duplicates="rank 0 has two processes"))


def test_the_boundary_of_a_job_with_long_steps_is_the_next_one() -> None:
    assert replace(JOB, step_time_s=30.0).boundary(1) == 201


def test_a_command_is_done_when_all_ranks_acted_and_the_first_new_point_is_here() -> None:
    book, command = _issued()
    book.delivered([command], 1000.1, "sent to 1 agent")
    seen = [command.state]
    for rank in (0, 1):
        _say(book, rank, "ready", 203)
    seen.append(command.state)
    for rank in (0, 1):
        _say(book, rank, "acted")
    seen.append(command.state)
    book.on_points(1, "c-1", 151, 1003.0)
    assert [*seen, command.state] == ["delivered", "ready", "acted", "done"]
    assert (command.segment, command.first_step) == (1, 151)


def test_a_first_point_that_overtakes_the_last_rank_waits_for_it() -> None:
    book, command = _issued()
    _say(book, 0, "acted")
    book.on_points(1, "c-1", 151, 1003.0)
    assert command.state == "pending"
    _say(book, 1, "acted")
    book.settle(1004.0)
    assert command.state == "done"


def test_a_missed_boundary_is_tried_again_later_with_twice_the_margin_and_then_given_up() -> None:
    book, command = _issued()
    boundaries = [command.apply_at_step]
    for attempt in range(1, MAX_ATTEMPTS + 1):
        _say(book, 0, "missed", attempt=attempt)
        _say(book, 1, "aborted", attempt=attempt)
        book.retries(replace(JOB, running_step=300), 1001.0)
        boundaries.append(command.apply_at_step)
    assert boundaries == [205, 310, 320, 320]
    assert command.state == "failed"


def test_a_job_that_hangs_is_not_ordered_back_and_it_is_said_what_works() -> None:
    with pytest.raises(Conflict, match=r"the job hangs, .* Rank 1 is stuck in data\.") as caught:
        _issued(job=replace(JOB, hung="Rank 1 is stuck in data."))
    assert (caught.value.code, "restart the job" in caught.value.hint) == ("job_hangs", True)


def test_a_word_about_a_boundary_that_was_given_up_changes_nothing() -> None:
    book, command = _issued()
    _say(book, 0, "missed")
    book.retries(JOB, 1001.0)
    _say(book, 1, "ready", attempt=1)
    assert command.ranks == {}


def test_a_rank_that_rejects_ends_the_command_with_its_reason() -> None:
    book, command = _issued()
    book.on_event(1, 203, CommandReport("c-1", "rejected", 1, "c/150 is gone"), 1001.0)
    assert command.state == "rejected"
    assert command.history[-1].detail == "rank 1: c/150 is gone"


def test_a_command_nobody_answers_expires_and_says_that_nothing_was_rolled_back() -> None:
    book, command = _issued()
    assert book.settle(1600.0) == []
    assert book.settle(1600.1) == [command]
    assert command.state == "expired"
    assert "0 of 2 ranks answered" in command.history[-1].detail


def test_a_job_that_never_looks_for_commands_ends_them_with_what_it_lacks() -> None:
    book, command = _issued()
    assert book.ignored(replace(JOB, logged_step=210), 1019.0) == []
    assert book.ignored(replace(JOB, logged_step=208, running_step=300), 1021.0) == []
    assert book.ignored(replace(JOB, logged_step=210), 1021.0) == [command]
    assert command.state == "failed"
    assert "run.steps()" in command.history[-1].detail


def test_a_job_that_answered_is_not_said_to_ignore_its_commands() -> None:
    book, command = _issued()
    _say(book, 0, "ready")
    assert book.ignored(replace(JOB, logged_step=499), 1100.0) == []
    assert command.state == "pending"


def test_a_command_is_rejected_when_the_job_moved_to_another_segment_by_itself() -> None:
    book, command = _issued()
    book.head_moved(1, "d-other", 1001.0)
    assert command.state == "rejected"


def test_the_segment_of_the_command_itself_does_not_reject_it() -> None:
    book, command = _issued()
    book.head_moved(1, "c-1", 1001.0)
    assert command.state == "pending"


def test_a_second_rollback_waits_for_the_first() -> None:
    book, _ = _issued()
    with pytest.raises(Conflict, match="under way"):
        book.issue(_asked(100), JOB, command_id="c-2", issuer="bob", now=1001.0)


def test_commands_survive_a_restart_of_the_server() -> None:
    book, command = _issued()
    again = CommandBook("run")
    again.load([command])
    assert again.all() == book.all()
    assert again.waiting() == [command]


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (_asked(150, lr_scale=0.0), "lr_scale is 0.0"),
        (_asked(150, lr_scale=float("nan")), "lr_scale is nan"),
        (_asked(150, skip_batches=-1), "skip_batches is -1"),
        (_asked(150, skip_range=[150, 160]), "skip_range begins at step 150, but training goes on behind step 150"),
        (_asked(150, skip_range=[170, 160]), r"skip_range is \[170, 160\], expected \[first, last\]"),
        (_asked(150, skip_range=[160]), r"skip_range is \[160\], expected \[first, last\]"),
        (_asked(150, skip_range=[160, 170], skip_batches=3), "skip_batches and skip_range given, expected one"),
        (_asked(150, seed=-3), "seed is -3"),
        (_asked(-1), "to_step is -1"),
        (_asked(2**60), "to_step is"),
        (_asked(200), "the job is at step 200"),
        (_asked(149), "no usable checkpoint for step 149"),
        (_asked(150, reason="x" * 3000), "3000 characters"),
    ],
)
def test_a_bad_field_is_named_with_what_was_given(asked: CommandRequest, given: str) -> None:
    with pytest.raises(BadRequest, match=given):
        _issued(asked)


@pytest.mark.parametrize("lost", [{"available": False}, {"dead": True}])
def test_a_checkpoint_that_is_gone_or_dead_is_no_target(lost: dict[str, bool]) -> None:
    with pytest.raises(BadRequest, match="usable") as error:
        _issued(job=replace(JOB, checkpoints=[checkpoint(150, **lost), checkpoint(100)]))
    assert "100" in error.value.hint


def test_nothing_is_ordered_while_no_agent_could_deliver_it() -> None:
    with pytest.raises(Conflict, match="no agent"):
        _issued(job=replace(JOB, agents=0))


@pytest.mark.parametrize(("acted", "text"), [((), "nothing was rolled back"), ((1,), "only rank 1 had rolled back")])
def test_a_command_fails_with_the_job_that_should_obey_it(acted: tuple[int, ...], text: str) -> None:
    book, command = _issued()
    book.delivered([command], 1000.1, "sent to 1 agent")
    for rank in acted:
        _say(book, rank, "acted", 205)
    assert book.job_over("Rank 0 died.", 1010.0) == [command]
    assert command.state == "failed"
    assert text in command.history[-1].detail
    assert "Training goes on" not in progress_of(command).trouble
    assert book.job_over("Rank 0 died.", 1011.0) == []
