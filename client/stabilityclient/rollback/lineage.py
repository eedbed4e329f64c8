"""Names the segments of this rank's timeline, so that all ranks that go the same way use the same names."""

from __future__ import annotations

from stabilityclient.arguments import plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from stabilityclient.rank_state.slot import Slot
    from stabilityclient.rollback.boundary import Boundary
    from stabilityclient.rollback.decision import Rollback

__all__ = ["RankLineage"]


class RankLineage:
    """The segment that a rank is in.

    Args:
        event: logs an event: ``event(kind, step, data)``.

    Attributes:
        key: of the segment, "" before the first rollback of this process.
    """

    def __init__(self, event: Callable[[str, int | None, dict[str, Any]], object]) -> None:
        self.key = ""
        self._event = event
        self._declared = 0
        self._boundary: Boundary | None = None
        self._slot: Slot | None = None

    def attach(self, boundary: Boundary, slot: Slot) -> None:
        """Notify these two from now on when a segment is entered."""
        self._boundary = boundary
        self._slot = slot

    def declare(self, to_step: int, reason: str, changes: Mapping[str, Any]) -> None:
        """The job went back to ``to_step`` by itself. The key follows from the calls alone (docs/wire.md)."""
        import hashlib

        self._declared += 1
        text = f"{self.key}\n{self._declared}\n{to_step}"
        key = "d-" + hashlib.sha256(text.encode()).hexdigest()[:16]
        self._enter(key, to_step, reason, changes)

    def follow(self, rollback: Rollback) -> None:
        """An ordered rollback was carried out: its command names the segment."""
        self._enter(rollback.command_id, rollback.to_step, rollback.reason, rollback.changes(), rollback)

    def _enter(
        self, key: str, to_step: int, reason: str, changes: Mapping[str, Any], ordered: Rollback | None = None
    ) -> None:
        data = {
            "key": key,
            "to_step": to_step,
            "cause": "command" if ordered else "declared",
            "reason": reason,
            "command_id": ordered.command_id if ordered else None,
            "issuer": ordered.issuer if ordered else "",
            "changes": plain(dict(changes)),
        }
        if ordered is not None and ordered.branch is not None:
            data["branch"] = {"segment": ordered.branch[0], "segment_key": ordered.branch[1]}
        self._event("segment", to_step, data)
        self.key = key
        if self._boundary is not None and self._slot is not None:
            self._boundary.entered(key)
            self._slot.set_segment(key)
