"""The Slack app in its workspace: state that its parts share."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec
from redis.asyncio import Redis

from stabilityalerting.actions import ActionRefused, Actions, Facts
from stabilityalerting.alert import incident_url
from stabilityalerting.notification_log import KEEP_S
from stabilityalerting.server import Server
from stabilityplugins.slack.users import Users
from stabilityplugins.slack.web_api import SlackApi

#: Longest wait for the facts of a message, seconds: it is sent without them.
FACTS_TIMEOUT_S = 2.0
#: The same problem is logged at most once in so many seconds.
LOG_EVERY_S = 60.0

#: Prefix of a receiver's hash: command id -> OpenCommand as JSON.
_COMMANDS = "sb:alerting:slack_app:orders:"
#: Prefix of the marks of deliveries.
_ONCE = "sb:alerting:slack_app:once:"
#: Slack repeats a delivery within so long, seconds.
ONCE_S = 3_600

__all__ = ["OpenCommand", "ProblemLog", "Thread", "ThreadLog", "Workspace", "soonest"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Thread:
    """The message of an incident.

    Args:
        channel, ts: its identity in Slack.
        acknowledged_by: person named in the thread. picture: a picture was uploaded.
    """

    channel: str
    ts: str
    acknowledged_by: str = ""
    picture: bool = False


class OpenCommand(msgspec.Struct, frozen=True, rename={"text": "told"}):
    """A command given in Slack whose end the thread has not reported.

    Args:
        channel, thread: of the incident's message. reply: of the message about the command.
        who: Slack user id. text: of that message.
    """

    run_id: str
    command_id: str
    channel: str
    thread: str
    reply: str
    who: str
    to_step: int
    reason: str
    text: str = ""


class ThreadLog:
    """Threads, open commands and deliveries of one receiver, in Redis, so that a restart continues them.

    The keys of an incident are in the hash slot of its stream.
    """

    def __init__(self, redis: Redis, sink: str) -> None:
        self._redis = redis
        self._sink = sink

    async def read(self, stream: str, incident_id: str) -> Thread | None:
        """Return the thread of an incident, None for none."""
        raw: Any = await self._redis.get(self._key(stream, incident_id))
        return None if raw is None else msgspec.json.decode(raw, type=Thread)

    async def write(self, stream: str, incident_id: str, thread: Thread) -> None:
        """Store the thread of an incident."""
        await self._redis.set(self._key(stream, incident_id), msgspec.json.encode(thread), ex=KEEP_S)

    async def forget(self, stream: str, incident_id: str) -> None:
        """Drop the thread of a deleted message: the next message begins another one."""
        await self._redis.delete(self._key(stream, incident_id))

    async def first_time(self, delivery: str) -> bool:
        """Return True for the first call with a delivery, False for repetitions."""
        return bool(await self._redis.set(_ONCE + delivery, "1", nx=True, ex=ONCE_S))

    async def commands(self) -> list[OpenCommand]:
        """Return the open commands."""
        found: Any = await self._redis.hgetall(_COMMANDS + self._sink)
        return [msgspec.json.decode(raw, type=OpenCommand) for raw in found.values()]

    async def keep_command(self, command: OpenCommand) -> None:
        """Store an open command."""
        await self._redis.hset(_COMMANDS + self._sink, command.command_id, msgspec.json.encode(command))

    async def end_command(self, command_id: str) -> None:
        """Drop a command whose end was reported."""
        await self._redis.hdel(_COMMANDS + self._sink, command_id)

    def _key(self, stream: str, incident_id: str) -> str:
        return f"{stream}:told:{self._sink}:{incident_id}:thread"


@dataclass
class ProblemLog:
    """Logs each problem at most once a minute."""

    _at: dict[str, float] = field(default_factory=dict)

    def note(self, problem: str, error: Exception) -> None:
        """Log a problem, unless it was a moment ago."""
        now = time.monotonic()
        if now - self._at.get(problem, float("-inf")) >= LOG_EVERY_S:
            self._at[problem] = now
            _log.warning("slack_app: %s: %s", problem, error)


@dataclass
class Workspace:
    """The app in its workspace, and the server behind it.

    Args:
        channel: id of the channel.
        secret: key of the signature of questions.
        chart: use Slack's chart block. pictures: upload curves that it can't show. Each is off after a refusal.
        counts: of actions other than messages, by name.
    """

    api: SlackApi
    channel: str
    users: Users
    threads: ThreadLog
    server: Server
    secret: str = field(repr=False)
    chart: bool = True
    pictures: bool = True
    counts: Counter[str] = field(default_factory=Counter)
    problems: ProblemLog = field(default_factory=ProblemLog)

    @property
    def actions(self) -> Actions | None:
        """Actions of the server, None where it offers none."""
        return self.server.actions

    def without_charts(self) -> None:
        """Use pictures from now on: the workspace refuses charts."""
        self.chart = False

    def without_pictures(self) -> None:
        """Use text from now on: the workspace refuses pictures."""
        self.pictures = False

    def url(self, run_id: str, incident_id: str) -> str:
        """Return the address of an incident's page."""
        return incident_url(self.server.base_url, run_id, incident_id)

    async def facts(self, run_id: str, incident_id: str) -> Facts:
        """Return the facts of an incident; empty ones where the server fails or takes too long."""
        if self.actions is None:
            return Facts()
        try:
            return await asyncio.wait_for(self.actions.facts(run_id, incident_id), FACTS_TIMEOUT_S)
        except (ActionRefused, TimeoutError) as error:
            self.problems.note("a message goes out without its curve", error)
        except Exception as error:  # an internal error must not hold up the alert
            self.problems.note("a message goes out without its curve", error)
        return Facts()


async def soonest(first: asyncio.Event, second: asyncio.Event, most_s: float) -> None:
    """Wait for either event, at most ``most_s`` seconds."""
    tasks = [asyncio.create_task(event.wait()) for event in (first, second)]
    try:
        await asyncio.wait(tasks, timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
