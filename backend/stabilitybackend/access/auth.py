"""API keys and their rights.

On loopback without any key everything is open: a laptop needs no ceremony. From the first key on, or where the server
listens beyond loopback, every call needs one, except the probes (docs/operations.md); also when all of them are
revoked, until ``keys open``. An unknown key is always refused, so that a typo is noticed. Redis holds
only the SHA-256 of a key: it has 256 random bits, so nothing slower is needed.
"""

from __future__ import annotations

import hmac
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from stabilitybackend.access.sessions import Sessions, SignedIn, digest, session_of
from stabilitybackend.base.errors import BadRequest, Forbidden, NotFound, SettingsError, Unauthorized, Unavailable
from stabilitybackend.base.keys import API_KEYS, API_KEYS_OPEN, API_KEYS_USED
from stabilitybackend.base.settings import Settings
from stabilitybackend.base.tasks import SingleFlight
from stabilitybackend.schema.server import Me
from stabilitybackend.storage.redis_link import InRedis, redis_errors

__all__ = [
    "RESERVED_NAMES", "ROLES", "SCOPES", "USUAL_SCOPES", "ApiKey", "Authenticator", "KeyRing", "Principal",
    "check_exposure", "role_of", "scopes_of",
]  # fmt: skip

#: Scopes of a key: send data; see everything; propose commands, which a user has to approve; issue and approve
#: commands, acknowledge incidents, change settings; delete runs and read the audit log.
SCOPES = ("agent", "read", "propose", "command", "admin")
#: Scope -> the one that allows it too.
_CONTAINED_IN = {"propose": "command"}
#: Names of sets of scopes. Checks compare scopes.
ROLES: Mapping[str, tuple[str, ...]] = {
    "viewer": ("read",),
    "operator": ("read", "command"),
    "admin": ("read", "command", "admin"),
    "agent": ("agent",),
    "assistant": ("read", "propose"),
}
#: Default scopes of a key, without deletion.
USUAL_SCOPES = ("agent", "read", "command")
#: Names in the audit log that no key and no person has: a call that needed no key, and the autopilot.
RESERVED_NAMES = frozenset(["autopilot", "local"])
#: Seconds for which the keys read from Redis are used again: a revoked key works at most that much longer.
CACHE_S = 2.0
#: Last use is written at most this often for each key, seconds.
USED_EVERY_S = 60.0
#: Most keys: all of them are kept in memory.
MAX_KEYS = 1000
MAX_NAME_CHARS = 100
_KEY = re.compile(r"sb_([0-9a-f]{8})_([A-Za-z0-9_-]{43})")
_LOG = logging.getLogger(__name__)


class ApiKey(msgspec.Struct, frozen=True):
    """A stored key, without its secret.

    Args:
        key_id: 8 hex digits, part of the key's text and no secret.
        name: for display.
        scopes: some of ``SCOPES``.
        sha256: hex digest of the whole key.
        created: unix seconds.
        revoked: unix seconds, or None while it works.
        used: unix seconds of its last use, at most a minute late; None if never.
        project: the only project whose runs it may see, send or change; None for every project.
    """

    key_id: str
    name: str
    scopes: tuple[str, ...]
    sha256: str
    created: float
    revoked: float | None = None
    used: float | None = None
    project: str | None = None


