"""The sources of a run: one for each start of each training process, and one for each start of an agent."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.lineage.sources import SourceState
from stabilityclient.wire import SourceInfo

__all__ = ["MAX_SOURCES", "SourceBook"]

#: Sources remembered per run (every restart adds one a rank); beyond it the oldest that is no rank's newest goes.
MAX_SOURCES = 20_000


class SourceBook(Stateful):
    """Where each source is, and which one is the newest of its rank."""

    of: dict[str, SourceState] = fresh(dict)
    newest: dict[int, str] = fresh(dict)
    #: (number, source) of those that are not their rank's newest, as a heap: the oldest is forgotten first.
    _replaced: list[tuple[int, str]] = fresh(list)
    _seen: int = 0

    def saved_values(self) -> list[Any]:
        for state in self.of.values():
            state.settle()
        return super().saved_values()

    def is_newest(self, state: SourceState) -> bool:
        """Return whether a source is the newest process of a rank."""
        return state.rank is not None and self.newest.get(state.rank) == state.source

    def add(self, info: SourceInfo, head: int) -> SourceState:
        """Take a new source and return its place.

        Args:
            head: of the tree when it was started.
        """
        before = None if info.rank is None else self.newest.get(info.rank)
        follows = before is not None and self.of[before].started <= info.started
        if before is not None and follows:
            old = self.of[before]
            state = SourceState(info.source, info.rank, info.node, old.segment)
            state.follow(old)
        else:
            state = SourceState(info.source, info.rank, info.node, head)
        self._seen = state.number = self._seen + 1
        self.of[info.source] = state
        state.started = info.started
        replaced: str | None = info.source
        if info.rank is not None and (before is None or follows):
            self.newest[info.rank], replaced = info.source, before
        if replaced is not None:
            heappush(self._replaced, (self.of[replaced].number, replaced))
        return state

    def forgotten(self) -> str | None:
        """Forget the oldest source where there are too many, and return it; None where there are not."""
        if len(self.of) <= MAX_SOURCES or not self._replaced:
            return None
        source = heappop(self._replaced)[1]
        self.of.pop(source, None)
        return source
