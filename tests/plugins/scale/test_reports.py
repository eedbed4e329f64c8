"""What doors report of a run's agents reaches whoever owns the run, in order, also who takes it over."""

from __future__ import annotations

from redis.asyncio import Redis

from stabilityclient.wire import Health, Hello
from stabilityplugins.scale.roles.reports import AgentAt, Connected, Disconnected, RunReports

RUN = "run-1"
HELLO = Hello(RUN, "a1", "n0", "0.1.0", project="p", config={"lr": 1e-3})


def health(time: float, agent: str = "a1") -> Health:
    return Health(agent, "n0", time, [])


async def test_reports_are_read_once_in_the_order_in_which_they_came(redis: Redis) -> None:
    door, owner = RunReports(redis, RUN), RunReports(redis, RUN)
    assert await owner.begin() == []
    number = await door.connected(HELLO, "door-1")
    assert await door.health(health(1.0), number)
    await door.disconnected("a1", number)
    first, second, third = await owner.read()
    assert first == Connected(HELLO, AgentAt("door-1", number))
    assert isinstance(second, Health)
    assert (second.agent, second.time) == ("a1", 1.0)
    assert third == Disconnected("a1", number)
    assert await owner.read() == []


async def test_the_end_of_an_older_connection_is_not_reported(redis: Redis) -> None:
    reports = RunReports(redis, RUN)
    older = await reports.connected(HELLO, "door-1")
    newer = await reports.connected(HELLO, "door-2")
    assert not await reports.disconnected("a1", older)
    assert [type(one) for one in await reports.read()] == [Connected, Connected]
    assert await reports.disconnected("a1", newer)


async def test_who_takes_a_run_over_learns_who_is_connected_and_their_newest_health(redis: Redis) -> None:
    door = RunReports(redis, RUN)
    number = await door.connected(HELLO, "door-1")
    gone = Hello(RUN, "a2", "n1", "0.1.0")
    await door.disconnected("a2", await door.connected(gone, "door-1"))
    for time in (1.0, 2.0):
        await door.health(health(time), number)
    owner = RunReports(redis, RUN)
    connected, newest = await owner.begin()
    assert connected == Connected(HELLO, AgentAt("door-1", number))
    assert isinstance(newest, Health)
    assert newest.time == 2.0
    await door.health(health(3.0), number)
    (later,) = await owner.read()
    assert isinstance(later, Health)
    assert later.time == 3.0


async def test_a_number_that_redis_lost_is_not_given_again(redis: Redis) -> None:
    reports = RunReports(redis, RUN)
    numbers = [await reports.connected(HELLO, "door-1") for _ in range(3)]
    await redis.delete(f"sb:{{{RUN}}}:agents")
    numbers.append(await reports.connected(HELLO, "door-2"))
    assert numbers == sorted(set(numbers))


async def test_a_connection_that_redis_lost_is_said_to_be_unknown_and_one_with_a_newer_one_is_not(redis: Redis) -> None:
    reports = RunReports(redis, RUN)
    older = await reports.connected(HELLO, "door-1")
    newer = await reports.connected(HELLO, "door-2")
    assert [await reports.health(health(1.0), number) for number in (older, newer)] == [True, True]
    await reports.disconnected("a1", newer)
    assert [await reports.health(health(2.0), number) for number in (older, newer)] == [True, False]
    await redis.delete(f"sb:{{{RUN}}}:agents")
    assert [await reports.health(health(3.0), number) for number in (older, newer)] == [False, False]


async def test_a_report_of_a_newer_version_hides_no_other(redis: Redis) -> None:
    reports = RunReports(redis, RUN)
    await redis.xadd(f"sb:{{{RUN}}}:reports", {"future": "x"})
    await redis.xadd(f"sb:{{{RUN}}}:reports", {"h": "garbage"})
    await reports.health(health(1.0), 0)
    assert [one.time for one in await reports.read() if isinstance(one, Health)] == [1.0]
