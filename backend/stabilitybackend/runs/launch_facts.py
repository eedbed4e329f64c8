"""The facts of a run's launches, as the agents of its nodes reported them; equal ones are kept once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.lineage.changes import LineageEvent
from stabilitybackend.lineage.consumer import Consumer, Effects
from stabilitybackend.schema.job.about import LaunchReported

__all__ = ["Launch", "LaunchFacts"]

#: Different facts of a run, and processes mapped to facts; beyond it the oldest are dropped.
MAX_DIFFERENT, MAX_PROCESSES = 256, 20_000
#: Variables that a scheduler sets. In a container there is one, too.
SCHEDULERS = frozenset((
    "SLURM_JOB_ID", "LSB_JOBID", "PBS_JOBID", "JOB_ID", "RAY_JOB_ID", "FLUX_JOB_ID", "POD_NAME", "POD_NAMESPACE",
    "JOB_NAME", "JOBSET_NAME", "KUBERNETES_SERVICE_HOST",
))  # fmt: skip


class _Process(msgspec.Struct):
    facts: int
    host: str
    rank: int
    world_size: int


class Launch(msgspec.Struct):
    """One launch: its processes that reported, lowest rank first, and the facts of the first of them."""

    sources: list[str]
    hosts: list[str]
    ranks: int
    facts: LaunchReported


class LaunchFacts(Stateful, Consumer):
    """The reports of one run."""

    events = frozenset({"launch"})

    #: Number -> facts as JSON, in order of arrival; most processes repeat earlier ones.
    _facts: dict[int, str] = fresh(dict)
    _of: dict[str, _Process] = fresh(dict)

    @property
    def scheduled(self) -> bool | None:
        """Whether a scheduler started a launch, by its variables; None without any facts."""
        known = [msgspec.json.decode(one, type=LaunchReported) for one in self._facts.values()]
        return any(one.image or not SCHEDULERS.isdisjoint(one.launcher) for one in known) if known else None

    def state(self) -> Mapping[str, Stateful]:
        return {"launch_facts": self}

    def event(self, event: LineageEvent, effects: Effects) -> None:
        found = msgspec.convert(event.data, LaunchReported)
        text = msgspec.json.encode(_shared(found)).decode()
        number = next((number for number, known in self._facts.items() if known == text), None)
        if number is None:
            number = next(reversed(self._facts), 0) + 1
            self._facts[number] = text
        self._of.pop(found.source, None)
        self._of[found.source] = _Process(number, found.host or found.node, found.rank, max(1, found.world_size))
        if len(self._of) > MAX_PROCESSES:
            del self._of[next(iter(self._of))]
        if len(self._facts) > MAX_DIFFERENT:
            del self._facts[next(iter(self._facts))]

    def launches(self, started_with: Callable[[str], Collection[str]]) -> list[Launch]:
        """Return the launches with facts, in no order.

        Args:
            started_with: returns the processes of the launch of a source.
        """
        left = {source: one for source, one in self._of.items() if one.facts in self._facts}
        found = []
        while left:
            source = next(iter(left))
            together = {source, *started_with(source)} & left.keys()
            members = sorted(together, key=lambda one: (left[one].rank, one))
            first = left[members[0]]
            hosts = dict.fromkeys(left[one].host for one in members)
            facts = msgspec.json.decode(self._facts[first.facts], type=LaunchReported)
            found.append(Launch(members, [host for host in hosts if host], first.world_size, facts))
            for one in together:
                del left[one]
        return found


def _shared(found: LaunchReported) -> Mapping[str, Any]:
    """Return the common facts of a launch's processes, without those of single ones."""
    own = {"source": "", "rank": 0, "world_size": 1, "node": "", "host": ""}
    return {**msgspec.to_builtins(found), **own}
