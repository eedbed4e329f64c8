"""Each process sees who else is alive, by the clock of Redis alone."""

from __future__ import annotations

import asyncio

from redis.asyncio import Redis

from stabilitybackend.base.keys import MEMBERS
from stabilityplugins.scale.members import EXPIRY_S, FORGET_S, Member, Members
from stabilityplugins.scale.versions import allowed, taking_no_part


def made(redis: Redis, name: str, *roles: str, version: str = "0.1.0") -> Members:
    return Members(redis, Member(name, roles, f"http://{name}:1", version))


async def aged(redis: Redis, age_s: float, name: str = "d") -> bytes:
    """Return the entry of a process as it would be if it had been written so long ago."""
    seconds, micros = await redis.time()
    entry: bytes = (await redis.hget(MEMBERS, name)) or b""  # type: ignore[misc, assignment]
    return f"{int((seconds + micros / 1e6 - age_s) * 1000)} ".encode() + entry.partition(b" ")[2]


async def test_those_that_wrote_their_entry_see_each_other_by_role(redis: Redis) -> None:
    worker, door = made(redis, "w", "worker"), made(redis, "d", "door", "pages")
    await worker.beat()
    await door.beat()
    await worker.refresh()
    assert (worker.alive, worker.having("pages")) == ({"w": worker.me, "d": door.me}, [door.me])


async def test_one_that_has_not_written_for_its_expiry_is_dead(redis: Redis) -> None:
    worker, door = made(redis, "w", "worker"), made(redis, "d", "door")
    await worker.beat()
    seen: list[set[str]] = []
    door.changed.append(lambda: seen.append(set(door.alive)))
    await door.beat()
    await redis.hset(MEMBERS, "w", await aged(redis, EXPIRY_S + 0.5, "w"))  # type: ignore[misc]
    await door.beat()
    assert seen == [{"w", "d"}, {"d"}]


async def test_nobody_is_dead_for_what_redis_did_not_take_while_it_was_full_or_away(redis: Redis) -> None:
    now = 0.0
    worker = Members(redis, Member("w", ("worker",), "http://w:1"), lambda: now)
    await made(redis, "d", "door").beat()
    await worker.beat()
    for outage_s in (EXPIRY_S + 0.5, FORGET_S + 0.5):  # after the longer one the entry is removed
        now += outage_s
        await redis.hset(MEMBERS, "d", await aged(redis, outage_s))  # type: ignore[misc]
        await worker.beat()
        assert set(worker.alive) == {"d", "w"}
        now += EXPIRY_S - 0.1
        await worker.beat()
        assert set(worker.alive) == {"d", "w"}
        now += 0.2
        await worker.beat()
        assert set(worker.alive) == {"w"}
        await made(redis, "d", "door").beat()
        await worker.beat()


async def test_one_that_leaves_is_gone_at_once(redis: Redis) -> None:
    worker, door = made(redis, "w", "worker"), made(redis, "d", "door")
    await asyncio.gather(worker.beat(), door.beat())
    await worker.leave()
    await door.refresh()
    assert list(door.alive) == ["d"]


async def test_an_entry_that_nobody_here_can_read_hides_no_other(redis: Redis) -> None:
    door = made(redis, "d", "door")
    seconds, _ = await redis.time()
    await redis.hset(MEMBERS, "future", f"{seconds * 1000} [1]")  # type: ignore[misc]
    await door.beat()
    assert list(door.alive) == ["d"]


async def test_who_comes_with_a_version_more_than_one_away_takes_no_part_until_the_others_are_gone(
    redis: Redis,
) -> None:
    first, next_one = made(redis, "z", "worker", version="0.1.0"), made(redis, "b", "worker", version="0.2.3")
    await first.beat()
    await next_one.beat()
    assert (next_one.apart, next_one.trouble(0.0)) == (frozenset(), None)
    await asyncio.sleep(0.002)  # Redis counts milliseconds
    newest = made(redis, "a", "worker", version="0.3.0")
    await newest.beat()
    await first.beat()
    for each in (first, newest):  # all come to the same
        assert (each.apart, [one.member_id for one in each.having("worker")]) == ({"a"}, ["b", "z"])
    seen, own = first.trouble(5.0), newest.no_part()
    assert (seen.code, seen.since, own.code) == ("versions_apart", 5.0, "takes_no_part")  # type: ignore[union-attr]
    assert (
        seen.problem
        == own.message
        == (  # type: ignore[union-attr]
            "Beside versions 0.1.0 and 0.2.3, 1 process takes no part: worker of version 0.3.0 at http://a:1"
        )
    )
    assert "start version 0.1 or 0.2 there" in own.hint  # type: ignore[union-attr]
    await first.leave()
    await newest.beat()
    assert (newest.takes_part, newest.trouble(0.0)) == (True, None)


def test_whoever_was_here_first_works_on_whatever_comes() -> None:
    assert taking_no_part(["0.5.0", "0.3.0", "0.4.2", "0.6.0", "1.5.0"], str) == ["0.3.0", "0.6.0", "1.5.0"]
    assert taking_no_part(["0.5.0", "unknown", "0.6.0"], str) == []
    assert [allowed(["0.0.9"]), allowed(["0.4.0"]), allowed(["0.4.0", "0.5.1"]), allowed(["x"])] == [
        "0.0 or 0.1", "0.3, 0.4 or 0.5", "0.4 or 0.5", "of any number",
    ]  # fmt: skip
