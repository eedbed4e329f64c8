"""A stop and a checkpoint on order: by all ranks or by none, and only of a job that says that it obeys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stabilitybackend.acting.commands.abilities import Handlers
from stabilitybackend.acting.commands.boundary_commands import offers
from stabilitybackend.acting.commands.commands import CommandBook
from stabilitybackend.acting.commands.progress import progress_of
from stabilitybackend.acting.commands.proposals import check_alone, in_words
from stabilitybackend.acting.commands.request import JobView
from stabilitybackend.acting.commands.restart_plan import RestartFacts, make_plan
from stabilitybackend.base.errors import BadRequest, Conflict
from stabilitybackend.schema.commands import Command, CommandRequest
from stabilitybackend.schema.events import CommandReport
from support.checkpoints import checkpoint


def obeying(*orders: str, ranks: int = 2) -> Handlers:
    found = Handlers()
    for rank in range(ranks):
        found.event("obeys", rank, {"orders": list(orders)})
    return found


def unable(why: str) -> Handlers:
    found = obeying("stop", "checkpoint_now", ranks=1)
    found.event("obeys", 1, {"orders": ["stop"], "why": {"checkpoint_now": why}})
    return found


JOB = JobView(200, 0.1, 2, 0, "", [checkpoint(150)], agents=1, handler=obeying("stop", "checkpoint_now"))


def issued(kind: Any, job: JobView = JOB, **asked: Any) -> tuple[CommandBook, Command]:
    book = CommandBook("run")
    return book, book.issue(CommandRequest(kind, **asked), job, command_id="c-1", issuer="anna", now=1000.0)


def say(book: CommandBook, rank: int, state: str, detail: str = "") -> None:
    book.on_event(rank, 205, CommandReport("c-1", state, 1, detail), 1001.0)


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("stop", "Stopped: all 2 ranks have stopped before step 205."),
        ("checkpoint_now", "Checkpoint saved: all 2 ranks have saved the state after step 204."),
    ],
)
def test_it_is_done_when_the_last_rank_has_acted(kind: Any, line: str) -> None:
    book, command = issued(kind)
    seen = []
    for state in ("ready", "acted"):
        for rank in (0, 1):
            say(book, rank, state)
            seen.append(command.state)
    assert seen == ["pending", "ready", "ready", "done"]
    assert progress_of(command).line == line
    assert [stage.key for stage in progress_of(command).stages] == ["pending", "delivered", "ready", "acted"]
    assert (book.stop is command) == (kind == "stop")


def test_a_stop_that_could_not_save_first_says_so() -> None:
    book, command = issued("stop", save=True)
    say(book, 0, "acted", "stopped before step 205, the checkpoint was not saved: OSError: full")
    say(book, 1, "acted")
    assert progress_of(command).line.startswith("Stopped: all 2 ranks have stopped before step 205. Rank 0: ")
    assert "OSError: full" in progress_of(command).line


@pytest.mark.parametrize(
    ("kind", "job", "error", "words"),
    [
        ("stop", replace(JOB, handler=Handlers()), BadRequest, "has not said that it looks for orders"),
        ("stop", replace(JOB, handler=obeying("stop", ranks=1)), BadRequest, "rank 1 has not said"),
        ("checkpoint_now", replace(JOB, handler=obeying("stop")), BadRequest, "no function that saves a checkpoint"),
        ("checkpoint_now", replace(JOB, handler=unable("it writes late")), BadRequest, "it writes late"),
        ("stop", replace(JOB, hung="Rank 1 stands in step 7."), Conflict, "the job hangs"),
        ("stop", replace(JOB, running_step=None), Conflict, "has not begun a step"),
    ],
)
def test_what_the_job_would_not_obey_is_refused_and_the_offer_has_said_so_before(
    kind: Any, job: JobView, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        issued(kind, job)
    offer = offers(job).stop if kind == "stop" else offers(job).checkpoint_now
    assert (offer.possible, words in offer.why) == (False, True)
    assert offer.works == (["dump_stacks", "restart"] if job.hung else [])


def test_a_stop_that_is_to_save_first_is_refused_where_nobody_saves() -> None:
    with pytest.raises(BadRequest, match="save is true, but the job has no function that saves"):
        issued("stop", replace(JOB, handler=obeying("stop")), save=True)


def test_the_offer_says_what_a_stop_loses() -> None:
    offer = offers(JOB)
    assert (offer.ranks, offer.last_checkpoint, offer.steps_lost) == (2, 150, 54)
    assert offer.seconds_lost == pytest.approx(5.4)


def test_a_job_that_is_gone_has_nothing_that_a_stop_would_lose() -> None:
    offer = offers(replace(JOB, agents=0))
    assert (offer.steps_lost, offer.seconds_lost, offer.stop.possible) == (None, None, False)


def test_one_order_that_ranks_agree_on_waits_for_another_until_that_is_over() -> None:
    book, command = issued("checkpoint_now")
    for request in (CommandRequest("stop"), CommandRequest("checkpoint_now"), CommandRequest("rollback", 150)):
        with pytest.raises(Conflict, match="checkpoint_now c-1 is under way"):
            book.issue(request, JOB, command_id="c-2", issuer="bo", now=1000.5)
    say(book, 0, "rejected", "the loop ends")
    assert command.state == "rejected"
    book.issue(CommandRequest("stop"), JOB, command_id="c-2", issuer="bo", now=1001.5)


def test_a_stop_takes_two_persons_where_that_is_the_rule_and_a_checkpoint_does_not() -> None:
    check_alone(CommandRequest("checkpoint_now"), two_persons=True)
    with pytest.raises(Conflict, match="a stop takes two persons"):
        check_alone(CommandRequest("stop"), two_persons=True)
    assert in_words(CommandRequest("stop", save=True)) == "Save a checkpoint, then stop training on all ranks"


def test_after_a_new_fork_an_order_of_before_is_refused() -> None:
    book, command = issued("stop")
    book.head_moved(1, "d-1", 1001.0)
    assert (command.state, progress_of(command).word) == ("rejected", "refused")


def test_a_process_that_ends_after_a_stop_has_not_died_one_that_was_started_since_may() -> None:
    book, _ = issued("stop")
    for rank in (0, 1):
        say(book, rank, "acted")
    again = CommandBook("run")
    again.load(book.all())
    for one in (book, again):
        assert one.command_that_ends("n0", 900 * 10**9) == "c-1"
        assert one.command_that_ends("n0", 1002 * 10**9) is None


def test_no_plan_starts_a_stopped_job_again_however_its_processes_ended() -> None:
    for status in ("finished", "crashed", "running"):
        plan = make_plan("run", RestartFacts(status, "Stopped by anna.", [], [], set(), 0, stopped=True), 0.0)
        assert (plan.action, plan.exit_code, "Stopped by anna." in plan.text) == ("stop", 42, True)
