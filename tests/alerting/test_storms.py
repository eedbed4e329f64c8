"""One cause that breaks many runs is a few messages; what is still open when the first is over gets its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis

from stabilityalerting import AlertingService, Notice, RecordingSink, RetryPolicy, SendError, Server
from stabilityalerting.sink import BeforeWrite
from stabilityalerting.storms import AGAIN_S, SUMMARY_S
from support.incident_stream import incident
from support.outside.rate_limit import RateLimit
from support.waiting import until

QUICK = RetryPolicy(first_s=0.02, longest_s=0.1, per_second=1e3, burst=1000)
START = 1_700_000_000.0


@dataclass
class Cluster:
    """Runs with incidents, and a clock."""

    redis: Redis
    sink: RecordingSink
    service: AlertingService | None = None
    now: float = START
    stored: dict[str, bytes] = field(default_factory=dict)
    streams: list[str] = field(default_factory=list)
    events: int = 0

    async def breaks(self, run: str, number: int = 1, version: int = 1, **changes: Any) -> None:
        """Publish an incident of a run, and wait until the receiver is done with it."""
        one = incident(number, version, run_id=run, incident_id=f"{run}-{number}", opened=self.now, **changes)
        stream = f"sb:{{{run}}}:incident_events"
        self.stored[one["incident_id"]] = json.dumps(one).encode()
        if stream not in self.streams:
            self.streams.append(stream)
        await self.redis.xadd(stream, {"i": json.dumps(one)})
        self.events += 1
        await until(self.is_done, 20, f"the event of {run} is done")

    async def is_done(self) -> bool:
        assert self.service is not None
        counts = self.service.status()["counts"].get("recording", {})
        return (
            sum(counts.get(name, 0) for name in ("sent", "grouped", "follows_cause", "never_notified", "unchanged"))
            >= self.events
        )

    def sent(self) -> list[tuple[str, str]]:
        return [(notice.alert.run_id, notice.change) for notice in self.sink.notices]

    async def later(self, seconds: float, messages: int) -> None:
        """Let time pass, until so many messages have been sent in all."""
        self.now += seconds
        await until(self._has(messages), 20, f"{messages} messages")

    def _has(self, messages: int) -> Any:
        async def enough() -> bool:
            return len(self.sink.notices) >= messages

        return enough


class Silent(RecordingSink):
    """Takes what is sent and never answers."""

    async def send(self, notice: Notice, before_write: BeforeWrite) -> None:
        await super().send(notice, before_write)
        await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def cluster(
    redis: Redis, found: Cluster | None = None, *, killed: bool = False, retry_policy: RetryPolicy = QUICK
) -> AsyncIterator[Cluster]:
    """Runs under a service; ``killed``: it ends in the middle of what it does, and another one takes over."""
    found = found or Cluster(redis, RecordingSink())
    found.events = 0

    async def streams() -> list[str]:
        return found.streams

    async def incidents_now(run_id: str, incident_ids: list[str]) -> list[bytes | None]:
        return [found.stored.get(incident_id) for incident_id in incident_ids]

    found.service = AlertingService(
        redis,
        Server(streams, "http://board", lambda: found.now, incidents_now=incidents_now),
        [found.sink],
        retry_policy=retry_policy,
        lease_s=0.6,
    )
    stop = asyncio.Event()
    task = asyncio.create_task(found.service.run(stop))
    try:
        yield found
    finally:
        stop.set()
        if killed:
            task.cancel()
        await asyncio.gather(task, return_exceptions=killed)


async def test_a_kind_that_breaks_many_runs_in_a_minute_is_two_messages_and_a_summary(redis: Redis) -> None:
    async with cluster(redis) as runs:
        for at in range(12):
            runs.now += 1
            await runs.breaks(f"run-{at:02}", kind="hang", label="hang", about="process", severity="critical")
        assert runs.sent() == [("run-00", "opened"), ("run-01", "opened")]
        await runs.later(SUMMARY_S, 3)
        summary = runs.sink.notices[2]
        assert (summary.alert.run_id, summary.change) == ("run-01", "grouped")
        assert summary.why.startswith("10 more incidents in 10 runs with the same kind (hang): run-02, run-03, ")


async def test_what_was_held_back_is_counted_in_a_summary_before_the_first_one_is_told_to_be_over(redis: Redis) -> None:
    async with cluster(redis) as runs:
        for at in range(4):
            await runs.breaks(f"run-{at}", kind="hang", about="process")
        await runs.breaks("run-3", version=2, kind="hang", about="process", state="resolved")
        await runs.breaks("run-1", version=2, kind="hang", about="process", state="resolved")
        assert runs.sent()[2:] == [("run-1", "grouped"), ("run-1", "resolved")]
        assert runs.sink.notices[2].why.startswith("2 more incidents in 2 runs with ")
        await runs.later(SUMMARY_S, 4)
        await runs.later(AGAIN_S, 5)
        assert runs.sent()[4:] == [("run-2", "opened")]


async def test_a_storm_that_goes_on_is_summed_up_again_each_time_after_twice_as_long(redis: Redis) -> None:
    async with cluster(redis) as runs:
        for at in range(16):
            runs.now += SUMMARY_S / 2
            await runs.breaks(f"run-{at}", kind="hang", about="process")
        assert [change for _, change in runs.sent()] == ["opened", "opened", "grouped", "grouped"]
        await runs.later(8 * SUMMARY_S, 5)
        assert runs.sink.notices[-1].why.startswith("14 more incidents in 14 runs ")


async def test_a_summary_that_was_on_its_way_at_a_kill_is_not_sent_again(redis: Redis) -> None:
    async with cluster(redis) as runs:
        for at in range(4):
            await runs.breaks(f"run-{at}", kind="hang", about="process")
    runs.sink = Silent()
    async with cluster(redis, runs, killed=True):
        await runs.later(SUMMARY_S, 1)
    assert runs.sent() == [("run-1", "grouped")]
    runs.sink = RecordingSink()
    async with cluster(redis, runs):
        await runs.breaks("run-9", kind="plateau")
    assert runs.sent() == [("run-9", "opened")]


async def test_what_is_still_open_when_the_first_is_over_is_sent_for_itself(redis: Redis) -> None:
    async with cluster(redis) as runs:
        for at in range(4):
            await runs.breaks(f"run-{at}", kind="hang", about="process")
        await runs.later(SUMMARY_S, 3)
        await runs.breaks("run-2", version=2, kind="hang", about="process", state="resolved")
        await runs.breaks("run-1", version=2, kind="hang", about="process", state="resolved")
        await runs.later(AGAIN_S, 5)
        assert runs.sent()[3:] == [("run-1", "resolved"), ("run-3", "opened")]


async def test_a_node_that_makes_two_runs_sick_is_one_message(redis: Redis) -> None:
    async with cluster(redis) as runs:
        await runs.breaks("run-a", kind="gpu_fault", about="gpu", node="n7")
        runs.now += 300
        await runs.breaks("run-b", kind="gpu_fault", about="gpu", node="n7")
        await runs.breaks("run-c", kind="gpu_fault", about="gpu", node="n8")
        assert runs.sent() == [("run-a", "opened"), ("run-c", "opened")]
        await runs.later(SUMMARY_S, 3)
        assert "the same node n7: run-b" in runs.sink.notices[2].why


def _death(cause: str, exception: str = "") -> dict[str, Any]:
    evidence = {"verdict": {"class": cause}, "exception": {"type": exception} if exception else None}
    return {"kind": "process_death", "about": "process", "severity": "critical", "node": "n7", "evidence": evidence}


async def test_only_what_is_of_one_kind_and_one_cause_is_alike(redis: Redis) -> None:
    async with cluster(redis) as runs:
        await runs.breaks("run-a", **_death("exception", "ValueError"))
        await runs.breaks("run-b", **_death("signal"))
        await runs.breaks("run-c", **_death("exception", "KeyError"))
        await runs.breaks("run-d", kind="gpu_fault", about="gpu", node="n7", severity="critical")
        await runs.breaks("run-e", **_death("exception", "ValueError"))
        assert runs.sent() == [(f"run-{name}", "opened") for name in "abcd"]
        await runs.later(SUMMARY_S, 5)
        assert "1 more incident in 1 run with the same node n7: run-e." in runs.sink.notices[4].why


async def test_a_run_that_was_sent_for_itself_is_not_counted_among_those_that_are_not(redis: Redis) -> None:
    async with cluster(redis) as runs:
        for run in ("run-a", "run-b", "run-a"):
            await runs.breaks(run, number=len(runs.sink.notices) + 1)
        assert runs.sent() == [("run-a", "opened"), ("run-b", "opened"), ("run-a", "opened")]


async def test_a_job_that_died_of_its_hang_is_told_before_the_hang_is_over_and_without_a_tick(redis: Redis) -> None:
    hang = {"kind": "hang", "about": "process", "severity": "critical", "title": "The job hangs at step 9"}
    async with cluster(redis) as runs:
        await runs.breaks("run-a", **hang)
        ended = incident(1, 2, run_id="run-a", incident_id="run-a-1", state="resolved", status="ended", **hang)
        runs.stored["run-a-1"] = json.dumps(ended).encode()  # as it is stored before both are told
        await runs.redis.xadd(
            "sb:{run-a}:incident_events",
            {
                "i": json.dumps(
                    incident(2, 1, run_id="run-a", incident_id="d", caused_by="run-a-1", kind="process_death")
                )
            },
        )
        runs.events += 1
        await until(runs.is_done, 20, "the death is told")
        await runs.redis.xadd("sb:{run-a}:incident_events", {"i": json.dumps(ended | {"status_word": "ended"})})
        runs.events += 1
        await until(runs.is_done, 20, "the hang is over")
        told = [(notice.alert.kind, notice.change) for notice in runs.sink.notices]
        assert told == [("hang", "opened"), ("process_death", "opened"), ("hang", "resolved")]
        over = runs.sink.notices[2].alert
        assert (over.is_cured, over.outcome) == (False, "Ended")


async def test_what_is_graver_than_the_first_is_not_held_back(redis: Redis) -> None:
    async with cluster(redis) as runs:
        await runs.breaks("run-a", kind="gpu_fault", about="gpu", node="n7")
        await runs.breaks("run-b", kind="process_death", about="process", node="n7", severity="critical")
        assert runs.sent() == [("run-a", "opened"), ("run-b", "opened")]


async def test_what_gets_graver_while_it_is_held_back_is_sent_at_once(redis: Redis) -> None:
    async with cluster(redis) as runs:
        await runs.breaks("run-a", kind="gpu_fault", about="gpu", node="n7")
        await runs.breaks("run-b", kind="gpu_fault", about="gpu", node="n7")
        assert runs.sent() == [("run-a", "opened")]
        await runs.breaks("run-b", version=2, kind="gpu_fault", about="gpu", node="n7", severity="critical")
        assert runs.sent() == [("run-a", "opened"), ("run-b", "opened")]


async def test_a_run_that_broke_long_before_does_not_count_for_a_storm(redis: Redis) -> None:
    async with cluster(redis) as runs:
        await runs.breaks("run-0")
        runs.now += 600
        for at in (1, 2):
            await runs.breaks(f"run-{at}")
        assert [run for run, _ in runs.sent()] == ["run-0", "run-1", "run-2"]


async def test_runs_that_break_minutes_apart_are_no_storm(redis: Redis) -> None:
    async with cluster(redis) as runs:
        for at in range(5):
            runs.now += 61
            await runs.breaks(f"run-{at}")
        assert [change for _, change in runs.sent()] == ["opened"] * 5


async def test_what_follows_from_an_open_incident_waits_until_that_is_over(redis: Redis) -> None:
    async with cluster(redis) as runs:
        await runs.breaks("run-a", 1, kind="hang", severity="critical", about="process")
        await runs.breaks("run-a", 2, kind="throughput", caused_by="run-a-1", about="process")
        assert runs.sent() == [("run-a", "opened")]
        await runs.breaks("run-a", 1, version=2, kind="hang", severity="critical", about="process", state="resolved")
        await runs.later(61, 3)
        assert [(one.alert.kind, one.change) for one in runs.sink.notices[1:]] == [
            ("hang", "resolved"),
            ("throughput", "opened"),
        ]


class Limited(RecordingSink):
    """Takes so many messages a second, and asks who sends more to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = RateLimit(per_minute=12_000, burst=10)

    async def send(self, notice: Notice, before_write: BeforeWrite) -> None:
        wait_s = self.limit.wait_s(time.monotonic())
        if wait_s:
            raise SendError("answered 429", recoverable=True, status=429, retry_after_s=wait_s)
        await super().send(notice, before_write)

    def told_or_counted(self) -> int:
        """Return how many incidents were told, and how many the newest summary of each storm counts."""
        counted = {one.alert.incident_id: one.serial for one in self.notices if one.change == "grouped"}
        told = {one.alert.incident_id for one in self.notices if one.change == "opened"}
        return len(told) + sum(counted.values())


