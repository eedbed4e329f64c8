"""Keeps what agents collect on suspicion: stacks, collectives and /proc of each rank, grouped by identical stack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["DumpBook", "DumpRequest"]

#: Dumps kept per run, newest ones.
MAX_DUMPS = 8


@dataclass(frozen=True, slots=True)
class DumpRequest:
    """Agents shall look closely at their ranks.

    Attributes:
        request: id, also that of the command: the same for the same event, so that a restarted server asks once.
        reason: why, one clause for people.
    """

    request: str
    reason: str


class DumpBook:
    """The newest dumps of one run."""

    def __init__(self) -> None:
        self._dumps: dict[str, dict[str, Any]] = {}

    def take(self, data: Mapping[str, Any], node: str, time: float) -> None:
        """Take the ``stacks`` event of one rank (docs/wire.md)."""
        dump = self._dumps.setdefault(str(data["request"]), {"request": str(data["request"]), "ranks": {}})
        dump["ranks"][str(data["rank"])] = dict(data) | {"node": node, "time": time}
        while len(self._dumps) > MAX_DUMPS:
            del self._dumps[next(iter(self._dumps))]

    def all(self) -> list[dict[str, Any]]:
        """Return what there is, newest first, in the shape of docs/api.md (Dump)."""
        return list(self._dumps.values())[::-1]

    def get(self, request: str) -> dict[str, Any] | None:
        """Return one dump, or None."""
        return self._dumps.get(request)
