"""Sign-ins that are under way: begun here, and at the provider now.

Each is used once, within ten minutes, by the browser that began it. They are one stream in Redis, so every server on
it can end a flow that another one began, and any visitor may begin one: of too many the oldest go.
"""

from __future__ import annotations

import hmac
import re
import secrets
from typing import Any

import msgspec

from stabilitybackend.access.sessions import digest
from stabilitybackend.base.keys import SIGN_INS
from stabilitybackend.storage.redis_link import InRedis, redis_errors
from stabilityplugins.oidc.refusals import SignInRefused

__all__ = ["FLOW_S", "Flow", "Flows"]

#: A sign-in takes at most so long, seconds: a person has to find a password and a second factor.
FLOW_S = 600
#: Sign-ins under way, about 400 bytes each.
MAX_FLOWS = 10_000
_STATE = re.compile(r"(\d{1,20}-\d{1,20})\.([A-Za-z0-9_-]{43})")


class Flow(msgspec.Struct, frozen=True):
    """A sign-in that is under way.

    Args:
        begun: unix seconds.
        state_sha256, browser_sha256: hex digests of the state that the provider returns, and of the browser's cookie.
        nonce: in the token. verifier: needed with the code (PKCE).
        then: the page that the person wanted.
    """

    begun: float
    state_sha256: str
    browser_sha256: str
    nonce: str
    verifier: str
    then: str


class Flows(InRedis):
    """The sign-ins that are under way."""

    async def begin(self, then: str) -> tuple[str, str, Flow]:
        """Return the state for the provider, the secret for the browser's cookie, and the flow. Raises Unavailable."""
        mark, browser = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        flow = Flow(
            self._clock(), digest(mark), digest(browser), secrets.token_urlsafe(32), secrets.token_urlsafe(32), then
        )
        with redis_errors():
            entry: Any = await self._redis.xadd(
                SIGN_INS, {"f": msgspec.json.encode(flow)}, maxlen=MAX_FLOWS, approximate=False
            )
            await self._redis.expire(SIGN_INS, FLOW_S)
        return f"{entry.decode()}.{mark}", browser, flow

    async def take(self, state: str, browser: str) -> Flow:
        """Return the flow of a state and use it up.

        Raises:
            SignInRefused: there is none (any more), it was used before, or another browser began it.
            Unavailable: Redis is away.
        """
        gone = SignInRefused("unknown_sign_in", "the state is none of the last ten minutes, or was used before")
        match = _STATE.fullmatch(state)
        if match is None:
            raise gone
        with redis_errors():
            found: Any = await self._redis.xrange(SIGN_INS, match[1], match[1])
        flow = msgspec.json.decode(found[0][1][b"f"], type=Flow) if found else None
        if flow is None or not hmac.compare_digest(digest(match[2]), flow.state_sha256):
            raise gone
        if not hmac.compare_digest(digest(browser), flow.browser_sha256):
            raise SignInRefused("other_browser", "the cookie of the browser is not that of the sign-in")
        with redis_errors():
            first = await self._redis.xdel(SIGN_INS, match[1])
        if not first or self._clock() - flow.begun > FLOW_S:
            raise gone
        return flow
