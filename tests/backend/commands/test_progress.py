"""What people read of a command while it lives and when it has ended."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stabilitybackend.acting.commands.progress import progress_of, shown
from stabilitybackend.schema.commands import Command, read_command

PLAN: dict[str, Any] = {"version": 1, "run_id": "r", "written": 100.0, "action": "relaunch"}


def command(kind: str = "rollback", **more: Any) -> Command:
    """Return a command that was requested at second 100 for two ranks or nodes."""
    facts = {
        "kind": kind, "command_id": "c", "run_id": "r", "issuer": "ada", "reason": "", "issued": 100.0,
        "expires": 160.0, "fence": {"segment": 0, "segment_key": "k"}, "world_size": 2,
        "to_step": 150 if kind == "rollback" else None,
    }  # fmt: skip
    return read_command(facts | more)


def rank(state: str, step: int | None = None, detail: str = "") -> dict[str, Any]:
    return {"state": state, "step": step, "time": 101.0, "detail": detail}


def line(state: str, time: float) -> dict[str, Any]:
    return {"state": state, "time": time, "detail": ""}


def test_the_stages_of_a_rollback_say_where_it_is_and_how_long_each_took() -> None:
    under_way = command(
        state="ready",
        apply_at_step=213,
        ranks={"0": rank("acted", 212), "1": rank("ready")},
        history=[line("pending", 100.0), line("delivered", 100.5), line("ready", 102.0)],
    )

    progress = progress_of(under_way)

    assert [(one.label, one.state, one.after_s) for one in progress.stages] == [
        ("Approved", "done", None),
        ("Sent to the nodes", "done", 0.5),
        ("Ranks ready: 2 of 2", "done", 2.0),
        ("Ranks acted: 1 of 2, at the boundary before step 212", "active", None),
        ("First new point", "waiting", None),
    ]
    assert progress.line == (
        "Rollback to step 150 under way. Waiting for: ranks acted: 1 of 2, at the boundary before step 212."
    )
    assert (progress.ended, progress.failed, progress.acted) == (False, False, 1)


def test_a_rollback_that_is_done_says_how_long_it_took_and_from_where_it_goes_on() -> None:
    done = command(state="done", first_step=151, history=[line("done", 104.25)])

    progress = progress_of(done)

    assert progress.line == "Rollback to step 150 done in 4.2 s: training goes on from step 151."
    assert {one.state for one in progress.stages} == {"done"}
    assert (progress.ended, progress.failed, progress.trouble) == (True, False, "")


@pytest.mark.parametrize(
    ("state", "ranks", "trouble"),
    [
        (
            "failed",
            {"0": rank("acted"), "1": rank("failed", detail="size mismatch")},
            "1 rank of 2 went back, the others did not. Rank 1: Size mismatch. "
            "Look at the job: its ranks may be at different steps.",
        ),
        (
            "failed",
            {"1": rank("failed", detail="no such file.")},
            "Not carried out. Rank 1: No such file. Training goes on as before.",
        ),
        (
            "rejected",
            {"0": rank("rejected", detail="lr_scale is fixed")},
            "The job refused. Rank 0: lr_scale is fixed.",
        ),
        ("expired", {}, "No rank took it up in time, so it will not happen any more."),
    ],
    ids=["half of the ranks obeyed", "none obeyed", "refused", "expired"],
)
def test_a_rollback_that_failed_says_why_and_what_that_means(state: str, ranks: dict[str, Any], trouble: str) -> None:
    progress = progress_of(command(state=state, ranks=ranks))

    assert progress.trouble == trouble
    assert progress.line == f"Rollback to step 150: {trouble}"
    assert [one.state for one in progress.stages].count("failed") == 1


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (
            "acted",
            "The job's processes are ended on 1 of 2 nodes. Waiting for its launcher to start it again."
            " b: The ranks are newer than the order.",
        ),
        ("done", "The job runs again, from step 61. b: The ranks are newer than the order."),
        ("failed", "Restart: b: The ranks are newer than the order."),
    ],
)
def test_a_restart_is_told_by_its_nodes(state: str, expected: str) -> None:
    nodes = {
        "a": {"state": "acted", "time": 101.0, "detail": ""},
        "b": {"state": "failed", "time": 102.0, "detail": "the ranks are newer than the order"},
    }
    restart = command("restart", state=state, first_step=61, nodes=nodes, plan=PLAN, grace_s=10.0)

    progress = progress_of(restart)

    assert progress.line == expected
    assert [(one.key, one.state) for one in progress.stages] == [("pending", "done"), ("a", "done"), ("b", "failed")]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("delivered", "Task drain: under way on 1 of 2 nodes."),
        ("done", "Task drain: done on 1 of 2 nodes."),
        ("expired", "Task drain: Nobody answered in time."),
    ],
)
def test_a_task_of_a_plug_in_is_told_by_its_name(state: str, expected: str) -> None:
    nodes = {"a": {"state": "acted", "time": 101.0, "detail": ""}}

    assert progress_of(command("task", state=state, task="drain", nodes=nodes)).line == expected


def test_progress_is_shown_and_never_stored() -> None:
    pending = command()

    assert b"progress" in msgspec.json.encode(shown(pending))
    assert b"progress" not in msgspec.json.encode(pending)
