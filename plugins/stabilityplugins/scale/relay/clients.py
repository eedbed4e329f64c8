"""How processes of one server speak HTTP with each other."""

from __future__ import annotations

from typing import Any

import httpx
import orjson
from starlette.types import Receive

__all__ = ["MAX_REFUSAL_BYTES", "PAUSE_S", "RETRY_S", "code_of", "make_client", "refusal_of", "whole"]

#: An owner is looked for so long, seconds: longer than a takeover takes ...
RETRY_S = 8.0
#: ... with pauses of so many seconds.
PAUSE_S = 0.2
CONNECT_TIMEOUT_S = 2.0
#: Time for an owner to take a request, seconds.
WRITE_TIMEOUT_S = 10.0
#: Most connections to other processes, and those that are kept; uvicorn ends one that rests for 5 s.
MAX_CONNECTIONS, MAX_KEPT, KEPT_S = 500, 100, 2.0
#: Longest answer that is read whole, to see whether the run is elsewhere, bytes.
MAX_REFUSAL_BYTES = 64 * 1024


def make_client() -> httpx.AsyncClient:
    """Return a client for the event loop that it is made in. Answers may take as long as they want."""
    return httpx.AsyncClient(
        timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S, write=WRITE_TIMEOUT_S, pool=CONNECT_TIMEOUT_S),
        limits=httpx.Limits(
            max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_KEPT, keepalive_expiry=KEPT_S
        ),
        trust_env=False,
    )


async def whole(receive: Receive, limit_bytes: int | None = None) -> bytes | None:
    """Return a request's body; None where its sender is gone, or it is longer than it may be."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if limit_bytes is not None and len(body) > limit_bytes:
            return None
        if not message.get("more_body", False):
            return bytes(body)


def refusal_of(body: bytes) -> tuple[str, str, str]:
    """Return code, message and hint of an answer that refuses; "" for a missing one."""
    try:
        said: dict[str, Any] = orjson.loads(body)["error"]
        return str(said["code"]), str(said["message"]), str(said["hint"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return "", "", ""


def code_of(body: bytes) -> str:
    """Return the code of an answer that refuses, "" for none."""
    return refusal_of(body)[0]
