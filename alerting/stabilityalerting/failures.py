"""What of alerting fails now by a mistake of ours, so that nobody outside is told that all is well."""

from __future__ import annotations

import logging
import time

#: What failed counts as failing for so long after its last failure, seconds: some times the pause before it is tried
#: again, and less than two beats of the heart, so that what was over at once wakes nobody.
FAILING_S = 15.0
#: The same failure is logged at most once in so many seconds.
LOG_EVERY_S = 60.0

__all__ = ["FAILING_S", "Failures"]

_log = logging.getLogger(__name__)


class Failures:
    """The newest failure of each part."""

    def __init__(self) -> None:
        #: Name of a part -> when it failed last, monotonic seconds, and what it raised.
        self._newest: dict[str, tuple[float, str]] = {}
        self._logged: dict[str, float] = {}

    def note(self, name: str, error: Exception) -> None:
        """Note that a part failed; the log has all of it, what goes outside only the kind: it could hold a secret."""
        now = time.monotonic()
        self._newest[name] = (now, type(error).__name__)
        if now - self._logged.get(name, float("-inf")) >= LOG_EVERY_S:
            self._logged[name] = now
            _log.error("alerting: %s failed and is tried again", name, exc_info=error)

    def now(self) -> list[str]:
        """Return what fails now, in words."""
        oldest = time.monotonic() - FAILING_S
        return [f"{name} fails ({what})" for name, (at, what) in self._newest.items() if at >= oldest]
