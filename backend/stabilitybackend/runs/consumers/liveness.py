"""The ranks of one run: whether they make steps, stand, died, or are out of sight."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

from stabilitybackend.base.name_sets import key_of
from stabilitybackend.base.saving import SavedPart
from stabilitybackend.base.stateful import Stateful
from stabilitybackend.judging.detectors.straggler import reports_own_work
from stabilitybackend.judging.liveness.monitor import LivenessMonitor
from stabilitybackend.judging.liveness.world_size import LaunchSizes
from stabilitybackend.lineage.batch import Batch
from stabilitybackend.lineage.changes import LineageEvent
from stabilitybackend.lineage.consumer import EVERY_EVENT, Consumer, Effects
from stabilitybackend.lineage.lineage import Given
from stabilitybackend.runs.consumers.commands import Commands
from stabilitybackend.runs.consumers.gpus import Gpus
from stabilityclient.wire import SourceInfo

__all__ = ["Liveness"]


class Liveness(Consumer):
    """Findings about the ranks of a run."""

    reads = (Given, LaunchSizes, Commands, Gpus)
    events = EVERY_EVENT

    def __init__(self, given: Given, sizes: LaunchSizes, commands: Commands, gpus: Gpus) -> None:
        self.monitor = LivenessMonitor(given.run_id)
        self._clock, self._sizes, self._commands, self._gpus = given.clock, sizes, commands, gpus

    def state(self) -> Mapping[str, Stateful]:
        return {"liveness": self.monitor}

    def restore(self, saved: Mapping[str, SavedPart]) -> None:
        super().restore(saved)
        self.monitor.newest_start = self._sizes.newest_start

    def sent(self, sources: Sequence[SourceInfo]) -> None:
        self.monitor.newest_start = self._sizes.newest_start

    def rows(self, batch: Batch, effects: Effects) -> None:
        if batch.stray or batch.tables[0].sources[0].rank is None:
            return
        for table in batch.tables:
            if reports_own_work(key_of(table.names)):
                now = self._clock()
                for source in table.sources:
                    self.monitor.logs_own_work(source.rank or 0, now)
        self.monitor.rows(batch)

    def event(self, event: LineageEvent, effects: Effects) -> None:
        self.monitor.event(self._commands.with_order(event, effects), event.time)

    def tick(self, now: float, effects: Effects) -> Generator[None]:
        found = yield from self.monitor.ticking(now, self._gpus.watch.broken())
        effects.found += [(now, finding) for finding in found]
