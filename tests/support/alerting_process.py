"""One alerting process, as `stabilityboard` would run it, for tests that kill it.

Usage: alerting_process.py REDIS_URL LONGEST_PAUSE_S STREAM...; the receivers come from the environment. With STALL_AT
in it the process stops itself (SIGSTOP) once, right ``before`` or ``after`` it notes that its first message is on its
way.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

from redis.asyncio import Redis

from stabilityalerting import AlertingService, RetryPolicy, Server, Sink, sinks_from_env
from stabilityalerting.alert import Notice
from stabilityalerting.sink import BeforeWrite
from stabilityplugins.pagerduty.channel import PagerDutySink
from stabilityplugins.slack.channel import SlackAppSink


def stalling(sink: Sink, at: str) -> None:
    """Let a receiver's first message stall its whole process."""
    send = sink.send

    async def stalled(notice: Notice, before_write: BeforeWrite) -> None:
        async def before() -> None:
            nonlocal at
            if at == "before":
                at = ""
                os.kill(os.getpid(), signal.SIGSTOP)
            await before_write()
            if at == "after":
                at = ""
                os.kill(os.getpid(), signal.SIGSTOP)

        await send(notice, before)

    sink.send = stalled  # type: ignore[method-assign]


async def main() -> None:
    redis = Redis.from_url(sys.argv[1])

    async def streams() -> list[str]:
        return sys.argv[3:]

    retry_policy = RetryPolicy(first_s=0.05, longest_s=float(sys.argv[2]), per_second=1e3, burst=1000)
    sinks = sinks_from_env(os.environ, [SlackAppSink, PagerDutySink])
    if os.environ.get("STALL_AT"):
        for sink in sinks:
            stalling(sink, os.environ["STALL_AT"])
    service = AlertingService(
        redis, Server(streams, "http://board", time.time), sinks, retry_policy=retry_policy, lease_s=0.6
    )
    await service.run(asyncio.Event())


if __name__ == "__main__":
    asyncio.run(main())
