"""Ranks that others wait for because they left the job in order: nothing of the machine or the network is behind that.

Pure. A hang says so in fields (``finished`` and ``left`` in docs/api.md). Incidents of servers before these fields are
stored with the clause for people alone; what those servers wrote does not change any more, so it is read here, and for
such incidents only. A new wording never has to fit it.
"""

from __future__ import annotations

from stabilitybackend.schema.evidence import HangFacts

__all__ = ["finished_first", "left_in_order"]

#: How ``why`` began where suspects had finished, or had left, on servers before the fields. Never add to these.
_OLD_FINISHED = ("it has finished", "they have finished")
_OLD_LEFT = ("it has left", "they have left")


def finished_first(hang: HangFacts) -> bool:
    """Say whether a suspect of a hang, however old, had finished (``run.finish()``) while the others still waited."""
    return hang.why.startswith(_OLD_FINISHED) if hang.finished is None else bool(hang.finished)


def left_in_order(hang: HangFacts) -> bool:
    """Say whether a suspect of a hang had ended in order, with ``run.finish()`` or without it."""
    left = hang.why.startswith(_OLD_LEFT) if hang.left is None else bool(hang.left)
    return finished_first(hang) or left
