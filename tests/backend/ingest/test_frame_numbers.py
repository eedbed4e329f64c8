"""A frame stands for as many numbers as it holds records: nobody can take a rank's later numbers away from it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from redis.asyncio import Redis

from stabilitybackend.base.keys import RunKeys
from stabilitybackend.base.quiet_log import EVERY_S, QuietLog
from stabilitybackend.ingest.connection import MAX_RECORDS
from stabilityclient.wire import MAX_STEP, Ack, Error, EventBlock, Frame, Health, SourceInfo, Welcome
from support.gateway_stack import SOURCE, RawAgent, RunningGateway, event_frame, frame, points

KEYS = RunKeys("run-1")


@pytest.fixture
def gateway(redis_url: str) -> Iterator[RunningGateway]:
    with RunningGateway(redis_url) as running:
        yield running


def _lost(first: int, last: int, records: Any) -> Frame:
    return Frame(SOURCE, first, last, [EventBlock("lost", 1.0, None, {"records": records, "reason": "damaged"})])


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (Frame(SOURCE, 1, MAX_STEP, [points(1, [1.0])]), f"stand for {MAX_STEP} records, and it holds 1"),
        (Frame(SOURCE, 1, 2, [points(1, [1.0])]), "stand for 2 records, and it holds 1"),
        (Frame(SOURCE, 1, 1, [points(1, [1.0, 2.0])]), "stand for 1 records, and it holds 2"),
        (Frame(SOURCE, 1, 1, []), "stand for 1 records, and it holds 0"),
        (_lost(1, MAX_STEP, MAX_STEP), f"expected a whole number of 1 to {MAX_RECORDS}"),
        (_lost(1, 3, 2), "stand for 3 records, and it holds 2"),
        (_lost(1, 3, "3"), "lost records are '3'"),
        (_lost(1, 3, -3), "lost records are -3"),
    ],
)
async def test_a_frame_whose_numbers_are_not_those_of_its_records_is_refused(
    gateway: RunningGateway, bad: Frame, named: str
) -> None:
    async with RawAgent(gateway.url) as agent:
        await agent.hello()
        error = await agent.ask(bad)
        assert await agent.ask(frame(1, [1.0])) == Ack(SOURCE.source, 1)
        assert await agent.ask(frame(2, [2.0])) == Ack(SOURCE.source, 2)
    assert isinstance(error, Error)
    assert error.code == "bad_frame"
    assert named in error.message


async def test_rows_events_and_lost_numbers_count_as_agents_number_them(gateway: RunningGateway, redis: Redis) -> None:
    lost = EventBlock("lost", 1.0, None, {"records": 40, "reason": "damaged"})
    blocks = [points(1, [1.0, 2.0]), EventBlock("start", 1.0), lost, points(3, [3.0])]
    async with RawAgent(gateway.url) as agent:
        await agent.hello()
        assert await agent.ask(Frame(SOURCE, 1, 44, blocks)) == Ack(SOURCE.source, 44)
    assert await redis.xlen(KEYS.frames) == 1


async def test_an_imported_file_counts_its_records_and_no_rank_can_count_like_it(gateway: RunningGateway) -> None:
    file = SourceInfo("r0-1-i123456789.0", rank=0, started=1.0)
    far = Frame(file, 9, MAX_STEP, [points(1, [1.0])])
    async with RawAgent(gateway.url) as agent:
        await agent.hello()
        assert await agent.ask(Frame(file, 1, 8, [points(1, [1.0])])) == Ack(file.source, 8)
        error = await agent.ask(far)
    assert isinstance(error, Error)
    assert f"expected at most {MAX_RECORDS}" in error.message


async def test_a_number_that_no_process_reaches_is_named_with_what_to_do_where_it_is_stored_already(
    gateway: RunningGateway, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    await redis.hset(KEYS.last_seq, SOURCE.source, MAX_STEP)
    async with RawAgent(gateway.url) as agent:
        assert isinstance(await agent.hello(), Welcome)
    assert f"all that {SOURCE.source} sends is taken for stored" in caplog.text
    assert "Start the process again" in caplog.text


async def test_refused_frames_are_counted_each_and_logged_once_a_minute(
    gateway: RunningGateway, caplog: pytest.LogCaptureFixture
) -> None:
    async with RawAgent(gateway.url) as agent:
        await agent.hello()
        for _ in range(50):
            assert isinstance(await agent.ask(_lost(1, 1, 0)), Error)
    assert gateway.gateway.counts.bad_frames == 50
    assert len([one for one in caplog.records if "refused" in one.getMessage()]) == 1


async def test_health_that_can_not_be_shown_is_counted_and_not_answered(gateway: RunningGateway) -> None:
    async with RawAgent(gateway.url) as agent:
        await agent.hello()
        await agent.send(Health("a1", "n" * 1_000_000, 5.0, []))
        assert await agent.ask(event_frame(1, EventBlock("start", 1.0))) == Ack(SOURCE.source, 1)
    assert (gateway.gateway.counts.bad_healths, gateway.services.healths) == (1, [])


def test_a_quiet_log_says_how_many_lines_it_kept_back(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    quiet = QuietLog(logging.getLogger("quiet"), lambda: now[0])
    for second in (0.0, 1.0, EVERY_S - 1, EVERY_S, EVERY_S + 1):
        now[0] = second
        quiet.log(logging.WARNING, f"at {second:.0f}")
    assert [one.getMessage() for one in caplog.records] == ["at 0", "at 60 (and 2 more like it since the last line)"]
