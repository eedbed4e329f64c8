"""What a rank answers to a command at a boundary; every reason for a no is in words."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from stabilityclient.rollback.decision import Rollback, Situation, judge

_COMMAND: dict[str, Any] = {
    "command_id": "c1",
    "kind": "rollback",
    "to_step": 5,
    "apply_at_step": 12,
    "attempt": 1,
    "world_size": 2,
    "issued": 1000.0,
    "received": 1000.1,
    "expires": 1600.0,
    "fence": {"segment": 0, "segment_key": ""},
    "checkpoint": "/c/5",
    "state": "pending",
}


def _judge(command: dict[str, Any] | None = None, **situation: Any) -> tuple[str, str]:
    at: dict[str, Any] = {
        "boundary": 10,
        "stop": 100,
        "now": 1001.0,
        "segment": ("", 900.0),
        "world_size": 2,
        "has_handler": True,
        "exists": lambda path: path == "/c/5",
    }
    return judge({**_COMMAND, **(command or {})}, Situation(**{**at, **situation}))


def test_a_good_command_is_answered_with_ready_up_to_its_boundary() -> None:
    assert [_judge(boundary=boundary)[0] for boundary in (0, 11, 12, 13)] == ["ready", "ready", "ready", "missed"]


@pytest.mark.parametrize(
    ("command", "situation", "words"),
    [
        ({"kind": "dump_stacks"}, {}, "dump_stacks is not supported by this job yet"),
        ({"kind": "replay_step"}, {}, "replay_step is not supported by this job yet"),
        ({"apply_at_step": None}, {}, "no step boundary"),
        ({}, {"stop": 12}, "the loop ends before step 12"),
        ({}, {"now": 1700.0}, "expired 100 s ago"),
        ({}, {"world_size": 3}, "decided for 2 ranks, the job has 3"),
        ({}, {"has_handler": False}, "no rollback handler"),
        ({"checkpoint": "/c/7"}, {}, "checkpoint /c/7 is not on this node's disk"),
        ({"to_step": 12}, {}, "to_step is 12"),
        ({"to_step": -1}, {}, "to_step is -1"),
        ({"skip_range": [5, 9]}, {}, r"skip_range is [5, 9], expected [first, last] with 5 < first <= last"),
        ({"skip_range": "6-9"}, {}, "skip_range is '6-9'"),
        ({"received": 899.0}, {}, "went on from another point"),
        ({}, {"segment": ("d-1", 900.0)}, "decided on segment '', this rank is in 'd-1'"),
        ({"fence": {"segment_key": "d-2"}}, {"segment": ("d-1", 900.0)}, "decided on segment 'd-2'"),
    ],
)
def test_a_command_that_cannot_be_obeyed_is_rejected_with_the_reason(
    command: dict[str, Any], situation: dict[str, Any], words: str
) -> None:
    verdict, detail = _judge(command, **situation)
    assert (verdict, words in detail) == ("rejected", True), detail


def test_a_branch_that_was_left_may_be_further_than_the_job_is_but_not_than_its_loop() -> None:
    branch = {"branch": {"segment": 0, "segment_key": ""}}
    assert _judge({**branch, "to_step": 50})[0] == "ready"
    assert _judge({**branch, "to_step": 98})[0] == "ready"
    verdict, detail = _judge({**branch, "to_step": 99})
    assert (verdict, detail) == ("rejected", "the loop ends before step 100, there is none behind step 99")
    assert _judge({**branch, "to_step": 99}, stop=None)[0] == "ready"
    assert _judge({"to_step": 50})[0] == "rejected"


def test_a_job_gets_the_branch_that_is_gone_back_to_also_in_another_process() -> None:
    rollback = Rollback.of({**_COMMAND, "branch": {"segment": 3, "segment_key": "c-9"}})
    assert rollback.branch == (3, "c-9")
    assert pickle.loads(pickle.dumps(rollback)) == rollback
    assert Rollback.of(_COMMAND).branch is None


def test_segments_that_the_server_inferred_or_that_the_rank_never_named_are_judged_by_time() -> None:
    assert _judge({"fence": {"segment_key": "u-3"}}, segment=("d-1", 900.0))[0] == "ready"
    assert _judge({"fence": {"segment_key": "c0"}})[0] == "ready"
    assert _judge({"fence": {"segment_key": "d-1"}}, segment=("d-1", 900.0))[0] == "ready"


def test_a_checkpoint_on_a_remote_store_or_none_at_all_is_left_to_the_job() -> None:
    assert _judge({"checkpoint": "s3://b/5"})[0] == "ready"
    assert _judge({"checkpoint": None})[0] == "ready"
    assert _judge({"checkpoint": {"path": "/c/5", "step": 5}})[0] == "ready"


def test_a_stop_needs_neither_handler_nor_checkpoint() -> None:
    assert _judge({"kind": "stop", "to_step": None, "checkpoint": None}, has_handler=False)[0] == "ready"


def test_a_rollback_says_what_was_ordered_and_cannot_be_changed() -> None:
    rollback = Rollback.of(
        {**_COMMAND, "lr_scale": 0.5, "seed": 7, "skip_batches": None, "reason": "r", "issuer": "ada"}
    )
    want = Rollback(5, 0.5, 7, None, "r", "c1", "/c/5", "ada")
    assert rollback == want
    assert rollback.changes() == {"lr_scale": 0.5, "seed": 7}
    for name in ("to_step", "new"):
        with pytest.raises(AttributeError):
            setattr(rollback, name, 1)
    with pytest.raises(AttributeError):
        del rollback.seed
    assert pickle.loads(pickle.dumps(rollback)) == copy.deepcopy(rollback) == want
    assert "to_step=5" in repr(rollback)
    assert len({rollback, want}) == 1


@pytest.mark.parametrize(
    ("asked", "left_out"),
    [({"skip_range": [8, 10]}, [3, 4, 5]), ({"skip_batches": 2}, [1, 2]), ({}, [])],
    ids=["those of some steps", "those right behind the checkpoint", "none"],
)
def test_a_loader_asks_of_each_batch_behind_the_checkpoint_whether_it_is_left_out(
    asked: dict[str, Any], left_out: list[int]
) -> None:
    rollback = Rollback.of({**_COMMAND, **asked})
    assert [number for number in range(1, 9) if rollback.skips(number)] == left_out
    assert rollback.changes() == asked
