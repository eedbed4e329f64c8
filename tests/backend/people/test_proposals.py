"""Proposals: nothing is sent before another key approves it, once, and only on the head that it was proposed on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from stabilitybackend.access.auth import ROLES, KeyRing
from stabilitybackend.acting.commands.proposals import EXPIRES_S, Person, approved
from stabilitybackend.base.api_client import ApiClient
from stabilitybackend.base.errors import Conflict
from stabilitybackend.schema.commands import CommandFence, Proposal
from stabilitybackend.server.stages import Runs
from stabilitybackend.storage.redis_link import make_redis
from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis
from stabilityclient.wire import CommandMessage
from stabilityplugins.mcp.proposing import ProposingTools
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.people.agent_loop import Loop, begun
from support.server_stack import RunningServer
from support.waiting import until

ROLLBACK = {"kind": "rollback", "to_step": 200, "lr_scale": 0.5, "reason": "it spiked"}


@dataclass
class Board:
    """A server with one key of each kind, and jobs whose agents stay."""

    server: RunningServer
    keys: dict[str, str]
    loop: Loop
    agents: list[RawAgent] = field(default_factory=list)

    def call(self, who: str, method: str, path: str, body: Any = None, status: int = 200, **query: Any) -> Any:
        """Make a call with a key and return the answer; another status fails the test."""
        with httpx.Client(base_url=self.server.url, timeout=30, verify=False) as client:
            headers = {"Authorization": f"Bearer {self.keys[who]}"}
            answer = client.request(method, f"/api/v1{path}", json=body, headers=headers, params=query)
        assert answer.status_code == status, answer.text
        return answer.json() if status < 400 else answer.json()["error"]

    def job(self, run_id: str, project: str = "p") -> tuple[RawAgent, Job]:
        """A job at step 260 with a checkpoint of step 200; its agent stays connected."""
        return self.loop.do(self._job(run_id, project))  # type: ignore[no-any-return]

    async def _job(self, run_id: str, project: str) -> tuple[RawAgent, Job]:
        agent, job = await begun(self.server.agent_url, run_id, self.keys["agent"], project)
        self.agents.append(agent)
        followed = self.server.app.server[Runs].manager.followed
        await until(lambda: run_id in followed() and followed()[run_id].state.judge.newest_step == 260, 30, "folded")
        return agent, job

    def propose(self, run_id: str, who: str = "assistant", **order: Any) -> Any:
        return self.call(who, "POST", f"/runs/{run_id}/proposals", ROLLBACK | order, 201, by_program=True)

    def decide(self, run_id: str, proposal: Any, who: str, how: str = "approve", status: int = 200) -> Any:
        place = f"/runs/{run_id}/proposals/{proposal['proposal_id']}/{how}"
        return self.call(who, "POST", place, {} if how == "decline" else None, status)

    def commands(self, run_id: str) -> list[Any]:
        found: list[Any] = self.call("viewer", "GET", f"/runs/{run_id}/commands")["commands"]
        return found


async def _keys(redis_url: str) -> dict[str, str]:
    redis = make_redis(redis_url)
    ring = KeyRing(redis)
    keys = {role: (await ring.create(role, scopes))[1] for role, scopes in ROLES.items()}
    for name in ("anna", "bert"):
        keys[name] = (await ring.create(name, ROLES["operator"]))[1]
    keys["anna too"] = (await ring.create("Anna", ROLES["operator"]))[1]
    keys["elsewhere"] = (await ring.create("eve", ROLES["operator"], "other"))[1]
    await redis.aclose()
    return keys


@pytest.fixture(scope="module")
def make_board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Board]]:
    folder = tmp_path_factory.mktemp("proposals")
    loop, boards = Loop(), list[Board]()
    with ExitStack() as stack:

        def make(name: str, **settings: Any) -> Board:
            (folder / f"{name}-redis").mkdir()
            redis = stack.enter_context(EmbeddedRedis(folder / f"{name}-redis"))
            keys = asyncio.run(_keys(redis.url))  # before the server, which would not start without
            server = RunningServer(redis.url, folder / name, host="0.0.0.0", **settings)
            server.__enter__()
            boards.append(Board(server, keys, loop))
            return boards[-1]

        yield make
        for board in boards:
            for agent in board.agents:
                loop.do(agent.socket.close())
            board.server.__exit__(None, None, None)
    loop.close()


@pytest.fixture(scope="module")
def board(make_board: Callable[..., Board]) -> Board:
    return make_board("usual")


@pytest.fixture(scope="module")
def strict(make_board: Callable[..., Board]) -> Board:
    """A server with the two persons' rule."""
    return make_board("strict", two_persons=True)


