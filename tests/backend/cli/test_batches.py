"""``batches`` from a terminal: the order reaches the ranks, and what they answer is a table, or JSON, or one line."""

from __future__ import annotations

import asyncio
import json

from stabilityclient.wire import CommandMessage
from support.cli_program import Program
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.server_stack import RunningServer

SAMPLES = [
    {"step": 60, "loss": "NaN", "id": "[red]60-b", "dataset": "web", "text": "\x1b[31mbuy" + " now" * 200, "tokens": 9,
     "repeated": 0.75},
    {"step": 61, "loss": 2.5, "shape": [3, 32, 32]},
]  # fmt: skip


async def _answered(agent: RawAgent, job: Job) -> str:
    """Wait for the order, answer it as a rank does, and return its id."""
    while (command := (await agent.next(CommandMessage)).command)["kind"] != "show_batches" or command["ranks"]:
        pass
    named = {"command_id": command["command_id"]}
    steps = [{"step": step, "samples": 1} for step in (60, 61)]
    answer = job.event("batch_samples", 62, **named, last=2, steps=steps, samples=SAMPLES, seconds=0.1)
    await agent.store(answer, job.event("command", 62, **named, attempt=1, state="acted", detail="2 samples"))
    return str(command["command_id"])


async def test_the_worst_samples_are_printed_and_a_job_without_a_ring_is_refused(
    server: RunningServer, program: Program
) -> None:
    job, order = Job(), ("batches", "run-1", "--step", "60", "--url", server.url)
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(job.rows(range(1, 63)))
        code, _, trouble = await asyncio.to_thread(program, *order)
        assert (code, "this job keeps no batches" in trouble, "run.keep_batches" in trouble) == (1, True, True)

        await agent.store(job.event("keeps_batches", last=2))
        (code, table, _), _ = await asyncio.gather(asyncio.to_thread(program, *order), _answered(agent, job))
        assert code == 0
        assert "\x1b[31m" not in table
        for words in ("NaN", "75%", "[red]60-b", "\N{REPLACEMENT CHARACTER}[31mbuy now", "3 x 32 x 32"):
            assert words in table, words
        assert "the rings held steps 60 to 61, 1 rank answered" in table

        (_, found, _), named = await asyncio.gather(asyncio.to_thread(program, *order, "--json"), _answered(agent, job))
        assert (json.loads(found)["request"], json.loads(found)["samples"][0]["loss"]) == (named, "NaN")
