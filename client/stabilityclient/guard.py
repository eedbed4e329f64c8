"""Keeps the client's errors out of the training loop: counted, logged once a minute, raised only under pytest."""

from __future__ import annotations

import time

from stabilityclient.errors import RefusedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Guard", "under_pytest"]

#: Seconds between two log lines about the same place. More would bury the job's own log.
LOG_INTERVAL_S = 60.0
#: Kinds of refusals that have a log line of their own; further ones share that of their place.
MAX_KINDS = 24


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
        #: How many things the job gave were refused since the start.
        self.refused = 0
        self._on_refused: Callable[[str], object] | None = None
        self._kinds: set[str] = set()
        self._now = now
        self._last: dict[str, float] = {}
        self._quiet: dict[str, int] = {}

    def report_refusals(self, report: Callable[[str], object]) -> None:
        """Call ``report`` with the text of each new kind of refusal."""
        self._on_refused = report

    def count(self) -> None:
        """Count an exception that was swallowed elsewhere."""
        self.swallowed += 1

    def caught(self, place: str, error: Exception) -> None:
        """Count and log ``error``, or raise it when strict.

        Args:
            place: the interrupted call, e.g. ``log()``; one log line a minute for each place.
        """
        if self.strict:
            raise error
        self.swallowed += 1
        if isinstance(error, RefusedError):
            self.refuse(place, error)
        else:
            self.note(place, f"{type(error).__name__}: {error}"[:1000])

    def refuse(self, place: str, error: RefusedError) -> None:
        """Count refusals; log the first of each kind immediately, the others once a minute. Never raises."""
        try:
            self.refused += error.count
            import re

            for text in error.refused:
                # Texts and numbers differ from one refusal of a kind to the next.
                kind = re.sub(r"'[^']*'|\"[^\"]*\"|\d+", "", f"{place} {text}")[:200]
                new = kind not in self._kinds and len(self._kinds) < MAX_KINDS
                if new:
                    self._kinds.add(kind)
                    if self._on_refused is not None:
                        self._on_refused(f"{place}: {text}"[:1000])
                self.note(place, text[:1000], kind if kind in self._kinds else place)
        except Exception:  # a foreign text, or a full disk
            self.swallowed += 1

    def note(self, place: str, text: str, kind: str = "") -> None:
        """Log a problem that the job did not cause (a full disk, a server away), once a minute a place. Never raises.

        Args:
            kind: key of the limit of one line a minute, by default the place.
        """
        try:
            kind = kind or place
            now = self._now()
            last = self._last.get(kind)
            if last is not None and now - last < LOG_INTERVAL_S:
                self._quiet[kind] = self._quiet.get(kind, 0) + 1
                return
            self._last[kind] = now
            more = self._quiet.pop(kind, 0)
            import logging  # here: a third of our import time, needed only when something is wrong

            tail = f" ({more} more like it in the last minute)" if more else ""
            logging.getLogger("stabilityclient").warning("%s: %s%s", place, text, tail)
        except Exception:  # a broken logging handler must not stop training either
            self.swallowed += 1
