"""Facts of this server's exports of their run, and its segments in the order in which the rows need them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stabilityplugins.importers.base import ImportPlan
from stabilityplugins.importers.batches import Fork, Who

__all__ = ["ExportedLineage", "header_of", "named_by_export"]

#: Fields of a segment that a ``segment`` event carries on.
_FACTS = ("reason", "command_id", "issuer", "changes", "applied")


def header_of(content: Any) -> dict[str, Any] | None:
    """Return an export's facts of its run, None where ``content`` is none."""
    return content if isinstance(content, dict) and isinstance(content.get("segments"), list) else None


def named_by_export(plan: ImportPlan, header: dict[str, Any] | None) -> ImportPlan:
    """Return a plan with the facts of the run's export."""
    if header is not None:
        plan.run_id = str(header.get("run_id") or "") or None
        plan.name = str(header.get("name") or plan.name)
        plan.project = str(header.get("project") or "")
        config = header.get("config")
        plan.config = config if isinstance(config, dict) else {}
        plan.exported = header
    return plan


class ExportedLineage:
    """The segments of an export.

    Args:
        header: the export's facts of its run; ``segments`` as in docs/api.md.
    """

    def __init__(self, header: Mapping[str, Any]) -> None:
        self._forks: dict[int, Fork] = {}
        #: Segment in the file -> its key in the imported run.
        self.keys: dict[int, str] = {}
        keys: set[str] = set()
        for segment in header["segments"]:
            if segment.get("parent") is None or segment.get("undone"):
                continue
            key = str(segment.get("key") or "")
            if not key or key in keys:
                key = f"{key}.{segment['id']}"  # a restart may repeat a key; here each has to name one segment
            keys.add(key)
            self.keys[int(segment["id"])] = key
            facts = {
                name: segment[name]
                for name in _FACTS
                if segment.get(name) or (name == "applied" and segment.get(name) is not None)
            }
            returns_to = segment.get("returns_to")
            if returns_to == 0 or returns_to in self.keys:
                facts["branch"] = {"segment": returns_to, "segment_key": self.keys.get(returns_to, "")}
            if segment.get("cause") in ("restart", "resume"):
                facts["cause"] = segment["cause"]
            self._forks[int(segment["id"])] = Fork(
                key, int(segment["fork_step"]), float(segment.get("created") or 0.0), facts
            )
        self._pending = sorted(self._forks)
        self._where: dict[Who, int] = {}

    def enter(self, who: Who, segment: Any) -> list[Fork]:
        """Return the segments to report before a row of ``who`` in ``segment``; older ones first."""
        if self._where.get(who, 0) == segment or not isinstance(segment, int):
            return []
        self._where[who] = segment
        due: list[Fork] = []
        known = segment not in self._pending
        while self._pending and self._pending[0] <= segment:
            due.append(self._forks[self._pending.pop(0)])
        if known and segment in self._forks and who.rank is not None:
            due.append(self._forks[segment])  # another rank reported it: this one joins
        return due

    def rest(self) -> list[Fork]:
        """Return the segments that no row entered."""
        due = [self._forks[segment] for segment in self._pending]
        self._pending = []
        return due
