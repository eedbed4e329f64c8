"""Notices two living processes that say that they are the same rank: two jobs under one run id."""

from __future__ import annotations

from stabilityclient.wire import pid_of

#: Ranks remembered.
MAX_RANKS = 64
#: A restart overlaps for a moment; two that both live for longer than this are two jobs, seconds.
OVERLAP_S = 5.0
#: Reported until so long after both were last seen, seconds.
FORGET_S = 10.0

__all__ = ["DuplicateRanks"]


class DuplicateRanks:
    """Ranks that two processes claim."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[str, str, float, float]] = {}

    def note(self, rank: int, first: str, second: str, now: float) -> None:
        """Take note that two processes, by their sources, live as one rank."""
        known = self._seen.get(rank)
        pair = (min(first, second), max(first, second))
        if known is None or known[:2] != pair or now - known[3] > FORGET_S:
            if known is None and len(self._seen) >= MAX_RANKS:
                del self._seen[next(iter(self._seen))]
            self._seen[rank] = (*pair, now, now)
        else:
            self._seen[rank] = (*pair, known[2], now)

    def note_for(self, run_id: str, now: float) -> str:
        """Return the note for people, empty while all is well."""
        both = [
            (rank, one, other)
            for rank, (one, other, since, last) in self._seen.items()
            if now - last <= FORGET_S and last - since >= OVERLAP_S
        ]
        if not both:
            return ""
        rank, one, other = min(both)
        more = f" So do {len(both) - 1} more." if len(both) > 1 else ""
        return (
            f"Two living processes say that they are rank {rank} of this run (pid {pid_of(one)} and pid "
            f"{pid_of(other)}).{more} Do two jobs use the run id {run_id}? Give each its own."
        )
