"""Background work in rounds: a bounded share of a core, and no error ends it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Never

from stabilitybackend.base.quiet_log import QuietLog

__all__ = ["LONGEST_PAUSE_S", "ROUND_S", "in_rounds"]

#: Pause between two rounds, seconds, at least; and at most, where a round took long.
ROUND_S, LONGEST_PAUSE_S = 1.0, 30.0


async def in_rounds(
    round_: Callable[[], Awaitable[None]],
    *,
    share: float,
    undone: str,
    expected: tuple[type[Exception], ...],
    log: logging.Logger,
    clock: Callable[[], float] = time.monotonic,
) -> Never:
    """Repeat a round until cancelled. Errors are logged, at most once a minute.

    Args:
        round_: the due work; an error ends this round alone.
        share: part of the time that rounds may take, 0 to 1; more where one takes so long that the longest pause is
            not long enough.
        undone: the effect of failing rounds, a sentence without its full stop.
        expected: errors that need no trace in the log.
        clock: seconds that never go back.
    """
    quiet = QuietLog(log, clock)
    while True:
        began = clock()
        try:
            await round_()
        except expected as error:
            quiet.log(logging.WARNING, f"{undone} for now: {error}")
        except Exception as error:  # one run's mistake must not end it for all
            quiet.log(logging.ERROR, f"{undone}: {error}", error)
        spent = clock() - began
        await asyncio.sleep(min(LONGEST_PAUSE_S, max(ROUND_S, spent / share)))
