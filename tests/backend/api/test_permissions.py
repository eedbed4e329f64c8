"""Who may do what: every route, page and WebSocket, with every kind of key. A new route without an entry fails here.

The server listens beyond loopback, so that nothing is open by being near.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from stabilitybackend.access.auth import SCOPES, KeyRing
from stabilitybackend.base.settings import Settings
from stabilitybackend.plugins import load
from stabilitybackend.server.app import create_app
from stabilitybackend.server.stages import Options
from stabilitybackend.storage.redis_link import make_redis
from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.server_stack import RunningServer

#: Method and path -> the scope it needs, ``any`` (a key of any kind) or ``open`` (no key: nothing of a run is in it).
NEEDED = {
    "GET /livez": "open",
    "GET /readyz": "open",
    "GET /healthz": "open",
    "GET /metrics": "read",
    "POST /api/v1/login": "open",
    "POST /api/v1/logout": "open",
    # Where people sign in, before they have: the provider says who they are. Without one they are no calls.
    "GET /api/v1/sign_in": "open",
    "GET /api/v1/oidc/start": "open",
    "GET /api/v1/oidc/callback": "open",
    "GET /api/v1/openapi.json": "any",
    "GET /api/v1/me": "any",
    "GET /api/v1/audit": "admin",
    "GET /api/v1/audit/export": "admin",
    "GET /api/v1/run_columns": "read",
    "GET /api/v1/run_table": "read",
    "GET /api/v1/runs": "read",
    "GET /api/v1/runs/{run_id}": "read",
    "GET /api/v1/runs/{run_id}/segments": "read",
    "POST /api/v1/runs/{run_id}/segments/{segment}/undo": "command",
    "GET /api/v1/runs/{run_id}/series": "read",
    "GET /api/v1/runs/{run_id}/metrics": "read",
    "GET /api/v1/runs/{run_id}/incidents": "read",
    "GET /api/v1/runs/{run_id}/incidents/{incident_id}": "read",
    "POST /api/v1/runs/{run_id}/incidents/{incident_id}/ack": "command",
    "PUT /api/v1/runs/{run_id}/incidents/{incident_id}/category": "command",
    "GET /api/v1/runs/{run_id}/annotations": "read",
    "POST /api/v1/runs/{run_id}/annotations": "command",
    "PUT /api/v1/runs/{run_id}/annotations/{annotation_id}": "command",
    "DELETE /api/v1/runs/{run_id}/annotations/{annotation_id}": "command",
    "GET /api/v1/runs/{run_id}/attempts": "read",
    "GET /api/v1/runs/{run_id}/autopilot": "read",
    "PUT /api/v1/runs/{run_id}/autopilot": "command",
    "DELETE /api/v1/runs/{run_id}/autopilot": "command",
    "GET /api/v1/runs/{run_id}/branches": "read",
    "GET /api/v1/runs/{run_id}/checkpoints": "read",
    "GET /api/v1/runs/{run_id}/health": "read",
    "GET /api/v1/compare": "read",
    "POST /api/v1/runs/{run_id}/commands": "command",
    "GET /api/v1/runs/{run_id}/commands": "read",
    "DELETE /api/v1/runs/{run_id}/commands/{command_id}": "command",
    "GET /api/v1/proposals": "read",
    "GET /api/v1/runs/{run_id}/proposals": "read",
    "POST /api/v1/runs/{run_id}/proposals": "propose",
    "POST /api/v1/runs/{run_id}/proposals/{proposal_id}/approve": "command",
    "POST /api/v1/runs/{run_id}/proposals/{proposal_id}/decline": "command",
    "GET /api/v1/runs/{run_id}/commands/{command_id}": "read",
    "GET /api/v1/detectors": "read",
    "GET /api/v1/runs/{run_id}/about": "read",
    "PUT /api/v1/runs/{run_id}/about": "command",
    "GET /api/v1/runs/{run_id}/output": "command",
    "GET /api/v1/runs/{run_id}/detectors": "read",
    "PUT /api/v1/runs/{run_id}/detectors": "command",
    "POST /api/v1/runs/{run_id}/backtest": "read",
    "GET /api/v1/runs/{run_id}/ledger": "read",
    "GET /api/v1/runs/{run_id}/resumes": "read",
    "GET /api/v1/runs/{run_id}/batches": "read",
    "GET /api/v1/runs/{run_id}/batch_samples": "read",
    "GET /api/v1/runs/{run_id}/batch_samples/{request}": "command",
    "GET /api/v1/runs/{run_id}/mixture": "read",
    "GET /api/v1/runs/{run_id}/watched": "read",
    "GET /api/v1/runs/{run_id}/orders": "read",
    "GET /api/v1/runs/{run_id}/rollback_costs": "read",
    "GET /api/v1/runs/{run_id}/spike_score": "read",
    "GET /api/v1/runs/{run_id}/gpus": "read",
    "GET /api/v1/incident_kinds": "read",
    "GET /api/v1/gpus": "read",
    "GET /api/v1/receivers": "read",
    "GET /api/v1/interruptions": "read",
    "GET /api/v1/runs/{run_id}/stacks": "read",
    "GET /api/v1/runs/{run_id}/stacks/{request}": "read",
    "GET /api/v1/runs/{run_id}/plan": "read",
    "GET /api/v1/runs/{run_id}/rollback": "read",
    "GET /api/v1/runs/{run_id}/storage": "read",
    "POST /api/v1/runs/{run_id}/compact": "command",
    "DELETE /api/v1/runs/{run_id}": "admin",
    "POST /api/v1/retention": "admin",
    "GET /api/v1/runs/{run_id}/export": "read",
    "GET /api/v1/runs/{run_id}/export/{export_id}": "read",
    "GET /api/v1/incidents": "read",
    "GET /api/v1/search": "read",
    "GET /api/v1/rollback_costs": "read",
    "GET /api/v1/runs/{run_id}/headline": "read",
    "GET /fleet": "open",
    # Signed by Slack instead; without a signing secret it is no call.
    "POST /api/v1/slack": "open",
    # Signed by PagerDuty, the same.
    "POST /api/v1/pagerduty": "open",
    "GET /api/v1/views": "read",
    "PUT /api/v1/views": "command",
    "DELETE /api/v1/views": "command",
    "GET /api/v1/alerting": "read",
    "PUT /api/v1/alerting/routes": "command",
    "POST /api/v1/alerting/mutes": "command",
    "DELETE /api/v1/alerting/mutes/{mute_id}": "command",
    "POST /api/v1/alerting/preview": "read",
    "GET /api/v1/alerting/precision": "read",
    "GET /api/v1/runs/{run_id}/incidents/{incident_id}/rating": "read",
    "PUT /api/v1/runs/{run_id}/incidents/{incident_id}/rating": "command",
    "WS /api/v1/live": "read",
    "WS /api/v1/agent": "agent",
    # The frame of the pages and its scripts: the same for everybody, nothing of a run is in it.
    "GET /_dash-layout": "open",
    "GET /_dash-dependencies": "open",
    "GET /_favicon.ico": "open",
    "GET /_dash-component-suites/{package_name}/{fingerprinted_path:path}": "open",
    "GET /_stability/{file}": "open",
    "GET /{path:path}": "open",
    # What is drawn in the server: it asks the API as whoever looks.
    "POST /_dash-update-component": "any",
}
#: Scope -> those that allow it too.
ALLOWED_BY = {"propose": {"propose", "command"}}
#: What a path's or a query's parameter is here.
GIVEN = {
    "{run_id}": "run-1", "{segment}": "0", "{incident_id}": "none", "{command_id}": "none", "{request}": "none",
    "{annotation_id}": "none", "{proposal_id}": "none",
    "{export_id}": "none", "{package_name}": "none", "{fingerprinted_path:path}": "none.js", "{path:path}": "some/page",
    "{file}": "none.js",
}  # fmt: skip
QUERY = {
    "kind": "runs", "name": "none", "metric": "loss", "fork": "1", "run": "run-1", "days": "10000", "dry_run": "true",
}  # fmt: skip


def routes_of(routes: Any) -> Iterator[str]:
    """Yield ``METHOD path`` of all that an application answers."""
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from routes_of(inner.routes)
            continue
        path = str(route.path)
        if path.startswith("/_stability/"):
            path = "/_stability/{file}"  # its name has a hash
        methods = {"WS"} if type(route).__name__ == "APIWebSocketRoute" else set(route.methods) - {"HEAD"}
        for method in methods:
            yield f"{method} {path}"


def test_every_route_has_an_entry_here(tmp_path: Path) -> None:
    app = create_app(Options(Settings(data_dir=tmp_path), "redis://127.0.0.1:1", load({})))
    found = {name for name in routes_of(app.routes) if not name.endswith(" /api/{path:path}")}
    assert found == set(NEEDED)


@dataclass
class Stage:
    """A server with one run of the project ``proj-a``, and keys of every kind."""

    server: RunningServer
    keys: dict[str, str]

    def call(self, name: str, who: str | None) -> httpx.Response:
        """Make a call, with a key or without."""
        method, path = name.split(" ", 1)
        for part, value in GIVEN.items():
            path = path.replace(part, value)
        headers = {} if who is None else {"Authorization": f"Bearer {self.keys[who]}"}
        body = {} if method in ("POST", "PUT") else None
        with httpx.Client(base_url=self.server.url, timeout=30, verify=False) as client:  # a TLS context takes 40 ms
            return client.request(method, path, params=QUERY, headers=headers, json=body)

    def handshake(self, name: str, who: str | None) -> int:
        """Open a WebSocket and return the status of the answer."""
        headers = {} if who is None else {"Authorization": f"Bearer {self.keys[who]}"}
        address = f"ws://127.0.0.1:{self.server.port}{name.split(' ')[1]}"
        try:
            with connect(address, additional_headers=headers):
                return 101
        except InvalidStatus as refused:
            return refused.response.status_code

    def status(self, name: str, who: str | None) -> int:
        """Return the status of a call or of a handshake."""
        return self.handshake(name, who) if name.startswith("WS") else self.call(name, who).status_code


async def _prepare(redis_url: str) -> dict[str, str]:
    redis = make_redis(redis_url)
    ring = KeyRing(redis)
    keys = {scope: (await ring.create(scope, [scope]))[1] for scope in SCOPES}
    keys["all"] = (await ring.create("all", SCOPES))[1]
    keys["ours"] = (await ring.create("ours", SCOPES, "proj-a"))[1]
    keys["other"] = (await ring.create("other", SCOPES, "proj-b"))[1]
    revoked, keys["revoked"] = await ring.create("gone", SCOPES)
    await ring.revoke(revoked.key_id)
    keys["wrong"] = keys["all"][:-4] + "AAAA"
    await redis.aclose()
    return keys


async def _fill(server: RunningServer, keys: dict[str, str]) -> None:
    async with RawAgent(server.agent_url, keys["agent"]) as agent:
        job = Job()
        hello = await agent.hello("run-1", sources=[job.info], project="proj-a")
        assert type(hello).__name__ == "Welcome"
        await agent.store(job.rows(range(1, 11)))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("permissions")
    with EmbeddedRedis(folder) as redis:
        keys = asyncio.run(_prepare(redis.url))
        with RunningServer(redis.url, folder / "data", host="0.0.0.0") as server:
            asyncio.run(_fill(server, keys))
            yield Stage(server, keys)


@pytest.mark.parametrize("name", sorted(NEEDED))
def test_without_a_key_that_works_only_what_is_open_answers(stage: Stage, name: str) -> None:
    for who in (None, "wrong", "revoked"):
        assert (stage.status(name, who) == 401) is (NEEDED[name] != "open"), who


@pytest.mark.parametrize("name", sorted(NEEDED))
def test_a_key_does_what_its_scope_says_and_nothing_else(stage: Stage, name: str) -> None:
    found = {scope for scope in SCOPES if stage.status(name, scope) not in (401, 403)}
    needed = NEEDED[name]
    assert found == ALLOWED_BY.get(needed, {needed} & set(SCOPES) or set(SCOPES))


@pytest.mark.parametrize("name", sorted(name for name in NEEDED if "{run_id}" in name))
def test_a_run_of_another_project_is_a_run_that_there_is_not(stage: Stage, name: str) -> None:
    foreign, absent = stage.call(name, "other"), stage.call(name.replace("{run_id}", "run-2"), "other")
    assert (foreign.status_code, absent.status_code) == (404, 404)
    assert foreign.json()["error"]["message"] == "there is no run 'run-1'"
    assert absent.json()["error"]["message"] == "there is no run 'run-2'"
    # With a key of its project the same call gets to the run.
    own = stage.call(name, "ours")
    assert "there is no run" not in own.text


@pytest.mark.parametrize("name", sorted(name for name in NEEDED if "{" not in name and name.startswith("GET /api")))
def test_what_is_about_all_runs_leaves_out_those_of_another_project(stage: Stage, name: str) -> None:
    assert "run-1" not in stage.call(name, "other").text.replace("there is no run 'run-1'", "")
    assert "proj-a" not in stage.call(name, "other").text
