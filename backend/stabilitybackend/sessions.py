"""Browsers that are logged in: an opaque id in a cookie, and behind it the key that a person pasted once.

Redis holds only the SHA-256 of the id. A session works as long as its key does, ends when a person logs out, when it is
not used for a week, and after a month at the latest.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import msgspec
from redis.asyncio import Redis

from stabilitybackend.errors import Unavailable
from stabilitybackend.keys import session_key
from stabilitybackend.redis_link import InRedis, redis_errors

__all__ = ["Session", "Sessions", "digest", "login_cookie", "logout_cookies", "session_of"]

#: A session that nobody uses ends after this long, seconds; one that is used ends too, this long after the login.
IDLE_S = 7 * 24 * 3600
LIFE_S = 30 * 24 * 3600
#: Use is noted at most this often, seconds.
TOUCH_EVERY_S = 3600.0
#: A session that was read is believed for so long, seconds: one that ended on another server works that much longer.
CACHE_S = 2.0
#: Sessions remembered between two readings; the oldest reading goes.
MAX_CACHED = 10_000
_PREFIX = "stabilityboard_"


class Session(msgspec.Struct, frozen=True):
    """What a browser's cookie stands for.

    Args:
        key_id: the key it was opened with; its scopes are those of the session.
        created: unix seconds of the login.
    """

    key_id: str
    created: float


class Sessions(InRedis):
    """The sessions."""

    def __init__(self, redis: Redis, clock: Callable[[], float] = time.time) -> None:
        super().__init__(redis, clock)
        #: Digest -> the session, when it was read, and when its use was noted.
        self._cached: dict[str, tuple[Session, float, float]] = {}

    async def open(self, key_id: str) -> str:
        """Begin a session and return its id: 256 random bits, which are kept nowhere. Raises Unavailable."""
        text = secrets.token_urlsafe(32)
        session = Session(key_id, self._clock())
        with redis_errors():
            await self._redis.set(session_key(digest(text)), msgspec.json.encode(session), ex=IDLE_S)
        return text

    async def find(self, text: str) -> Session | None:
        """Return the session of an id, None where there is none (any more).

        Raises:
            Unavailable: Redis is away and the session is not known yet.
        """
        key, now = digest(text), self._clock()
        known = self._cached.get(key)
        if known is not None and 0 <= now - known[1] < CACHE_S:
            return known[0]
        try:
            with redis_errors():
                found = await self._redis.get(session_key(key))
        except Unavailable:
            if known is None or now - known[0].created >= LIFE_S:
                raise
            return known[0]
        if found is None:
            self._cached.pop(key, None)
            return None
        session = msgspec.json.decode(found, type=Session)
        left = session.created + LIFE_S - now
        if left <= 0:
            return None
        touched = known[2] if known is not None else float("-inf")
        if now - touched >= TOUCH_EVERY_S:
            with redis_errors():
                await self._redis.expire(session_key(key), max(1, int(min(IDLE_S, left))))
            touched = now
        self._cached.pop(key, None)
        self._cached[key] = (session, now, touched)
        while len(self._cached) > MAX_CACHED:
            del self._cached[next(iter(self._cached))]
        return session

    async def close(self, text: str) -> None:
        """End a session. Raises Unavailable: then it goes on."""
        key = digest(text)
        with redis_errors():
            await self._redis.delete(session_key(key))
        self._cached.pop(key, None)


def session_of(headers: Mapping[str, str], cookies: Mapping[str, str]) -> str | None:
    """Return the id in a request's cookies, None where there is none."""
    names = _names(headers)
    return next((cookies[name] for name in names if name in cookies), None)


def login_cookie(text: str, headers: Mapping[str, str], *, secure: bool) -> str:
    """Return the ``Set-Cookie`` value that logs a browser in: not readable by scripts, not sent from other sites.

    Args:
        text: the session's id.
        headers: of the request: the cookie's name has the port, since browsers send a cookie to every port of a host.
        secure: the page came over https: then no page without it, and no neighbouring host, can set the cookie.
    """
    over_https, over_http = _names(headers)
    name, ending = (over_https, "; Secure") if secure else (over_http, "")
    return f"{name}={text}; Path=/; Max-Age={LIFE_S}; HttpOnly; SameSite=Strict{ending}"


def logout_cookies(headers: Mapping[str, str]) -> list[str]:
    """Return the ``Set-Cookie`` values that log a browser out, and forget the key that older versions kept there."""
    over_https, over_http = _names(headers)
    gone = "=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict"
    return [f"{over_https}{gone}; Secure", f"{over_http}{gone}", f"stabilityboard_key{gone}"]


def _names(headers: Mapping[str, str]) -> tuple[str, str]:
    try:
        port = urlsplit(f"//{headers.get('host', '')}").port or "default"
    except ValueError:
        port = "default"
    return f"__Host-{_PREFIX}{port}", f"{_PREFIX}{port}"


def digest(text: str) -> str:
    """Return what Redis holds in the place of a secret."""
    return hashlib.sha256(text.encode()).hexdigest()
