"""One run over itself over HTTP: its attempts, and the two branches of a fork. Real server, real Redis."""

from __future__ import annotations

import asyncio
from typing import Any

from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.server_stack import RunningServer


async def _told(server: RunningServer, *frames: Any, last_step: int) -> None:
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(*frames)
        await asyncio.to_thread(
            server.wait_for, "/runs/run-1", lambda r: r["last_step"] == last_step, f"step {last_step}"
        )


def _rows(job: Job, first: int, last: int, plus: float) -> Any:
    return job.rows(range(first, last + 1), {"loss": [_loss(step) + plus for step in range(first, last + 1)]})


def _loss(step: int) -> float:
    return 10 - step / 8


async def test_attempts_lie_over_each_other_by_the_steps_since_each_began_and_say_what_they_share(
    server: RunningServer,
) -> None:
    job = Job()
    await _told(
        server, _rows(job, 1, 60, 0), job.rolled_back(20, "c-1", command_id="c-1", reason="spike"),
        _rows(job, 21, 70, 0), job.rolled_back(20, "d-1", reason="again"), _rows(job, 21, 30, 0), last_step=30,
    )  # fmt: skip
    found = server.get("/runs/run-1/attempts", metric="loss")
    assert [
        (one["segment"], one["label"], one["start_step"], one["steps"], one["ended"], one["why"])
        for one in found["attempts"]
    ] == [(0, "", 0, 60, True, "spike"), (1, "R1", 20, 50, True, "again"), (2, "R2", 20, 10, False, "")]
    assert [one["how"] for one in found["attempts"][:2]] == ["rolled back", "rolled back by the job"]
    assert found["text"] == (
        "3 attempts. 2 of them ended between 50 and 60 steps after their start. "
        "The newest one is 10 steps after its start."
    )
    assert found["attempts"][1]["curve"]["xs"] == list(range(1, 51))
    assert found["attempts"][1]["curve"]["values"][0] == _loss(21)


async def test_the_first_attempt_begins_with_the_first_step_that_was_logged(server: RunningServer) -> None:
    await _told(server, _rows(Job(), 0, 9, 0), last_step=9)
    [one] = server.get("/runs/run-1/attempts", metric="loss")["attempts"]
    assert (one["start_step"] + 1, one["steps"]) == (0, 10)


async def test_the_branches_of_a_fork_are_aligned_at_it_with_their_difference_and_values(server: RunningServer) -> None:
    job = Job()
    await _told(
        server, _rows(job, 1, 60, 0), job.rolled_back(20, "c-1"), _rows(job, 21, 40, 0.5),
        job.rolled_back(50, "c-2", branch={"segment": 0, "segment_key": ""}), _rows(job, 51, 70, 0.25), last_step=70,
    )  # fmt: skip
    first = server.get("/runs/run-1/branches", metric="loss", fork=1)
    assert (first["label"], first["fork_step"]) == ("R1", 20)
    assert (first["left"]["xs"], first["right"]["xs"]) == (list(range(1, 41)), list(range(1, 21)))
    assert set(first["difference"]["values"]) == {0.5}
    assert [(row["after"], row["left"], row["right"]) for row in first["table"]][:2] == [
        (1, _loss(21), _loss(21) + 0.5),
        (2, _loss(22), _loss(22) + 0.5),
    ]
    assert first["table"][-1]["step"] == 40
    assert "0.5 higher on average" in first["text"]
    second = server.get("/runs/run-1/branches", metric="loss", fork=2)
    assert (second["fork_step"], second["left"]["xs"]) == (50, list(range(1, 11)))
    assert set(second["difference"]["values"]) == {0.25}


async def test_what_is_no_fork_is_refused_with_those_that_there_are(server: RunningServer) -> None:
    job = Job()
    await _told(server, _rows(job, 1, 10, 0), job.rolled_back(5, "k"), _rows(job, 6, 8, 0), last_step=8)
    answer = server.client.get("/api/v1/runs/run-1/branches", params={"metric": "loss", "fork": 0})
    assert (answer.status_code, answer.json()["error"]["hint"]) == (422, "here: 1")
    assert server.get("/runs/run-1/attempts", metric="nothing")["attempts"][0]["curve"]["xs"] == []
    nothing = server.get("/runs/run-1/branches", metric="nothing", fork=1)
    assert nothing["text"] == "The two branches of R1 have no step in common behind step 5."
