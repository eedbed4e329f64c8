"""Internal errors in one run: logged, shown on the run itself, and no other run is the worse for them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from msgspec import structs
from redis.exceptions import RedisError

from stabilitybackend.base.errors import Unavailable
from stabilitybackend.base.quiet_log import QuietLog
from stabilitybackend.runs.shown_state import stated
from stabilitybackend.schema.runs import RunStatus, RunView

__all__ = ["FAILED", "FOLLOWING", "JUDGING", "PAGE", "InternalErrors"]

#: Status of a run that the server itself can't work out.
FAILED: RunStatus = "failed"
#: Work that can fail, in words for users. The first two leave only the earlier view.
FOLLOWING, PAGE, JUDGING = "reading what is stored of it", "working out its page", "judging it"
#: Characters of an error that users are shown.
MAX_CHARS = 200

V = TypeVar("V", bound=RunView)
_log = logging.getLogger(__name__)


class InternalErrors:
    """Present failures of one run."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._now: dict[str, str] = {}
        self._logs: dict[str, QuietLog] = {}

    @contextlib.contextmanager
    def noted(self, what: str) -> Iterator[None]:
        """Continue after a defect of the server in this block; a later time without one takes it back."""
        try:
            yield
        except (RedisError, OSError, Unavailable):
            raise  # no defect of the server
        except Exception as error:
            self.note(what, error)
        else:
            self.mended(what)

    def mended(self, what: str) -> None:
        """Take back that ``what`` failed."""
        self._now.pop(what, None)

    @property
    def any(self) -> bool:
        """Whether something fails now."""
        return bool(self._now)

    def checked(self, what: str, errors: Sequence[Exception]) -> None:
        """Take note of the first failure at ``what`` this time, or of none."""
        self.mended(what)
        for error in errors[:1]:
            self.note(what, error)

    def note(self, what: str, error: BaseException) -> None:
        """Take note that ``what`` failed."""
        self._now[what] = f"{type(error).__name__}: {error}"[:MAX_CHARS]
        log = self._logs.setdefault(what, QuietLog(_log))
        log.log(logging.ERROR, f"run {self._run_id}: the server fails at {what}", error)

    def view(self, work: Callable[[], RunView], before: RunView) -> RunView:
        """Return the result of ``work`` (``RunState.view``); where it fails ``before``, and that it fails."""
        with self.noted(PAGE):
            before = work()
        return self.marked(before)

    def marked(self, run: V) -> V:
        """Return a run with its failures in its note and its status."""
        if not self._now:
            return run
        fails = " ".join(f"The server fails at {what} ({why})." for what, why in self._now.items())
        broken = FOLLOWING in self._now or PAGE in self._now
        end = "What is shown is what was known before." if broken else "The rest goes on."
        note = f"{fails} {end} The server's log has more."
        return stated(structs.replace(run, status=FAILED if broken else run.status, note=note))
