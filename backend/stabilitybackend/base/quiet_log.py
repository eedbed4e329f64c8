"""A log for events that others cause at any rate: one line a minute, with the number of suppressed ones."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

__all__ = ["QuietLog"]

#: A line comes at most so often, seconds.
EVERY_S = 60.0


class QuietLog:
    """Logs the first of many like things, then at most one a minute by ``now``, monotonic seconds."""

    def __init__(self, log: logging.Logger, now: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._now = now
        self._last = float("-inf")
        self._kept_back = 0

    def log(self, level: int, text: str, error: BaseException | None = None) -> None:
        """Log ``text``, and the trace of ``error``, or count it for the next line."""
        if self._now() - self._last < EVERY_S:
            self._kept_back += 1
            return
        more = f" (and {self._kept_back} more like it since the last line)" if self._kept_back else ""
        self._last, self._kept_back = self._now(), 0
        self._log.log(level, "%s%s", text, more, exc_info=error)
