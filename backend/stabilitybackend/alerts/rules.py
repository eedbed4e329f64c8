"""Routes and mutes of alerts: checked and stored texts, and the current rules for alerting."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import msgspec
from redis.asyncio import Redis

from stabilityalerting.due import DueLater
from stabilityalerting.routing import Mute, RoutingTable, Rules, wrong_labels
from stabilitybackend.base.errors import BadRequest, Conflict, NotFound, SettingsError
from stabilitybackend.base.keys import ALERT_MUTES, ALERT_ROUTES
from stabilitybackend.base.yaml_file import BadYaml, read_yaml
from stabilitybackend.schema.pages.alerting import MuteShown, MuteState, Routes
from stabilitybackend.storage.redis_link import InRedis, redis_errors

__all__ = ["AlertRules", "read_routes"]

#: Cached for so long, seconds: a change on the page takes effect within it.
CACHE_S = 1.0
#: Longest mute, seconds: 30 days. For longer silence use a route.
MAX_MUTE_S = 30 * 86_400.0
#: Ended mutes are shown for so long, seconds.
KEEP_MUTES_S = 7 * 86_400.0
MAX_MUTES = 500
MAX_REASON_CHARS = 300
#: Name of the text on the page, in messages.
_PAGE = "routes"

_log = logging.getLogger(__name__)


def read_routes(text: str, name: str, receivers: Collection[str]) -> RoutingTable:
    """Return the routes of a YAML text.

    Raises:
        BadYaml: with file, line, and the expected value.
    """
    written = read_yaml(text, name)
    table = written.struct(RoutingTable)
    for place, message in table.problems(receivers):
        raise written.wrong_at(place, message)
    return table


class AlertRules(InRedis):
    """Routes and mutes.

    Args:
        receivers: names of those that are set up.
        file: routes that hold instead of those of the page.

    Raises:
        SettingsError: the file can't be read, or is wrong.
    """

    def __init__(
        self,
        redis: Redis,
        receivers: Collection[str],
        file: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(redis, clock)
        self._receivers = receivers
        self._file = file
        self._text = self._table = None
        if file is not None:
            try:
                self._text = Path(file).expanduser().read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise SettingsError(
                    f"setting alert_routes is {file!r}, expected a file that can be read: {error}",
                    hint="set STABILITY_ALERT_ROUTES",
                    setting="alert_routes",
                ) from None
            try:
                self._table = read_routes(self._text, file, receivers)
            except BadYaml as error:
                raise SettingsError(error.message, hint="correct that line", setting="alert_routes") from None
        self._rules = Rules()
        self._read_at = float("-inf")
        self._problem = ""
        #: The text that Redis held last, and its routes: most reads find the same.
        self._stored_text = ""
        self._stored_table: RoutingTable | None = None

    async def now(self) -> Rules:
        """Return the current rules, at most a second old. Raises RedisError when it is away."""
        asked = time.monotonic()
        if asked - self._read_at >= CACHE_S:
            table = self._table
            if table is None:
                raw: Any = await self._redis.hget(ALERT_ROUTES, "text")
                table = await self._usable((raw or b"").decode())
            self._rules = Rules(table, tuple(await self._mutes()))
            self._read_at = asked
        return self._rules

    async def _usable(self, text: str) -> RoutingTable | None:
        """Return the stored routes; None for invalid ones, after the removal of a receiver: every receiver gets all."""
        if text == self._stored_text:
            return self._stored_table
        try:
            found = await self.table_of(text)
            problem = ""
        except BadYaml as error:
            found = None
            problem = error.message
        self._stored_text = text
        self._stored_table = found
        if problem and problem != self._problem:
            _log.error("the stored routes of alerts are not used, each receiver gets everything: %s", problem)
        self._problem = problem
        return found

    async def routes(self) -> Routes:
        """Return the text of the routes. Raises Unavailable when Redis is away."""
        if self._text is not None:
            return Routes(self._text, "file", self._file or "")
        with redis_errors():
            found: Any = await self._redis.hgetall(ALERT_ROUTES)
        if not found.get(b"text"):
            version = int(found.get(b"version", 0))
            return Routes("", "none", version=version)
        text = found[b"text"].decode()
        problem = ""
        try:
            await self.table_of(text)
        except BadYaml as error:
            problem = error.message
        by = found[b"by"].decode()
        at = float(found[b"at"])
        return Routes(text, "page", "", int(found[b"version"]), by, at, problem)

    async def table_of(self, text: str) -> RoutingTable | None:
        """Return the routes of a text, None for an empty one. They are read in a thread.

        Raises:
            BadYaml: with the line and the expected value.
        """
        if not text.strip():
            return None
        return await asyncio.to_thread(read_routes, text, _PAGE, self._receivers)

    async def write_routes(self, text: str, version: int, who: str) -> Routes:
        """Store routes in place of those of ``version``; an empty text: each receiver gets everything.

        Raises:
            BadYaml: invalid routes. Conflict: the routes are in a file, or were changed meanwhile.
            Unavailable: Redis is away.
        """
        if self._file is not None:
            raise Conflict(
                f"the routes are those of the file {self._file}", hint="change the file and restart the server",
                code="routes_in_file",
            )  # fmt: skip
        await self.table_of(text)
        new = {"text": text if text.strip() else "", "by": who, "at": repr(self._clock()), "version": version + 1}
        with redis_errors():
            stored = await self._redis.eval(
                _WRITE, 1, ALERT_ROUTES, version, *(str(part) for pair in new.items() for part in pair)
            )
            if stored:
                await self._wake_due()
        if not stored:
            raise Conflict(
                "somebody else changed the routes in between", hint="load them again and repeat your change",
                code="routes_changed",
            )  # fmt: skip
        self._read_at = float("-inf")
        return await self.routes()

    async def mute(self, match: dict[str, Any], reason: str, starts: float | None, ends: float, who: str) -> MuteShown:
        """Mute alerts that match from ``starts`` (None: now) to ``ends``, unix seconds.

        Raises:
            BadRequest: a label is unknown, it is empty, the reason is missing or a time is out of range.
            Unavailable: Redis is away.
        """
        now = self._clock()
        starts = now if starts is None else starts
        if not match:
            raise BadRequest("match is empty, which would mute everything", hint='for that, give {"run": "*"}')
        if wrong := wrong_labels(match):
            raise BadRequest(f"there is no label {wrong[0]!r}", hint="GET /api/v1/alerting lists the labels")
        reason = reason.strip()
        if not 0 < len(reason) <= MAX_REASON_CHARS:
            raise BadRequest(f"reason has {len(reason)} characters, expected 1 to {MAX_REASON_CHARS}")
        if not now < ends <= starts + MAX_MUTE_S or not starts < ends:
            raise BadRequest(
                f"ends is {ends - now:+,.0f} s from now and {ends - starts:+,.0f} s from its start, expected a time "
                f"ahead, at most {MAX_MUTE_S / 86_400:g} days after the start",
                hint="what is to be silent for longer is a route without receivers",
            )
        made = Mute(uuid.uuid4().hex[:12], match, who, reason, starts, ends)
        with redis_errors():
            await self._forget_ended(now)
            if await self._redis.hlen(ALERT_MUTES) >= MAX_MUTES:
                raise BadRequest(f"there are {MAX_MUTES} mutes already", hint="end some that nobody needs")
            await self._redis.hset(ALERT_MUTES, made.mute_id, msgspec.json.encode(made))
        self._read_at = float("-inf")
        return _shown(made, now)

    async def end_mute(self, mute_id: str) -> Mute:
        """End a mute now; open incidents are sent within seconds. Returns its former state.

        Raises:
            NotFound: there is none, or it has ended. Unavailable: Redis is away.
        """
        found = await self.find_mute(mute_id)
        now = self._clock()
        ended = msgspec.structs.replace(found, starts=min(found.starts, now), ends=now)
        with redis_errors():
            await self._redis.hset(ALERT_MUTES, mute_id, msgspec.json.encode(ended))
            self._read_at = float("-inf")
            await self._wake_due()
        return found

    async def find_mute(self, mute_id: str) -> Mute:
        """Return a mute that has not ended.

        Raises:
            NotFound: there is none. Unavailable: Redis is away.
        """
        with redis_errors():
            raw: Any = await self._redis.hget(ALERT_MUTES, mute_id)
        found = None if raw is None else msgspec.json.decode(raw, type=Mute)
        if found is None or found.ends <= self._clock():
            raise NotFound(f"no mute {mute_id!r} is on", hint="GET /api/v1/alerting lists them")
        return found

    async def mutes(self) -> list[MuteShown]:
        """Return the mutes, those that end last first. Raises Unavailable when Redis is away."""
        now = self._clock()
        with redis_errors():
            found = await self._mutes()
        shown = [mute for mute in found if mute.ends > now - KEEP_MUTES_S]
        return [_shown(mute, now) for mute in sorted(shown, key=lambda mute: (-mute.ends, mute.mute_id))]

    async def _wake_due(self) -> None:
        """Judge again the incidents that wait for the end of a mute or for an escalation."""
        for receiver in self._receivers:
            await DueLater(self._redis, receiver).all_at(self._clock())

    async def _mutes(self) -> list[Mute]:
        found: Any = await self._redis.hvals(ALERT_MUTES)
        return [msgspec.json.decode(one, type=Mute) for one in found]

    async def _forget_ended(self, now: float) -> None:
        for mute in await self._mutes():
            if mute.ends <= now - KEEP_MUTES_S:
                await self._redis.hdel(ALERT_MUTES, mute.mute_id)


#: Compares the version and writes all fields in one transaction.
_WRITE = """
if tonumber(redis.call('hget', KEYS[1], 'version') or 0) ~= tonumber(ARGV[1]) then return 0 end
redis.call('hset', KEYS[1], unpack(ARGV, 2))
return 1
"""


def _shown(mute: Mute, now: float) -> MuteShown:
    state: MuteState = "pending" if now < mute.starts else "active" if now < mute.ends else "expired"
    return MuteShown(mute.mute_id, mute.match, mute.owner, mute.reason, mute.starts, mute.ends, state)
