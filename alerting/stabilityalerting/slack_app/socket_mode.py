"""Hears what people press over a WebSocket that we open: the server needs no public address.

slack_sdk's client holds the connection: it asks for another address when Slack says ``disconnect``, when the connection
breaks, or when pings are not answered.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from redis.exceptions import RedisError

from stabilityalerting.sink import redact

from .parts import LOG_EVERY_S
from .presses import Presses
from .web_api import SlackApi

#: How often the connection is looked after, seconds: one that broke without a word is replaced after that.
PING_S = 2.0

__all__ = ["listen"]


async def listen(api: SlackApi, app_token: str, presses: Presses, over: asyncio.Event) -> None:
    """Listen until ``over`` is set."""
    from slack_sdk.socket_mode.aiohttp import SocketModeClient
    from slack_sdk.socket_mode.request import SocketModeRequest
    from slack_sdk.socket_mode.response import SocketModeResponse

    async def take(client: Any, request: SocketModeRequest) -> None:
        # Slack sends an envelope again when its acknowledgement was lost. It is noted before it is acted on: what a
        # crash interrupts is pressed again by a person, and never done twice.
        try:
            new = await presses.first_time(f"envelope:{request.envelope_id}")
        except (RedisError, OSError):
            new = True  # nothing that is stored can be done either: the person is told so
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
    """Return a logger for slack_sdk: trouble in one line, once a minute, without secrets."""
    logger = logging.getLogger("stabilityalerting.slack_app.socket")
    logger.setLevel(logging.WARNING)
    logged: dict[int, float] = {}

    def clean(record: logging.LogRecord) -> bool:
        if record.created - logged.get(record.lineno, float("-inf")) < LOG_EVERY_S:
            return False
        logged[record.lineno] = record.created
        text = redact(record.getMessage(), secrets)
        # The addresses that Slack hands out hold a ticket.
        record.msg, record.args = "Socket Mode: " + text.split("wss://")[0].split("ws://")[0][:300], ()
        record.exc_info = None
        return True

    logger.filters = [clean]
    return logger
