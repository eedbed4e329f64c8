"""``runs``, ``rollback`` and ``import`` against the whole server; the job is a scripted agent or an offline spool."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stabilityclient.wire import CommandMessage
from support.cli_program import Program
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.server_stack import RunningServer

#: What a user's offline script is: 50 steps, two of them not finite.
_OFFLINE_JOB = """
import sys
import stabilityclient
run = stabilityclient.init(project="p", name="n", run_id=sys.argv[1], config={"lr": 1.0}, dir=sys.argv[2])
for step in range(50):
    run.log(step, {"loss": float("nan") if step == 7 else 1.0 / (step + 1)})
run.finish()
"""


async def obey(agent: RawAgent, job: Job) -> None:
    """Do what a job does that is ordered back."""
    command = (await agent.next(CommandMessage)).command
    words = {"command_id": command["command_id"], "attempt": command["attempt"]}
    for state in ("ready", "acted"):
        await agent.store(job.event("command", command["apply_at_step"], state=state, **words))
    await agent.store(job.rolled_back(command["to_step"], command["command_id"], command_id=command["command_id"]))
    await agent.store(job.rows([command["to_step"] + 1]))


async def test_a_rollback_is_followed_until_its_first_new_point(server: RunningServer, program: Program) -> None:
    job = Job()
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(job.rows(range(1, 11)), job.event("checkpoint", 5, path="c/5"), job.rows([11]))
        await asyncio.to_thread(server.wait_for, "/runs/run-1", lambda r: r["last_step"] == 11, "step 11 is there")
        job_obeys = asyncio.create_task(obey(agent, job))
        order = ("rollback", "run-1", "--to-step", "5", "--lr-scale", "0.5", "--reason", "spike", "--url", server.url)
        code, out, err = await asyncio.to_thread(program, *order)
        await job_obeys
    assert (code, err) == (0, "")
    assert "approved" in out
    assert "acted" in out
    assert out.splitlines()[-1] == "done: segment 1 goes on from step 6"


async def test_a_rollback_that_the_server_refuses_fails_with_its_words(server: RunningServer, program: Program) -> None:
    code, _, err = await asyncio.to_thread(program, "rollback", "nobody", "--to-step", "5", "--url", server.url)
    assert code == 1
    assert err.startswith("error: ")
    assert "nobody" in err


async def test_runs_shows_what_the_server_has(server: RunningServer, program: Program) -> None:
    job = Job()
    assert (await asyncio.to_thread(program, "runs", "--url", server.url))[1] == f"no runs yet at {server.url}\n"
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(job.rows([1, 2], {"loss": [2.0, float("nan")]}))
        await asyncio.to_thread(server.wait_for, "/runs/run-1", lambda r: r["last_step"] == 2, "step 2 is there")
        code, out, _ = await asyncio.to_thread(program, "runs", "--url", server.url)
    assert code == 0
    [row] = [line for line in out.splitlines() if "run-1" in line]
    assert "NaN" in row


def record_offline(run_id: str, folder: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("STABILITY_")}
    command = [sys.executable, "-c", _OFFLINE_JOB, run_id, str(folder)]
    subprocess.run(command, check=True, timeout=60, env=env | {"STABILITY_MODE": "offline"})


def test_an_offline_run_is_imported_whole_and_once(server: RunningServer, program: Program, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    for run_id in ("off-1", "off-2"):
        record_offline(run_id, spool)

    code, out, err = program("import", spool, "--url", server.url)
    assert (code, err.strip()) == (0, "")
    assert [line.split(":")[0] for line in out.splitlines()] == ["off-1", "off-2"]
    assert "0 were there already" in out
    again = program("import", spool / "off-1", "--url", server.url)[1]
    assert again.startswith("off-1: 0 records sent")

    server.wait_for("/runs/off-1", lambda run: run["last_step"] == 49, "all steps are there")
    [series] = server.get("/runs/off-1/series", metric="loss")["series"]
    assert series["steps"] == list(range(50))
    assert series["values"] == ["NaN" if step == 7 else 1.0 / (step + 1) for step in range(50)]


@pytest.mark.parametrize("table", [("runs",), ("archive", "status")], ids=["runs", "archive status"])
def test_a_narrow_screen_cuts_no_run_id(
    server: RunningServer, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: tuple[str, ...]
) -> None:
    run_id = "llama-70b-stage-2-2026-11-20-16-41-07"
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 1.0}\n')
    assert program("import", tmp_path / "log.jsonl", "--run-id", run_id, "--url", server.url)[0] == 0
    monkeypatch.setenv("COLUMNS", "80")
    assert run_id in program(*table, "--url", server.url)[1]


def test_one_broken_folder_does_not_stop_the_import_of_the_others(
    server: RunningServer, program: Program, tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    record_offline("off-2", spool)
    (spool / "off-1").mkdir()
    (spool / "off-1" / "run.json").write_text("{}")
    code, out, err = program("import", spool, "--url", server.url)
    assert code == 1
    assert "off-1: failed: " in err
    assert out.startswith("off-2: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("keys", "create", "x", "--scope", "root"), "scopes ['root'] given, expected some of agent, read, propose"),
        (("keys", "revoke", "nope"), "no key has the id 'nope'"),
        (("up", "--port", "99999"), "setting port is '99999', expected a number from 0 to 65535"),
        (("runs", "--url", "http://127.0.0.1:1"), "no server answers at http://127.0.0.1:1"),
        (("runs", "--url", "nonsense"), "no server answers at http://nonsense"),
        (("rollback", "r", "--to-step", "5", "--url", "http://127.0.0.1:1"), "no server answers at"),
    ],
)
def test_trouble_is_one_line_and_one_hint(program: Program, arguments: tuple[str, ...], message: str) -> None:
    code, _, err = program(*arguments)
    assert code in (1, 2)
    assert err.startswith(f"error: {message}")
    assert len(err.splitlines()) <= 2


def test_keys_are_made_listed_and_revoked_without_a_server(program: Program) -> None:
    code, out, err = program("keys", "create", "screen", "--scope", "read")
    key = out.strip()
    assert code == 0
    assert key.startswith("sb_")
    assert key not in err
    listed = program("keys", "list")[1]
    assert "screen" in listed
    assert key.split("_", 2)[2] not in listed
    assert program("keys", "revoke", key.split("_")[1], "--yes")[0] == 0
    assert "revoked" in program("keys", "list")[1]


def test_the_version_is_shown(program: Program) -> None:
    assert re.fullmatch(r"stabilityboard \d+\.\d+\.\d+\n", program("--version")[1])


def test_help_names_every_command(program: Program) -> None:
    shown = program("--help")[1]
    names = ["up", "demo", "runs", "rollback", "import", "export", "keys", "archive", "doctor"]
    assert [name for name in names if f" {name} " in shown] == names


@pytest.mark.parametrize(
    ("command", "default"),
    [
        (("up",), "127.0.0.1"),
        (("import",), "a run per file or folder"),
        (("export",), "jsonl for -"),
        (("runs",), "the one running here"),
        (("archive", "status"), "the newest 500"),
        (("keys", "create"), "all"),
    ],
)
def test_help_says_what_is_taken_where_nothing_is_given(
    program: Program, command: tuple[str, ...], default: str
) -> None:
    assert f"{default})" in " ".join(program(*command, "--help")[1].split())
