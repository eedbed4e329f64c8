"""Ranks that others wait for because they left the job in order: nothing of the machine or the network is behind that.

Pure. A hang says so in fields (``finished`` and ``left`` in docs/api.md). Incidents of servers before these fields are
stored with the clause for people alone; what those servers wrote does not change any more, so it is read here, and for
such incidents only. A new wording never has to fit it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["finished_first", "left_in_order"]

#: How ``why`` began where suspects had finished, or had left, on servers before the fields. Never add to these.
_OLD_FINISHED = ("it has finished", "they have finished")
_OLD_LEFT = ("it has left", "they have left")


def finished_first(evidence: Mapping[str, Any]) -> bool:
    """Say whether a suspect of a hang had finished (``run.finish()``) while the others still waited for it.

    Args:
        evidence: of a ``hang``, however old.
    """
    return _told(evidence, "finished", _OLD_FINISHED)


def left_in_order(evidence: Mapping[str, Any]) -> bool:
    """Say whether a suspect of a hang had ended in order, with ``run.finish()`` or without it."""
    return finished_first(evidence) or _told(evidence, "left", _OLD_LEFT)


def _told(evidence: Mapping[str, Any], name: str, old_words: tuple[str, ...]) -> bool:
    if name in evidence:
        return bool(evidence[name])
    return str(evidence.get("why") or "").startswith(old_words)
