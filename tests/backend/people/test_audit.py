"""The audit log: each thing that somebody does or sees is there with a name, and outlives the run."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from stabilitybackend.access.auth import ROLES, KeyRing
from stabilitybackend.storage.redis_link import make_redis
from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis
from support.cli_program import Program
from support.people.agent_loop import Loop, begun
from support.server_stack import RunningServer

#: What anna does -> the action that is noted.
DONE = [
    ("POST", "/runs/r/commands", {"kind": "dump_stacks", "reason": "=1+1"}, "command.order"),
    ("POST", "/runs/r/proposals", {"kind": "rollback", "to_step": 200}, "proposal.made"),
    ("GET", "/runs/r/output", None, "see.output"),
    ("PUT", "/runs/r/detectors", {"settings": {"spike": {"sensitivity": 0.5}}}, "settings.detectors"),
    ("POST", "/runs/r/annotations", {"text": "new data", "step": 100}, "annotation.made"),
    ("PUT", "/runs/r/autopilot", {"policy": "dry_run: true"}, "autopilot.policy"),
    ("DELETE", "/runs/r/autopilot", None, "autopilot.off"),
    ("PUT", "/runs/r/about", {"notes": "a note"}, "run.edit"),
    ("PUT", "/views", {"kind": "runs", "name": "mine", "project": "", "state": {}}, "view.save"),
]


class Board:
    """A server with keys of anna (operator) and boss (admin), and a run ``r`` whose agent stays."""

    def __init__(self, server: RunningServer, keys: dict[str, str]) -> None:
        self.server, self.keys = server, keys

    def call(self, who: str, method: str, path: str, body: Any = None, /, **query: Any) -> httpx.Response:
        with httpx.Client(base_url=f"{self.server.url}/api/v1", timeout=30, verify=False) as client:
            headers = {"Authorization": f"Bearer {self.keys[who]}"}
            return client.request(method, path, json=body, headers=headers, params=query)

    def entries(self, **query: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("boss", "GET", "/audit", **query).json()["entries"]
        return found


async def _keys(redis_url: str) -> dict[str, str]:
    redis = make_redis(redis_url)
    ring = KeyRing(redis)
    roles = {"anna": "operator", "boss": "admin", "agent": "agent"}
    keys = {name: (await ring.create(name, ROLES[role]))[1] for name, role in roles.items()}
    await redis.aclose()
    return keys


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    folder, loop = tmp_path_factory.mktemp("audit"), Loop()
    with EmbeddedRedis(folder) as redis:
        keys = asyncio.run(_keys(redis.url))
        with RunningServer(redis.url, folder / "data", host="0.0.0.0") as server:
            agent, _ = loop.do(begun(server.agent_url, "r", keys["agent"]))
            board = Board(server, keys)
            for method, path, body, _ in DONE:
                answer = board.call("anna", method, path, body)
                assert answer.status_code < 300, answer.text
            yield board
            loop.do(agent.socket.close())
    loop.close()


def test_each_thing_that_was_done_is_noted_with_who_did_it(board: Board) -> None:
    found = {entry["action"]: entry for entry in board.entries(who="anna")}
    assert [action for *_, action in DONE if action not in found] == []
    assert {entry["run"] for action, entry in found.items() if action != "view.save"} == {"r"}
    assert all(entry["key_id"] and "from 127.0.0.1" in entry["detail"] for entry in found.values())


def test_what_is_seen_again_within_the_hour_is_noted_once(board: Board) -> None:
    for _ in range(3):
        board.call("anna", "GET", "/runs/r/output")
    assert len(board.entries(action="see", who="anna")) == 1


def test_person_run_and_action_can_be_chosen(board: Board) -> None:
    assert {entry["action"] for entry in board.entries(action="annotation")} == {"annotation.made"}
    assert board.entries(who="nobody") == []
    everything = board.entries()
    older = board.entries(before=everything[2]["time"])
    assert [entry["time"] for entry in older] == [entry["time"] for entry in everything[3:]]


def test_of_one_run_each_change_of_its_commands_is_there_and_nothing_twice(board: Board) -> None:
    found = board.entries(run="r")
    assert len([entry for entry in found if entry["action"] == "command.order"]) == 1
    assert len([entry for entry in found if entry["action"] == "annotation.made"]) == 1
    assert [entry for entry in found if entry["action"] == "command.delivered"] != []
    assert [entry["time"] for entry in found] == sorted((entry["time"] for entry in found), reverse=True)


def test_the_file_has_all_of_it_and_no_cell_is_a_formula(board: Board) -> None:
    rows = list(csv.DictReader(io.StringIO(board.call("boss", "GET", "/audit/export", who="anna").text)))
    assert {row["action"] for row in rows} >= {action for *_, action in DONE}
    lines = board.call("boss", "GET", "/audit/export", format="jsonl", who="anna").text.splitlines()
    assert [json.loads(line)["action"] for line in lines] == [row["action"] for row in rows]


def test_the_program_shows_it_as_a_table_json_or_a_file(board: Board, program: Program, monkeypatch: Any) -> None:
    monkeypatch.setenv("STABILITY_API_KEY", board.keys["boss"])
    place = ("--who", "anna", "--url", board.server.url)
    assert "command.order" in program("audit", *place)[1]
    assert json.loads(program("audit", "--json", *place)[1])["entries"][0]["who"] == "anna"
    assert program("audit", "--export", "csv", *place)[1].startswith("time,who,key_id,action")


def test_what_begins_like_a_formula_is_written_as_text() -> None:
    from stabilitybackend.schema.server import AuditEntry
    from stabilitybackend.server.api.people.audit import _csv

    written = _csv([AuditEntry(1.0, "=cmd()", None, "login", "+1", "ok")]).decode()
    assert written.splitlines()[1] == "1.000,'=cmd(),,login,'+1,ok,"


def test_the_log_outlives_the_run(board: Board, tmp_path: Path) -> None:
    loop = Loop()
    agent, _ = loop.do(begun(board.server.agent_url, "gone", board.keys["agent"]))
    board.call("anna", "POST", "/runs/gone/annotations", {"text": "x", "step": 3})
    loop.do(agent.socket.close())
    loop.close()
    assert board.call("boss", "DELETE", "/runs/gone", force="true").status_code == 200
    assert [entry["action"] for entry in board.entries(run="gone")] == ["run.delete", "annotation.made"]