@dataclass(frozen=True, slots=True)
class Principal:
    """Who makes a call.

    Args:
        name: the key's name, or ``local`` where no key is needed. Commands carry it as their issuer.
        scopes: its rights.
        key_id: the key, or None where none was needed.
        project: the only project that it may do it in, or None for every project.
        session: it is a browser that is logged in.
        proxied: authenticated by a trusted proxy.
    """

    name: str
    scopes: frozenset[str]
    key_id: str | None = None
    project: str | None = None
    session: bool = False
    proxied: bool = False

    def require(self, scope: str) -> None:
        """Raise Forbidden unless this identity has ``scope``."""
        if scope not in self.scopes and _CONTAINED_IN.get(scope) not in self.scopes:
            raise Forbidden(
                f"key {self.name!r} may {', '.join(sorted(self.scopes)) or 'nothing'}, this needs {scope!r}",
                hint=f"use a key with it: stabilityboard keys create NAME --scope {scope}",
                code="missing_scope",
            )

    def require_all_projects(self) -> None:
        """Raise Forbidden for a key of one project: this is about all of them."""
        if self.project is not None:
            raise Forbidden(
                f"key {self.name!r} is for the project {self.project!r}, this is about every project",
                hint="use a key without a project",
                code="wrong_project",
            )

    def sees(self, project: str) -> bool:
        """Return whether the runs of ``project`` are any business of this identity."""
        return self.project is None or self.project == project

    @property
    def by(self) -> Literal["session", "key", "local", "proxy"]:
        """Means of authentication."""
        return "proxy" if self.proxied else "session" if self.session else "local" if self.key_id is None else "key"

    def shown(self) -> Me:
        """Return the answer of ``GET /api/v1/me``."""
        return Me(self.name, sorted(self.scopes), self.project, self.by, role_of(self.scopes))


def scopes_of(role: str) -> tuple[str, ...]:
    """Return the scopes of a role. Raises BadRequest for a name that is none."""
    if role not in ROLES:
        raise BadRequest(f"role is {role!r}, expected one of {', '.join(ROLES)}", hint="or name scopes")
    return ROLES[role]


def role_of(scopes: Iterable[str]) -> str:
    """Return the name of exactly these scopes, "" where they have none."""
    return next((role for role, its in ROLES.items() if set(its) == set(scopes)), "")


#: Who calls on loopback while no key exists.
LOCAL = Principal("local", frozenset(SCOPES))


