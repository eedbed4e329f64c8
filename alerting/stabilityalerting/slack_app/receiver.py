"""Notifies a Slack channel as an app: one thread an incident, kept up to date, with buttons that do something."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import OrderedDict
from dataclasses import replace
from typing import Any

from redis.exceptions import RedisError

from stabilityalerting.alert import Alert, Notice, Severity
from stabilityalerting.errors import AlertingSettingsError, SendError
from stabilityalerting.lease import pause
from stabilityalerting.server import SinkContext
from stabilityalerting.sink import BeforeWrite, Sink
from stabilityalerting.variables import Variables

from .messages import Message, message, metadata, reply
from .orders import Orders
from .parts import Parts
from .people import People, read_people
from .presses import Presses
from .signed_requests import SignedRequests
from .socket_mode import listen
from .thread_updates import ThreadUpdates
from .threads import Thread, ThreadLog
from .web_api import GONE, NO_CHART, SLACK_API_URL, SlackApi, check_installed

#: Notices whose answer never came, whose fate is asked for before they are sent again.
MAX_UNCERTAIN = 1_000
#: Messages that are looked through for one that may have arrived.
LOOK_BACK = 200
_CHANNEL = re.compile(r"[CGD][A-Z0-9]{6,30}")
__all__ = ["SlackAppSink"]

_log = logging.getLogger(__name__)


class SlackAppSink(Sink):
    """Posts a message for each incident and its changes into the thread of it.

    Slack takes every message as new. With the scope ``channels:history`` (``groups:history`` for a private channel) it
    is asked, after a crash and after an answer that never came, whether a message has arrived; without, a message whose
    fate a crash left open is not sent again.

    Args:
        token: of the bot, a secret. channel: id of the channel.
        app_token: for Socket Mode. signing_secret: for requests to ``POST /api/v1/slack``. Both are secrets.
        people: who may do what. url: of the API, another one for tests.
        chart: ``auto``, ``picture`` (never Slack's own chart) or ``off``.

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
        people: People | None = None,
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
        self._people = people or People({}, {})
        self._chart = chart
        self._uncertain: OrderedDict[str, None] = OrderedDict()
        self._parts: Parts
        self._updates: ThreadUpdates
        self._presses: Presses
        #: Checks and answers what Slack sends over HTTP; None without a signing secret.
        self.requests: SignedRequests | None = None

    @classmethod
    def from_variables(cls, variables: Variables) -> SlackAppSink | None:
        severity = variables.severity("STABILITY_SLACK_MIN_SEVERITY")
        token, channel = variables.text("STABILITY_SLACK_BOT_TOKEN"), variables.text("STABILITY_SLACK_CHANNEL")
        app_token = variables.text("STABILITY_SLACK_APP_TOKEN")
        signing_secret = variables.text("STABILITY_SLACK_SIGNING_SECRET")
        url = variables.url("STABILITY_SLACK_API_URL") or SLACK_API_URL
        chart = variables.text("STABILITY_SLACK_CHART") or "auto"
        if chart not in ("auto", "picture", "off"):
            raise AlertingSettingsError(f"STABILITY_SLACK_CHART is {chart!r:.40}, expected auto, picture or off")
        if token is None:
            given = {"STABILITY_SLACK_CHANNEL": channel, "STABILITY_SLACK_APP_TOKEN": app_token}
            given["STABILITY_SLACK_SIGNING_SECRET"] = signing_secret
            lonely = next((name for name, value in given.items() if value), None)
            if lonely is not None:
                raise AlertingSettingsError(f"{lonely} is set without STABILITY_SLACK_BOT_TOKEN: set both")
            return None
        if not token.startswith("xoxb-"):
            raise AlertingSettingsError(
                "STABILITY_SLACK_BOT_TOKEN is no bot token, expected one that begins with xoxb-"
            )
        if app_token is not None and not app_token.startswith("xapp-"):
            raise AlertingSettingsError(
                "STABILITY_SLACK_APP_TOKEN is no app-level token, expected one that begins with xapp-"
            )
        if channel is None or not _CHANNEL.fullmatch(channel):
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
            signing_secret=signing_secret,
            people=None if users is None else read_people(users),
            url=url,
            chart=chart,
            min_severity=severity,
        )

    def begin(self, context: SinkContext) -> None:
        self._parts = Parts(
            self._api,
            self._channel,
            self._people,
            ThreadLog(context.redis, self.name),
            context.server.base_url,
            context.server.clock,
            context.may_send,
            context.server.actions,
            secret=self.secrets[0],
            chart=self._chart == "auto",
            pictures=self._chart != "off",
        )
        self._updates = ThreadUpdates(self._parts)
        self._presses = Presses(self._parts, Orders(self._parts))
        if self._signing_secret is not None:
            self.requests = SignedRequests(self._signing_secret, self._presses, self._parts)

    # --- messages ------------------------------------------------------------------------------------------------

    async def send(self, notice: Notice, before_write: BeforeWrite) -> None:
        alert, key = notice.alert, notice.idempotency_key
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
        alert, stream = notice.alert, notice.stream
        thread = await self._thread(stream, alert.incident_id)
        fields = {"metadata": metadata(alert, notice.idempotency_key), "unfurl_links": False, "unfurl_media": False}
        if thread is not None:
            said = reply(notice)
            try:
                await self._api.call(
                    "chat.postMessage", before_write, channel=thread.channel, thread_ts=thread.ts, text=said.text,
                    blocks=said.blocks, reply_broadcast=notice.change != "resolved", **fields,
                )  # fmt: skip
            except SendError as error:
                if error.code not in GONE:
                    raise
                before_write = _nothing  # the mark is there; somebody deleted the message: another one begins a thread
            else:
                self._updates.note(stream, alert)
                return
        facts = await self._parts.facts(alert.run_id, alert.incident_id)
        shown = self._updates.shown(alert, facts)
        said = message(shown)
        try:
            answer = await self._post(said, before_write, fields)
        except SendError as error:
            if error.code not in NO_CHART or not said.has_chart():
                raise
            _log.info("slack_app: this workspace takes no charts (%s): pictures from now on", error.code)
            self._parts.chart = False
            answer = await self._post(message(replace(shown, chart=False)), _nothing, fields)
        thread = Thread(str(answer.get("channel") or self._channel), str(answer.get("ts")), alert.acknowledged_by)
        await self._remember(stream, alert.incident_id, thread)
        self._updates.picture(stream, alert)

    async def _post(self, said: Message, before_write: BeforeWrite, fields: dict[str, Any]) -> Any:
        answer = await self._api.call(
            "chat.postMessage", before_write, channel=self._channel, text=said.text, blocks=said.blocks, **fields
        )
        if not isinstance(answer.get("ts"), str):
            raise SendError("slack_app: chat.postMessage gave no ts", recoverable=True)
        return answer

    async def _thread(self, stream: str, incident_id: str) -> Thread | None:
        try:
            return await self._parts.threads.read(stream, incident_id)
        except (RedisError, OSError) as error:
            raise SendError(
                f"slack_app: Redis is away ({type(error).__name__})", recoverable=True, code="redis"
            ) from None

    async def _remember(self, stream: str, incident_id: str, thread: Thread) -> None:
        """Store the thread. It was posted: a Redis that is away must not have it posted again."""
        while True:
            try:
                await self._parts.threads.write(stream, incident_id, thread)
                return
            except (RedisError, OSError) as error:
                self._parts.trouble.note("the thread can't be remembered yet", error)
                await asyncio.sleep(0.5)

    def follow(self, stream: str, alert: Alert) -> None:
        self._updates.note(stream, alert)

    async def arrived(self, stream: str, incident_id: str, key: str) -> bool | None:
        thread = await self._thread(stream, incident_id)
        try:
            if thread is not None:
                found = await self._api.read(
                    "conversations.replies", channel=thread.channel, ts=thread.ts, limit=LOOK_BACK,
                    include_all_metadata="true",
                )  # fmt: skip
            else:
                found = await self._api.read(
                    "conversations.history", channel=self._channel, limit=LOOK_BACK, include_all_metadata="true"
                )
        except SendError as error:
            self._parts.trouble.note("can't look whether a message arrived", error)
            return None
        messages = found.get("messages")
        for one in messages if isinstance(messages, list) else []:
            payload = _payload(one)
            if payload.get("key") == key:
                if thread is None and isinstance(one.get("ts"), str):
                    await self._remember(stream, incident_id, Thread(self._channel, one["ts"]))
                return True
        return None if found.get("has_more") or not isinstance(messages, list) else False

    # --- what people press ---------------------------------------------------------------------------------------

    async def serve(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            if not self._parts.may_send():
                await pause(stop, 0.2)
                continue
            await self._greet()
            over = asyncio.Event()
            work = [
                asyncio.create_task(self._updates.run(over), name="slack-updates"),
                asyncio.create_task(self._presses.orders.run(over), name="slack-orders"),
            ]
            if self._app_token is not None and self._parts.actions is not None:
                work.append(
                    asyncio.create_task(listen(self._api, self._app_token, self._presses, over), name="slack-socket")
                )
            try:
                while self._parts.may_send() and not stop.is_set():
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
        """Say in the log at once what the first alert would meet otherwise: a wrong token."""
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