def test_a_proposal_is_sent_to_nobody_until_a_person_approves_it(board: Board) -> None:
    agent, _ = board.job("sent")
    proposal = board.propose("sent")
    assert (proposal["state"], proposal["what"]) == ("proposed", "Roll back to step 200, LR x 0.5")
    assert board.commands("sent") == []
    assert board.call("anna", "GET", "/proposals")["proposals"][-1]["proposal_id"] == proposal["proposal_id"]

    done = board.decide("sent", proposal, "anna")
    sent = board.loop.do(agent.next(CommandMessage)).command
    assert (done["state"], done["command_id"]) == ("approved", sent["command_id"])
    assert (sent["to_step"], sent["lr_scale"]) == (200, 0.5)
    assert board.commands("sent")[0]["issuer"] == "anna, proposed by assistant"


def test_only_who_may_command_approves_and_never_the_key_that_proposed(board: Board) -> None:
    board.job("who")
    proposal = board.propose("who")
    for who in ("assistant", "viewer", "agent"):
        assert board.decide("who", proposal, who, status=403)["code"] == "missing_scope"
    assert board.call("viewer", "POST", "/runs/who/proposals", ROLLBACK, 403)["code"] == "missing_scope"
    own = board.propose("who", "anna")
    assert board.decide("who", own, "anna", status=403)["code"] == "own_proposal"
    assert board.commands("who") == []


def test_two_who_approve_at_once_send_one_command(board: Board) -> None:
    board.job("once")
    proposal = board.propose("once")
    place = f"/api/v1/runs/once/proposals/{proposal['proposal_id']}/approve"

    async def both() -> list[int]:
        async with httpx.AsyncClient(base_url=board.server.url, verify=False) as client:
            keys = [{"Authorization": f"Bearer {board.keys[who]}"} for who in ("anna", "bert") * 4]
            return [one.status_code for one in await asyncio.gather(*(client.post(place, headers=k) for k in keys))]

    statuses = asyncio.run(both())
    assert 200 in statuses
    assert set(statuses) <= {200, 409}
    assert len(board.commands("once")) == 1


def test_one_proposed_on_another_head_is_refused_in_words(board: Board) -> None:
    agent, job = board.job("moved")
    proposal = board.propose("moved")
    board.loop.do(agent.store(job.rolled_back(200, "k1"), job.rows(range(201, 231))))
    board.server.client.headers["Authorization"] = f"Bearer {board.keys['viewer']}"
    board.server.wait_for("/runs/moved/segments", lambda a: a["head"] == 1, "the new segment")
    refused = board.decide("moved", proposal, "anna", status=409)
    assert refused["code"] == "proposal_refused"
    assert "proposed on segment 0, but the job is in segment 1 now" in refused["message"]
    assert board.call("anna", "GET", "/runs/moved/proposals")["proposals"][0]["state"] == "refused"
    assert board.commands("moved") == []


def test_the_assistants_tools_propose_and_say_what_became_of_it(board: Board) -> None:
    board.job("tools")
    with ApiClient(board.server.url, board.keys["assistant"]) as client:
        tools = ProposingTools(client)
        made = json.loads(tools.propose_command("tools", "rollback", "the loss is flat", to_step=200))
        assert (made["state"], "You can't approve it" in made["next"]) == ("proposed", True)
        board.decide("tools", made, "anna")
        after = json.loads(tools.proposals("tools"))["proposals"][0]
    assert (after["state"], after["decided_by"]) == ("approved", "anna")
    assert after["command"]["line"].startswith("Rollback to step 200 under way")


def test_a_declined_one_stays_so_and_says_by_whom(board: Board) -> None:
    board.job("declined")
    proposal = board.propose("declined")
    assert board.decide("declined", proposal, "bert", "decline")["decided_by"] == "bert"
    assert "is declined by bert" in board.decide("declined", proposal, "anna", status=409)["message"]
    assert board.commands("declined") == []