class KeyRing(InRedis):
    """The API keys."""

    async def create(
        self, name: str, scopes: Iterable[str] = USUAL_SCOPES, project: str | None = None
    ) -> tuple[ApiKey, str]:
        """Make a key and return it with its text, which can't be had again.

        Raises:
            BadRequest: a scope is unknown, name or project is empty or too long, or there are MAX_KEYS keys already.
            Unavailable: Redis is away.
        """
        chosen = tuple(scope for scope in SCOPES if scope in set(scopes))
        unknown = sorted(set(scopes) - set(SCOPES))
        if unknown or not chosen:
            raise BadRequest(f"scopes {unknown or 'none'} given, expected some of {', '.join(SCOPES)}")
        if not name.strip() or len(name) > MAX_NAME_CHARS:
            raise BadRequest(f"key name of {len(name)} characters, expected 1 to {MAX_NAME_CHARS}")
        if name.strip().casefold() in RESERVED_NAMES:
            raise BadRequest(f"key name {name!r} is reserved", hint="name the person or the program that uses it")
        if project is not None and not 0 < len(project) <= MAX_NAME_CHARS:
            raise BadRequest(f"project of {len(project)} characters, expected 1 to {MAX_NAME_CHARS}")
        key_id = secrets.token_hex(4)
        text = f"sb_{key_id}_{secrets.token_urlsafe(32)}"
        key = ApiKey(key_id, name.strip(), chosen, digest(text), self._clock(), project=project)
        with redis_errors():
            if await self._redis.hlen(API_KEYS) >= MAX_KEYS:
                raise BadRequest(f"{MAX_KEYS} keys exist already", hint="revoke some: stabilityboard keys revoke ID")
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.hset(API_KEYS, key_id, msgspec.json.encode(key))
                pipe.delete(API_KEYS_OPEN)
                await pipe.execute()
        return key, text

    async def list(self) -> list[ApiKey]:
        """Return all keys, oldest first, revoked ones too. Raises Unavailable when Redis is away."""
        with redis_errors():
            found = await self._redis.hgetall(API_KEYS)
            times: Any = await self._redis.hgetall(API_KEYS_USED)
        used = {key_id.decode(): float(when) for key_id, when in times.items()}
        keys = (msgspec.json.decode(text, type=ApiKey) for text in found.values())
        return sorted((replace(key, used=used.get(key.key_id)) for key in keys), key=lambda key: key.created)

    async def revoke(self, key_id: str) -> ApiKey:
        """Make the key stop working, within CACHE_S everywhere, and return it.

        Raises:
            NotFound: no key has this id.
            Unavailable: Redis is away.
        """
        with redis_errors():
            found = await self._redis.hget(API_KEYS, key_id)
            if found is None:
                raise NotFound(f"no key has the id {key_id!r}", hint="see stabilityboard keys list", key_id=key_id)
            key = msgspec.json.decode(found, type=ApiKey)
            if key.revoked is None:
                key = replace(key, revoked=self._clock())
                await self._redis.hset(API_KEYS, key_id, msgspec.json.encode(key))
        return key

    async def open(self) -> None:
        """Let loopback in without a key again, within CACHE_S everywhere, until the next key is made.

        Raises:
            BadRequest: a key works.
            Unavailable: Redis is away.
        """
        working = sum(key.revoked is None for key in await self.list())
        if working:
            raise BadRequest(
                f"{working} {'key works' if working == 1 else 'keys work'}: calls without one stay refused",
                hint="revoke them first: stabilityboard keys revoke ID",
            )
        with redis_errors():
            await self._redis.set(API_KEYS_OPEN, f"{self._clock():.3f}")

    async def needed(self, keys: Iterable[ApiKey]) -> bool:
        """Return whether calls on loopback need a key: one exists or was revoked, and the server was not opened since.

        Raises:
            Unavailable: Redis is away.
        """
        revoked = [key.revoked is not None for key in keys]
        with redis_errors():
            return bool(revoked) and not (all(revoked) and await self._redis.exists(API_KEYS_OPEN))

    async def mark_used(self, key_id: str, when: float) -> None:
        """Note the last use of a key. Raises Unavailable when Redis is away."""
        with redis_errors():
            await self._redis.hset(API_KEYS_USED, key_id, f"{when:.3f}")


