"""Every command of the program takes ``--json``; then standard output is one JSON document, and errors are JSON too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import typer

from stabilitybackend.cli.app import program as whole_program
from stabilitybackend.plugins import load
from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis
from support.cli_program import Program
from support.people.agent_loop import Loop, begun
from support.server_stack import RunningServer

#: Without ``--json``: the standard output of one is the protocol, the other has a parser of its own (and ``--json``).
WITHOUT = {"mcp", "demo"}
#: Command -> the arguments that it is called with here, and the exit code. {names} are filled in. Others need a whole
#: job and are tested with it: their errors are looked at here.
CASES: dict[str, tuple[str, int]] = {
    "up": ("--port 99999", 2),
    "runs": ("{server}", 0),
    "rollback": ("r-rollback --to-step 200 --no-wait {server}", 0),
    "checkpoint": ("r-plan --no-wait {server}", 1),
    "stop": ("r-plan --yes --no-wait {server}", 1),
    "commands": ("r-proposals {server}", 0),
    "approve": ("{approved} {server}", 0),
    "decline": ("{declined} {server}", 0),
    "plan": ("r-plan {server}", 0),
    "restart": ("r-restart --no-wait {server}", 1),
    "dump": ("r-plan --no-wait {server}", 0),
    "batches": ("r-plan {server}", 1),
    "task": ("r-plan some-task --no-wait {server}", 0),
    "detectors": ("r-plan --set spike.sensitivity=0.5 {server}", 0),
    "backtest": ("", 2),
    "drill": ("--no-such-option -- job", 2),
    "import": ("{folder}/log.jsonl --run-id imported {server}", 0),
    "export": ("r-plan --to {folder}/out.jsonl {server}", 0),
    "interruptions": ("{server}", 0),
    "audit": ("{server}", 0),
    "autopilot": ("r-plan {server}", 0),
    "doctor": ("", 0),
    "keys create": ("anna --role viewer", 0),
    "keys list": ("", 0),
    "keys revoke": ("none", 1),
    "keys open": ("", 0),
    "keys audit": ("", 0),
    "archive status": ("{server}", 0),
    "archive compact": ("r-plan {server}", 0),
    "archive delete": ("r-gone --yes --force {server}", 0),
    "archive adopt": ("--yes", 1),
    "archive retain": ("--days 1 --dry-run {server}", 0),
}


def commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each command of the program by its words."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield before + name, command


EVERY = dict(commands(typer.main.get_command(whole_program(load({})))))


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A server with a job for each command that needs one, and what the arguments name."""
    folder, loop = tmp_path_factory.mktemp("json"), Loop()
    (folder / "log.jsonl").write_text("".join(f'{{"step": {n}, "loss": 2.5}}\n' for n in range(1, 20)))
    with EmbeddedRedis(folder) as redis, RunningServer(redis.url, folder / "data") as server:
        runs = ("r-rollback", "r-restart", "r-proposals", "r-plan", "r-gone")
        agents = [loop.do(begun(server.agent_url, run))[0] for run in runs]
        order = {"kind": "dump_stacks"}
        made = []
        for kind in ({"kind": "rollback", "to_step": 200}, order):
            answer = httpx.post(f"{server.url}/api/v1/runs/r-proposals/proposals", json=kind)
            made.append(answer.json()["proposal_id"])
        yield {"server": f"--url {server.url}", "folder": folder, "approved": made[0], "declined": made[1]}
        for agent in agents:
            loop.do(agent.socket.close())
    loop.close()


def test_every_command_takes_it_and_is_called_here() -> None:
    takes = {name for name, command in EVERY.items() if any("--json" in one.opts for one in command.params)}
    assert takes == set(EVERY) - WITHOUT
    assert set(CASES) == takes


@pytest.mark.parametrize("name", CASES)
def test_standard_output_is_one_document_and_an_error_is_one_too(
    given: dict[str, Any], program: Program, name: str
) -> None:
    arguments, expected = CASES[name]
    options, *rest = arguments.format(**given).split(" -- ")
    words = [*name.split(), "--json", *options.split(), *(["--", *rest] if rest else [])]
    code, out, err = program(*words)
    assert code in ((expected, 40, 41, 42) if name == "plan" else (expected,)), (out, err)
    if code == expected == 0 or out:
        json.loads(out)
    else:
        assert set(json.loads(err)["error"]) == {"code", "message", "hint"}


def test_what_would_ask_wants_a_yes_with_it(given: dict[str, Any], program: Program) -> None:
    url = given["server"].split()
    for asks in ("rollback r-plan", "stop r-plan", "archive delete r-plan", "archive retain --days 1"):
        code, out, err = program(*asks.split(), "--json", *url)
        assert (code, out, json.loads(err)["error"]["hint"]) == (2, "", "add --yes")


def test_a_wrong_option_is_json_too(program: Program) -> None:
    code, out, err = program("runs", "--json", "--nonsense")
    assert (code, out, json.loads(err)["error"]["code"]) == (2, "", "wrong_use")
