"""A run is meant by its id, or by the name that every page shows, in each command; hints are for a terminal."""

from __future__ import annotations

import asyncio

from stabilityclient.wire import Hello
from support.cli_program import Program
from support.gateway_stack import SOURCE, RawAgent
from support.job_frames import Job
from support.server_stack import RunningServer


async def _runs(server: RunningServer, **names: str) -> None:
    """Let runs log a row and finish: id -> name."""
    for run_id, name in names.items():
        job = Job()
        async with RawAgent(server.agent_url) as agent:
            await agent.ask(Hello(run_id, "a1", "n0", "0.1.0", project="p", name=name, sources=[SOURCE]))
            await agent.store(job.rows([1, 2]))
            await agent.store(job.event("finish", 2))
        await asyncio.to_thread(server.wait_for, f"/runs/{run_id}", lambda run: run["status"] == "finished", "it ended")
    # The table of all runs, where names are looked up, is as new as its last look, of a moment ago.
    await asyncio.to_thread(
        server.wait_for, "/run_table", lambda table: len(table["rows"]) == len(names), "the table has all runs"
    )


async def test_a_name_that_one_run_has_is_that_run(server: RunningServer, program: Program) -> None:
    await _runs(server, r1="gloo-hang", r2="gloo-hang-2")
    for command in (["plan"], ["commands"], ["autopilot", "--show"], ["detectors"]):
        said = {}
        for reference in ("r1", "gloo-hang"):
            code, out, err = await asyncio.to_thread(program, command[0], reference, *command[1:], "--url", server.url)
            said[reference] = (code, out, err)
        assert said["r1"] == said["gloo-hang"]


async def test_a_name_that_several_runs_have_lists_their_ids_and_an_id_wins(
    server: RunningServer, program: Program
) -> None:
    await _runs(server, r1="sweep", r2="sweep", r3="r1")
    code, _, err = await asyncio.to_thread(program, "plan", "sweep", "--url", server.url)
    assert code == 1
    assert err.startswith("error: 2 runs are called 'sweep': ")
    assert {"r1", "r2"} <= set(err.splitlines()[0].replace(",", "").split())
    _, out, _ = await asyncio.to_thread(program, "export", "r1", "--to", "-", "--url", server.url)
    assert '"run_id":"r1"' in out.replace(" ", "")


ASKING = [
    ["rollback"], ["export"], ["plan"], ["dump"], ["checkpoint"], ["stop", "--yes"], ["commands"], ["batches"],
    ["detectors"], ["autopilot"],
]  # fmt: skip


async def test_a_run_that_is_not_there_is_named_before_anything_else_with_a_command_that_lists_them(
    server: RunningServer, program: Program
) -> None:
    for reference in ("nosuch", 'no"such \\ name'):
        calls = [[command[0], reference, *command[1:]] for command in ASKING]
        for call in [*calls, ["archive", "compact", reference], ["archive", "delete", reference, "--yes"]]:
            code, _, err = await asyncio.to_thread(program, *call, "--url", server.url)
            assert (call, code, err.splitlines()) == (
                call, 1, [f"error: there is no run {reference!r}", "hint:  stabilityboard runs lists them"],
            )  # fmt: skip


async def test_a_rollback_of_a_run_that_is_over_says_that_it_is_over(server: RunningServer, program: Program) -> None:
    await _runs(server, done="done")
    code, _, err = await asyncio.to_thread(program, "rollback", "done", "--url", server.url)
    assert code == 1
    assert err.splitlines()[0] == "error: run done is over (finished): there is no job that could go back"


async def test_hints_in_a_terminal_name_no_call_of_the_api(server: RunningServer, program: Program) -> None:
    await _runs(server, done="done")
    for command in (["rollback", "done", "--segment", "7"], ["approve", "x"], ["batches", "done"], ["dump", "done"]):
        _, _, err = await asyncio.to_thread(program, *command, "--url", server.url)
        assert "GET " not in err
