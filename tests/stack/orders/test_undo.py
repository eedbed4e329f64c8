"""A rollback is undone by a command like any other: real server, real agent, two real ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from stack.test_job_life import Job
from support.ports import free_port
from support.processes import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server") / "data", free_port()) as running:
        yield running


def _order(job: Job, **order: Any) -> httpx.Response:
    body = {"kind": "rollback", "reason": "test", **order}
    return httpx.post(f"{job.server.url}/api/v1/runs/{job.run_id}/commands", json=body)


def _done(job: Job, **order: Any) -> dict[str, Any]:
    answer = _order(job, **order)
    assert answer.status_code == 201, answer.text
    path = f"commands/{answer.json()['command_id']}"
    done: dict[str, Any] = job.wait_for(path, lambda c: c["progress"]["ended"], "the command has ended")
    assert done["state"] == "done", done["progress"]
    assert {rank["state"] for rank in done["ranks"].values()} == {"acted"}
    return done


def _saved(job: Job, step: int, segment: int) -> None:
    job.wait_for(
        "checkpoints",
        lambda r: any((c["step"], c["segment"], c["available"]) == (step, segment, True) for c in r["checkpoints"]),
        f"checkpoint {step} of segment {segment} is there",
    )
    job.wait_for("", lambda r: r["last_step"] > step + 3, "some steps more")


@pytest.mark.soak
def test_a_rollback_is_undone_and_the_curve_is_the_left_branch_followed_by_new_steps(
    server: Server, tmp_path: Path
) -> None:
    job = Job(server, tmp_path, "undone")
    enough = tmp_path / "enough"
    with job.start(stop=100_000, period_s=0.03, enough=str(enough), apart=True) as ranks:
        _saved(job, 100, 0)
        assert job.get("rollback")["branches"] == []
        _done(job, to_step=20)
        [branch] = job.get("rollback")["branches"]
        assert (branch["segment"], branch["label"], branch["alive_until"]) == (0, "R1", 20)
        assert branch["left_at"] > 103
        assert 100 in [one["step"] for one in branch["checkpoints"]]
        assert job.get("rollback")["no_return"] == ""

        for wrong, said in (
            ({"branch": 0, "to_step": 10}, "on the effective timeline"),
            ({"branch": 0, "to_step": 55}, "no usable checkpoint of step 55"),
            ({"branch": 9, "to_step": 100}, "there is no such segment"),
            ({"branch": 0, "to_step": 100, "skip_batches": 3}, "goes on with the batches that it had"),
        ):
            refused = _order(job, **wrong)
            assert (refused.status_code, said in refused.json()["error"]["message"]) == (422, True), refused.text

        answer = _order(job, branch=0, to_step=100)
        assert answer.status_code == 201, answer.text
        again = _order(job, branch=0, to_step=100)
        path = f"commands/{answer.json()['command_id']}"
        over = job.get(path)["progress"]["ended"]  # a job of short steps may have obeyed meanwhile
        assert again.status_code == 409 or over, again.text
        undone = job.wait_for(path, lambda c: c["progress"]["ended"], "the undo has ended")
        assert (undone["state"], undone["first_step"], undone["segment"]) == ("done", 101, 2)
        assert undone["branch"] == {"segment": 0, "segment_key": ""}

        _saved(job, 110, 2)
        _done(job, to_step=20)  # and once more, from the branch that the undo made
        twice = _done(job, branch=2, to_step=110)
        assert (twice["first_step"], twice["segment"]) == (111, 4)
        job.wait_for("", lambda r: r["last_step"] > 115, "the job goes on")
        enough.touch()
        outputs = [json.loads(lines[0]) for lines in ranks.outputs()]
    assert [output["loaded"] for output in outputs] == [[20, 100, 20, 110]] * 2
    job.last_steps(*[output["last"] for output in outputs])
    assert job.effective() == {rank: list(range(1, output["last"] + 1)) for rank, output in enumerate(outputs)}
    segments = job.get("segments")["segments"]
    assert [(s["parent"], s["fork_step"], s["returns_to"], s["on_head_path"]) for s in segments] == [
        (None, None, None, True),
        (0, 20, None, False),
        (0, 100, 0, True),
        (0, 20, None, False),
        (2, 110, 2, True),
    ]
    rows = [
        (step, value)
        for entry in job.get("series", metric="loss", rank="0")["series"]
        for step, value in zip(entry["steps"], entry["values"], strict=True)
    ]
    lives = {step: round((value + step - 2000.0) / 1000.0) for step, value in rows}
    assert {lives[1], lives[100]} == {0}
    assert {lives[101], lives[110]} == {2}
    assert lives[111] == 4
    costs = job.get("rollback_costs")["rollbacks"]
    assert [(one["fork_step"], one["steps_lost"] > 0) for one in costs] == [
        (20, True), (100, True), (20, True), (110, True),
    ]  # fmt: skip