def test_what_can_not_be_ordered_can_not_be_proposed_either(board: Board) -> None:
    board.job("wrong")
    path = "/runs/wrong/proposals"
    assert "no usable checkpoint" in board.call("assistant", "POST", path, ROLLBACK | {"to_step": 190}, 422)["message"]
    assert board.call("anna", "GET", path)["proposals"] == []


def test_one_that_can_not_be_sent_at_this_moment_waits_on(board: Board) -> None:
    agent, _ = board.job("away")
    proposal = board.propose("away")
    board.loop.do(agent.socket.close())
    board.server.client.headers["Authorization"] = f"Bearer {board.keys['viewer']}"
    board.server.wait_for("/runs/away", lambda run: run["agents"] == 0, "the agent is gone")
    assert "no agent of this run is connected" in board.decide("away", proposal, "anna", status=409)["message"]
    waiting = board.call("anna", "GET", "/runs/away/proposals")["proposals"][0]
    assert (waiting["state"], "no agent" in waiting["detail"]) == ("proposed", True)


def test_a_newer_proposal_of_the_same_assistant_takes_the_place_of_the_older(board: Board) -> None:
    board.job("newer")
    board.propose("newer")
    board.propose("newer", lr_scale=0.1)
    found = board.call("anna", "GET", "/runs/newer/proposals")["proposals"]
    assert [one["state"] for one in found] == ["proposed", "superseded"]


def test_proposals_of_another_projects_run_are_not_seen(board: Board) -> None:
    board.job("ours")
    board.propose("ours")
    assert "ours" not in str(board.call("elsewhere", "GET", "/proposals"))
    assert board.call("elsewhere", "GET", "/runs/ours/proposals", status=404)["code"] == "not_found"


def test_under_the_two_persons_rule_nobody_orders_or_approves_alone(strict: Board) -> None:
    strict.job("two")
    assert strict.call("anna", "POST", "/runs/two/commands", ROLLBACK, 409)["code"] == "two_persons"
    assert strict.call("anna", "POST", "/runs/two/commands", {"kind": "dump_stacks"}, 201)["state"] in (
        "pending", "delivered",
    )  # fmt: skip
    proposal = strict.propose("two", "anna")
    assert strict.decide("two", proposal, "anna too", status=403)["code"] == "two_persons"
    assert strict.decide("two", proposal, "bert")["state"] == "approved"
    assert strict.call("anna", "GET", "/me")["two_persons"] is True


def test_after_fifteen_minutes_nobody_can_approve() -> None:
    proposal = Proposal(
        proposal_id="p-1", run_id="r", what="", order=dict(ROLLBACK), proposer="assistant", proposed=0.0,
        expires=EXPIRES_S, fence=CommandFence(0, ""),
    )  # fmt: skip
    anna = Person("anna", "k1")
    assert approved(proposal, anna, EXPIRES_S, two_persons=True).state == "approved"
    with pytest.raises(Conflict, match="is expired"):
        approved(proposal, anna, EXPIRES_S + 0.1, two_persons=True)


async def test_a_server_killed_between_approval_and_order_sends_it_once(board: Board, tmp_path: Path) -> None:
    await asyncio.to_thread(board.job, "killed")
    proposal = await asyncio.to_thread(board.propose, "killed")
    # What Redis holds when the server is killed after the approval and before the order.
    redis = make_redis(board.server._redis_url)
    key = "sb:{killed}:proposals"
    stored = (await redis.hgetall(key))[proposal["proposal_id"].encode()]
    half = stored.replace(b'"state":"proposed","decided_by":null', b'"state":"approved","decided_by":"anna"')
    assert half != stored
    await redis.hset(key, proposal["proposal_id"], half)
    await redis.aclose()
    for _ in range(2):
        answer = await asyncio.to_thread(board.call, "bert", "POST",
                                         f"/runs/killed/proposals/{proposal['proposal_id']}/approve", None,
                                         200 if _ == 0 else 409)  # fmt: skip
    assert "is approved by anna" in answer["message"]
    assert len(await asyncio.to_thread(board.commands, "killed")) == 1
