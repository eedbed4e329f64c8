"""Transports of presses: a WebSocket that this server opens (Socket Mode), or signed requests to the API."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

import msgspec
from redis.exceptions import RedisError

from stabilityalerting.sink import redact
from stabilityplugins.slack.buttons import Presses
from stabilityplugins.slack.web_api import SlackApi
from stabilityplugins.slack.workspace import LOG_EVERY_S, Workspace

#: An older request is refused, seconds, as Slack advises. Source:
#: https://docs.slack.dev/authentication/verifying-requests-from-slack
MAX_AGE_S = 300
#: Period of pings, seconds: a broken connection is replaced after that.
PING_S = 2.0

__all__ = ["MAX_AGE_S", "SignedRequests", "listen"]


class SignedRequests:
    """Checks and answers the requests of Slack to ``POST /api/v1/slack``: signed, recent, and each once.

    Args:
        secret: the app's signing secret.
    """

    def __init__(self, secret: str, presses: Presses, workspace: Workspace) -> None:
        self._secret = secret
        self._presses = presses
        self._workspace = workspace

    async def answer(self, headers: Mapping[str, str], body: bytes) -> tuple[int, dict[str, Any] | None]:
        """Return the status and the JSON of the answer, None for an empty one."""
        signature = headers.get("x-slack-signature", "")
        if not self.signed(headers, body):
            self._workspace.counts["requests_refused"] += 1
            return 401, None
        try:
            digest = hashlib.sha256(signature.encode()).hexdigest()
            if not await self._presses.first_time(f"request:{digest}"):
                self._workspace.counts["requests_refused"] += 1
                return 401, None  # a replay
        except (RedisError, OSError):
            return 503, None
        try:
            form = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=20)
            payload = msgspec.json.decode(form["payload"][0]) if "payload" in form else {}
        except (ValueError, RecursionError, msgspec.MsgspecError):
            return 400, None
        return 200, await self._presses.take(payload)

    def signed(self, headers: Mapping[str, str], body: bytes) -> bool:
        """Return whether Slack signed this body, for this app, within the last five minutes."""
        timestamp = headers.get("x-slack-request-timestamp", "")
        signature = headers.get("x-slack-signature", "")
        from slack_sdk.signature import SignatureVerifier

        if not timestamp.isascii() or not timestamp.isdecimal() or len(timestamp) > 12 or not signature.isascii():
            return False  # the library expects numbers and letters
        verifier = SignatureVerifier(self._secret, _Clock(self._workspace.server.clock))  # type: ignore[arg-type]
        try:
            return verifier.is_valid(body, timestamp, signature)
        except (ValueError, UnicodeDecodeError):
            return False


class _Clock:
    """The server's clock as slack_sdk asks for one."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now


async def listen(api: SlackApi, app_token: str, presses: Presses, over: asyncio.Event) -> None:
    """Listen over Socket Mode until ``over`` is set; the server needs no public address for it.

    slack_sdk's client holds the connection: it asks for another address when Slack sends ``disconnect``, when the
    connection breaks, or when pings are not answered.
    """
    from slack_sdk.socket_mode.aiohttp import SocketModeClient
    from slack_sdk.socket_mode.request import SocketModeRequest
    from slack_sdk.socket_mode.response import SocketModeResponse

    async def take(client: Any, request: SocketModeRequest) -> None:
        # Slack repeats an envelope whose acknowledgement was lost. The mark comes first: a person repeats a press
        # after a crash, and none is applied twice.
        try:
            new = await presses.first_time(f"envelope:{request.envelope_id}")
        except (RedisError, OSError):
            new = True  # nothing that needs Redis can be done: the person gets that answer
        answer = await presses.take(request.payload) if new and request.type == "interactive" else None
        await client.send_socket_mode_response(SocketModeResponse(request.envelope_id, answer))

    client = SocketModeClient(
        app_token, logger=_logger((app_token, *api.secrets)), web_client=api.client(), ping_interval=PING_S
    )
    client.socket_mode_request_listeners.append(take)
    connecting = asyncio.create_task(client.connect())  # type: ignore[no-untyped-call]
    try:
        await over.wait()
    finally:
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
        await client.close()  # type: ignore[no-untyped-call]


def _logger(secrets: tuple[str, ...]) -> logging.Logger:
    """Return a logger for slack_sdk: problems in one line, once a minute, without secrets."""
    logger = logging.getLogger("stabilityplugins.slack.socket")
    logger.setLevel(logging.WARNING)
    logged: dict[int, float] = {}

    def clean(record: logging.LogRecord) -> bool:
        if record.created - logged.get(record.lineno, float("-inf")) < LOG_EVERY_S:
            return False
        logged[record.lineno] = record.created
        text = redact(record.getMessage(), secrets)
        # The addresses from Slack hold a ticket.
        record.msg = "Socket Mode: " + text.split("wss://")[0].split("ws://")[0][:300]
        record.args = ()
        record.exc_info = None
        return True

    logger.filters = [clean]
    return logger
