"""Threads of incidents and of commands: updates and replies after the first message."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import msgspec
from redis.exceptions import RedisError

from stabilityalerting.actions import CommandNews, Facts
from stabilityalerting.alert import Alert
from stabilityalerting.errors import SendError
from stabilityalerting.lease import pause
from stabilityplugins.slack.blocks import mrkdwn
from stabilityplugins.slack.curve import chart_of, picture_of
from stabilityplugins.slack.messages import Shown, command_text, message, outcome_text
from stabilityplugins.slack.web_api import GONE, NO_CHART
from stabilityplugins.slack.workspace import OpenCommand, Thread, Workspace, soonest

#: Shortest time between two updates, seconds: Slack takes some 50 a minute.
BETWEEN_S = 1.2
#: Shortest time between two updates of one thread, seconds: an incident can change with each step.
SAME_THREAD_S = 5.0
#: Incidents that wait for an update; beyond it the oldest is dropped.
MAX_WAITING = 2_000
#: The state of a command is read so often, seconds.
LOOK_EVERY_S = 0.2
#: Shortest time between two updates of the message about one command, seconds.
COMMAND_BETWEEN_S = 1.0
#: Commands accepted by another process of the server are loaded so often, seconds.
LOAD_EVERY_S = 5.0
#: A command without a state is dropped after so long, seconds.
UNKNOWN_S = 60.0

__all__ = ["CommandThreads", "ThreadUpdates"]

_Work = Callable[[tuple[str, str], Alert], Awaitable[None]]


class ThreadUpdates:
    """Keeps the message of each thread up to date. The newest update of an incident waits; none is urgent."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._waiting: dict[tuple[str, str], Alert] = {}
        self._pictures: dict[tuple[str, str], Alert] = {}
        self._updated: dict[tuple[str, str], float] = {}
        self._wake = asyncio.Event()

    def shown(self, alert: Alert, facts: Facts) -> Shown:
        """Return the content of a thread's message."""
        actions = self._workspace.actions
        url = self._workspace.url(alert.run_id, alert.incident_id)
        mute = actions is not None and actions.offers_mute
        return Shown(alert, facts, url, self._workspace.chart, actions is not None, mute)

    def note(self, stream: str, alert: Alert) -> None:
        """Update the thread of an incident."""
        key = (stream, alert.incident_id)
        self._waiting.pop(key, None)
        if len(self._waiting) >= MAX_WAITING:
            del self._waiting[next(iter(self._waiting))]
            self._workspace.counts["updates_dropped"] += 1
        self._waiting[key] = alert
        self._wake.set()

    def picture(self, stream: str, alert: Alert) -> None:
        """Add a picture of the curve to a new thread, where the chart block does not show it."""
        if self._workspace.pictures and len(self._pictures) < MAX_WAITING:
            self._pictures[(stream, alert.incident_id)] = alert
            self._wake.set()

    async def run(self, over: asyncio.Event) -> None:
        """Work until ``over`` is set."""
        while not over.is_set():
            self._wake.clear()
            for key in list(self._pictures):
                await self._guarded(self._draw, key, self._pictures.pop(key), over)
            for key in list(self._waiting):
                if over.is_set():
                    return
                if time.monotonic() - self._updated.get(key, float("-inf")) < SAME_THREAD_S:
                    continue
                await self._guarded(self._update, key, self._waiting.pop(key), over)
                await pause(over, BETWEEN_S)
            if self._waiting:
                await pause(over, 0.5)
            else:
                await soonest(self._wake, over, 60.0)

    async def _guarded(self, work: _Work, key: tuple[str, str], alert: Alert, over: asyncio.Event) -> None:
        try:
            await work(key, alert)
        except SendError as error:
            self._workspace.problems.note("a thread is not up to date", error)
            if error.recoverable:
                self._waiting.setdefault(key, alert)
                await pause(over, max(1.0, error.retry_after_s or 0.0))
        except (RedisError, OSError) as error:
            self._workspace.problems.note("a thread is not up to date", error)
            self._waiting.setdefault(key, alert)
            await pause(over, 1.0)
        except Exception as error:  # one thread must not stop the others
            self._workspace.problems.note("a thread is not up to date", error)

    async def _update(self, key: tuple[str, str], alert: Alert) -> None:
        stream, incident_id = key
        thread = await self._workspace.threads.read(stream, incident_id)
        if thread is None:
            return
        facts = await self._workspace.facts(alert.run_id, incident_id)
        self._updated[key] = time.monotonic()
        while len(self._updated) > MAX_WAITING:
            del self._updated[next(iter(self._updated))]
        shown = self.shown(alert, facts)
        try:
            await self._write(thread, shown)
        except SendError as error:
            if error.code in GONE:
                await self._workspace.threads.forget(stream, incident_id)
                return
            if error.code not in NO_CHART or not message(shown).has_chart():
                raise
            self._workspace.without_charts()
            await self._write(thread, replace(shown, chart=False))
        self._workspace.counts["updates"] += 1
        if alert.acknowledged_by and alert.acknowledged_by != thread.acknowledged_by:
            who = mrkdwn(alert.acknowledged_by, 200)
            await self._workspace.api.call(
                "chat.postMessage", channel=thread.channel, thread_ts=thread.ts, text=f"{who} takes care of it"
            )
            await self._workspace.threads.write(
                stream, incident_id, replace(thread, acknowledged_by=alert.acknowledged_by)
            )

    async def _write(self, thread: Thread, shown: Shown) -> None:
        content = message(shown)
        await self._workspace.api.call(
            "chat.update", channel=thread.channel, ts=thread.ts, text=content.text, blocks=content.blocks
        )

    async def _draw(self, key: tuple[str, str], alert: Alert) -> None:
        stream, incident_id = key
        thread = await self._workspace.threads.read(stream, incident_id)
        if thread is None or thread.picture or not self._workspace.pictures:
            return
        curve = (await self._workspace.facts(alert.run_id, incident_id)).curve
        if curve is None or (self._workspace.chart and chart_of(curve) is not None):
            return
        drawn = await asyncio.to_thread(picture_of, curve)
        title = f"{curve.metric} around step {curve.onset_step}"[:200]
        try:
            await self._workspace.api.upload("curve.png", drawn.png, title, drawn.text, thread.channel, thread.ts)
        except SendError as error:
            if error.code in ("missing_scope", "not_allowed_token_type"):
                self._workspace.without_pictures()
                return
            raise
        self._workspace.counts["pictures"] += 1
        newest = await self._workspace.threads.read(stream, incident_id) or thread
        await self._workspace.threads.write(stream, incident_id, replace(newest, picture=True))


