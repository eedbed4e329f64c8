"""A proposal on the run's page: it says what and by whom, one click away from being sent, and never by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis
from stabilityclient.wire import CommandMessage
from support.gateway_stack import RawAgent
from support.people.agent_loop import Loop, begun
from support.server_stack import RunningServer

if TYPE_CHECKING:
    from browser.conftest import OpenPage
    from browser.run.conftest import Visit
    from support.processes import Server

ROLLBACK = {"kind": "rollback", "to_step": 200, "reason": "<b>flat</b> since 220"}


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def _job(loop: Loop, url: str, run_id: str) -> RawAgent:
    agent, _ = loop.do(begun(f"{url.replace('http', 'ws')}/api/v1/agent", run_id))
    return agent


def _propose(url: str, run_id: str) -> Any:
    answer = httpx.post(f"{url}/api/v1/runs/{run_id}/proposals?by_program=true", json=ROLLBACK)
    assert answer.status_code == 201, answer.text
    return answer.json()


@pytest.mark.soak  # proposals themselves are in tests/plugins/mcp
def test_what_an_assistant_proposed_comes_up_and_is_sent_by_a_person(server: Server, visit: Visit, loop: Loop) -> None:
    agent = _job(loop, server.url, "proposed")
    page = visit("/runs/proposed")
    page.wait_for_selector("#rollback-open:not([disabled])")
    assert page.is_hidden("#proposals")
    _propose(server.url, "proposed")
    page.wait_for_selector(".proposal")
    said = page.inner_text(".proposal")
    assert "Waits for a person: Roll back to step 200" in said
    assert "<b>flat</b> since 220" in said
    assert "An assistant proposed it: local · 1" in said
    assert "min left" in said

    page.click(".proposal .danger")
    assert "The job is at step 260; 60 steps are trained again." in page.inner_text("#confirm-text")
    assert httpx.get(f"{server.url}/api/v1/runs/proposed/commands").json()["commands"] == []
    page.click("#confirm-yes")
    assert loop.do(agent.next(CommandMessage)).command["to_step"] == 200
    page.wait_for_selector(".proposal[data-state=approved]")
    assert httpx.post(f"{server.url}/api/v1/runs/proposed/proposals", json=ROLLBACK).status_code == 409
    loop.do(agent.socket.close())


@pytest.mark.soak
def test_a_declined_proposal_says_so_and_sends_nothing(server: Server, visit: Visit, loop: Loop) -> None:
    agent = _job(loop, server.url, "declined")
    _propose(server.url, "declined")
    page = visit("/runs/declined")
    page.wait_for_selector(".proposal")
    page.click(".proposal button:has-text('Decline')")
    page.wait_for_selector(".proposal[data-state=declined]")
    assert "Declined by local: Roll back to step 200" in page.inner_text(".proposal")
    assert httpx.get(f"{server.url}/api/v1/runs/declined/commands").json()["commands"] == []
    loop.do(agent.socket.close())


@pytest.mark.soak
def test_under_the_two_persons_rule_the_dialog_proposes(tmp_path: Path, open_page: OpenPage, loop: Loop) -> None:
    with EmbeddedRedis(tmp_path) as redis, RunningServer(redis.url, tmp_path / "d", two_persons=True) as server:
        agent = _job(loop, server.url, "two")
        page = open_page(f"{server.url}/runs/two")
        page.click("#rollback-open:not([disabled])")
        page.wait_for_selector("#rollback-confirm:not([disabled])")
        assert page.inner_text("#rollback-confirm") == "Propose: Roll back to 200"
        assert "requires two persons" in page.inner_text("#rollback-dialog")
        page.click("#rollback-confirm")
        page.wait_for_selector(".proposal[data-state=proposed]")
        assert server.get("/runs/two/commands")["commands"] == []
        page.goto("about:blank")
        loop.do(agent.socket.close())