async def test_five_hundred_incidents_of_a_hundred_runs_are_each_told_or_counted_in_order_and_within_the_limit(
    redis: Redis,
) -> None:
    sink, chance = Limited(), random.Random(1)
    found = Cluster(redis, sink, now=time.time())
    events = []
    for run in range(100):
        for kind in ("nonfinite", "spike", "hang", "gpu_fault", "alert"):
            about = "process" if kind in ("hang", "gpu_fault") else "model"
            one = incident(
                1, run_id=f"r{run}", incident_id=f"r{run}-{kind}", kind=kind, about=about, project=f"p{run % 5}"
            )
            events.append((chance.random(), one))
            if chance.random() < 0.8:
                events.append((events[-1][0] + 0.3 * chance.random(), one | {"version": 2, "state": "resolved"}))
    found.streams = [f"sb:{{r{run}}}:incident_events" for run in range(100)]
    policy = RetryPolicy(first_s=0.02, longest_s=0.1, per_second=200, burst=10)
    in_order = [one for _, one in sorted(events, key=lambda event: event[0])]
    async with cluster(redis, found, retry_policy=policy):
        while in_order:  # as they come live: what is at the end of a stream comes after what other runs had before
            now, in_order = in_order[:25], in_order[25:]
            for one in now:
                found.stored[one["incident_id"]] = json.dumps(one).encode()
                await redis.xadd(f"sb:{{{one['run_id']}}}:incident_events", {"i": json.dumps(one)})
            found.events += len(now)
            await until(found.is_done, 20, "the receiver is done with them")
            found.now += 1.0
        found.now += 8 * SUMMARY_S
        await until(lambda: sink.told_or_counted() >= 500, 20, "each is told or counted")
    assert sink.told_or_counted() == 500
    told = [(notice.alert.incident_id, notice.change) for notice in sink.notices]
    opened = [incident_id for incident_id, change in told if change == "opened"]
    assert len(opened) == len(set(opened))
    assert all(told.index((one, "opened")) <= at for at, (one, _) in enumerate(told))
    # The bound is ours: the receiver has to ask for it now and then only, where both clocks differ.
    assert len(sink.limit.refused) <= 0.05 * len(sink.limit.taken)
