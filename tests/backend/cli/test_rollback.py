"""``rollback`` from a terminal: it offers what the page offers, and a bad checkpoint has to be asked for twice."""

from __future__ import annotations

import asyncio
import io
import math
from collections.abc import AsyncIterator

import pytest

from stabilityclient.wire import CommandMessage, SourceInfo
from support.cli_program import Program
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.server_stack import RunningServer


@pytest.fixture
async def spoilt(server: RunningServer) -> AsyncIterator[RawAgent]:
    """The agent of a job at step 269, in a spike that is open since step 220, with checkpoints 200 and 250."""
    job = Job()

    def rows(first: int, last: int) -> object:
        steps = range(first, last + 1)
        return job.rows(steps, {"loss": [2 + 0.01 * math.sin(1.7 * s) + 4 * (s >= 220) for s in steps]})

    frames = [rows(1, 200), job.event("checkpoint", 200, path="c/200"), rows(201, 250)]
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(*frames, job.event("checkpoint", 250, path="c/250"), rows(251, 269))
        await asyncio.to_thread(
            server.wait_for,
            "/runs/run-1/incidents",
            lambda a: [i for i in a["incidents"] if i["kind"] == "spike"],
            "it",
        )
        yield agent


async def test_the_suggestion_of_the_api_is_offered_and_ordered(
    server: RunningServer, program: Program, spoilt: RawAgent
) -> None:
    offer = await asyncio.to_thread(server.get, "/runs/run-1/rollback")
    assert (offer["to_step"], offer["skip_batches"]) == (200, 120)
    code, out, _ = await asyncio.to_thread(program, "rollback", "run-1", "--yes", "--no-wait", "--url", server.url)
    assert code == 0
    assert "INSIDE AN OPEN INCIDENT" in next(line for line in out.splitlines() if " 250 " in line)
    assert "Roll back to step 200, skip 120 batches" in out
    command = (await spoilt.next(CommandMessage)).command
    assert (command["to_step"], command["skip_batches"]) == (200, 120)


async def test_one_of_which_a_part_is_missing_is_listed_with_the_reason_and_refused(
    server: RunningServer, program: Program, spoilt: RawAgent
) -> None:
    agent = Job()
    agent.info = SourceInfo(source="a-n0", node="n0")
    found = {"kind": "dcp", "complete": False, "problem": "__1_0.distcp is missing", "bad": ["__1_0.distcp"]}
    await spoilt.store(agent.event("checkpoint_seen", 200, path="c/200", **found))
    await asyncio.to_thread(server.wait_for, "/runs/run-1/rollback", lambda a: a["withheld"], "the agent has looked")
    code, out, err = await asyncio.to_thread(program, "rollback", "run-1", "--yes", "--no-wait", "--url", server.url)
    assert (code, "no checkpoint is suggested" in err) == (1, True)
    assert "step      200  NOT OFFERED: it is incomplete: __1_0.distcp is missing" in out
    order = ("rollback", "run-1", "--to-step", "200", "--no-wait", "--url", server.url)
    code, _, err = await asyncio.to_thread(program, *order)
    assert code == 1
    assert "the checkpoint of step 200 can't be used: it is incomplete: __1_0.distcp is missing" in err


async def test_who_says_no_orders_nothing(
    server: RunningServer, program: Program, spoilt: RawAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    code, _, _ = await asyncio.to_thread(program, "rollback", "run-1", "--url", server.url)
    assert code == 1
    assert await asyncio.to_thread(server.get, "/runs/run-1/commands") == {"commands": [], "proposals": []}


async def test_a_checkpoint_from_inside_is_refused_until_it_is_accepted(
    server: RunningServer, program: Program, spoilt: RawAgent
) -> None:
    order = ("rollback", "run-1", "--to-step", "250", "--no-wait", "--url", server.url)
    code, _, err = await asyncio.to_thread(program, *order)
    assert code == 1
    assert "open spike (step 220)" in err
    assert "the last good one is that of step 200" in err
    assert (await asyncio.to_thread(program, *order, "--accept-inside-incident"))[0] == 0
    marks = {
        c["step"]: c["inside"] for c in (await asyncio.to_thread(server.get, "/runs/run-1/checkpoints"))["checkpoints"]
    }
    assert marks[200] is None
    assert marks[250]["onset_step"] == 220


async def test_a_branch_that_was_left_is_named_by_its_segment_and_its_newest_checkpoint_is_taken(
    server: RunningServer, program: Program
) -> None:
    job = Job()
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(
            job.event("handler", can=[], branches=True), job.rows(range(1, 61)),
            job.event("checkpoint", 20, path="c/20"), job.event("checkpoint", 50, path="c/50"),
            job.rolled_back(20, "c-1", command_id="c-1", reason="a try"), job.rows(range(21, 31)),
        )  # fmt: skip
        await asyncio.to_thread(server.wait_for, "/runs/run-1/rollback", lambda a: a["branches"], "the branch")
        order = ("rollback", "run-1", "--yes", "--no-wait", "--url", server.url)
        code, _, err = await asyncio.to_thread(program, *order, "--segment", "1")
        assert (code, "segment 1 has no discarded checkpoint" in err, "that have one: 0" in err) == (1, True, True)
        code, out, _ = await asyncio.to_thread(program, *order, "--segment", "0")
        assert code == 0
        assert "-> step       50" in out
        assert "The branch was left at step 60 (a try)." in out
        command = (await agent.next(CommandMessage)).command
    assert (command["to_step"], command["branch"]) == (50, {"segment": 0, "segment_key": ""})


async def test_one_that_no_rank_of_the_run_wrote_is_listed_with_the_reason_and_taken_after_a_second_word(
    server: RunningServer, program: Program, spoilt: RawAgent
) -> None:
    stranger = Job()
    stranger.info = SourceInfo(source="r0-7-7", rank=0, node="elsewhere")
    await spoilt.store(stranger.event("checkpoint", 210, path="s3://elsewhere/evil"))
    await asyncio.to_thread(server.wait_for, "/runs/run-1/rollback", lambda a: a["withheld"], "it is known")
    named = ["rollback", "run-1", "--to-step", "210", "--no-wait", "--url", server.url]
    code, _, err = await asyncio.to_thread(program, *named)
    assert code == 1
    assert "s3://elsewhere/evil is not verified: no agent of the job has seen it" in " ".join(err.split())
    assert "--accept-unverified" in err
    assert (await asyncio.to_thread(program, *named, "--accept-unverified"))[0] == 0
    command = (await spoilt.next(CommandMessage)).command
    assert (command["to_step"], command["checkpoint"]) == (210, "s3://elsewhere/evil")
