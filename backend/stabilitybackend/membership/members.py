"""The processes that work on one Redis together: who they are, where they answer, and who of them is alive.

Each writes its entry twice a second. What others read there is a hint only, about whom to ask and when to try to take
something over; what somebody may do is decided by tokens (runs/ownership). Ages are measured by the clock of Redis
alone, so that clocks of machines that are an hour apart change nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from stabilitybackend.errors import RedisStartError
from stabilitybackend.keys import MEMBERS
from stabilitybackend.process.quiet_log import QuietLog

__all__ = ["EXPIRY_S", "Member", "Members", "refuse_beside_members"]

#: A process that has not written its entry for so long counts as dead, seconds ...
EXPIRY_S = 2.0
#: ... and writes it so often. Three may be late in a row.
BEAT_S = 0.5
#: Entries of the dead are removed after so long, seconds: until then they are named to whoever looks for them.
FORGET_S = 60.0
#: KEYS: members.  ARGV: our id, our entry (empty: only look), milliseconds after which an entry is removed.
#: Answers for each entry: id, its age in milliseconds, the entry.
_BEAT = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if ARGV[2] ~= '' then redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now) .. ' ' .. ARGV[2]) end
local answer = {}
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

_log = logging.getLogger(__name__)


class Member(msgspec.Struct, frozen=True):
    """One process.

    Attributes:
        member_id: its own, of this start.
        roles: what it does, of ``settings.ROLES``. url: where others reach it.
        version: of Stabilityboard. since: unix seconds of its start, by its own clock.
    """

    member_id: str
    roles: tuple[str, ...]
    url: str
    version: str = ""
    since: float = 0.0


class Members:
    """All processes as this one sees them.

    Args:
        me: this process. elapsed: seconds, of a clock that nobody sets.

    Attributes:
        alive: those that are alive now, by id; this process is among them once it has written its entry. Where Redis
            took no entry of this process for as long as makes one dead, it took none of the others either: who was
            alive before stays it for as long again.
        changed: called when others came or went.
    """

    def __init__(self, redis: Redis, me: Member, elapsed: Callable[[], float] = time.monotonic) -> None:
        self.me = me
        self.alive: dict[str, Member] = {}
        self.changed: list[Callable[[], None]] = []
        self._redis = redis
        self._elapsed = elapsed
        self._beaten_at, self._spared_until = float("inf"), float("-inf")
        self._quiet = QuietLog(_log)

    def having(self, role: str) -> list[Member]:
        """Return those alive that have a role, in the order of their ids."""
        return [one for _, one in sorted(self.alive.items()) if role in one.roles]

    async def refresh(self) -> None:
        """See who is there, without an entry of this process. Raises RedisError when Redis is away."""
        await self._beat(b"")

    async def beat(self) -> None:
        """Write the entry of this process, and see who is there. Raises RedisError when Redis is away."""
        await self._beat(msgspec.json.encode(self.me))

    async def _beat(self, entry: bytes) -> None:
        found: Any = await self._redis.eval(_BEAT, 1, MEMBERS, self.me.member_id, entry, int(FORGET_S * 1000))
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
            if apart := self.too_far_apart():
                versions = ", ".join(apart)
                _log.warning("processes of versions %s work together: expected at most two minor ones", versions)
            for call in self.changed:
                call()

    async def keep(self) -> None:
        """Write it again and again."""
        while True:
            try:
                await self.beat()
            except (RedisError, OSError) as error:  # what was known stays: nobody can take anything over either
                self._quiet.log(logging.WARNING, f"this process can't say that it is alive: {error!s:.200}")
            await asyncio.sleep(BEAT_S)

    async def leave(self) -> None:
        """Remove the entry, so that others take over at once."""
        try:
            await self._redis.hdel(MEMBERS, self.me.member_id)
        except (RedisError, OSError):
            pass  # it expires

    def too_far_apart(self) -> Collection[str]:
        """Return the versions here that may not work together: of more than one minor version beside each other."""
        minors = {one.version: _minor(one.version) for one in self.alive.values()}
        known = sorted({minor for minor in minors.values() if minor is not None})
        if not known or (known[-1][0] == known[0][0] and known[-1][1] - known[0][1] <= 1):
            return ()
        return sorted(minors)


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


def _minor(version: str) -> tuple[int, int] | None:
    parts = version.split(".")
    try:
        return int(parts[0]), int(parts[1])
    except (ValueError, IndexError):
        return None
