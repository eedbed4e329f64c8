"""A Slack app as a receiver: one thread an incident, kept up to date, with buttons."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from redis.exceptions import RedisError

from stabilityalerting.alert import Alert, Notice, Severity
from stabilityalerting.errors import AlertingSettingsError, SendError
from stabilityalerting.lease import pause
from stabilityalerting.server import SinkContext
from stabilityalerting.sink import BeforeWrite, Sink
from stabilityalerting.variables import Variables
from stabilityplugins.slack.buttons import Presses
from stabilityplugins.slack.interactivity import SignedRequests, listen
from stabilityplugins.slack.messages import Message, message, metadata, reply
from stabilityplugins.slack.threads import CommandThreads, ThreadUpdates
from stabilityplugins.slack.users import Users, read_users
from stabilityplugins.slack.web_api import GONE, NO_CHART, SLACK_API_URL, SlackApi, check_installed
from stabilityplugins.slack.workspace import Thread, ThreadLog, Workspace

#: Notices without an answer, whose fate is asked for before a retry.
MAX_UNCERTAIN = 1_000
#: Messages searched for one that may have arrived.
LOOK_BACK = 200
_CHANNEL = re.compile(r"[CGD][A-Z0-9]{6,30}")
__all__ = ["SlackAppSink"]

_log = logging.getLogger(__name__)


class SlackAppSink(Sink):
    """Posts a message for each incident, and its changes into the thread of that.

    Slack has no key for messages. With the scope ``channels:history`` (``groups:history`` for a private channel) it is
    asked for a message after a crash and after a missing answer; without, a message whose fate a crash left open is not
    sent again.

    Args:
        token: of the bot, a secret. channel: id of the channel.
        app_token: for Socket Mode. signing_secret: for requests to ``POST /api/v1/slack``. Both are secrets.
        users: their permissions. url: of the API, another one for tests.
        chart: ``auto``, ``picture`` (never Slack's own chart) or ``off``.

    Attributes:
        requests: checks and answers requests from Slack; None without a signing secret.

    Source: https://docs.slack.dev/reference/methods/chat.postMessage
    """

    name = "slack_app"
    idempotent = False

    def __init__(
        self,
        token: str,
        channel: str,
        *,
        app_token: str | None = None,
        signing_secret: str | None = None,
        users: Users | None = None,
        url: str = SLACK_API_URL,
        chart: str = "auto",
        min_severity: Severity = "info",
    ) -> None:
        self.min_severity = min_severity
        self.secrets = tuple(secret for secret in (token, app_token, signing_secret) if secret)
        self._api = SlackApi(token, url, self.secrets)
        self._channel = channel
        self._app_token = app_token
        self._signing_secret = signing_secret
        self._users = users or Users({}, {})
        self._chart = chart
        self._uncertain: OrderedDict[str, None] = OrderedDict()
        self._workspace: Workspace
        self._may_send: Callable[[], bool]
        self._updates: ThreadUpdates
        self._presses: Presses
        self.requests: SignedRequests | None = None

    @classmethod
    def from_variables(cls, variables: Variables) -> SlackAppSink | None:
        severity = variables.severity("STABILITY_SLACK_MIN_SEVERITY")
        token = variables.text("STABILITY_SLACK_BOT_TOKEN")
        url = variables.url("STABILITY_SLACK_API_URL") or SLACK_API_URL
        chart = variables.choice("STABILITY_SLACK_CHART", ("auto", "picture", "off"))
        if token is None:
            variables.need_nothing(
                "STABILITY_SLACK_BOT_TOKEN",
                ["STABILITY_SLACK_CHANNEL", "STABILITY_SLACK_APP_TOKEN", "STABILITY_SLACK_SIGNING_SECRET"],
            )
            return None
        channel = variables.text("STABILITY_SLACK_CHANNEL") or ""
        app_token = variables.text("STABILITY_SLACK_APP_TOKEN")
        if not token.startswith("xoxb-"):
            raise AlertingSettingsError(
                "STABILITY_SLACK_BOT_TOKEN is no bot token, expected one that begins with xoxb-"
            )
        if app_token is not None and not app_token.startswith("xapp-"):
            raise AlertingSettingsError(
                "STABILITY_SLACK_APP_TOKEN is no app-level token, expected one that begins with xapp-"
            )
        if not _CHANNEL.fullmatch(channel):
            raise AlertingSettingsError(
                "STABILITY_SLACK_CHANNEL is no channel id, expected one like C0123456789 (in Slack: the name of the "
                "channel, About, at the bottom)"
            )
        check_installed()
        users = variables.text("STABILITY_SLACK_USERS")
        return cls(
            token,
            channel,
            app_token=app_token,
            signing_secret=variables.text("STABILITY_SLACK_SIGNING_SECRET"),
            users=None if users is None else read_users(users),
            url=url,
            chart=chart,
            min_severity=severity,
        )

    def begin(self, context: SinkContext) -> None:
        self._may_send = context.may_send
        self._workspace = Workspace(
            self._api,
            self._channel,
            self._users,
            ThreadLog(context.redis, self.name),
            context.server,
            secret=self.secrets[0],
            chart=self._chart == "auto",
            pictures=self._chart != "off",
        )
        self._updates = ThreadUpdates(self._workspace)
        self._presses = Presses(self._workspace, CommandThreads(self._workspace))
        if self._signing_secret is not None:
            self.requests = SignedRequests(self._signing_secret, self._presses, self._workspace)

    # --- messages ------------------------------------------------------------------------------------------------

    async def send(self, notice: Notice, before_write: BeforeWrite) -> None:
        alert = notice.alert
        key = notice.idempotency_key
        if key in self._uncertain and await self.arrived(notice.stream, alert.incident_id, key):
            del self._uncertain[key]
            return
        try:
            await self._send(notice, before_write)
        except SendError as error:
            if error.recoverable and not error.code:
                self._uncertain[key] = None
                while len(self._uncertain) > MAX_UNCERTAIN:
                    self._uncertain.popitem(last=False)
            raise

    async def _send(self, notice: Notice, before_write: BeforeWrite) -> None:
        alert = notice.alert
        stream = notice.stream
        thread = await self._thread(stream, alert.incident_id)
        fields = {"metadata": metadata(alert, notice.idempotency_key), "unfurl_links": False, "unfurl_media": False}
        if thread is not None:
            content = reply(notice)
            try:
                await self._api.call(
                    "chat.postMessage",
                    before_write,
                    channel=thread.channel,
                    thread_ts=thread.ts,
                    text=content.text,
                    blocks=content.blocks,
                    reply_broadcast=notice.change != "resolved",
                    **fields,
                )
            except SendError as error:
                if error.code not in GONE:
                    raise
                before_write = _nothing  # the mark is written, and the message was deleted: begin another thread
            else:
                self._updates.note(stream, alert)
                return
        facts = await self._workspace.facts(alert.run_id, alert.incident_id)
        shown = self._updates.shown(alert, facts)
        content = message(shown)
        try:
            answer = await self._post(content, before_write, fields)
        except SendError as error:
            if error.code not in NO_CHART or not content.has_chart():
                raise
            _log.info("slack_app: this workspace takes no charts (%s): pictures from now on", error.code)
            self._workspace.without_charts()
            answer = await self._post(message(replace(shown, chart=False)), _nothing, fields)
        thread = Thread(str(answer.get("channel") or self._channel), str(answer.get("ts")), alert.acknowledged_by)
        await self._remember(stream, alert.incident_id, thread)
        self._updates.picture(stream, alert)

    async def _post(self, content: Message, before_write: BeforeWrite, fields: dict[str, Any]) -> Any:
        answer = await self._api.call(
            "chat.postMessage", before_write, channel=self._channel, text=content.text, blocks=content.blocks, **fields
        )
        if not isinstance(answer.get("ts"), str):
            raise SendError("slack_app: chat.postMessage gave no ts", recoverable=True)
        return answer

    async def _thread(self, stream: str, incident_id: str) -> Thread | None:
        try:
            return await self._workspace.threads.read(stream, incident_id)
        except (RedisError, OSError) as error:
            raise SendError(
                f"slack_app: Redis is away ({type(error).__name__})", recoverable=True, code="redis"
            ) from None

    async def _remember(self, stream: str, incident_id: str, thread: Thread) -> None:
        """Store the thread. It was posted: a Redis that is away must not have it posted again."""
        while True:
            try:
                await self._workspace.threads.write(stream, incident_id, thread)
                return
            except (RedisError, OSError) as error:
                self._workspace.problems.note("the thread can't be remembered yet", error)
                await asyncio.sleep(0.5)

    def follow(self, stream: str, alert: Alert) -> None:
        self._updates.note(stream, alert)

    async def arrived(self, stream: str, incident_id: str, key: str) -> bool | None:
        thread = await self._thread(stream, incident_id)
        try:
            if thread is not None:
                found = await self._api.read(
                    "conversations.replies",
                    channel=thread.channel,
                    ts=thread.ts,
                    limit=LOOK_BACK,
                    include_all_metadata="true",
                )
            else:
                found = await self._api.read(
                    "conversations.history", channel=self._channel, limit=LOOK_BACK, include_all_metadata="true"
                )
        except SendError as error:
            self._workspace.problems.note("can't look whether a message arrived", error)
            return None
        messages = found.get("messages")
        for one in messages if isinstance(messages, list) else []:
            payload = _payload(one)
            if payload.get("key") == key:
                if thread is None and isinstance(one.get("ts"), str):
                    await self._remember(stream, incident_id, Thread(self._channel, one["ts"]))
                return True
        return None if found.get("has_more") or not isinstance(messages, list) else False

    # --- buttons -------------------------------------------------------------------------------------------------

    async def serve(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            if not self._may_send():
                await pause(stop, 0.2)
                continue
            await self._greet()
            over = asyncio.Event()
            work = [
                asyncio.create_task(self._updates.run(over), name="slack-updates"),
                asyncio.create_task(self._presses.commands.run(over), name="slack-commands"),
            ]
            if self._app_token is not None and self._workspace.actions is not None:
                work.append(
                    asyncio.create_task(listen(self._api, self._app_token, self._presses, over), name="slack-socket")
                )
            try:
                while self._may_send() and not stop.is_set():
                    await pause(stop, 0.2)
                    for task in work:
                        if task.done() and (error := task.exception()) is not None:
                            raise error
            except Exception:
                _log.exception("slack_app: buttons do nothing for some seconds")
                await pause(stop, 5.0)
            finally:
                over.set()
                await asyncio.wait(work, timeout=2.0)
                for task in work:
                    task.cancel()
                await asyncio.gather(*work, return_exceptions=True)

    async def _greet(self) -> None:
        """Log a wrong token before the first alert meets it."""
        try:
            found = await self._api.call("auth.test")
            _log.info("slack_app: posting as %s in %s", found.get("user"), found.get("team"))
        except SendError as error:
            _log.warning("slack_app: no alert can be posted yet: %s", error)

    async def aclose(self) -> None:
        await self._presses.aclose()
        await self._api.aclose()


async def _nothing() -> None:
    """Mark nothing."""


def _payload(one: Any) -> dict[str, Any]:
    found = one.get("metadata") if isinstance(one, dict) else None
    payload = found.get("event_payload") if isinstance(found, dict) else None
    return payload if isinstance(payload, dict) else {}
