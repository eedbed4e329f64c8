"""What people press in Slack, done by the server itself: over signed requests, judged at the moment of the order."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis
from stabilityclient.wire import CommandMessage
from stabilityplugins.slack.api import MAX_SLACK_BYTES
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.server_stack import RunningServer
from support.slack.fake_slack import FakeSlack, Posted
from support.slack.signed import SIGNING_SECRET, post_signed
from support.waiting import until

ACK, ROLL_BACK = "stability_ack", "stability_roll_back"


@dataclass
class Stage:
    """A server whose alerts go to a workspace that posts back what people press."""

    server: RunningServer
    slack: FakeSlack
    redis_url: str

    @property
    def address(self) -> str:
        return f"{self.server.url}/api/v1/slack"

    def post(self, payload: dict[str, Any], **changes: Any) -> Any:
        return post_signed(self.address, payload, **changes)

    async def asked(self, message: Posted) -> dict[str, Any]:
        before = len(self.slack.views)
        assert (await asyncio.to_thread(self.post, self.slack.click(message, ROLL_BACK))).status_code == 200
        await until(lambda: len(self.slack.views) > before, 10, "the question is there")
        return self.slack.views[-1]

    async def answered(self, view: dict[str, Any]) -> str:
        """Submit a question and return what is said in its place."""
        answer = await asyncio.to_thread(self.post, self.slack.submit(view))
        assert answer.status_code == 200
        return json.dumps(answer.json(), ensure_ascii=False)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("slack")
    with FakeSlack() as slack, EmbeddedRedis(folder) as redis, pytest.MonkeyPatch.context() as patch:
        variables = slack.variables(
            STABILITY_SLACK_SIGNING_SECRET=SIGNING_SECRET,
            STABILITY_SLACK_USERS='{"U0ADA": "command", "U0BEA": "command"}',
        )
        for name in variables.keys() - {"STABILITY_SLACK_APP_TOKEN"}:
            patch.setenv(name, variables[name])
        with RunningServer(redis.url, folder / "data") as server:
            yield Stage(server, slack, redis.url)


@asynccontextmanager
async def spoiled(stage: Stage, run_id: str) -> AsyncIterator[tuple[RawAgent, Job, Posted]]:
    """A job whose loss is NaN from step 60 on, with checkpoints, and the message about it."""
    job = Job()
    job._time = time.time()
    with Redis.from_url(stage.redis_url) as redis:  # the runs before this one are no storm
        for key in redis.scan_iter("*storm*"):
            redis.delete(key)
    async with RawAgent(stage.server.agent_url) as agent:
        good, bad = range(1, 60), range(60, 90)
        await agent.begin(
            job.rows(good, {"loss": [2.0 + 1 / step for step in good]}),
            job.event("checkpoint", 40, path="c/40"),
            job.event("checkpoint", 50, path="c/50"),
            job.rows(bad, {"loss": [math.nan] * len(bad)}),
            run_id=run_id,
        )
        await until(lambda: _about(stage, run_id), 20, "the incident is told")
        yield agent, job, _about(stage, run_id)[0]


def _about(stage: Stage, run_id: str) -> list[Posted]:
    return [one for one in stage.slack.parents() if ROLL_BACK in one.buttons() and f'"{run_id}\\' in one.said()]


async def test_a_rollback_from_slack_is_an_order_like_any_other_and_its_agent_gets_it(stage: Stage) -> None:
    async with spoiled(stage, "ordered") as (agent, _, message):
        said = await stage.answered(await stage.asked(message))
        order = await agent.next(CommandMessage)

    assert json.loads(said) == {"response_action": "clear"}
    [command] = stage.server.get("/runs/ordered/commands")["commands"]
    assert order.command["command_id"] == command["command_id"]
    assert (command["to_step"], command["checkpoint"], command["issuer"]) == (50, "c/50", "slack:ada")
    noted = next(one for one in stage.server.get("/audit")["entries"] if one["action"] == "command.order")
    assert (noted["who"], noted["target"], noted["run"]) == ("slack:ada", command["command_id"], "ordered")
    assert noted["detail"].endswith("; Slack user U0ADA")


async def test_an_answer_is_refused_when_the_job_has_gone_elsewhere_since(stage: Stage) -> None:
    async with spoiled(stage, "elsewhere") as (agent, job, message):
        view = await stage.asked(message)
        await agent.store(job.rolled_back(40, "k"), job.rows(range(41, 45), {"loss": [2.0] * 4}))
        await until(lambda: stage.server.get("/runs/elsewhere/segments")["head"] == 1, 10, "the job went back")
        said = await stage.answered(view)

    assert "The job has gone elsewhere since you were asked: it is in segment 1 now. Nothing was ordered." in said
    assert stage.server.get("/runs/elsewhere/commands")["commands"] == []


async def test_an_answer_is_refused_when_the_checkpoint_has_changed_since(stage: Stage) -> None:
    async with spoiled(stage, "changed") as (agent, job, message):
        view = await stage.asked(message)
        await agent.store(job.event("checkpoint_gone", 50, path="c/50"))
        shown = "/runs/changed/rollback"
        await until(lambda: stage.server.get(shown)["to_step"] == 40, 10, "another one is suggested")
        said = await stage.answered(view)

    assert "you were shown that of step 50, now step 40 is suggested" in said
    assert stage.server.get("/runs/changed/commands")["commands"] == []


async def test_the_question_of_a_job_without_an_agent_can_not_be_answered_and_says_why(stage: Stage) -> None:
    async with spoiled(stage, "alone") as (agent, _, message):
        await agent.socket.close()
        await until(lambda: stage.server.get("/runs/alone")["agents"] == 0, 10, "the agent is gone")
        view = await stage.asked(message)

    assert "submit" not in view
    assert "no agent of this run is connected" in json.dumps(view)


async def test_where_an_order_takes_two_persons_nobody_gives_it_alone_from_slack(stage: Stage, tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path) as redis, RunningServer(redis.url, tmp_path / "data", two_persons=True) as server:
        careful = Stage(server, stage.slack, redis.url)
        async with spoiled(careful, "careful") as (_, _, message):
            said = await careful.answered(await careful.asked(message))
            [proposal] = [one for one in stage.slack.replies(message) if "proposes" in one.text]
            alone = stage.slack.click(proposal, "stability_approve", name="another-name")
            await asyncio.to_thread(careful.post, alone)
            await until(
                lambda: any("can't approve" in one["text"] for one in stage.slack.whispers), 10, "it is refused"
            )
            assert server.get("/runs/careful/commands")["commands"] == []
            await asyncio.to_thread(careful.post, stage.slack.click(proposal, "stability_approve", "U0BEA", "bea"))
            [command] = server.wait_for(
                "/runs/careful/commands", lambda found: found["commands"], "it is ordered"
            )["commands"]  # fmt: skip

    assert json.loads(said) == {"response_action": "clear"}
    assert (command["issuer"], command["to_step"]) == ("slack:bea, proposed by slack:ada", 50)


async def test_a_mute_and_a_rating_from_slack_are_those_of_the_server(stage: Stage) -> None:
    async with spoiled(stage, "muted") as (_, _, message):
        await asyncio.to_thread(stage.post, stage.slack.click(message, "stability_mute"))
        await until(lambda: stage.server.get("/alerting")["mutes"], 10, "it is muted")
        [mute] = stage.server.get("/alerting")["mutes"]

        await asyncio.to_thread(stage.post, stage.slack.click(message, ACK))
        await until(lambda: "stability_useful" in message.buttons(), 20, "it is asked whether that was useful")
        await asyncio.to_thread(stage.post, stage.slack.click(message, "stability_useful"))
        incident = stage.server.get("/runs/muted/incidents")["incidents"][-1]["incident_id"]
        at = f"/runs/muted/incidents/{incident}/rating"
        await until(lambda: stage.server.get(at)["rating"], 10, "it is rated")
        rating = stage.server.get(at)["rating"]

    assert (rating["useful"], rating["who"], rating["receivers"]) == (True, "slack:ada", ["slack_app"])
    assert (mute["match"], mute["owner"]) == ({"run": "muted", "kind": "nonfinite"}, "slack:ada")
    assert 3_590 < mute["ends"] - mute["starts"] <= 3_600


async def test_acknowledging_twice_tells_the_second_one_who_has_it(stage: Stage) -> None:
    async with spoiled(stage, "seen") as (_, _, message):
        stage.slack.whispers.clear()
        incident = stage.server.get("/runs/seen/incidents")["incidents"][0]["incident_id"]
        stage.server.client.post(f"/api/v1/runs/seen/incidents/{incident}/ack")
        await asyncio.to_thread(stage.post, stage.slack.click(message, ACK))
        await until(lambda: stage.slack.whispers, 10, "somebody is told")

    assert stage.slack.whispers[-1]["text"] == "local takes care of it already."


@pytest.mark.parametrize(
    "changes",
    [
        {"secret": "another"},
        {"signature": "v0=00"},
        {"signature": ""},
        {"signature": "v0=é".encode()},
        {"age_s": 301},
        {"age_s": -310},
        {"timestamp": "NaN"},
        {"timestamp": ""},
        {"timestamp": "9" * 40},
    ],
    ids=["secret", "digits", "none", "no ASCII", "stale", "early", "no time", "empty time", "long time"],
)
def test_a_request_that_slack_did_not_sign_just_now_is_refused(stage: Stage, changes: dict[str, Any]) -> None:
    answer = stage.post({"type": "block_actions"}, **changes)

    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "bad_signature"


def test_a_request_that_came_before_is_refused(stage: Stage) -> None:
    now = int(time.time()) - 7

    first = stage.post({"type": "block_actions"}, timestamp=now)
    second = stage.post({"type": "block_actions"}, timestamp=now)

    assert (first.status_code, second.status_code) == (200, 401)


def test_a_body_of_no_end_and_one_that_is_none_of_slacks_are_refused(stage: Stage) -> None:
    large = stage.post({}, body="payload=" + "x" * MAX_SLACK_BYTES)
    broken = stage.post({}, body="payload={")
    check = stage.post({}, body="ssl_check=1&token=x")

    assert (large.status_code, broken.status_code, check.status_code) == (413, 422, 200)
