"""One alerting process, as `stabilityboard` would run it, for tests that kill it.

Usage: alerting_process.py REDIS_URL LONGEST_PAUSE_S STREAM...; the receivers come from the environment.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from redis.asyncio import Redis

from stabilityalerting import AlertingService, RetryPolicy, sinks_from_env


async def main() -> None:
    redis = Redis.from_url(sys.argv[1])

    async def streams() -> list[str]:
        return sys.argv[3:]

    retry_policy = RetryPolicy(first_s=0.05, longest_s=float(sys.argv[2]), per_second=1e3, burst=1000)
    sinks = sinks_from_env(os.environ)
    service = AlertingService(redis, streams, sinks, "http://board", time.time, retry_policy=retry_policy, lease_s=0.6)
    await service.run(asyncio.Event())


if __name__ == "__main__":
    asyncio.run(main())
