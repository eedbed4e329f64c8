"""An order to look at the kept batches is over when each rank that keeps some answered, and disturbs nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stabilitybackend.acting.commands.batch_commands import (
    ASKED_WITHIN_S,
    MAX_ASKED,
    MAX_DETAIL_CHARS,
    MAX_OWN,
    OWN_WITHIN_S,
)
from stabilitybackend.acting.commands.commands import ANSWER_S, CommandBook
from stabilitybackend.acting.commands.progress import progress_of, shown
from stabilitybackend.acting.commands.request import JobView
from stabilitybackend.base.errors import BadRequest, Conflict
from stabilitybackend.schema.commands import CommandRequest, RankState, ShowBatches
from stabilitybackend.schema.events import CommandReport
from support.checkpoints import checkpoint

NOW = 1000.0
JOB = JobView(200, 0.1, 4, head=3, head_key="d-1", checkpoints=[checkpoint(150)], agents=2, keepers=2)
SHOW = CommandRequest("show_batches", step=190, incident_id="i-1")


def _issued(book: CommandBook, request: CommandRequest = SHOW, job: JobView = JOB, **more: Any) -> Any:
    return book.issue(request, job, **{"command_id": "c-1", "issuer": "ada", "now": NOW} | more)


def _say(book: CommandBook, rank: int | None, state: str, detail: str = "", command_id: str = "c-1") -> int:
    return len(book.on_event(rank, 200, CommandReport(command_id, state, 1, detail), NOW + 1, node="n0"))


def test_it_asks_each_rank_for_its_part_of_what_is_kept() -> None:
    shares = []
    for keepers in (1, 2, 16, 1_000):
        command = _issued(CommandBook("run"), job=JobView(200, 0.1, keepers, 3, "", [], agents=2, keepers=keepers))
        shares.append((command.world_size, command.samples, command.text_chars))
    assert shares == [(1, 64, 2_000), (2, 64, 2_000), (16, 8, 2_000), (1_000, 2, 200)]
    assert (command.step, command.incident_id, command.apply_at_step) == (190, "i-1", None)


def test_it_waits_for_two_steps_of_a_slow_job() -> None:
    waits = [
        _issued(CommandBook("run"), job=JobView(200, step_s, 2, 3, "", [], agents=2, keepers=2)).expires - NOW
        for step_s in (None, 0.1, 300.0)
    ]
    assert waits == pytest.approx([120.0, 120.2, 720.0])


def test_it_is_done_when_all_ranks_answered_although_one_could_not() -> None:
    book = CommandBook("run")
    command = _issued(book)
    _say(book, None, "acted")  # an agent of the node: the order is none of its
    _say(book, 0, "acted", "8 samples")
    assert (command.state, _say(book, 0, "acted", "8 samples")) == ("pending", 0)
    _say(book, 1, "failed", "KeyError: 'text'")
    assert (command.state, command.history[-1].detail) == (
        "done",
        "1 of 2 ranks showed their batches; rank 1: KeyError: 'text'",
    )
    progress = progress_of(command)
    assert ([stage.label for stage in progress.stages], progress.line) == (
        ["Approved", "Rank 0: 8 samples", "Rank 1: KeyError: 'text'"],
        "Batches shown by 1 of 2 ranks.",
    )


def test_what_nobody_answers_is_over_after_its_time_or_with_the_job() -> None:
    book = CommandBook("run")
    command = _issued(book)
    assert book.settle(command.expires + ANSWER_S) == []
    assert book.settle(command.expires + ANSWER_S + 1) == [command]
    assert (command.state, "where run.keep_batch() is called" in progress_of(command).line) == ("expired", True)
    half = _issued(book, command_id="c-2")
    _say(book, 1, "acted", "8 samples", "c-2")
    assert book.job_over("It crashed.", NOW) == [half]
    assert (half.state, half.history[-1].detail) == (
        "done",
        "1 of 2 ranks showed their batches; the job ended. It crashed.",
    )


def test_a_rollback_goes_on_beside_it_and_leaves_it_open() -> None:
    book = CommandBook("run")
    command = _issued(book)
    rollback = _issued(book, CommandRequest("rollback", 150), command_id="c-2")
    book.head_moved(4, "c-2", NOW)
    assert (command.state, rollback.state) == ("pending", "pending")


def test_people_may_order_few_of_them_and_only_where_batches_are_kept() -> None:
    book = CommandBook("run")
    with pytest.raises(Conflict, match="this job keeps no batches"):
        _issued(book, job=JobView(200, 0.1, 4, 3, "", [], agents=2))
    with pytest.raises(BadRequest, match="step is -1"):
        _issued(book, CommandRequest("show_batches", step=-1))
    for at in range(MAX_ASKED):
        _issued(book, command_id=f"c-{at}", now=NOW + at)
        with pytest.raises(Conflict, match=f"order c-{at} is under way"):
            _issued(book, command_id="c-9", now=NOW + at)
        for rank in (0, 1):
            _say(book, rank, "acted", command_id=f"c-{at}")
    with pytest.raises(Conflict, match="6 were ordered in the last 60 s"):
        _issued(book, command_id="c-9", now=NOW + ASKED_WITHIN_S - 1)
    assert isinstance(_issued(book, command_id="c-9", now=NOW + ASKED_WITHIN_S + 9), ShowBatches)


def test_the_server_asks_by_itself_once_an_incident_and_so_often_an_hour() -> None:
    book, asked = CommandBook("run"), []
    for at in range(2 * MAX_OWN):
        for _ in range(2):
            asked += book.ask_for_batches(SHOW, f"b-{at}", JOB, NOW + at)
            for rank in (0, 1):
                _say(book, rank, "acted", command_id=f"b-{at}")
    assert [command.command_id for command in asked] == [f"b-{at}" for at in range(MAX_OWN)]
    assert len(book.ask_for_batches(SHOW, "b-next", JOB, NOW + OWN_WITHIN_S + 30)) == 1
    assert book.ask_for_batches(SHOW, "b-no", JobView(200, 0.1, 4, 3, "", [], agents=2), NOW + 9_999) == []


def test_of_many_ranks_the_answers_are_stored_in_ever_larger_steps() -> None:
    book = CommandBook("run")
    command = _issued(book, job=JobView(200, 0.1, 100, 3, "", [], agents=2, keepers=100))
    news = [rank + 1 for rank in range(100) if _say(book, rank, "acted", "8 samples" * 99)]
    assert (news, command.state) == ([1, 2, 4, 8, 16, 32, 64, 100], "done")
    assert len(command.ranks["5"].detail) == MAX_DETAIL_CHARS


@pytest.mark.parametrize("ranks", [600, 10_000])
def test_an_update_stays_below_64_kib_and_names_those_that_could_not(ranks: int) -> None:
    book, longest = CommandBook("run"), 0
    command = _issued(book, job=JobView(200, 0.1, ranks, 3, "", [], agents=2, keepers=ranks))
    for rank in range(0, ranks, 2):
        for one in (rank, rank + 1, rank):  # the third time nothing
            if _say(book, one, "failed" if one >= ranks - 20 else "acted", "\u00e9" * 999):
                longest = max(longest, len(msgspec.json.encode(shown(command))))
    assert longest < 64 * 1024
    assert (command.acted, progress_of(command).acted, command.state) == (ranks - 20, ranks - 20, "done")
    assert {str(rank) for rank in range(ranks - 20, ranks)} <= set(command.ranks)
    assert f"{ranks - 20} of {ranks} ranks showed their batches" in command.history[-1].detail


def test_an_order_that_an_older_server_stored_counts_its_ranks() -> None:
    command = _issued(CommandBook("run"))
    command.ranks["0"] = RankState("acted", 200, NOW + 1, "8 samples")
    command.note("done", NOW + 2, "")
    assert progress_of(command).line == "Batches shown by 1 of 2 ranks."
