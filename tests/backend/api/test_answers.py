"""What the server says that it answers, and what it answers: the OpenAPI, the TypeScript declarations, and real runs.

Every `RunningServer` holds its answers against their declarations (`support.checked_answers`); here it is seen that all
calls are declared and made, and that a lie is noticed.
"""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fastapi import FastAPI

from stabilitybackend.base.settings import Settings
from stabilitybackend.plugins import load
from stabilitybackend.server.api.answers import answer, answers, declared
from stabilitybackend.server.app import create_app
from stabilitybackend.server.stages import Options
from stabilityclient.wire import Health
from support.checked_answers import AnswersChecked
from support.gateway_stack import RawAgent
from support.gpu_events import Node
from support.job_frames import Job
from support.server_stack import RunningServer

ROOT = Path(__file__).parents[3]


@pytest.fixture
def app(tmp_path: Path) -> FastAPI:
    return create_app(Options(Settings(data_dir=tmp_path), "redis://127.0.0.1:1", load({})))


def test_every_call_of_the_openapi_says_what_it_answers(app: FastAPI) -> None:
    document = app.openapi()
    undeclared = [
        f"{method} {path}"
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if not all(body["schema"] for one in operation["responses"].values() for body in one["content"].values())
    ]
    assert undeclared == []
    assert len(list(declared(app.routes))) >= 2 * 40  # each its success, and errors


def test_the_typescript_declarations_are_made_from_the_schema_of_now(app: FastAPI) -> None:
    path = ROOT / "frontend" / "types" / "generate.py"
    spec = importlib.util.spec_from_file_location("generate_types", path)
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert generate.declarations(app.openapi()) == generate.FILE.read_text(), "run `make types`"


class Point(msgspec.Struct):
    x: int
    y: int = 0


@pytest.mark.parametrize(
    ("body", "lies"), [({"x": 1, "y": 2}, 0), ({"x": 1, "y": 2, "z": 3}, 1), ({"y": 2}, 1), ({"x": 1}, 1),
                       ({"x": None, "y": 2}, 1)]
)  # fmt: skip
async def test_an_answer_with_a_field_too_many_or_too_few_is_noticed(body: dict[str, Any], lies: int) -> None:
    app = FastAPI()
    app.get("/point", responses=answers(Point))(lambda: answer(body))
    checked = AnswersChecked(app)

    async def nothing(message: Any = None) -> Any:
        return {"type": "http.request"}

    scope = {"type": "http", "method": "GET", "path": "/point", "query_string": b"", "headers": []}
    await checked(scope, nothing, nothing)
    assert (len(checked.lies), checked.answered) == (lies, {"GET /point"})


async def test_all_that_can_be_read_of_a_real_run_is_as_declared(server: RunningServer) -> None:
    job, node = Job(), Node(first_rank=0)
    stacks = {"request": "d-1", "rank": 0, "pid": 7, "slot": {"phase": "backward"}, "proc": {"state": "S"}}
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(
            node.frame(node.inventory(job.info.started)),
            job.rows(range(1, 101)),
            job.event("checkpoint", 40, path="c/40"),
            job.rolled_back(50, "k"),
            job.rows([51, 52]),
            job.event("alert", 52, title="odd", text="look", severity="critical"),
            job.event("stacks", 52, **stacks, stack='Thread 0x1 (most recent call first):\n  File "a", line 1 in b\n'),
            job.event("batch_samples", 52, command_id="d-1", steps=[{"step": 9}], samples=[{"step": 9}]),
            node.frame(node.xid(0, 48, job.info.started + 10)),
        )
        rank = {"rank": 0, "source": job.info.source, "pid": 7, "step": 52, "phase": "backward", "proc": {"state": "S"}}
        await agent.send(Health("a1", "n0", 1_000.0, [rank], {"version": "1"}))
        await asyncio.to_thread(_read_everything, server)
    # A way to another address has no body.
    found = [one for one in declared(server.app.routes) if one.status != "default" and one.answer["content"]]
    reads = {f"{one.method} {one.path}" for one in found if one.method == "GET"}
    assert reads - server.checked.answered == set()


def _read_everything(server: RunningServer) -> None:
    """Call every GET, with ids that earlier answers named."""
    incident = server.wait_for("/runs/run-1/incidents", lambda a: a["incidents"], "the alert")["incidents"][0]
    server.wait_for("/runs/run-1", lambda run: run["last_step"] == 52, "step 52")
    dump = server.wait_for("/runs/run-1/stacks", lambda a: a["dumps"], "the dump")["dumps"][0]
    ordered = server.client.post("/api/v1/runs/run-1/commands", json={"kind": "dump_stacks", "reason": "to see"}).json()
    export = server.client.get("/api/v1/runs/run-1/export").headers["X-Export-Id"]
    given = {
        "run_id": "run-1", "incident_id": incident["incident_id"], "request": dump["request"], "export_id": export,
        "command_id": ordered["command_id"],
    }  # fmt: skip
    query = {
        "kind": "runs",
        "metric": ["loss"],
        "run": ["run-1"],
        "align": "fork",
        "x": "time",
        "smooth": 0.9,
        "points": 20,
        "fork": ["1"],
        "q": "run",
    }
    for one in declared(server.app.routes):
        if one.method == "GET" and one.status == "200":
            server.client.get(one.path.format(**given), params=query).raise_for_status()
