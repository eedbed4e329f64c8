"""Orders to go back to a branch that was left: what is refused, with which words, and what is offered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stabilitybackend.acting.commands.abilities import Handlers
from stabilitybackend.acting.commands.branch_offer import offered_branches
from stabilitybackend.acting.commands.commands import CommandBook
from stabilitybackend.acting.commands.request import JobView
from stabilitybackend.base.errors import BadRequest
from stabilitybackend.lineage.fold import LineageFold
from stabilitybackend.schema.commands import CommandRequest, Rollback
from stabilitybackend.schema.lineage import Branch
from support.checkpoints import checkpoint
from support.job_frames import Job


def handlers(*branches: bool) -> Handlers:
    """Each rank's client knows branches, or is too old."""
    found = Handlers()
    for rank, knows in enumerate(branches):
        found.event("handler", rank, {"can": ["lr_scale"], "branches": True} if knows else {"can": []})
        found.event("obeys", rank, {"orders": ["stop"]})
    return found


#: Segment 0 was left at step 297 for 200; the job is at step 240 of segment 1.
JOB = JobView(
    running_step=240,
    step_time_s=0.1,
    world_size=2,
    head=1,
    head_key="c-1",
    checkpoints=[
        checkpoint(275, dead=True),
        checkpoint(250, dead=True, available=False),
        checkpoint(225, dead=True, unfit="it is incomplete: a file is missing"),
        checkpoint(225, segment=1),
        checkpoint(200),
    ],
    agents=1,
    handler=handlers(True, True),
    segment_keys={0: "", 1: "c-1"},
)


def ordered(job: JobView = JOB, **fields: Any) -> Rollback:
    command = CommandBook("run").issue(
        CommandRequest("rollback", **fields), job, command_id="c-2", issuer="ada", now=1000.0
    )
    assert isinstance(command, Rollback)
    return command


def test_a_step_above_the_present_one_is_gone_to_where_its_branch_is_named() -> None:
    command = ordered(to_step=275, branch=0, lr_scale=0.5)
    assert (command.to_step, command.checkpoint, command.branch) == (275, "c/275", Branch(0, ""))
    assert command.apply_at_step == 245
    with pytest.raises(BadRequest, match="to_step is 275, but the job is at step 240"):
        ordered(to_step=275)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"to_step": 200, "branch": 0}, "the checkpoint of step 200 of segment 0 is on the effective timeline"),
        ({"to_step": 0, "branch": 0}, "no usable checkpoint of step 0"),
        ({"to_step": 250, "branch": 0}, "no usable checkpoint of step 250: it was deleted"),
        ({"to_step": 225, "branch": 0}, "of step 225: it can't be used, it is incomplete: a file is missing"),
        ({"to_step": 225, "branch": 1}, "is on the effective timeline"),
        ({"to_step": 275, "branch": 4}, "branch is 4, and there is no such segment"),
        ({"to_step": 275, "branch": -1}, "branch is -1, expected 0"),
        ({"to_step": 275, "branch": 0, "skip_batches": 5}, "a branch goes on with the batches that it had"),
        ({"to_step": 275, "branch": 0, "skip_range": [280, 290]}, "a branch goes on with the batches that it had"),
        ({"branch": 0}, "to_step is missing"),
    ],
)
def test_what_is_no_branch_to_go_back_to_is_refused_with_what_there_is(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequest) as refused:
        ordered(**fields)
    assert said in refused.value.message


def test_a_job_of_which_one_rank_is_too_old_is_not_ordered_and_told_so() -> None:
    with pytest.raises(BadRequest, match="stabilityclient of rank 1 is older") as refused:
        ordered(replace(JOB, handler=handlers(True, False)), to_step=275, branch=0)
    assert refused.value.code == "job_too_old"


def test_branches_are_offered_newest_first_with_who_left_them() -> None:
    job, fold = Job(), LineageFold()
    for frame in (
        job.rows(range(1, 298)),
        job.rolled_back(200, "c-1", reason="loss spike"),
        job.rows(range(201, 241)),
        job.rolled_back(100, "c-2"),
        job.rows(range(101, 111)),
    ):
        fold.apply(frame)
    known = [
        checkpoint(275, dead=True),
        checkpoint(225, dead=True, segment=1),
        checkpoint(150, dead=True),
        checkpoint(100),
    ]
    found = offered_branches(fold.tree, fold.heads, known, [])
    assert [(one.segment, one.label, one.alive_until, one.left_at, one.to_step) for one in found] == [
        (1, "R2", 200, 240, 225),
        (0, "R1", 100, 297, 275),
    ]
    assert found[1].text == "The branch was left at step 297 (loss spike)."
    assert [one.step for one in found[1].checkpoints] == [275, 150]
