"""Slack's side of the wire: what it answers and sends is as its documentation says, what it takes is checked.

One workspace with one channel. It runs in a thread of its own, on a real port.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from aiohttp import WSMsgType, web

from support.slack.limits import errors_of_message, errors_of_view
from support.waiting import wait_until

__all__ = ["APP_TOKEN", "BOT_TOKEN", "CHANNEL", "FakeSlack", "Posted"]

BOT_TOKEN, APP_TOKEN = "xoxb-1-secret-of-the-bot", "xapp-1-secret-of-the-socket"
CHANNEL = "C0123456789"
#: A trigger works for so long, once. An envelope has to be acknowledged within it.
TRIGGER_S = 3.0
_SCOPES = ("chat:write", "files:write", "channels:history", "users:read", "users:read.email")
_NEEDS = {
    "chat.postMessage": "chat:write", "chat.update": "chat:write", "chat.postEphemeral": "chat:write",
    "files.getUploadURLExternal": "files:write", "files.completeUploadExternal": "files:write",
    "conversations.history": "channels:history", "conversations.replies": "channels:history",
    "users.info": "users:read",
}  # fmt: skip


@dataclass
class Posted:
    """A message in the channel; ``posted``: when it was taken, unix seconds."""

    ts: str
    text: str
    blocks: list[dict[str, Any]]
    thread_ts: str | None
    metadata: dict[str, Any] | None
    broadcast: bool = False
    updates: int = 0
    posted: float = field(default_factory=time.time)

    def buttons(self) -> dict[str, dict[str, Any]]:
        """Return action id -> button."""
        elements = [one for block in self.blocks if block["type"] == "actions" for one in block["elements"]]
        return {one["action_id"]: one for one in elements}

    def said(self) -> str:
        """Return all that people read in it."""
        return json.dumps(self.blocks, ensure_ascii=False) if self.blocks else self.text


@dataclass
class FakeSlack:
    """The workspace.

    Attributes:
        script: method -> answers of its next calls, each (status, headers, body or None for the true one).
        refused: what a call held that Slack would not take; empty after a good test.
        late: envelopes that were not acknowledged within 3 s.
        calls: methods in the order in which they were called, with their arguments.
    """

    scopes: set[str] = field(default_factory=lambda: set(_SCOPES))
    takes_charts: bool = True
    in_channel: bool = True
    emails: dict[str, str] = field(default_factory=dict)
    script: dict[str, list[tuple[int, dict[str, str], bytes | None]]] = field(default_factory=dict)
    messages: list[Posted] = field(default_factory=list)
    whispers: list[dict[str, Any]] = field(default_factory=list)
    views: list[dict[str, Any]] = field(default_factory=list)
    files: list[dict[str, Any]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    #: While cleared, chat.postMessage does what it is asked for and does not answer.
    answering: threading.Event = field(default_factory=threading.Event)
    sockets: list[web.WebSocketResponse] = field(default_factory=list)
    acknowledged: dict[str, tuple[float, dict[str, Any] | None]] = field(default_factory=dict)
    port: int = 0
    _uploads: dict[str, dict[str, Any]] = field(default_factory=dict)
    _tickets: set[str] = field(default_factory=set)
    _triggers: dict[str, float] = field(default_factory=dict)
    _ids: Any = field(default_factory=lambda: itertools.count(1))

    # --- life ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> FakeSlack:
        self.answering.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake-slack")
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.answering.set()
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        assert kind is not None or not self.refused, self.refused[:3]

    @property
    def url(self) -> str:
        """Where the Web API is."""
        return f"http://127.0.0.1:{self.port}/api/"

    def variables(self, **more: str) -> dict[str, str]:
        """Return what the server's environment has for this workspace."""
        return {
            "STABILITY_SLACK_BOT_TOKEN": BOT_TOKEN,
            "STABILITY_SLACK_CHANNEL": CHANNEL,
            "STABILITY_SLACK_APP_TOKEN": APP_TOKEN,
            "STABILITY_SLACK_API_URL": self.url,
            **more,
        }

    def _run(self, work: Any) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(20)

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/api/{method}", self._call)
        app.router.add_post("/upload/{file}", self._upload)
        app.router.add_get("/link", self._socket)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _stop(self) -> None:
        for socket in list(self.sockets):
            await socket.close()
        await self._runner.cleanup()

    # --- the Web API ---------------------------------------------------------------------------------------------

    async def _call(self, request: web.Request) -> web.Response:
        method = request.match_info["method"]
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if request.content_type == "application/json":
            given: dict[str, Any] = await request.json()
        else:
            given = {**request.query, **(await request.post())}
        self.calls.append((method, copy.deepcopy(given)))
        scripted = self.script.get(method)
        if scripted:
            status, headers, body = scripted.pop(0)
            if body is not None:
                return web.Response(status=status, headers=headers, body=body, content_type="application/json")
        known = APP_TOKEN if method == "apps.connections.open" else BOT_TOKEN
        answer = self._answer(method, given) if token == known else {"ok": False, "error": "invalid_auth"}
        if method == "chat.postMessage":
            await asyncio.to_thread(self.answering.wait)
        return web.json_response(answer)

    def _answer(self, method: str, given: dict[str, Any]) -> dict[str, Any]:
        needed = _NEEDS.get(method)
        if needed is not None and needed not in self.scopes:
            return {"ok": False, "error": "missing_scope", "needed": needed, "provided": ",".join(self.scopes)}
        work = getattr(self, "_" + method.replace(".", "_"), None)
        return work(given) if work is not None else {"ok": False, "error": "unknown_method"}

    def _checked(self, given: dict[str, Any]) -> dict[str, Any] | None:
        """Return the error that Slack answers, None for none."""
        if given.get("channel") != CHANNEL:
            return {"ok": False, "error": "channel_not_found"}
        if not self.in_channel:
            return {"ok": False, "error": "not_in_channel"}
        if not self.takes_charts and any(one["type"] == "data_visualization" for one in given.get("blocks") or ()):
            return {"ok": False, "error": "invalid_blocks"}
        wrong = errors_of_message(given)
        self.refused += wrong
        return {"ok": False, "error": "invalid_blocks", "errors": wrong} if wrong else None

    def _chat_postMessage(self, given: dict[str, Any]) -> dict[str, Any]:
        if (error := self._checked(given)) is not None:
            return error
        thread = given.get("thread_ts")
        if thread is not None and all(one.ts != thread for one in self.messages):
            return {"ok": False, "error": "thread_not_found"}
        ts = f"{int(time.time())}.{next(self._ids):06d}"
        self.messages.append(
            Posted(
                ts, given["text"], list(given.get("blocks") or ()), thread, given.get("metadata"),
                bool(given.get("reply_broadcast")),
            )
        )  # fmt: skip
        return {"ok": True, "channel": CHANNEL, "ts": ts, "message": {"text": given["text"], "ts": ts}}

    def _chat_update(self, given: dict[str, Any]) -> dict[str, Any]:
        if (error := self._checked(given)) is not None:
            return error
        found = next((one for one in self.messages if one.ts == given.get("ts")), None)
        if found is None:
            return {"ok": False, "error": "message_not_found"}
        found.text, found.blocks = given["text"], list(given.get("blocks") or ())
        found.updates += 1
        return {"ok": True, "channel": CHANNEL, "ts": found.ts, "text": found.text}

    def _chat_postEphemeral(self, given: dict[str, Any]) -> dict[str, Any]:
        if (error := self._checked(given)) is not None:
            return error
        self.whispers.append(given)
        return {"ok": True, "message_ts": f"{int(time.time())}.{next(self._ids):06d}"}

    def _auth_test(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"ok": True, "team": "Workspace", "user": "stabilityboard", "bot_id": "B1"}

    def _views_open(self, given: dict[str, Any]) -> dict[str, Any]:
        until = self._triggers.pop(given.get("trigger_id", ""), None)
        if until is None:
            return {"ok": False, "error": "invalid_trigger_id"}
        if time.monotonic() > until:
            return {"ok": False, "error": "expired_trigger_id"}
        wrong = errors_of_view(given["view"])
        self.refused += wrong
        if wrong:
            return {"ok": False, "error": "invalid_arguments"}
        view = {"id": f"V{next(self._ids):08d}", **given["view"]}
        self.views.append(view)
        return {"ok": True, "view": view}

    def _files_getUploadURLExternal(self, given: dict[str, Any]) -> dict[str, Any]:
        file_id = f"F{next(self._ids):08d}"
        self._uploads[file_id] = {
            "name": given["filename"],
            "length": int(given["length"]),
            "alt": given.get("alt_txt"),
        }
        return {"ok": True, "upload_url": f"http://127.0.0.1:{self.port}/upload/{file_id}", "file_id": file_id}

    async def _upload(self, request: web.Request) -> web.Response:
        found = self._uploads[request.match_info["file"]]
        found["content"] = await request.read()
        return web.Response(text=f"OK - {len(found['content'])}")

    def _files_completeUploadExternal(self, given: dict[str, Any]) -> dict[str, Any]:
        for one in given["files"]:
            found = self._uploads.pop(one["id"])
            if len(found["content"]) != found["length"]:
                return {"ok": False, "error": "file_update_failed"}
            place = {"channel": given.get("channel_id"), "thread": given.get("thread_ts")}
            self.files.append({**found, **place, "title": one.get("title")})
        return {"ok": True, "files": given["files"]}

    def _conversations_history(self, given: dict[str, Any]) -> dict[str, Any]:
        return self._listed([one for one in self.messages if one.thread_ts is None or one.broadcast][::-1], given)

    def _conversations_replies(self, given: dict[str, Any]) -> dict[str, Any]:
        return self._listed([one for one in self.messages if given["ts"] in (one.ts, one.thread_ts)], given)

    @staticmethod
    def _listed(found: list[Posted], given: dict[str, Any]) -> dict[str, Any]:
        limit = int(given.get("limit", 100))
        with_all = str(given.get("include_all_metadata", "")).lower() in ("1", "true")
        shown = [
            {"type": "message", "ts": one.ts, "text": one.text}
            | ({"metadata": one.metadata} if one.metadata and with_all else {})
            for one in found[:limit]
        ]
        return {"ok": True, "messages": shown, "has_more": len(found) > limit}

    def _users_info(self, given: dict[str, Any]) -> dict[str, Any]:
        profile = {"email": self.emails[given["user"]]} if given["user"] in self.emails else {}
        if "users:read.email" not in self.scopes:
            profile = {}
        return {"ok": True, "user": {"id": given["user"], "deleted": False, "profile": profile}}

    # --- Socket Mode ---------------------------------------------------------------------------------------------

    def _apps_connections_open(self, given: dict[str, Any]) -> dict[str, Any]:
        ticket = f"ticket-{next(self._ids)}"
        self._tickets.add(ticket)
        return {"ok": True, "url": f"ws://127.0.0.1:{self.port}/link?ticket={ticket}"}

    async def _socket(self, request: web.Request) -> web.WebSocketResponse:
        ticket = request.query.get("ticket", "")
        if ticket not in self._tickets:
            raise web.HTTPUnauthorized
        self._tickets.remove(ticket)
        socket = web.WebSocketResponse(heartbeat=10.0)
        await socket.prepare(request)
        info = {"type": "hello", "num_connections": 1, "connection_info": {"app_id": "A1"}}
        await socket.send_json(info)
        self.sockets.append(socket)
        try:
            async for received in socket:
                if received.type is WSMsgType.TEXT:
                    answer = json.loads(received.data)
                    self.acknowledged[answer["envelope_id"]] = (time.monotonic(), answer.get("payload"))
        finally:
            self.sockets.remove(socket)
        return socket

    def listens(self) -> bool:
        """Return whether an app is connected."""
        return bool(self.sockets)

    def disconnect(self, reason: str = "refresh_requested") -> None:
        """Tell the app to take another connection, as Slack does every few hours."""

        async def say() -> None:
            for socket in list(self.sockets):
                await socket.send_json({"type": "disconnect", "reason": reason, "debug_info": {"host": "applink-1"}})

        self._run(say())

    def drop(self) -> None:
        """Close the connection without a word."""

        async def close() -> None:
            for socket in list(self.sockets):
                if socket._req is not None and socket._req.transport is not None:
                    socket._req.transport.abort()

        self._run(close())

    def deliver(self, payload: dict[str, Any], envelope: str | None = None) -> dict[str, Any] | None:
        """Send an envelope, wait for its acknowledgement and return the payload of that."""
        envelope = envelope or f"envelope-{next(self._ids)}"
        self.acknowledged.pop(envelope, None)
        began = time.monotonic()
        message = {
            "type": "interactive", "envelope_id": envelope, "accepts_response_payload": True, "payload": payload,
        }  # fmt: skip
        self._run(self.sockets[-1].send_json(message))
        when, answer = wait_until(lambda: self.acknowledged.get(envelope), 10, "the envelope is acknowledged")
        if when - began > TRIGGER_S:
            self.late.append(envelope)
        return answer

    # --- what people do ------------------------------------------------------------------------------------------

    def click(self, message: Posted, action: str, user: str = "U0ADA", name: str = "ada") -> dict[str, Any]:
        """Return the payload of a click on a button."""
        trigger = f"trigger-{next(self._ids)}"
        self._triggers[trigger] = time.monotonic() + TRIGGER_S
        pressed = message.buttons()[action]
        in_thread = {} if message.thread_ts is None else {"thread_ts": message.thread_ts}
        return {
            "type": "block_actions",
            "user": {"id": user, "username": name, "name": name, "team_id": "T1"},
            "api_app_id": "A1",
            "team": {"id": "T1"},
            "container": {"type": "message", "message_ts": message.ts, "channel_id": CHANNEL} | in_thread,
            "trigger_id": trigger,
            "channel": {"id": CHANNEL, "name": "alerts"},
            "message": {"ts": message.ts, "text": message.text, "blocks": message.blocks} | in_thread,
            "response_url": "http://127.0.0.1:9/never-used",
            "actions": [{"action_id": action, "value": pressed.get("value"), "type": "button", "block_id": "b"}],
        }

    def submit(self, view: dict[str, Any], reason: str = "", user: str = "U0ADA", name: str = "ada") -> dict[str, Any]:
        """Return the payload of an answered modal."""
        values = {"reason": {"text": {"type": "plain_text_input", "value": reason or None}}}
        return {
            "type": "view_submission",
            "user": {"id": user, "username": name, "name": name, "team_id": "T1"},
            "view": {**copy.deepcopy(view), "state": {"values": values}},
        }

    def press(self, message: Posted, action: str, user: str = "U0ADA", name: str = "ada") -> None:
        """Click a button, over the socket."""
        assert self.deliver(self.click(message, action, user, name)) is None

    def asked(self, message: Posted, action: str, user: str = "U0ADA", name: str = "ada") -> dict[str, Any]:
        """Click a button that asks and return the modal."""
        before = len(self.views)
        self.press(message, action, user, name)
        wait_until(lambda: len(self.views) > before, 10, "a modal opens")
        return self.views[-1]

    # --- what people see -----------------------------------------------------------------------------------------

    def parents(self) -> list[Posted]:
        """Return the messages that are in no thread."""
        return [one for one in self.messages if one.thread_ts is None]

    def replies(self, parent: Posted) -> list[Posted]:
        """Return what is in the thread of a message."""
        return [one for one in self.messages if one.thread_ts == parent.ts]

    def wait_for(self, condition: Callable[[FakeSlack], Any], what: str, timeout_s: float = 15.0) -> Any:
        """Return the truth of ``condition`` once it is there."""
        return wait_until(lambda: condition(self), timeout_s, what)
