"""Keeps every trouble of ours out of the training loop: counted, logged once a minute, raised only under pytest."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Guard", "under_pytest"]

#: Seconds between two log lines about the same place. More would bury the job's own log.
LOG_INTERVAL_S = 60.0


def under_pytest(environ: Mapping[str, str]) -> bool:
    """Whether this process is a test of the user: there errors should be seen, not swallowed."""
    return "PYTEST_CURRENT_TEST" in environ or "PYTEST_VERSION" in environ


class Guard:
    """Takes the exceptions that must not reach training.

    Args:
        strict: raise instead of swallowing (under pytest).
        now: monotonic seconds.
    """

    def __init__(self, strict: bool, now: Callable[[], float] = time.monotonic) -> None:
        self.strict = strict
        #: How many exceptions were swallowed since the start.
        self.swallowed = 0
        self._now = now
        self._last: dict[str, float] = {}
        self._quiet: dict[str, int] = {}

    def caught(self, place: str, error: Exception) -> None:
        """Count and log ``error``, or raise it when strict.

        Args:
            place: what was being done, e.g. ``log()``; one log line a minute for each place.
        """
        if self.strict:
            raise error
        self.swallowed += 1
        self.note(place, f"{type(error).__name__}: {error}"[:1000])

    def note(self, place: str, text: str) -> None:
        """Log trouble that is nobody's mistake (a full disk, a server away): never raises, once a minute a place."""
        try:
            now = self._now()
            last = self._last.get(place)
            if last is not None and now - last < LOG_INTERVAL_S:
                self._quiet[place] = self._quiet.get(place, 0) + 1
                return
            self._last[place] = now
            more = self._quiet.pop(place, 0)
            import logging  # here: a third of our import time, needed only when something is wrong

            tail = f" ({more} more like it in the last minute)" if more else ""
            logging.getLogger("stabilityclient").warning("%s: %s%s", place, text, tail)
        except Exception:  # a broken logging handler is not training's problem either
            self.swallowed += 1
