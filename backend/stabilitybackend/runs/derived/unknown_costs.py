"""Works out the costs of rollbacks of runs that ended before the server remembered such costs: one after the other."""

from __future__ import annotations

import asyncio
import logging

from redis.exceptions import RedisError

from stabilitybackend.base.errors import StabilityBoardError
from stabilitybackend.runs.manager import RunManager

__all__ = ["work_out"]

#: Pause between two of them, seconds: each may have to be read from the archive.
PAUSE_S = 2.0
#: How often it is looked whether there are any, seconds.
LOOK_S = 10.0

_log = logging.getLogger(__name__)


async def work_out(manager: RunManager) -> None:
    """Go on until it is cancelled. A run that can't be read is tried once, and stays unknown."""
    tried: set[str] = set()
    while True:
        left = sorted(manager.fleet.unknown_rollbacks - tried)
        if not left:
            await asyncio.sleep(LOOK_S)
            continue
        tried.add(left[0])
        try:
            await (await manager.glance(left[0])).report_to_fleet()
        except (StabilityBoardError, RedisError, OSError) as error:
            _log.warning("run %s: what its rollbacks cost is not known: %s", left[0], error)
        await asyncio.sleep(PAUSE_S)
