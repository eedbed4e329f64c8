"""The processes that work on one Redis together: who they are, where they answer, and who of them is alive.

Each writes its entry twice a second. The entries are a hint only, about whom to ask and when to try to take
a run over; permission is decided by tokens (runs/ownership). Ages are measured by the clock of Redis
alone, so that clocks of machines that are an hour apart change nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from stabilitybackend.base.errors import RedisStartError, TakesNoPart
from stabilitybackend.base.keys import MEMBERS
from stabilitybackend.base.quiet_log import QuietLog
from stabilitybackend.schema.runs import StoringProblem
from stabilityplugins.scale.versions import allowed, taking_no_part

__all__ = ["EXPIRY_S", "TAKES_NO_PART", "Member", "Members", "refuse_beside_members"]

#: A process that has not written its entry for so long counts as dead, seconds ...
EXPIRY_S = 2.0
#: ... and writes it so often. Three may be late in a row.
BEAT_S = 0.5
#: Entries of the dead are removed after so long, seconds: until then they are found by every look-up.
FORGET_S = 60.0
#: KEYS: members.  ARGV: our id, our entry (empty: only look), milliseconds after which an entry is removed.
#: Answers the time in milliseconds; then for each entry: id, its age in milliseconds, the entry.
_BEAT = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if ARGV[2] ~= '' then redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now) .. ' ' .. ARGV[2]) end
local answer = {string.format('%.0f', now)}
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local at = string.find(all[i + 1], ' ', 1, true)
  local age = now - tonumber(string.sub(all[i + 1], 1, at - 1))
  if age > tonumber(ARGV[3]) or age < -tonumber(ARGV[3]) then
    redis.call('HDEL', KEYS[1], all[i])
  else
    answer[#answer + 1] = all[i]
    answer[#answer + 1] = age
    answer[#answer + 1] = string.sub(all[i + 1], at + 1)
  end
end
return answer
"""

#: Codes of the problem where this process itself takes no part, and where others do not.
TAKES_NO_PART, VERSIONS_APART = TakesNoPart.default_code, "versions_apart"
_log = logging.getLogger(__name__)


class Member(msgspec.Struct, frozen=True):
    """One process.

    Attributes:
        member_id: its own, of this start.
        roles: of ``settings.ROLES``. url: its address for others.
        version: of Stabilityboard. since: unix seconds of its first entry, by the clock of Redis.
    """

    member_id: str
    roles: tuple[str, ...]
    url: str
    version: str = ""
    since: float = 0.0


