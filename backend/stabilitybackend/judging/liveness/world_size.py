"""Ranks and GPUs of the job at each of its launches, to show one that starts on fewer. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.judging.liveness.job_snapshot import JobStart
from stabilitybackend.lineage.batch import Batch
from stabilitybackend.lineage.changes import LineageEvent
from stabilitybackend.lineage.consumer import Consumer, Effects
from stabilitybackend.schema.health import AgentHealth
from stabilitybackend.schema.json_data import MAX_NODES
from stabilitybackend.schema.lineage import Checkpoint
from stabilitybackend.schema.runs import WorldSize
from stabilityclient.wire import SourceInfo, started_ns

__all__ = ["MAX_LAUNCHES", "LaunchSizes", "left_nodes", "newest_starts"]

#: Launches remembered per run, newest ones.
MAX_LAUNCHES = 512


@dataclass(slots=True)
class LaunchSize:
    """One start of the job, seen from its lowest rank.

    Attributes:
        started: unix seconds by the node's clock.
        world_size: ranks.
        first_step, last_step: of its rows, None before the first.
    """

    started: float
    world_size: int
    first_step: int | None = None
    last_step: int | None = None


class LaunchSizes(Stateful, Consumer):
    """The launches of one run, and the GPUs of its nodes.

    A launch counts before its first row, by the lowest connected rank; ``TrainingIntervals`` holds only those with
    rows, by the lowest logging rank, which may be another one.

    Attributes:
        size: ranks of the newest launch.
    """

    events = frozenset({"gpu_inventory"})

    size: int = 1
    _newest: float = 0.0
    _rank: int | None = None
    #: By the source of the lowest rank.
    _launches: dict[str, LaunchSize] = fresh(dict)
    _gpus: dict[str, int] = fresh(dict)

    def state(self) -> Mapping[str, Stateful]:
        return {"world": self}

    def sent(self, sources: Sequence[SourceInfo]) -> None:
        for source in sources:
            if source.rank is None:
                continue
            known = source.started < self._newest or (source.started, source.world_size) == (self._newest, self.size)
            if not known or self._rank is None or source.rank <= self._rank:
                self._seen(source, source.rank)

    def _seen(self, source: SourceInfo, rank: int) -> None:
        """Take a process that sent something; late reports of an old launch change nothing of today's."""
        if source.started >= self._newest:
            self._newest, self.size = source.started, max(1, source.world_size)
        if source.source in self._launches or (self._rank is not None and rank > self._rank):
            return
        if self._rank is None or rank < self._rank:
            self._rank = rank
            self._launches.clear()
        self._launches[source.source] = LaunchSize(source.started, max(1, source.world_size))
        if len(self._launches) > MAX_LAUNCHES:
            del self._launches[min(self._launches, key=lambda name: self._launches[name].started)]

    def rows(self, batch: Batch, effects: Effects) -> None:
        if batch.stray:
            return
        for table in batch.tables:
            for at, source in enumerate(table.sources):
                launch = self._launches.get(source.source)
                if launch is not None:
                    first, last = int(table.steps[0, at]), int(table.steps[-1, at])
                    launch.first_step = first if launch.first_step is None else min(launch.first_step, first)
                    launch.last_step = last if launch.last_step is None else max(launch.last_step, last)

    def event(self, event: LineageEvent, effects: Effects) -> None:
        """Take a node's ``gpu_inventory`` (docs/wire.md): its GPUs that ranks use, all without such a report."""
        gpus, node = event.data["gpus"], event.source.node
        if node in self._gpus or len(self._gpus) < MAX_NODES:
            self._gpus[node] = sum(1 for gpu in gpus if gpu.get("ranks")) or len(gpus)

    @property
    def newest_start(self) -> JobStart:
        """Return start and ranks of the newest launch."""
        return JobStart(self._newest, self.size if self._newest else 0)

    def launches(self) -> list[LaunchSize]:
        """Return the launches, oldest first."""
        return sorted(self._launches.values(), key=lambda launch: launch.started)

    def fruitless(self, checkpoints: Iterable[Checkpoint]) -> int:
        """Return the number of newest launches in a row without progress.

        That is: no checkpoint of their own; of a job that announces none, no step beyond the earlier ones. So a launch
        that a plan sent back is judged by its checkpoints like any other, not by its steps.
        """
        saved = [checkpoint.time for checkpoint in checkpoints]
        launches, count = self.launches(), 0
        for at in range(len(launches) - 1, -1, -1):
            begin, end = launches[at].started, launches[at + 1].started if at + 1 < len(launches) else math.inf
            reached = max((launch.last_step or 0 for launch in launches[:at]), default=-1)
            progress = any(begin <= time < end for time in saved) if saved else (launches[at].last_step or 0) > reached
            if progress:
                break
            count += 1
        return count

    def view(self, nodes: Container[str]) -> WorldSize:
        """Return the ranks of the job, and since when; ``nodes``: with connected agents."""
        launches = self.launches()
        sizes = [launch.world_size for launch in launches] or [self.size]
        at = len(sizes) - 1
        while at > 0 and sizes[at - 1] == sizes[-1]:
            at -= 1
        changed = at > 0
        gpus = sum(count for node, count in self._gpus.items() if node in nodes)
        return WorldSize(
            now=self.size,
            before=sizes[at - 1] if changed else None,
            since_step=launches[at].first_step if changed else None,
            gpus=gpus or None,
        )


def newest_starts(agents: Iterable[AgentHealth]) -> dict[str, int]:
    """Return node -> newest start of its ranks' processes, ns, of the connected agents."""
    starts: dict[str, int] = {}
    for agent in agents:
        if agent.connected:
            for rank in agent.ranks:
                starts[agent.node] = max(started_ns(rank.source), starts.get(agent.node, 0))
    return starts


def left_nodes(agents: Iterable[AgentHealth], left_at: Callable[[str], float | None]) -> dict[str, float]:
    """Return node -> end of the connection of its last agent, unix seconds, of nodes without a connected one.

    Args:
        left_at: returns that of one agent, None for unknown.
    """
    left: dict[str, float] = {}
    there = set()
    for agent in agents:
        at = left_at(agent.agent)
        if agent.connected:
            there.add(agent.node)
        elif at is not None:
            left[agent.node] = max(at, left.get(agent.node, at))
    return {node: at for node, at in left.items() if node not in there}
