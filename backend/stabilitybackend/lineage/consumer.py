"""A consumer: one part of a run's state, with what it takes of the run's stream.

A run hands each batch of rows, each event, each fork and each tick to all its consumers, in one order. However rows are
cut into batches, a consumer comes to the same state and the same findings.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from stabilitybackend.base.saving import SavedPart, part_of, restore
from stabilitybackend.base.stateful import Stateful, fields_of
from stabilitybackend.lineage.batch import Batch
from stabilitybackend.lineage.changes import Forked, LineageEvent
from stabilitybackend.schema.commands import Command
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.job.autopilot import PilotEntry
from stabilityclient.wire import SourceInfo

__all__ = ["EVERY_EVENT", "Consumer", "Effects", "in_order"]


class _Every(frozenset[str]):
    def __contains__(self, kind: object) -> bool:
        return True


#: The types of all events, those that this version does not know too.
EVERY_EVENT: Collection[str] = _Every()


@dataclass
class Effects:
    """Results of messages and ticks of one run, for storing and publishing.

    Attributes:
        replayed: the incidents and commands of these messages are stored already (a restart): the state is built again,
            and nothing is reported twice.
        reports: findings become incidents.
        found: (log time, finding) of the item that is handed round, until the incidents take them.
        batches: rows that were placed. segments: the tree changed.
        checkpoints: paths of the checkpoints that came, went or were written over.
        incidents, commands, entries: changed ones by id, the newest state of each; entries are the autopilot's.
    """

    replayed: bool = False
    reports: bool = True
    found: list[tuple[float, Any]] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    segments: bool = False
    checkpoints: set[str] = field(default_factory=set)
    incidents: dict[str, Incident] = field(default_factory=dict)
    commands: dict[str, Command] = field(default_factory=dict)
    entries: dict[str, PilotEntry] = field(default_factory=dict)

    def keep(self, later: Effects) -> None:
        """Take over what is to be stored."""
        self.incidents.update(later.incidents)
        self.commands.update(later.commands)
        self.entries.update(later.entries)

    @property
    def unsaved(self) -> bool:
        """Whether anything is to be stored."""
        return bool(self.incidents or self.commands or self.entries)

    def add(self, later: Effects, *, with_incidents: bool = True) -> None:
        """Take over what is to be published."""
        self.batches += later.batches
        self.segments |= later.segments
        self.checkpoints |= later.checkpoints
        self.commands.update(later.commands)
        if with_incidents:
            self.incidents.update(later.incidents)

    def add_incidents(self, incidents: Iterable[Incident | None]) -> None:
        """Note changed incidents."""
        self.incidents.update({i.incident_id: i for i in incidents if i is not None})

    def add_commands(self, commands: Iterable[Command]) -> None:
        """Note changed commands."""
        self.commands.update({c.command_id: c for c in commands})

    @property
    def beside_rows(self) -> bool:
        """Whether there is more than rows."""
        return bool(self.segments or self.checkpoints or self.incidents or self.commands)

    def __bool__(self) -> bool:
        return bool(self.batches) or self.beside_rows


class Consumer:
    """One part of a run's state. A subclass overrides the methods that it needs, and no other is called.

    Class attributes:
        reads: consumers that it reads. They are handed everything first, and are the arguments of its constructor.
        events: types of the events that it takes.
    """

    reads: ClassVar[tuple[type[Consumer], ...]] = ()
    events: ClassVar[Collection[str]] = frozenset()

    def state(self) -> Mapping[str, Stateful]:
        """Return its declared state, by the names in a snapshot; points, incidents and commands are not in it."""
        return {}

    def saved(self) -> list[SavedPart]:
        """Return its declared state for ``restore``."""
        return [part_of(name, part) for name, part in self.state().items()]

    def restore(self, saved: Mapping[str, SavedPart]) -> None:
        """Take over what ``saved`` returned. Raises Unfit where it is of another version."""
        for name, part in self.state().items():
            restore(part, saved.get(name), name)

    def sent(self, sources: Sequence[SourceInfo]) -> None:
        """Take the processes whose rows or event come next, as they describe themselves."""

    def needs_rows_apart(self, batch: Batch) -> bool:
        """Return whether it has to be handed each row of a batch by itself, with the lineage as of that row."""
        return False

    def rows(self, batch: Batch, effects: Effects) -> None:
        """Take rows that found their segment."""

    def event(self, event: LineageEvent, effects: Effects) -> None:
        """Take an event of one of the types ``events``."""

    def forked(self, fork: Forked, effects: Effects) -> None:
        """Take a new segment, or one whose fork moved."""

    def tick(self, now: float, effects: Effects) -> Generator[None]:
        """Take the time, unix seconds, about once a second; yield where other runs may be served."""
        yield from ()


C = TypeVar("C", bound=type[Consumer])


def in_order(kinds: Sequence[C]) -> list[C]:
    """Return consumers so that each comes behind those that it reads, else as given.

    Raises:
        TypeError: one reads a consumer that is not given, they read each other in a circle, or the declared state of
            one would be lost at a restart.
    """
    ordered: list[C] = []
    left = list(kinds)
    for kind in left:
        _check_state(kind)
        if missing := [one.__name__ for one in kind.reads if one not in left]:
            raise TypeError(f"consumer {kind.__name__} reads {', '.join(missing)}, expected one of the registered ones")
    while left:
        ready = next((kind for kind in left if _follows_all(kind, ordered)), None)
        if ready is None:
            names = ", ".join(kind.__name__ for kind in left)
            raise TypeError(f"consumers {names} read each other in a circle: let one of them read less")
        ordered.append(ready)
        left.remove(ready)
    return ordered


def _check_state(kind: type[Consumer]) -> None:
    if not issubclass(kind, Stateful):
        return
    if kind.state is Consumer.state and kind.saved is Consumer.saved:
        raise TypeError(f"consumer {kind.__name__} declares state and returns none, expected state() to return it")
    if hidden := [name for name in fields_of(kind) if hasattr(Consumer, name)]:
        raise TypeError(f"state {', '.join(hidden)} of consumer {kind.__name__} hides a method: choose another name")


def _follows_all(kind: type[Consumer], ordered: Sequence[type[Consumer]]) -> bool:
    return all(one in ordered for one in kind.reads)
