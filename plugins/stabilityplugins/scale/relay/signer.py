"""Signed header of a request that one process forwards to another.

A process of pages checks host and origin, and authenticates the caller, perhaps by a proxy or a provider that the owner
of the run has no access to. The header carries the result, for one process, one method and one address, once and for
some seconds. The secret of the signature lies in Redis: access to Redis is access to everything. The time is that of
Redis, so clocks of machines that differ by an hour change nothing.

A key in the request precedes the header: the owner checks keys itself.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from typing import Any

import msgspec
from fastapi.responses import JSONResponse
from redis.asyncio import Redis
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from stabilitybackend.access.auth import Principal
from stabilitybackend.access.people.proxy import PERSON
from stabilitybackend.base.errors import Forbidden, StabilityBoardError, Unavailable
from stabilitybackend.base.keys import RELAY
from stabilitybackend.server.http_guard import RELAYED
from stabilitybackend.storage.redis_link import redis_errors

__all__ = ["HEADER", "LASTS_S", "ForwardedHeader", "RelaySigner", "SignatureCheck"]

#: The header, lower-case. It reaches no route.
HEADER = b"x-stability-relayed"
#: Validity of a signature, seconds, to either side: less than the timeout of a request, more than a pause.
LASTS_S = 10.0
#: Interval between reads of time and secret from Redis, seconds, and the shortest one, after a wrong signature.
_READ_EVERY_S, _READ_AGAIN_S = 30.0, 1.0


class ForwardedHeader(msgspec.Struct, frozen=True):
    """Content of the header.

    Attributes:
        to: id of the receiving process. time: of Redis, unix seconds. nonce: used once.
        client: address of the sender. person: the authenticated caller with their rights.
    """

    to: str
    time: float
    nonce: str
    client: str = ""
    person: Principal | None = None


class RelaySigner:
    """Signs and verifies the header.

    Args:
        me: id of this process.
        elapsed: seconds of a monotonic clock.
        nonce: returns a new random text.
    """

    def __init__(
        self,
        redis: Redis,
        me: str,
        *,
        elapsed: Callable[[], float] = time.monotonic,
        nonce: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._redis = redis
        self._me = me
        self._elapsed = elapsed
        self._nonce = nonce
        self._secret = b""
        self._ahead = 0.0
        self._read_at = float("-inf")
        #: Nonce -> its expiry; each one was signed by a process of this server.
        self._seen: dict[str, float] = {}

    async def sign(self, to: str, method: str, target: bytes, client: str = "", person: Principal | None = None) -> str:
        """Return the header's value.

        Args:
            to: id of the receiving process. method, target: of the request, the latter with its query.

        Raises:
            Unavailable: Redis is away, and the secret was never read.
        """
        await self._current()
        header = ForwardedHeader(to, self._now(), self._nonce(), client, person)
        data = base64.urlsafe_b64encode(msgspec.json.encode(header))
        return f"{data.decode()}.{self._mac(data, method, target)}"

    async def verify(self, value: bytes, method: str, target: bytes) -> ForwardedHeader:
        """Return the content of a header.

        Raises:
            Forbidden: ``not_relayed``: forged, for another request or process, too old, or a repetition.
            Unavailable: Redis is away, and the secret was never read.
        """
        await self._current()
        data, _, mac = value.rpartition(b".")
        if not hmac.compare_digest(self._mac(data, method, target), mac.decode("latin-1")):
            if self._elapsed() - self._read_at > _READ_AGAIN_S:  # Redis may have lost the secret, and have a new one
                self._read_at = float("-inf")
                await self._current()
            if not hmac.compare_digest(self._mac(data, method, target), mac.decode("latin-1")):
                raise _refused("no process of this server signed it")
        try:
            header = msgspec.json.decode(base64.urlsafe_b64decode(data), type=ForwardedHeader)
        except (msgspec.MsgspecError, binascii.Error):  # of another version
            raise _refused("this version can't read it") from None
        now = self._now()
        if header.to != self._me:
            raise _refused("it is for another process")
        if abs(now - header.time) > LASTS_S:
            raise _refused(f"it was signed {now - header.time:.1f} s ago, expected at most {LASTS_S:g} s")
        while self._seen and self._seen[oldest := next(iter(self._seen))] <= now:  # in order of arrival
            del self._seen[oldest]
        if header.nonce in self._seen:
            raise _refused("it came before")
        self._seen[header.nonce] = now + 2 * LASTS_S
        return header

    def _now(self) -> float:
        return self._elapsed() + self._ahead

    def _mac(self, data: bytes, method: str, target: bytes) -> str:
        return hmac.new(self._secret, b"\n".join((data, method.encode(), target)), hashlib.sha256).hexdigest()

    async def _current(self) -> None:
        if 0 <= self._elapsed() - self._read_at < _READ_EVERY_S:
            return
        try:
            with redis_errors():
                await self._redis.set(RELAY, secrets.token_bytes(32), nx=True)
                secret: Any = await self._redis.get(RELAY)
                seconds, micros = await self._redis.time()
        except Unavailable:
            if not self._secret:
                raise
            return  # the secret read before still holds
        self._secret = secret
        self._read_at = self._elapsed()
        self._ahead = seconds + micros / 1e6 - self._read_at


class SignatureCheck:
    """ASGI middleware that applies the header of a forwarded request, and refuses a forged one.

    It surrounds the check of host and origin, which the forwarding process has made.
    """

    def __init__(self, app: ASGIApp, signer: RelaySigner) -> None:
        self._app = app
        self._signer = signer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request or WebSocket."""
        values = [value for name, value in scope.get("headers", ()) if name == HEADER]
        if values:
            method = "GET" if scope["type"] == "websocket" else scope["method"]
            try:
                if len(values) > 1:
                    raise _refused("there are several")
                header = await self._signer.verify(values[0], method, target_of(scope))
            except StabilityBoardError as error:
                await refuse(error, scope, receive, send)
                return
            scope["headers"] = [(name, value) for name, value in scope["headers"] if name != HEADER]
            scope["client"] = (header.client, 0) if header.client else None
            scope[PERSON], scope[RELAYED] = header.person, True
        await self._app(scope, receive, send)


def target_of(scope: Scope) -> bytes:
    """Return the address of a request, with its query."""
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope.get("query_string", b"")
    return path + b"?" + query if query else path


async def refuse(error: StabilityBoardError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with an error, outside of the application's error handlers."""
    answer = JSONResponse(error.as_json(), status_code=error.status)
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).send_denial_response(answer)
    else:
        await answer(scope, receive, send)


def _refused(why: str) -> Forbidden:
    return Forbidden(
        f"the header {HEADER.decode()} is not believed: {why}",
        hint="leave it out: it is for what processes of this server pass on to each other",
        code="not_relayed",
    )
