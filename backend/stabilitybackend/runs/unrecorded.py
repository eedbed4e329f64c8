"""Data that the job gave and the run lacks, counted for ever: a run that lost rows must not look whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec import convert

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.lineage.changes import LineageEvent
from stabilitybackend.lineage.consumer import Consumer, Effects
from stabilitybackend.schema.job.unrecorded import RefusedText, UnrecordedCounts
from stabilitybackend.schema.job.unrecorded import Unrecorded as Reported

__all__ = ["UnrecordedRows"]

#: Processes that are counted, and kinds of refusals that are named.
MAX_SOURCES, MAX_NAMED = 20_000, 8
#: Characters of a reason or a refusal.
MAX_CHARS = 300


class _Counts(NamedTuple):
    """Of one process: see ``schema.job.unrecorded.Unrecorded``; ``node``: where it ran."""

    node: str
    dropped: int
    refused: int
    stored: int
    forked: bool
    why: str


class UnrecordedRows(Stateful, Consumer):
    """Counts of one run."""

    events = frozenset({"unrecorded", "refused", "lost"})

    _by_source: dict[str, _Counts] = fresh(dict)
    _refusals: dict[str, None] = fresh(dict)
    _lost: int = 0

    def state(self) -> Mapping[str, Stateful]:
        return {"unrecorded": self}

    def event(self, event: LineageEvent, effects: Effects) -> None:
        if event.type == "lost":
            self._lost += max(0, event.data["records"])
        elif event.type == "refused":
            if len(self._refusals) < MAX_NAMED:
                self._refusals[convert(event.data, RefusedText).text[:MAX_CHARS]] = None
        else:
            said = convert(event.data, Reported)
            if said.source in self._by_source or len(self._by_source) < MAX_SOURCES:
                self._by_source[said.source] = _Counts(
                    event.source.node, said.dropped, said.refused, said.stored, said.forked, said.why[:MAX_CHARS]
                )

    def view(self) -> UnrecordedCounts:
        """Return the counts as a run shows them."""
        counts = self._by_source.values()
        seen = UnrecordedCounts(
            dropped=sum(one.dropped for one in counts),
            refused=sum(one.refused for one in counts),
            lost=self._lost,
            stored=sum(one.stored for one in counts if one.dropped),
            refusals=list(self._refusals),
        )
        seen.text = " ".join(self._sentences(seen))
        return seen

    def _sentences(self, seen: UnrecordedCounts) -> Iterator[str]:
        counts = self._by_source.values()
        if seen.dropped:
            nodes = list(dict.fromkeys(one.node for one in counts if one.dropped))
            where = f"node {nodes[0]}" if len(nodes) == 1 else f"{len(nodes)} nodes"
            why = next((f": {one.why}" for one in counts if one.dropped and one.why), "")
            yield f"{seen.dropped:,} of {seen.dropped + seen.stored:,} records were dropped on {where}{why}."
        if seen.lost:
            were = "record was" if seen.lost == 1 else "records were"
            yield f"{seen.lost:,} spooled {were} damaged or deleted before the agent could send them."
        if seen.refused:
            first = seen.refusals[0].rstrip(".") if seen.refusals else ""
            if seen.refused == 1:
                yield f"1 value was refused{': ' if first else ''}{first}."
            else:
                yield f"{seen.refused:,} values were refused{'; the first: ' if first else ''}{first}."
        if any(one.forked for one in counts):
            yield "A process that was forked after init() logged: its rows are not recorded."
