"""A process that works, and then becomes the one whose version does not fit: each thing is refused in a sentence.

It came while one of another version was stalled that was here before it, and that is alive again.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from redis import Redis
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from stabilitybackend.server import stages
from stabilitybackend.storage.redis_link import make_redis
from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis
from stabilityclient.wire import Durable, Error, Health, Hello, Message, decode_message, encode_message
from stabilityplugins.scale.members import BEAT_S, Member, Members
from support.gateway_stack import log_frames
from support.job_frames import Job
from support.server_stack import RunningServer
from support.slack.fake_slack import FakeSlack, Posted
from support.slack.signed import SIGNING_SECRET, post_signed
from support.waiting import wait_until

ROLES = ("door", "worker", "pages", "alerting")
ACK, MUTE, ROLL_BACK = "stability_ack", "stability_mute", "stability_roll_back"
SENTENCE = "1 process takes no part: door+worker+pages+alerting of version"


@contextmanager
def back_again(redis_url: str, version: str) -> Iterator[None]:
    """A process that was here before all others and writes its entry again, while the context lasts."""
    over = threading.Event()

    async def beat() -> None:
        redis = make_redis(redis_url, connections=1)
        members = Members(redis, Member("stalled", ("pages",), "http://127.0.0.1:1", version, since=1.0))
        while not over.is_set():
            await members.beat()
            await asyncio.sleep(BEAT_S / 2)
        await redis.aclose()

    thread = threading.Thread(target=asyncio.run, args=(beat(),), name="stalled")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Agent:
    """An agent that is connected over all of it."""

    def __init__(self, socket: ClientConnection, name: str, job: Job) -> None:
        self._socket, self._name = socket, name
        self.ask(Hello("run-1", name, "n0", "0.1.0", project="p", name="n", sources=[job.info]))

    def send(self, message: Message) -> None:
        self._socket.send(encode_message(message))

    def ask(self, message: Message) -> Message:
        self.send(message)
        return self.next()

    def next(self) -> Message:
        while isinstance(message := decode_message(self._socket.recv(30, decode=False)), Durable):
            pass  # it comes at any time
        return message

    def refusal(self) -> str:
        """Return the error that it is told, as the last thing before its connection ends."""
        said = ""
        try:
            while True:
                if isinstance(message := self.next(), Error):
                    said = message.message
        except ConnectionClosed:
            return said

    def health(self) -> Health:
        return Health(self._name, "n0", time.time(), [])


@dataclass
class Stage:
    """``odd`` became the odd one; its agents, and what it reported of the incident of run-1. ``other`` works on."""

    odd: RunningServer
    other: RunningServer
    slack: FakeSlack
    agent: Agent
    quiet: Agent
    job: Job
    reported: Posted

    def owner(self, run_id: str) -> str:
        with Redis.from_url(self.odd._redis_url, decode_responses=True) as redis:
            return str(redis.hget(f"sb:{{{run_id}}}:owner", "address"))

    def kinds(self, run_id: str) -> list[str]:
        return [one["kind"] for one in self.other.get(f"/runs/{run_id}/incidents")["incidents"]]

    def press(self, server: RunningServer, action: str) -> str:
        """Press a button over HTTP; return what the person is told, and nobody else."""
        before = len(self.slack.whispers)
        answer = post_signed(f"{server.url}/api/v1/slack", self.slack.click(self.reported, action))
        assert answer.status_code == 200, answer.text
        wait_until(lambda: len(self.slack.whispers) > before, 30, "the person is told")
        return json.dumps(self.slack.whispers[-1], ensure_ascii=False)


def spoiled(job: Job, last: int, other: float = 0.0) -> Any:
    """Return a frame whose last loss is NaN; two runs of the same losses are an incident, ``other`` sets them apart."""
    losses = [2.0 + 1 / step + 0.1 * math.sin(other * step * step) for step in range(1, last)]
    return job.rows(range(1, last + 1), {"loss": [*losses, math.nan]})


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("odd")
    ours = stages.version("stabilityboard")
    major, minor, *_ = ours.split(".")
    with ExitStack() as stack:
        slack = stack.enter_context(FakeSlack())
        redis = stack.enter_context(EmbeddedRedis(folder))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        variables = slack.variables(
            STABILITY_SLACK_SIGNING_SECRET=SIGNING_SECRET, STABILITY_SLACK_USERS='{"U0ADA": "command"}'
        )
        for name in variables.keys() - {"STABILITY_SLACK_APP_TOKEN"}:
            patch.setenv(name, variables[name])
        shared: dict[str, Any] = {"role": ROLES, "archive_url": str(folder / "archive")}
        with pytest.MonkeyPatch.context() as later:
            later.setattr(stages, "version", lambda _: f"{major}.{int(minor) + 2}.0")
            odd = stack.enter_context(RunningServer(redis.url, folder / "odd", **shared))
        job = Job()
        agent = Agent(stack.enter_context(connect(odd.agent_url)), "a1", job)
        quiet = Agent(stack.enter_context(connect(odd.agent_url)), "a2", Job(rank=1))
        agent.send(spoiled(job, 60))
        reported = slack.wait_for(lambda slack: slack.parents(), "the incident is reported", 60)[0]
        quiet.send(quiet.health())
        stack.enter_context(back_again(redis.url, ours))
        wait_until(lambda: odd.client.get("/readyz").status_code == 503, 30, "it does not fit any more")
        other = stack.enter_context(RunningServer(redis.url, folder / "other", **shared))
        yield Stage(odd, other, slack, agent, quiet, job, reported)


def test_its_agents_are_told_why_and_go_on_at_another_door_with_nothing_lost_and_no_alarm(stage: Stage) -> None:
    stage.agent.send(stage.job.rows([61]))
    stage.quiet.send(stage.quiet.health())
    assert (SENTENCE in stage.agent.refusal(), SENTENCE in stage.quiet.refusal()) == (True, True)
    stage.job._seq -= 1
    log_frames(stage.other.url, stage.job.rows([61, 62]), run_id="run-1")
    stage.other.wait_for("/runs/run-1", lambda run: run["last_step"] == 62, "it is judged", 30)
    wait_until(lambda: stage.owner("run-1") == stage.other.url, 30, "it is taken over")
    assert stage.kinds("run-1") == ["nonfinite"]


def test_it_gives_the_alerts_up_at_once_to_one_that_fits_which_sends_each_once(stage: Stage) -> None:
    assert stage.odd.get("/alerting")["sending"] is False
    stage.other.wait_for("/alerting", lambda found: found["sending"], "the other one sends", 30)
    log_frames(stage.other.url, spoiled(Job(start=2), 60, 0.7), run_id="run-2")
    stage.slack.wait_for(
        lambda slack: [one for one in slack.parents() if "/run-2" in one.said()], "the incident is reported", 60
    )
    assert [one.ts for one in stage.slack.parents() if "/run-1" in one.said()] == [stage.reported.ts]
    assert stage.odd.get("/alerting")["sending"] is False


def test_who_presses_a_button_of_slack_there_is_told_why_nothing_is_done_and_elsewhere_it_is_done(stage: Stage) -> None:
    wait_until(lambda: stage.owner("run-1") == stage.other.url, 30, "it is taken over")
    for action in (ACK, MUTE, ROLL_BACK):
        said = stage.press(stage.odd, action)
        assert SENTENCE in said
        assert "upgrade by one at a time" in said
    [incident] = stage.other.get("/runs/run-1/incidents")["incidents"]
    assert (incident["acknowledged_by"], stage.slack.views) == (None, [])
    assert stage.other.get("/alerting")["mutes"] == []
    answer = post_signed(f"{stage.other.url}/api/v1/slack", stage.slack.click(stage.reported, ACK))
    assert answer.status_code == 200
    stage.other.wait_for(
        "/runs/run-1/incidents", lambda found: found["incidents"][0]["acknowledged_by"] == "slack:ada", "it is done", 30
    )
