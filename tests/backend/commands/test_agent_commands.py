"""An order for agents is done when all answered; a restart only when a process that started after it logs a row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from stabilitybackend.acting.commands.agent_commands import GONE_S, UNANSWERED_AFTER_S, verdict
from stabilitybackend.acting.commands.commands import CommandBook
from stabilitybackend.acting.commands.request import JobView
from stabilitybackend.base.errors import BadRequest, Conflict
from stabilitybackend.schema.commands import Command, CommandRequest
from stabilitybackend.schema.events import CommandReport
from stabilitybackend.schema.plan import Plan, PlannedCheckpoint
from support.checkpoints import checkpoint

NOW = 1000.0
#: Newest starts of the ranks, ns: a node's clock is its own.
STARTS = {"n0": 500, "n1": 900}
JOB = JobView(200, 0.1, 2, head=3, head_key="d-1", checkpoints=[checkpoint(150)], agents=2, starts=STARTS)
PLAN = Plan(1, "run", NOW, "relaunch", PlannedCheckpoint(150, "c/150"), lr_scale=0.5, skip_batches=4)
RESTART = CommandRequest("restart", reason="it hangs")
DUMP = CommandRequest("dump_stacks")


def _issued(request: CommandRequest, book: CommandBook | None = None, job: JobView = JOB, **more: Any) -> Any:
    given = {"command_id": "c-1", "issuer": "ada", "now": NOW, "plan": PLAN if request.kind == "restart" else None}
    return (book or CommandBook("run")).issue(request, job, **given | more)


def _say(book: CommandBook, node: str, state: str, detail: str = "", command_id: str = "c-1") -> list[Command]:
    return book.on_event(None, 200, CommandReport(command_id, state, 1, detail), NOW + 1, node=node)


def test_a_restart_carries_its_plan_and_the_processes_that_it_is_for() -> None:
    command = _issued(RESTART)
    shown = msgspec.to_builtins(command)
    assert {name: shown[name] for name in ("fence", "plan", "grace_s", "to_step", "checkpoint", "world_size")} == {
        "fence": {"segment": 3, "segment_key": "d-1", "starts": {"n0": "1f4", "n1": "384"}},
        "plan": msgspec.to_builtins(PLAN) | {"command_id": "c-1"},
        "grace_s": 10.0,
        "to_step": 150,
        "checkpoint": "c/150",
        "world_size": 2,
    }


def test_a_dump_is_done_when_all_agents_answered_and_failed_when_none_could() -> None:
    book = CommandBook("run")
    command = _issued(DUMP, book)
    _say(book, "n0", "acted")
    assert command.state == "pending"
    _say(book, "n1", "failed", "no rank lives")
    assert (command.state, command.history[-1].detail) == (
        "done",
        "1 of 2 agents have done it; n1: no rank lives",
    )
    other = _issued(DUMP, book, command_id="c-2")
    for node in STARTS:
        _say(book, node, "failed", "too old", "c-2")
    assert other.state == "failed"


def test_people_may_order_few_dumps_a_minute_whatever_the_server_asked_for_itself() -> None:
    book = CommandBook("run")
    for at in range(6):
        book.ask_for_stacks(f"d-{at}", replace(JOB, agents=1), "it stands", NOW)
        _say(book, "n0", "acted", command_id=f"d-{at}")
        _issued(DUMP, book, replace(JOB, agents=1), command_id=f"c-{at}", now=NOW + at)
        _say(book, "n0", "acted", command_id=f"c-{at}")
    with pytest.raises(Conflict, match="6 dumps were ordered in the last 60 s"):
        _issued(DUMP, book, now=NOW + 30)
    assert _issued(DUMP, book, command_id="c-7", now=NOW + 61).state == "pending"
    with pytest.raises(BadRequest, match="expires_s is 3600, expected 1 to 60"):
        _issued(replace(DUMP, expires_s=3600), CommandBook("run"))


def test_one_task_at_a_time_which_a_rollback_does_not_wait_for() -> None:
    book = CommandBook("run")
    task = _issued(CommandRequest("task", task="disk_space"), book)
    with pytest.raises(Conflict, match="task c-1 is under way"):
        _issued(CommandRequest("task", task="disk_space"), book, command_id="c-2")
    assert _issued(CommandRequest("rollback", to_step=150), book, command_id="c-3").state == "pending"
    for node in STARTS:
        _say(book, node, "acted", "90 GiB free")
    assert (task.task, task.state) == ("disk_space", "done")
    with pytest.raises(BadRequest, match="task is missing"):
        _issued(CommandRequest("task"), book, command_id="c-4")


def test_a_restart_is_done_with_the_first_row_of_a_process_that_started_after_it() -> None:
    book = CommandBook("run")
    command = _issued(RESTART, book)
    for node in STARTS:
        _say(book, node, "acted")
    assert command.state == "acted"
    assert book.on_row("n0", 500, 3, 210, NOW + 2) == []  # the last words of an old process
    assert book.on_row("n2", 900, 3, 210, NOW + 2) == []
    assert book.on_row("n2", 901, 4, 151, NOW + 9) == [command]
    assert (command.state, command.segment, command.first_step) == ("done", 4, 151)
    assert book.on_row("n2", 901, 4, 152, NOW + 10) == []


def test_an_agent_that_acted_is_not_heard_again() -> None:
    book = CommandBook("run")
    command = _issued(RESTART, book)
    _say(book, "n0", "acted")
    assert _say(book, "n0", "failed", "refused: rank 0 started after it was decided") == []
    assert command.nodes["n0"].state == "acted"


def test_agents_that_do_not_answer_are_counted_when_time_is_over() -> None:
    book = CommandBook("run")
    command = _issued(RESTART, book)
    _say(book, "n0", "acted")
    assert book.settle(NOW + 74) == []
    book.settle(NOW + 76)
    assert (command.state, command.history[-1].detail) == (
        "acted",
        "1 of 2 agents have done it; 1 did not answer",
    )
    silent = _issued(DUMP, book, command_id="c-2")
    book.settle(NOW + 100)
    assert silent.state == "expired"


def test_an_agent_whose_answer_comes_late_has_done_it_all_the_same() -> None:
    # As after kill -9 of the server: it starts again, the time is over, and then the agent's spool comes in.
    book = CommandBook("run")
    command = _issued(DUMP, book)
    book.delivered([command], NOW + 1, "sent to 2 agents")
    book.settle(NOW + 100)
    assert (command.state, command.history[-1].detail) == ("expired", "0 of 2 agents answered: its stacks are missing")
    assert _say(book, "n0", "failed", "it expired before") == [command]
    assert command.state == "expired"
    assert _say(book, "n1", "acted", "stacks of 4 of 4 ranks") == [command]
    assert command.state == "done"
    restart = _issued(RESTART, book, command_id="c-3")
    book.settle(NOW + 100)
    for node in STARTS:
        _say(book, node, "acted", "the plan is written", "c-3")
    assert (restart.state, book.restart_under_way()) == (
        "acted",
        restart,
    )  # or its plan would be that of a job that ended
    assert book.on_row("n2", 901, 4, 151, NOW + 120) == [restart]
    assert restart.state == "done"
    never = _issued(RESTART, CommandBook("run"), command_id="c-2")
    assert verdict(never, late=True) == ("expired", "0 of 2 agents answered; nothing was done")


def test_an_order_in_the_hands_of_an_agent_that_ended_and_did_not_come_back_has_an_answer_in_seconds() -> None:
    book = CommandBook("run")
    dump = _issued(DUMP, book, replace(JOB, agents=1))
    away = {"n0": NOW + 2}
    assert book.agents_gone(away, NOW + 2 + GONE_S - 0.1) == []
    assert book.agents_gone({}, NOW + 2 + GONE_S) == []  # another agent has come
    assert book.agents_gone(away, NOW + 2 + GONE_S) == [dump]
    assert (dump.state, dump.history[-1].detail) == (
        "failed",
        "n0: its agent ended before it answered, and none came for 10 s: its stacks are missing",
    )
    assert book.agents_gone(away, NOW + 60) == []


def test_of_two_agents_the_one_that_is_gone_does_not_keep_the_others_word_waiting() -> None:
    book = CommandBook("run")
    dump = _issued(DUMP, book)
    _say(book, "n0", "acted")
    book.agents_gone({"n1": NOW + 1}, NOW + 12)
    assert (dump.state, dump.history[-1].detail[:34]) == ("done", "1 of 2 agents have done it; n1: it")


def test_who_was_away_before_the_order_was_not_asked() -> None:
    book = CommandBook("run")
    dump = _issued(DUMP, book)
    assert book.agents_gone({"n7": NOW - 1}, NOW + 60) == []
    assert dump.nodes == {}


def test_what_an_agent_says_after_all_takes_the_place_of_what_was_said_for_it() -> None:
    book = CommandBook("run")
    restart = _issued(RESTART, book, replace(JOB, agents=1))
    book.agents_gone({"n0": NOW + 1}, NOW + 12)
    assert (restart.state, "whether its ranks were ended is not known" in restart.nodes["n0"].detail) == (
        "failed",
        True,
    )
    assert _say(book, "n0", "acted", "all gone") == [restart]
    assert (restart.state, restart.nodes["n0"].detail) == ("acted", "all gone")
    assert book.on_row("n0", 501, 4, 151, NOW + 20) == [restart]


def test_a_restart_whose_agent_went_with_its_ranks_is_done_when_the_job_comes_back_in_time() -> None:
    book, late = CommandBook("run"), CommandBook("run")
    for each in (book, late):
        command = _issued(RESTART, each, replace(JOB, agents=1))
        each.agents_gone({"n0": NOW + 1}, NOW + 12)
        assert (each.command_that_ends("n0", 500), command.state) == ("c-1", "failed")
    again = CommandBook("run")
    again.load(book.all())  # the server is restarted
    (restart,) = again.all()
    assert again.on_row("n0", 501, 4, 151, NOW + 40) == [restart]
    assert restart.state == "done"
    late.settle(NOW + 76)
    # A death of a job that was never ended is not taken for one that was ordered.
    assert (late.restart_under_way(), late.command_that_ends("n0", 500)) == (None, None)
    assert late.on_row("n0", 501, 4, 151, NOW + 80) == []


def test_after_a_restart_that_nobody_answered_another_one_may_be_ordered_at_once() -> None:
    book = CommandBook("run")
    _issued(RESTART, book, replace(JOB, agents=1))
    book.agents_gone({"n0": NOW + 1}, NOW + 12)
    assert _issued(RESTART, book, command_id="c-2", now=NOW + 13).state == "pending"


def test_one_restart_at_a_time_and_none_beside_a_rollback() -> None:
    book = CommandBook("run")
    _issued(RESTART, book)
    with pytest.raises(Conflict, match="restart c-1 is under way"):
        _issued(RESTART, book, command_id="c-2")
    with pytest.raises(Conflict, match="restart c-1 is under way"):
        _issued(CommandRequest("rollback", to_step=150), book, command_id="c-2")
    book = CommandBook("run")
    _issued(CommandRequest("rollback", to_step=150), book)
    with pytest.raises(Conflict, match="rollback c-1 to step 150 is under way"):
        _issued(RESTART, book, command_id="c-2", now=NOW + UNANSWERED_AFTER_S - 1)


def test_a_rollback_that_no_rank_answers_gives_way_to_a_restart() -> None:
    book = CommandBook("run")
    rollback = _issued(CommandRequest("rollback", to_step=150), book)
    _issued(RESTART, book, command_id="c-2", now=NOW + UNANSWERED_AFTER_S)
    assert rollback.state == "failed"
    assert rollback in book.settle(NOW + UNANSWERED_AFTER_S + 1)


def test_a_restart_that_never_came_back_gives_way_to_the_next_one() -> None:
    book = CommandBook("run")
    first = _issued(RESTART, book)
    for node in STARTS:
        _say(book, node, "acted")
    _issued(RESTART, book, command_id="c-2", now=NOW + 30)
    assert (first.state, book.restart_under_way().command_id) == ("failed", "c-2")


def test_a_job_that_ends_does_not_end_the_order_that_ends_it() -> None:
    book = CommandBook("run")
    command = _issued(RESTART, book)
    assert book.job_over("rank 0 is gone", NOW + 6) == []
    assert command.state == "pending"


def test_a_server_that_starts_anew_still_waits_for_the_job() -> None:
    book = CommandBook("run")
    command = _issued(RESTART, book)
    for node in STARTS:
        _say(book, node, "acted")
    again = CommandBook("run")
    again.load([command])
    assert again.command_that_ends("n0", 500) == "c-1"
    assert again.command_that_ends("n0", 501) is None
    assert again.on_row("n0", 501, 4, 151, NOW + 9)[0].state == "done"


@pytest.mark.parametrize(
    ("asked", "job", "error", "what"),
    [
        (RESTART, replace(JOB, agents=0), Conflict, "no agent of this run is connected"),
        (RESTART, replace(JOB, starts={}), Conflict, "no agent has reported a rank"),
        (replace(RESTART, branch=1), JOB, BadRequest, "branch given for a restart"),
        (replace(DUMP, to_step=150), JOB, BadRequest, "to_step given for a dump_stacks, expected only a reason"),
        (replace(RESTART, grace_s=301.0), JOB, BadRequest, "grace_s is 301.0, expected 0 to 300"),
        (replace(RESTART, exclude_nodes=["n0; rm -rf /"]), JOB, BadRequest, "expected names of letters"),
        (CommandRequest("rollback"), JOB, BadRequest, "to_step is missing"),
    ],
)
def test_what_cannot_be_done_is_refused_with_what_is_wrong(
    asked: CommandRequest, job: JobView, error: type[Exception], what: str
) -> None:
    with pytest.raises(error) as refused:
        _issued(asked, job=job)
    assert what in str(refused.value)
