"""Messages of a run that could not be read or folded: counted and named, so that nothing is missing in silence."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from stabilitybackend.base.quiet_log import QuietLog
from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.lineage.consumer import Consumer
from stabilitybackend.lineage.lineage import Given
from stabilitybackend.schema.runs import UnreadableCounts, UnreadableReason

__all__ = ["Unreadable"]

#: Different reasons that are named; more are counted.
MAX_NAMED = 16
#: Characters of a reason.
MAX_CHARS = 200

_log = logging.getLogger(__name__)


class Unreadable(Stateful, Consumer):
    """Counts of one run.

    Attributes:
        passed_over: events and blocks of points that were left out as a whole.
        defects: number of failures by a defect of the server.
        fields: fields that were left out of events and of agents' reports.
    """

    reads = (Given,)

    passed_over: int = 0
    defects: int = 0
    fields: int = 0
    _named: dict[tuple[str, str], list[Any]] = fresh(dict)

    def __init__(self, given: Given) -> None:
        super().__init__()
        self._run_id = given.run_id
        self._quiet = QuietLog(_log)

    def state(self) -> Mapping[str, Stateful]:
        return {"unreadable": self}

    def field(self, what: str, why: str, source: str) -> None:
        """Take note of a field that was left out.

        Args:
            what: type of the event, or ``health``. why: the field, its value and the expected one.
        """
        self.fields += 1
        self._note(what, why, source, f"left out of {what} of {source}: {why}")

    def whole(self, what: str, why: str, source: str, error: Exception | None = None) -> None:
        """Take note of a message that was passed over as a whole; ``error``: on a defect of the server."""
        self.passed_over += 1
        self.defects += error is not None
        self._note(what, why, source, f"{what} of {source} is passed over: {why}", error)

    def _note(self, what: str, why: str, source: str, text: str, error: Exception | None = None) -> None:
        known = self._named.get((what, why[:MAX_CHARS]))
        if known is not None:
            known[0] += 1
        elif len(self._named) < MAX_NAMED:
            self._named[what, why[:MAX_CHARS]] = [1, source]
        self._quiet.log(logging.WARNING if error is None else logging.ERROR, f"run {self._run_id}: {text}", error)

    @property
    def note(self) -> str:
        """Return the text for users, empty while nothing was passed over."""
        if not self.passed_over:
            return ""
        what, why = next(iter(self._named))
        things = "message was" if self.passed_over == 1 else "messages were"
        return f"{self.passed_over} unreadable {things} passed over ({what}: {why})."

    def view(self) -> UnreadableCounts:
        """Return the counts as a run shows them."""
        named = [UnreadableReason(what, why, count, who) for (what, why), (count, who) in self._named.items()]
        return UnreadableCounts(self.passed_over, self.defects, self.fields, named)