class CommandThreads:
    """Reports the progress of commands given in Slack in their threads, also over a restart."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._open: dict[str, OpenCommand] = {}
        self._written_at: dict[str, float] = {}
        self._unknown_since: dict[str, float] = {}
        self._wake = asyncio.Event()

    async def begin(self, command: OpenCommand) -> None:
        """Follow a command."""
        await self._workspace.threads.keep_command(command)
        self._open[command.command_id] = command
        self._wake.set()

    async def run(self, over: asyncio.Event) -> None:
        """Work until ``over`` is set."""
        self._open = {}
        loaded_at = float("-inf")
        while not over.is_set():
            try:
                if time.monotonic() - loaded_at >= LOAD_EVERY_S:
                    found = {command.command_id: command for command in await self._workspace.threads.commands()}
                    self._open = found | self._open
                    loaded_at = time.monotonic()
                for command in list(self._open.values()):
                    await self._follow(command)
            except SendError as error:
                self._workspace.problems.note("the outcome of a command waits", error)
                await pause(over, max(1.0, error.retry_after_s or 0.0))
            except (RedisError, OSError) as error:
                self._workspace.problems.note("the outcome of a command waits", error)
                await pause(over, 1.0)
            except Exception as error:
                self._workspace.problems.note("the outcome of a command waits", error)
                await pause(over, 5.0)
            self._wake.clear()
            await soonest(self._wake, over, LOOK_EVERY_S if self._open else LOAD_EVERY_S)

    async def _follow(self, command: OpenCommand) -> None:
        workspace = self._workspace
        assert workspace.actions is not None
        news = await workspace.actions.command(command.run_id, command.command_id)
        if not command.reply:
            first = news or CommandNews(command.command_id, "pending", "")
            text = command_text(command.who, command.to_step, command.reason, first)
            answer = await workspace.api.call(
                "chat.postMessage", channel=command.channel, thread_ts=command.thread, text=text, unfurl_links=False
            )
            command = await self._keep(msgspec.structs.replace(command, reply=str(answer.get("ts")), text=text))
            self._written_at[command.command_id] = time.monotonic()
        if news is None:
            since = self._unknown_since.setdefault(command.command_id, time.monotonic())
            if time.monotonic() - since > UNKNOWN_S:
                await self._end(command.command_id)
            return
        text = command_text(command.who, command.to_step, command.reason, news)
        due = time.monotonic() - self._written_at.get(command.command_id, float("-inf")) >= COMMAND_BETWEEN_S
        if text != command.text and (news.ended or due):
            await workspace.api.call("chat.update", channel=command.channel, ts=command.reply, text=text)
            command = await self._keep(msgspec.structs.replace(command, text=text))
            self._written_at[command.command_id] = time.monotonic()
        if news.ended:
            await workspace.api.call(
                "chat.postMessage", channel=command.channel, thread_ts=command.thread,
                text=outcome_text(command.to_step, news), reply_broadcast=news.failed,
            )  # fmt: skip
            await self._end(command.command_id)

    async def _keep(self, command: OpenCommand) -> OpenCommand:
        self._open[command.command_id] = command
        await self._workspace.threads.keep_command(command)
        return command

    async def _end(self, command_id: str) -> None:
        await self._workspace.threads.end_command(command_id)
        for table in (self._open, self._written_at, self._unknown_since):
            table.pop(command_id, None)
