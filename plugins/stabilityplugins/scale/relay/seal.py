"""What processes tell each other about a request that they pass on, signed so that nobody else can say it.

A process of pages has checked host and origin, and knows who calls, perhaps by a proxy or a provider that the owner of
the run knows nothing of. So the request carries a header with that, for one process, one method and one address,
for some seconds, once. Its signature rests on a secret that lies in Redis: whoever can read Redis can do anything
anyway. The time is that of Redis, so that clocks of machines that are an hour apart change nothing.

A key that came with the request counts before it: the owner looks at that itself.
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

__all__ = ["HEADER", "LASTS_S", "Seal", "Unsealed", "Unsealing"]

#: The header, lower-case. It reaches no route.
HEADER = b"x-stability-relayed"
#: A signature holds for so long, seconds, to either side: less than anybody waits for an answer, more than a pause.
LASTS_S = 10.0
#: How often time and secret are read from Redis, seconds; and the latter at most, where a signature is wrong.
_READ_EVERY_S, _READ_AGAIN_S = 30.0, 1.0


class Unsealed(msgspec.Struct, frozen=True):
    """What is said of a request.

    Attributes:
        to: id of the process that it is for. time: of Redis, unix seconds. nonce: never used before.
        client: address of whoever sent it. person: who that is, with what that one may.
    """

    to: str
    time: float
    nonce: str
    client: str = ""
    person: Principal | None = None


class Seal:
    """Signs and checks.

    Args:
        me: id of this process.
        elapsed: seconds, of a clock that nobody sets.
        nonce: a text that was never used before.
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
        #: Nonce -> when it can be forgotten; all of them were signed by one of us.
        self._seen: dict[str, float] = {}

    async def sign(self, to: str, method: str, target: bytes, client: str = "", person: Principal | None = None) -> str:
        """Return the header's value.

        Args:
            to: id of the process that gets it. method, target: of the request, the latter with its query.

        Raises:
            Unavailable: Redis is away, and the secret is not known yet.
        """
        await self._current()
        said = Unsealed(to, self._now(), self._nonce(), client, person)
        data = base64.urlsafe_b64encode(msgspec.json.encode(said))
        return f"{data.decode()}.{self._mac(data, method, target)}"

    async def open(self, value: bytes, method: str, target: bytes) -> Unsealed:
        """Return what a header says.

        Raises:
            Forbidden: ``not_relayed``: it is forged, for another request or process, too old, or came before.
            Unavailable: Redis is away, and the secret is not known yet.
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
            said = msgspec.json.decode(base64.urlsafe_b64decode(data), type=Unsealed)
        except (msgspec.MsgspecError, binascii.Error):  # of another version
            raise _refused("this version can't read it") from None
        now = self._now()
        if said.to != self._me:
            raise _refused("it is for another process")
        if abs(now - said.time) > LASTS_S:
            raise _refused(f"it was signed {now - said.time:.1f} s ago, expected at most {LASTS_S:g} s")
        while self._seen and self._seen[oldest := next(iter(self._seen))] <= now:  # in the order in which they came
            del self._seen[oldest]
        if said.nonce in self._seen:
            raise _refused("it came before")
        self._seen[said.nonce] = now + 2 * LASTS_S
        return said

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
            return  # what was known still holds
        self._secret, self._read_at = secret, self._elapsed()
        self._ahead = seconds + micros / 1e6 - self._read_at


class Unsealing:
    """Believes what other processes say of a request that they pass on, and refuses who only seems to; ASGI.

    It goes around what checks host and origin: the process that passes the request on has done that.
    """

    def __init__(self, app: ASGIApp, seal: Seal) -> None:
        self._app = app
        self._seal = seal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request or WebSocket."""
        values = [value for name, value in scope.get("headers", ()) if name == HEADER]
        if values:
            method = "GET" if scope["type"] == "websocket" else scope["method"]
            try:
                if len(values) > 1:
                    raise _refused("there are several")
                said = await self._seal.open(values[0], method, target_of(scope))
            except StabilityBoardError as error:
                await refuse(error, scope, receive, send)
                return
            scope["headers"] = [(name, value) for name, value in scope["headers"] if name != HEADER]
            scope["client"] = (said.client, 0) if said.client else None
            scope[PERSON], scope[RELAYED] = said.person, True
        await self._app(scope, receive, send)


def target_of(scope: Scope) -> bytes:
    """Return the address that a request asks for, with its query."""
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope.get("query_string", b"")
    return path + b"?" + query if query else path


async def refuse(error: StabilityBoardError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with an error, around all that does so usually."""
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
