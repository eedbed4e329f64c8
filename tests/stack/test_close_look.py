"""Somebody asks what every rank is in: real server, real agent, ranks of which one loads data and one waits for it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from stabilitybackend.acting.commands.agent_commands import GONE_S
from support.processes import Ranks, Server, agent_pid


# Soak: what it shows, tests/stack/test_faults.py shows too; here the answer of the API is read in full.
@pytest.mark.soak
def test_what_every_rank_is_in_is_asked_for_and_shown(tmp_path: Path, free_port: int) -> None:
    plan = json.dumps({"hang_at": [1, 12], "stop": 20})
    with (
        Server(tmp_path / "data", free_port) as server,
        Ranks("job.py", [plan], url=server.url, folder=tmp_path / "spool", run_id="look"),
    ):

        def stand(answer: dict[str, Any]) -> bool:
            ranks = [rank for agent in answer["agents"] for rank in agent["ranks"]]
            return [rank.get("phase") for rank in ranks] == ["backward", "data"]

        server.wait_for("/runs/look/health", stand, "both ranks stand where they should")
        order = {"kind": "dump_stacks", "reason": "what is it in?"}
        answer = httpx.post(f"{server.url}/api/v1/runs/look/commands", json=order)
        assert answer.status_code == 201, answer.text
        place = f"/runs/look/commands/{answer.json()['command_id']}"
        done = server.wait_for(place, lambda command: command["state"] == "done", "every agent has looked")
        assert [word["state"] for word in done["nodes"].values()] == ["acted"]
        dumps = server.get("/runs/look/stacks")["dumps"]
        dump = next(dump for dump in dumps if dump["request"] == answer.json()["command_id"])
        assert {rank: facts["slot"]["phase"] for rank, facts in dump["ranks"].items()} == {"0": "backward", "1": "data"}
        functions = [frame["function"] for group in dump["groups"] for frame in group["frames"]]
        assert "main" in functions


@pytest.mark.soak
def test_a_look_whose_agent_is_killed_and_followed_by_none_has_an_answer_in_seconds(
    tmp_path: Path, free_port: int
) -> None:
    with (
        Server(tmp_path / "data", free_port) as server,
        Ranks(
            "job.py", [json.dumps({"stop": 2_000})], url=server.url, folder=tmp_path / "spool", run_id="look"
        ) as ranks,
    ):
        server.wait_for("/runs/look/health", lambda answer: len(answer["agents"]) == 1, "the agent reaches us")
        agent = agent_pid(tmp_path / "spool", "look")
        for pid in (agent, *(process.pid for process in ranks.processes)):
            os.kill(pid, signal.SIGSTOP)  # no rank starts another agent
        order = {"kind": "dump_stacks", "reason": "what is it in?", "expires_s": 60}
        command = httpx.post(f"{server.url}/api/v1/runs/look/commands", json=order).json()
        os.kill(agent, signal.SIGKILL)
        place = f"/runs/look/commands/{command['command_id']}"
        failed = server.wait_for(place, lambda command: command["state"] == "failed", "it is ended")
        assert failed["history"][-1]["time"] - command["issued"] < GONE_S + 10
        (word,) = failed["nodes"].values()
        assert "its agent ended before it answered" in word["detail"]
