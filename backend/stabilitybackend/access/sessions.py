"""Browsers that are logged in: an opaque id in a cookie, and behind it a key that was pasted, or a person.

Redis holds only the SHA-256 of the id. A session works as long as its key does, ends when a person logs out, when it is
not used for a week, and after a month at the latest. That of a person whom a provider signed in ends after half a day,
since the provider does not report a closed account.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import msgspec
from redis.asyncio import Redis

from stabilitybackend.base.errors import Unavailable
from stabilitybackend.base.keys import session_key
from stabilitybackend.storage.redis_link import InRedis, redis_errors

__all__ = [
    "Session", "Sessions", "SignedIn", "digest", "login_cookie", "logout_cookies", "session_of", "sign_in_cookie",
    "sign_in_of",
]  # fmt: skip

#: Life of an unused session, and longest life of a used one after its login, seconds.
IDLE_S = 7 * 24 * 3600
LIFE_S = 30 * 24 * 3600
#: That of a person whom a provider signed in, seconds after the sign-in: new groups, and accounts that were closed,
#: count that much later at most. A user still signed in there returns without a password.
PERSON_LIFE_S = 12 * 3600
#: Use is noted at most this often, seconds.
TOUCH_EVERY_S = 3600.0
#: A session that was read is believed for so long, seconds: one that ended on another server works that much longer.
CACHE_S = 2.0
#: Sessions remembered between two readings; the oldest reading goes.
MAX_CACHED = 10_000
_PREFIX = "stabilityboard_"
#: Name of the cookie of a sign-in under way.
_SIGN_IN = "sign_in_"


class SignedIn(msgspec.Struct, frozen=True):
    """A person whom an OpenID provider signed in.

    Args:
        issuer: the provider. subject: the id there, which never changes. name: for display.
        groups: those that the file of roles knew then.
        id_token: of the provider, returned to it at the sign-out; "" where it is too long to keep.
    """

    issuer: str
    subject: str
    name: str
    groups: tuple[str, ...] = ()
    id_token: str = ""


class Session(msgspec.Struct, frozen=True):
    """Subject of a browser's cookie: a key or a user.

    Args:
        key_id: the key it was opened with; its scopes are those of the session. "" with a person.
        created: unix seconds of the login.
        person: None with a key.
    """

    key_id: str
    created: float
    person: SignedIn | None = None

    @property
    def life_s(self) -> int:
        """How long it lasts at most, seconds."""
        return LIFE_S if self.person is None else PERSON_LIFE_S


class Sessions(InRedis):
    """The sessions."""

    def __init__(self, redis: Redis, clock: Callable[[], float] = time.time) -> None:
        super().__init__(redis, clock)
        #: Digest -> the session, when it was read, and when its use was noted.
        self._cached: dict[str, tuple[Session, float, float]] = {}

    async def open(self, of: str | SignedIn) -> str:
        """Begin a session and return its id: 256 random bits, which are kept nowhere. Raises Unavailable.

        Args:
            of: the id of a key, or a person.
        """
        text = secrets.token_urlsafe(32)
        session = Session(of, self._clock()) if isinstance(of, str) else Session("", self._clock(), of)
        with redis_errors():
            await self._redis.set(
                session_key(digest(text)), msgspec.json.encode(session), ex=min(IDLE_S, session.life_s)
            )
        return text

    async def find(self, text: str) -> Session | None:
        """Return the session of an id, None where there is none (any more).

        Raises:
            Unavailable: Redis is away and the session was never read.
        """
        key, now = digest(text), self._clock()
        known = self._cached.get(key)
        if known is not None and 0 <= now - known[1] < CACHE_S:
            return known[0]
        try:
            with redis_errors():
                found = await self._redis.get(session_key(key))
        except Unavailable:
            if known is None or now - known[0].created >= known[0].life_s:
                raise
            return known[0]
        if found is None:
            self._cached.pop(key, None)
            return None
        session = msgspec.json.decode(found, type=Session)
        left = session.created + session.life_s - now
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
        """End a session. Raises Unavailable: then it stays."""
        key = digest(text)
        with redis_errors():
            await self._redis.delete(session_key(key))
        self._cached.pop(key, None)


def session_of(headers: Mapping[str, str], cookies: Mapping[str, str]) -> str | None:
    """Return the id in a request's cookies, None where there is none."""
    return _found(headers, cookies, "")


def sign_in_of(headers: Mapping[str, str], cookies: Mapping[str, str]) -> str:
    """Return the secret of the sign-in that this browser began, "" where it began none."""
    return _found(headers, cookies, _SIGN_IN) or ""


def login_cookie(text: str, headers: Mapping[str, str], *, secure: bool, life_s: int = LIFE_S, below: str = "") -> str:
    """Return the ``Set-Cookie`` value that logs a browser in: not readable by scripts, not sent from other sites.

    Args:
        text: the session's id.
        headers: of the request: the cookie's name has the port, since browsers send a cookie to every port of a host.
        secure: the page was served over https: then no page without it, and no neighbouring host, can set the cookie.
        life_s: of the session.
        below: path below which the browser finds us: what else is on that host, such as other people's servers behind
            one hub, never gets the cookie.
    """
    return _cookie(text, headers, "", secure=secure, life_s=life_s, site="Strict", below=below)


def sign_in_cookie(text: str, headers: Mapping[str, str], *, secure: bool, life_s: int, below: str = "") -> str:
    """Return the ``Set-Cookie`` value that ties a sign-in to this browser; without ``text`` it unties it.

    It comes back with a link that the provider's page follows, so it is sent from other sites too, with that alone.
    """
    return _cookie(text, headers, _SIGN_IN, secure=secure, life_s=life_s if text else 0, site="Lax", below=below)


def logout_cookies(headers: Mapping[str, str], below: str = "") -> list[str]:
    """Return the ``Set-Cookie`` values that log a browser out, and forget the key that older versions kept there."""
    at_root, below_path, over_http = _names(headers)
    gone = f"=; Path={below or '/'}; Max-Age=0; HttpOnly; SameSite=Strict"
    over_https = below_path if below else at_root
    return [f"{over_https}{gone}; Secure", f"{over_http}{gone}", f"stabilityboard_key{gone}"]


def _cookie(
    text: str, headers: Mapping[str, str], what: str, *, secure: bool, life_s: int, site: str, below: str
) -> str:
    at_root, below_path, over_http = _names(headers, what)
    name, ending = (below_path if below else at_root, "; Secure") if secure else (over_http, "")
    return f"{name}={text}; Path={below or '/'}; Max-Age={life_s}; HttpOnly; SameSite={site}{ending}"


def _found(headers: Mapping[str, str], cookies: Mapping[str, str], what: str) -> str | None:
    return next((cookies[name] for name in _names(headers, what) if name in cookies), None)


def _names(headers: Mapping[str, str], what: str = "") -> tuple[str, str, str]:
    """Return a cookie's names: over https, over https below a path (where ``__Host-`` may not be), over http."""
    try:
        port = urlsplit(f"//{headers.get('host', '')}").port or "default"
    except ValueError:
        port = "default"
    name = f"{_PREFIX}{what}{port}"
    return f"__Host-{name}", f"__Secure-{name}", name


def digest(text: str) -> str:
    """Return the digest that Redis holds of a secret."""
    return hashlib.sha256(text.encode()).hexdigest()
