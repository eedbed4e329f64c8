"""The commands of one run: rows, forks and reports that bring them on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from msgspec import convert

from stabilitybackend.acting.commands.abilities import Handlers
from stabilitybackend.acting.commands.commands import CommandBook
from stabilitybackend.base.stateful import Stateful
from stabilitybackend.judging.batches.kept import KeptBatches
from stabilitybackend.lineage.batch import Batch
from stabilitybackend.lineage.changes import Forked, LineageEvent
from stabilitybackend.lineage.consumer import Consumer, Effects
from stabilitybackend.lineage.lineage import Given, Lineage
from stabilitybackend.schema.events import CommandReport
from stabilityclient.wire import started_ns

__all__ = ["Commands"]


class Commands(Consumer):
    """The commands of a run, and the handlers of its ranks.

    Attributes:
        book: stored in Redis. handlers: from the ranks' own reports.
    """

    reads = (Given, Lineage, KeptBatches)
    events = frozenset({"command", "start", "handler", "obeys"})

    def __init__(self, given: Given, lineage: Lineage, kept: KeptBatches) -> None:
        self.book = CommandBook(given.run_id)
        self.handlers = Handlers()
        self._tree, self._kept = lineage.fold.tree, kept

    def state(self) -> Mapping[str, Stateful]:
        return {"handlers": self.handlers}

    def rows(self, batch: Batch, effects: Effects) -> None:
        first = batch.tables[0]
        if effects.replayed or batch.stray or first.sources[0].rank is None:
            return
        segment = self._tree[batch.segment]
        if self.book.get(segment.key) is not None:
            step, time = int(first.steps[0, 0]), float(first.times[0, 0])
            effects.add_commands(self.book.on_points(segment.id, segment.key, step, time))
        if self.book.restart_under_way() is None:
            return
        for table in batch.tables:
            for source, step, time in zip(table.sources, table.steps[0].tolist(), table.times[0].tolist(), strict=True):
                started = started_ns(source.source)
                effects.add_commands(self.book.on_row(source.node, started, segment.id, step, time))

    def event(self, event: LineageEvent, effects: Effects) -> None:
        rank = event.source.rank
        if event.type != "command":
            self.handlers.event(event.type, rank, event.data)
            return
        effects.segments |= event.data.get("applied") is not None
        if not effects.replayed:
            report, keeps = convert(event.data, CommandReport), self._kept.keeps(rank)
            effects.add_commands(
                self.book.on_event(rank, event.step, report, event.time, node=event.source.node, keeps=keeps)
            )

    def forked(self, fork: Forked, effects: Effects) -> None:
        if fork.is_head and not effects.replayed:
            segment = fork.segment
            effects.add_commands(self.book.head_moved(segment.id, segment.key, segment.created))

    def with_order(self, event: LineageEvent, effects: Effects) -> LineageEvent:
        """Return the end of a process with the command that ended it, where there is one.

        Also of the peers of those that an agent ended: they fail in their collectives before their own agent acts.
        """
        if event.type not in ("process_death", "exception") or effects.replayed:
            return event
        source = event.data.get("source") or event.source.source
        ordered = event.data.get("ordered") or self.book.command_that_ends(event.source.node, started_ns(source))
        return replace(event, data={**event.data, "ordered": ordered})