class Authenticator:
    """Answers who makes a call, from its headers and cookies.

    Args:
        ring: the keys.
        sessions: of logged-in browsers; None: no sessions.
        key_needed: a key is needed even while none exists (the server listens beyond loopback).
        people: returns the rights of a user signed in by a provider, None for none any more.
        clock: unix seconds now.
    """

    def __init__(
        self,
        ring: KeyRing,
        sessions: Sessions | None = None,
        *,
        key_needed: bool,
        people: Callable[[SignedIn], Principal | None] = lambda person: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._ring = ring
        self._people = people
        self._sessions = sessions
        self._key_needed = key_needed
        self._clock = clock
        self._keys: dict[str, ApiKey] = {}
        #: There is a key, or was one.
        self._had_key = True
        self._read_at = float("-inf")
        #: A thousand agents may reconnect together: one read of the keys serves all.
        self._reading = SingleFlight(self._read_keys)
        self._marked: dict[str, float] = {}

    async def authenticate(
        self, headers: Mapping[str, str], cookies: Mapping[str, str], proxied: Principal | None = None
    ) -> Principal:
        """Return who calls.

        Args:
            headers: with lower-case or case-insensitive names (Starlette's are).
            cookies: the request's cookies.
            proxied: whom a trusted proxy signed in; a key that is sent counts before that.

        Raises:
            Unauthorized: a key is needed and none was sent, or the key or the session that was sent does not work.
            Unavailable: Redis is away and the keys were never read.
        """
        keys = await self._current_keys()
        needed = self._key_needed or self._had_key
        header = headers.get("authorization")
        if header is None and proxied is not None:
            return proxied
        if header is None and not needed:
            return LOCAL  # a cookie left by another server on this host does not count
        session = session_of(headers, cookies) if header is None and self._sessions is not None else None
        if session is not None:
            return await self._of_session(session, keys)
        text = None if header is None else _bearer(header)
        if text is None:
            raise Unauthorized(
                "this server needs an API key and the request has none",
                hint="send 'Authorization: Bearer KEY' (agents: STABILITY_API_KEY), or log in at /login; "
                "make one with: stabilityboard keys create NAME",
                code="key_missing",
            )
        match = _KEY.fullmatch(text)
        key = keys.get(match.group(1)) if match else None
        # A digest is compared even for an unknown id, so that the time taken reveals nothing.
        same = hmac.compare_digest(digest(text), key.sha256 if key else "0" * 64)
        if key is None or not same or key.revoked is not None:
            raise Unauthorized(
                "the API key that was sent is revoked" if same else "the API key that was sent is not known here",
                hint="check STABILITY_API_KEY, or make a key with: stabilityboard keys create NAME"
                + ("" if needed else "; this server has no keys and needs none"),
                code="key_revoked" if same else "key_unknown",
            )
        await self._mark_used(key)
        return Principal(key.name, frozenset(key.scopes), key.key_id, key.project)

    async def _of_session(self, text: str, keys: Mapping[str, ApiKey]) -> Principal:
        assert self._sessions is not None
        session = await self._sessions.find(text)
        if session is not None and session.person is not None:
            found = self._people(session.person)
            if found is None:
                raise Unauthorized(
                    f"{session.person.name!r} has no role here any more",
                    hint="sign in again at /login",
                    code="session_ended",
                )
            return found
        key = None if session is None else keys.get(session.key_id)
        if key is None or key.revoked is not None:
            raise Unauthorized(
                "this browser is no longer logged in" if session is None else "the key of this session is revoked",
                hint="log in again at /login",
                code="session_ended",
            )
        await self._mark_used(key)
        return Principal(key.name, frozenset(key.scopes), key.key_id, key.project, session=True)

    async def _current_keys(self) -> dict[str, ApiKey]:
        now = self._clock()
        if not 0 <= now - self._read_at < CACHE_S:
            try:
                await self._reading.result()
            except Unavailable:
                if self._read_at == float("-inf"):
                    raise
                _LOG.debug("Redis is away: the keys read %.0f s ago still count", now - self._read_at)
        return self._keys

    async def _read_keys(self) -> None:
        now = self._clock()  # of before the answer: a key that is revoked meanwhile is not late
        keys = {key.key_id: key for key in await self._ring.list()}
        self._had_key = await self._ring.needed(keys.values())
        self._keys = keys
        self._read_at = now

    async def _mark_used(self, key: ApiKey) -> None:
        now = self._clock()
        if now - self._marked.get(key.key_id, float("-inf")) < USED_EVERY_S:
            return
        self._marked[key.key_id] = now
        try:
            await self._ring.mark_used(key.key_id, now)
        except Unavailable:
            self._marked.pop(key.key_id, None)


async def check_exposure(settings: Settings, ring: KeyRing) -> None:
    """Refuse to start a server that other machines reach without a key.

    Raises:
        SettingsError: the host or the public name is beyond loopback and no working key exists.
        Unavailable: Redis is away.
    """
    if settings.exposed and not any(key.revoked is None for key in await ring.list()):
        setting = "host" if settings.beyond_loopback else "public_url" if settings.public_url else "trusted_hosts"
        given = settings.host if setting == "host" else settings.public_url or ", ".join(settings.trusted_hosts)
        raise SettingsError(
            f"{setting} {given} can be reached from other machines, and no API key exists",
            hint="make one first with: stabilityboard keys create NAME (same --data-dir or --redis-url), "
            "or listen on 127.0.0.1 without a public name",
            setting=setting,
        )


def _bearer(header: str) -> str | None:
    scheme, _, text = header.partition(" ")
    return text.strip() if scheme.lower() == "bearer" and text.strip() else None
