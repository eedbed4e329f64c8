"""Whether everything that is stored of a run is in its worker's state, and why not yet."""

from __future__ import annotations

import asyncio
import logging

from stabilitybackend.base.errors import ArchiveError, Unavailable

__all__ = ["Readiness"]

_log = logging.getLogger(__name__)


class Readiness:
    """Lets those wait who need the whole state of a run."""

    def __init__(self, run_id: str) -> None:
        #: Why the archive can't be read at the start; it is tried again.
        self.trouble: ArchiveError | None = None
        self._run_id = run_id
        self._caught_up = asyncio.Event()
        #: Cause of the worker's end.
        self.failure: BaseException | None = None

    @property
    def reached(self) -> bool:
        """Whether the state is whole."""
        return self._caught_up.is_set() and self.failure is None

    def reach(self) -> None:
        """Note that the state is whole now."""
        self._caught_up.set()

    def fail(self, error: BaseException) -> None:
        """Note that it will never be: the worker ended, by a defect or as another one owns the run.

        Waiting callers are notified immediately.
        """
        self.failure = error
        self._caught_up.set()

    def lose(self) -> None:
        """Note that the state is taken up again."""
        self._caught_up.clear()

    def troubled(self, error: ArchiveError | None) -> None:
        """Note the error of the archive's place, None when it is well again."""
        if error is not None and self.trouble is None:
            _log.error("run %s: %s", self._run_id, error.message)
        self.trouble = error

    async def wait(self, timeout_s: float) -> None:
        """Return when the state is whole.

        Raises:
            Unavailable: that took longer than ``timeout_s``, the archive can't be read, or the worker failed.
        """
        if self.trouble is not None:
            raise Unavailable(
                f"run {self._run_id} can't be opened now: {self.trouble.message}",
                hint=self.trouble.hint,
                code="archive_away",
            )
        try:
            await asyncio.wait_for(self._caught_up.wait(), timeout_s)
        except TimeoutError:
            raise Unavailable(
                f"run {self._run_id} is still being read from Redis", hint="try again in a moment", code="loading"
            ) from None
        if isinstance(self.failure, Unavailable):
            raise self.failure
        if self.failure is not None:
            raise Unavailable(
                f"the server fails at following run {self._run_id}", hint="see the server's log", code="failed"
            )
