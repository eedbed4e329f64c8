"""Wraps every route: host, origin and size of a request are checked, and each answer gets its headers.

It surrounds the whole application: answers to unexpected errors carry the headers too, and a request is in memory only
after its checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from stabilitybackend.access.auth import Authenticator
from stabilitybackend.access.origins import Origins
from stabilitybackend.access.people.proxy import person_of
from stabilitybackend.base.errors import BadRequest, StabilityBoardError
from stabilitybackend.server.addresses.refused_page import refused_page

__all__ = ["MAX_BODY_BYTES", "MAX_LOGIN_BYTES", "RELAYED", "HttpGuard", "security_headers"]

#: Key of a request's scope: another process of this server has checked it.
RELAYED = "stability.relayed"
#: Longest body of a request, bytes. Data comes over the agents' WebSocket: requests here are settings and commands.
MAX_BODY_BYTES = 1024 * 1024
#: Longest body of a request without a key, bytes: a key is 55 characters.
MAX_LOGIN_BYTES = 4096
#: Seconds in which a body has to be here. A slow one holds a connection and nothing else.
BODY_TIMEOUT_S = 20.0

#: What browsers may keep where an answer does not say it. What the API says is for those who asked; a page is asked for
#: again, so that it fits its scripts, whose addresses hold a hash.
_NO_STORE, _NO_CACHE = b"no-store", b"no-cache"

#: Calls with a body and without a key -> longest body.
_OPEN = {"/api/v1/login": MAX_LOGIN_BYTES, "/api/v1/logout": MAX_LOGIN_BYTES}
#: Browser features that no page uses.
_FEATURES = ("camera", "microphone", "geolocation", "payment", "usb", "serial", "midi", "display-capture")


def security_headers(script_hashes: Iterable[str]) -> list[tuple[bytes, bytes]]:
    """Return the headers of every answer.

    Scripts run from this server's own addresses, and those few that are in the page itself, by their hash. Styles
    may stand in the page: Dash's renderer puts some twenty of its own there, and under this policy no style can send
    data to another host.

    Args:
        script_hashes: ``'sha256-...'`` of each inline script of a page.
    """
    policy = {
        "default-src": "'none'",
        "script-src": " ".join(("'self'", *script_hashes)),
        "style-src": "'self' 'unsafe-inline'",
        "img-src": "'self' data: blob:",
        "font-src": "'self'",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'self'",
        "frame-ancestors": "'none'",
    }
    headers = {
        "content-security-policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "x-frame-options": "DENY",
        "x-content-type-options": "nosniff",
        # Not "no-referrer": with it a form would be sent with "Origin: null".
        "referrer-policy": "same-origin",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "permissions-policy": ", ".join(f"{feature}=()" for feature in _FEATURES),
    }
    return [(name.encode(), value.encode()) for name, value in headers.items()]


class HttpGuard:
    """Checks each request, and adds ``headers`` to each answer.

    Args:
        signed: paths whose requests carry a signature in place of a key -> longest body, bytes.
    """

    def __init__(
        self,
        app: ASGIApp,
        origins: Origins,
        authenticator: Authenticator,
        headers: list[tuple[bytes, bytes]],
        signed: Mapping[str, int] | None = None,
    ) -> None:
        self._app = app
        self._origins = origins
        self._authenticator = authenticator
        self._headers = headers
        self._open = _OPEN | dict(signed or {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or WebSocket."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        kept = _NO_STORE if scope["path"].startswith("/api/") else _NO_CACHE

        async def send_safely(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                message["headers"] = self._with_ours(list(message.get("headers", ())), kept)
            await send(message)

        try:
            if not scope.get(RELAYED):  # else the forwarding process has checked it, under its own name
                self._origins.check(scope["headers"])
            person_of(scope)
            if scope["type"] == "http" and _has_body(scope):
                receive = await self._whole_body(scope, receive)
        except StabilityBoardError as error:
            await _refuse(error, scope, receive, send_safely)
            return
        await self._app(scope, receive, send_safely)

    def _with_ours(self, headers: list[tuple[bytes, bytes]], kept: bytes) -> list[tuple[bytes, bytes]]:
        present = {name.lower() for name, _ in headers}
        headers += [(name, value) for name, value in self._headers if name not in present]
        if b"cache-control" not in present:
            headers.append((b"cache-control", kept))
        return headers

    async def _whole_body(self, scope: Scope, receive: Receive) -> Receive:
        """Return a ``receive`` that has the whole body, after checking who sends it.

        Raises:
            Unauthorized: a key is needed, and the request has none or a wrong one.
            BadRequest: the body is too large (413) or too slow (408).
        """
        most = self._open.get(scope["path"], MAX_BODY_BYTES)
        if scope["path"] not in self._open:
            connection = HTTPConnection(scope)
            await self._authenticator.authenticate(connection.headers, connection.cookies, person_of(scope))
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdecimal() and int(announced) > most:
            raise _too_large(most)
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                more = True
                while more:
                    message = await receive()
                    if message["type"] != "http.request":
                        return _once(message, receive)
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > most:
                        raise _too_large(most)
        except TimeoutError:
            raise BadRequest(
                f"the body was not here after {BODY_TIMEOUT_S:.0f} s",
                hint="send it at once",
                code="too_slow",
                status=408,
            ) from None
        return _once({"type": "http.request", "body": bytes(body), "more_body": False}, receive)


def _has_body(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


def _once(first: Message, receive: Receive) -> Receive:
    waiting = [first]

    async def next_message() -> Message:
        return waiting.pop() if waiting else await receive()

    return next_message


async def _refuse(error: StabilityBoardError, scope: Scope, receive: Receive, send: Send) -> None:
    # The connection ends with it: the rest of a body is not read.
    page = refused_page(error, scope) if scope["type"] == "http" else None
    answer = page or JSONResponse(error.as_json(), status_code=error.status)
    answer.headers["connection"] = "close"
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).send_denial_response(answer)
    else:
        await answer(scope, receive, send)


def _too_large(most: int) -> BadRequest:
    return BadRequest(
        f"the body is larger than {most:,} bytes, which is the most that is taken here",
        hint="metrics come with the client, stored runs with: stabilityboard import",
        code="too_large",
        status=413,
    )