class Members:
    """All processes as this one sees them.

    Args:
        me: this process. elapsed: seconds, of a monotonic clock.

    Attributes:
        alive: those that are alive now, by id; this process is among them once it has written its entry. Where Redis
            took no entry of this process for as long as makes one dead, it took none of the others either: who was
            alive before stays it for as long again.
        apart: ids of those alive that take no part, as their version is too far from that of others who were here
            first: they own no run, take no agent, change nothing and send no alert. Each process finds the same.
        changed: called after an arrival or a departure.
    """

    def __init__(self, redis: Redis, me: Member, elapsed: Callable[[], float] = time.monotonic) -> None:
        self.me = me
        self.alive: dict[str, Member] = {}
        self.apart = frozenset[str]()
        self.changed: list[Callable[[], None]] = []
        self._redis = redis
        self._elapsed = elapsed
        self._beaten_at, self._spared_until = float("inf"), float("-inf")
        self._quiet = QuietLog(_log)

    def having(self, role: str) -> list[Member]:
        """Return those alive that have a role and take part, in the order of their ids."""
        return [one for name, one in sorted(self.alive.items()) if role in one.roles and name not in self.apart]

    def in_order(self) -> list[Member]:
        """Return those alive, those first that were here first."""
        return sorted(self.alive.values(), key=lambda one: (one.since, one.member_id))

    @property
    def takes_part(self) -> bool:
        """Whether this process may work with the others."""
        return self.me.member_id not in self.apart

    def no_part(self) -> TakesNoPart | None:
        """Return why this process takes no part, None while it does."""
        if self.takes_part or (why := self.trouble(0.0)) is None:
            return None
        return TakesNoPart(why.problem, hint=why.hint)

    def check_takes_part(self) -> None:
        """Raise TakesNoPart where this process takes no part."""
        if (why := self.no_part()) is not None:
            raise why

    def trouble(self, now: float) -> StoringProblem | None:
        """Return the processes that take no part and the remedy, None where all do. ``now``: unix seconds."""
        if not self.apart:
            return None
        others = [one for name, one in sorted(self.alive.items()) if name in self.apart]
        named = ", ".join(f"{'+'.join(one.roles)} of version {one.version} at {one.url}" for one in others[:3])
        if len(others) > 3:
            named += f" and {len(others) - 3} more"
        here = {one.version for name, one in self.alive.items() if name not in self.apart}
        who = "1 process takes" if len(others) == 1 else f"{len(others)} processes take"
        code = VERSIONS_APART if self.takes_part else TAKES_NO_PART
        versions = f"version{'s' if len(here) > 1 else ''} {' and '.join(sorted(here))}"
        text = f"Beside {versions}, {who} no part: {named}"
        hint = (
            f"Stop {'it' if len(others) == 1 else 'them'}, or start version {allowed(here)} there: versions work "
            "together that are at most one minor version apart, so upgrade by one at a time. Nothing else is affected."
        )
        return StoringProblem(code, text, hint, now)

    async def refresh(self) -> None:
        """See who is there, without an entry of this process. Raises RedisError when Redis is away."""
        await self._beat(b"")

    async def beat(self) -> None:
        """Write the entry of this process, and see who is there. Raises RedisError when Redis is away."""
        if not self.me.since:
            now_ms = (await self._ask(b""))[0]
            self.me = msgspec.structs.replace(self.me, since=int(now_ms) / 1000)
        await self._beat(msgspec.json.encode(self.me))

    async def _ask(self, entry: bytes) -> Any:
        return await self._redis.eval(_BEAT, 1, MEMBERS, self.me.member_id, entry, int(FORGET_S * 1000))

    async def _beat(self, entry: bytes) -> None:
        _, *found = await self._ask(entry)
        now = self._elapsed()
        if now - self._beaten_at > EXPIRY_S:
            self._spared_until = now + EXPIRY_S
        self._beaten_at = now
        alive = dict[str, Member]()
        for name, age_ms, data in zip(found[::3], found[1::3], found[2::3], strict=True):
            if age_ms <= EXPIRY_S * 1000 and (member := _member(data)) is not None:
                alive[name.decode()] = member
        if now < self._spared_until:
            alive = self.alive | alive
        before, self.alive = self.alive, alive
        if before.keys() != alive.keys():
            self.apart = frozenset(one.member_id for one in taking_no_part(self.in_order(), lambda one: one.version))
            for call in self.changed:
                call()

    async def keep(self) -> None:
        """Write it again and again."""
        while True:
            try:
                await self.beat()
            except (RedisError, OSError) as error:  # the old entries stay: no process can take a run over either
                self._quiet.log(logging.WARNING, f"this process can't say that it is alive: {error!s:.200}")
            await asyncio.sleep(BEAT_S)

    async def leave(self) -> None:
        """Remove the entry, so that others take over without a wait."""
        try:
            await self._redis.hdel(MEMBERS, self.me.member_id)
        except (RedisError, OSError):
            pass  # it expires


async def refuse_beside_members(redis: Redis, place: str) -> None:
    """Return where no processes with roles work on a Redis. Raises RedisStartError where some do."""
    members = Members(redis, Member("", (), ""))
    await members.refresh()
    if members.alive:
        shown = ", ".join(f"{'+'.join(one.roles)} at {one.url}" for one in list(members.alive.values())[:5])
        raise RedisStartError(
            f"{len(members.alive)} processes with roles work on Redis at {place}: {shown}",
            hint="start this one with --role, too, or give it a Redis of its own",
            code="members_there",
        )


def _member(data: bytes) -> Member | None:
    try:
        return msgspec.json.decode(data, type=Member)
    except msgspec.MsgspecError:  # of a newer version
        return None
