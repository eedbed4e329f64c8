"""Makes the advice again where one turns by itself: "wait until step N" ends at step N. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stabilitybackend.judging.incidents.rollback_target import Usable
from stabilitybackend.lineage.batch import Placed
from stabilitybackend.schema.incidents import Incident

if TYPE_CHECKING:
    from stabilitybackend.judging.incidents.incidents import IncidentBook

__all__ = ["turned"]


def turned(book: IncidentBook, rows: Sequence[Placed], checkpoints: Usable, below: float = math.inf) -> list[Incident]:
    """Return the incidents whose advice turned at one of the rows, as of that row however rows were cut into frames.

    Args:
        book: of the run. rows: new ones of the rank that is judged.
        checkpoints: those that can be gone back to. below: only rows of an earlier step.
    """
    changed: list[Incident] = []
    while (at := book.turns_at()) is not None:
        steps = ((int(step), float(time)) for one in rows for step, time in zip(one.steps, one.times, strict=True))
        due = min((row for row in steps if at <= row[0] < below), default=None)
        if due is None:
            break
        changed += book.refresh_suggestions(checkpoints, due[1], due[0])
        if book.turns_at() == at:  # still waited for, for whatever reason
            break
    return changed
