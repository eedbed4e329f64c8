"""What a worker writes counts while it owns its run, and never again once somebody else took the run over."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from stabilitybackend.base.keys import RunKeys
from stabilitybackend.runs.ownership.fence import CommitRefused, Fence, NotOwner, Ownership

KEYS = RunKeys("run-1")


def owned(worker: str, replaceable: str = "*") -> Ownership:
    numbers = count(1)

    async def may_replace(run_id: str) -> str:
        return replaceable

    return Ownership(worker, f"http://{worker}", lambda: f"{worker}-{next(numbers)}", may_replace)


async def taken(redis: Redis, worker: str) -> Fence:
    fence = Fence("run-1", redis, owned(worker))
    await fence.take()
    return fence


async def test_all_of_a_write_is_carried_out_for_the_owner(redis: Redis) -> None:
    fence = await taken(redis, "a")
    await fence.write(
        ("HSET", KEYS.meta, "view", b"\x00", "updated", 1.5), ("SADD", KEYS.undone, "k"), ("DEL", KEYS.parts_next)
    )
    assert await redis.hgetall(KEYS.meta) == {b"view": b"\x00", b"updated": b"1.5"}  # type: ignore[misc]
    assert await redis.smembers(KEYS.undone) == {b"k"}  # type: ignore[misc]


async def test_nothing_of_a_write_is_carried_out_once_another_worker_took_the_run(redis: Redis) -> None:
    stale = await taken(redis, "a")
    dropped: list[bool] = []
    stale.dropped = lambda: dropped.append(True)
    await taken(redis, "b")
    for _ in range(2):
        with pytest.raises(NotOwner, match="taken over"):
            await stale.write(("HSET", KEYS.meta, "view", "old"))
    assert (await redis.exists(KEYS.meta), stale.lost, dropped) == (0, True, [True])


async def test_nothing_is_written_of_a_run_that_was_deleted(redis: Redis) -> None:
    fence = await taken(redis, "a")
    await redis.unlink(*KEYS.all())
    with pytest.raises(NotOwner):
        await fence.write(("HSET", KEYS.meta, "digest", "{}"))
    assert await redis.exists(*KEYS.all()) == 0


async def test_a_worker_that_has_not_taken_the_run_writes_nothing(redis: Redis) -> None:
    with pytest.raises(NotOwner):
        await Fence("run-1", redis, owned("a")).write(("HSET", KEYS.meta, "view", "x"))


async def test_an_owner_that_may_not_be_replaced_stays_and_is_named(redis: Redis) -> None:
    first = await taken(redis, "a")
    with pytest.raises(NotOwner, match="another worker \\(a\\)") as refused:
        await Fence("run-1", redis, owned("b", replaceable="")).take()
    assert refused.value.facts["address"] == "http://a"
    await first.write(("HSET", KEYS.meta, "view", "x"))


async def test_an_owner_that_was_seen_dead_is_replaced_and_the_takeovers_are_counted(redis: Redis) -> None:
    await taken(redis, "a")
    second = Fence("run-1", redis, owned("b", replaceable="a-1"))
    await second.take()
    assert second.epoch == 2
    late = Fence("run-1", redis, owned("c", replaceable="a-1"))  # saw the same death, and comes too late
    with pytest.raises(NotOwner):
        await late.take()


async def test_a_worker_may_take_its_own_run_again_where_an_answer_was_lost(redis: Redis) -> None:
    fence = Fence("run-1", redis, owned("b", replaceable=""))
    await fence.take()
    await fence.take()
    await fence.write(("HSET", KEYS.meta, "view", "x"))
    assert fence.epoch == 2


async def test_a_run_that_was_released_may_be_taken_by_anybody_and_no_longer_by_its_old_token(redis: Redis) -> None:
    first = await taken(redis, "a")
    await first.release()
    with pytest.raises(NotOwner):
        await first.write(("HSET", KEYS.meta, "view", "x"))
    second = Fence("run-1", redis, owned("b", replaceable=""))
    await second.take()
    await first.release()  # late, and of no effect
    await second.write(("HSET", KEYS.meta, "view", "y"))


async def test_a_takeover_that_redis_lost_gives_no_right_where_its_number_is_given_out_again(redis: Redis) -> None:
    await taken(redis, "a")
    before: Any = await redis.hgetall(KEYS.owner)  # type: ignore[misc]
    stale = await taken(redis, "b")
    await redis.delete(KEYS.owner)
    await redis.hset(KEYS.owner, mapping=before)  # type: ignore[misc]  # as after a failover to a replica that was behind
    newest = await taken(redis, "c")
    assert stale.epoch == newest.epoch
    with pytest.raises(NotOwner):
        await stale.write(("HSET", KEYS.meta, "view", "old"))
    await newest.write(("HSET", KEYS.meta, "view", "new"))


async def test_no_write_is_carried_out_once_redis_lost_the_one_before_it(redis: Redis) -> None:
    fence = await taken(redis, "a")
    await fence.write(("HSET", KEYS.meta, "applied", "1-0"))
    before: Any = await redis.hgetall(KEYS.owner)  # type: ignore[misc]
    await fence.write(("HSET", KEYS.incidents, "i-1", "{}"), ("HSET", KEYS.meta, "applied", "2-0"))
    assert await fence.holds()
    await redis.delete(KEYS.owner, KEYS.incidents)
    await redis.hset(KEYS.owner, mapping=before)  # type: ignore[misc]  # a power cut took the newest write
    assert not await fence.holds()
    with pytest.raises(NotOwner, match="Redis lost"):
        await fence.write(("HSET", KEYS.meta, "applied", "3-0"))
    with pytest.raises(NotOwner):
        await fence.commit([], [], [])
    assert await redis.hget(KEYS.meta, "applied") == b"2-0"  # type: ignore[misc]
    await fence.take()
    await fence.write(("HSET", KEYS.meta, "applied", "3-0"))


async def test_a_worker_that_asks_whether_redis_has_its_newest_write_finds_out_that_another_one_owns_the_run(
    redis: Redis,
) -> None:
    fence = await taken(redis, "a")
    await fence.write(("HSET", KEYS.meta, "applied", "1-0"))
    await taken(redis, "b")
    with pytest.raises(NotOwner):
        await fence.holds()
    assert fence.lost


async def test_a_write_without_an_answer_was_carried_out_or_not_and_the_next_one_is(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = await taken(redis, "a")
    whole = redis.eval
    for carried_out in (True, False):

        async def cut(*arguments: Any, carried_out: bool = carried_out) -> None:
            if carried_out:
                await whole(*arguments)
            raise ConnectionError("the connection was cut")

        monkeypatch.setattr(redis, "eval", cut)
        with pytest.raises(ConnectionError):
            await fence.write(("RPUSH", KEYS.autopilot_entries, str(carried_out)))
        monkeypatch.setattr(redis, "eval", whole)
        await fence.write(("RPUSH", KEYS.autopilot_entries, "next"))
    assert await redis.lrange(KEYS.autopilot_entries, 0, -1) == [b"True", b"next", b"next"]  # type: ignore[misc]


async def test_parts_are_exchanged_and_the_stream_is_trimmed_in_one_step(redis: Redis) -> None:
    fence = await taken(redis, "a")
    for n in (1, 2, 3):
        await redis.xadd(KEYS.frames, {"b": str(n)}, id=f"{n}-0")
    await redis.hset(KEYS.parts, mapping={"old": "{}", "stays": "{}"})  # type: ignore[misc]
    await redis.sadd(KEYS.garbage, "new")  # type: ignore[misc]
    await redis.hset(KEYS.parts_next, "x", "{}")  # type: ignore[misc]
    await fence.commit(["old", "stays"], ["old"], [("new", '{"n": 1}')], "2-1")
    assert await redis.hgetall(KEYS.parts) == {b"stays": b"{}", b"new": b'{"n": 1}'}  # type: ignore[misc]
    assert await redis.smembers(KEYS.garbage) == {b"old"}  # type: ignore[misc]
    left: Any = await redis.xrange(KEYS.frames)
    assert ([name for name, _ in left], await redis.exists(KEYS.parts_next)) == ([b"3-0"], 0)


@pytest.mark.parametrize(
    ("listed", "noted", "expected"),
    [(["a", "b"], ["new"], (1, "")), (["b"], ["new"], (1, "")), ([], ["new"], (1, "")), (["a"], [], (-1, "new"))],
)
async def test_a_list_that_is_not_what_the_worker_knows_is_left_as_it_is(
    redis: Redis, listed: list[str], noted: list[str], expected: tuple[int, str]
) -> None:
    fence = await taken(redis, "a")
    await redis.hset(KEYS.parts, "a", "{}")  # type: ignore[misc]
    for stem in noted:
        await redis.sadd(KEYS.garbage, stem)  # type: ignore[misc]
    with pytest.raises(CommitRefused) as refused:
        await fence.commit(listed, [], [("new", "{}")])
    assert (refused.value.listed, refused.value.stem) == expected
    assert await redis.hgetall(KEYS.parts) == {b"a": b"{}"}  # type: ignore[misc]


async def test_a_worker_that_lost_the_run_lists_no_part(redis: Redis) -> None:
    stale = await taken(redis, "a")
    await redis.sadd(KEYS.garbage, "new")  # type: ignore[misc]
    await taken(redis, "b")
    with pytest.raises(NotOwner):
        await stale.commit([], [], [("new", "{}")])
    assert await redis.exists(KEYS.parts) == 0


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["take", "write", "release"])), max_size=25))
async def test_whatever_workers_do_accepted_writes_of_one_takeover_are_never_interleaved_with_those_of_another(
    redis: Redis, moves: list[tuple[str, str]]
) -> None:
    await redis.delete(KEYS.owner, KEYS.autopilot_entries)
    fences = {name: Fence("run-1", redis, owned(name)) for name in "abc"}
    accepted: list[tuple[str, int]] = []
    for name, move in moves:
        fence = fences[name]
        try:
            match move:
                case "take":
                    await fence.take()
                case "release":
                    await fence.release()
                case _:
                    await fence.write(("RPUSH", KEYS.autopilot_entries, f"{name} {fence.epoch}"))
                    accepted.append((name, fence.epoch))
        except NotOwner:
            pass
    stored: Any = await redis.lrange(KEYS.autopilot_entries, 0, -1)  # type: ignore[misc]
    assert [entry.decode() for entry in stored] == [f"{name} {epoch}" for name, epoch in accepted]
    epochs = [epoch for _, epoch in accepted]
    assert epochs == sorted(epochs)
