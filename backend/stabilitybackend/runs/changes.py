"""What frames and ticks of one run changed: what is to be stored, published and delivered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from stabilitybackend.lineage.changes import Placed, PlacedInStep
from stabilitybackend.schema.commands import Command
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.job.autopilot import PilotEntry

__all__ = ["Changes"]


@dataclass
class Changes:
    """What one or more frames changed, for storing and publishing."""

    placed: list[Placed | PlacedInStep] = field(default_factory=list)
    segments: bool = False
    #: Paths of the checkpoints that came, went or were written over.
    checkpoints: set[str] = field(default_factory=set)
    incidents: dict[str, Incident] = field(default_factory=dict)
    commands: dict[str, Command] = field(default_factory=dict)
    #: What the autopilot did.
    entries: dict[str, PilotEntry] = field(default_factory=dict)

    def keep(self, later: Changes) -> None:
        """Take in what of a later one is to be stored."""
        self.incidents.update(later.incidents)
        self.commands.update(later.commands)
        self.entries.update(later.entries)

    @property
    def unsaved(self) -> bool:
        """Whether anything is to be stored."""
        return bool(self.incidents or self.commands or self.entries)

    def add(self, later: Changes, *, with_incidents: bool = True) -> None:
        """Take in what came after."""
        self.placed += later.placed
        self.segments |= later.segments
        self.checkpoints |= later.checkpoints
        self.commands.update(later.commands)
        if with_incidents:
            self.incidents.update(later.incidents)

    def add_incidents(self, incidents: Iterable[Incident | None]) -> None:
        """Note changed incidents, newest state each."""
        self.incidents.update({i.incident_id: i for i in incidents if i is not None})

    def add_commands(self, commands: Iterable[Command]) -> None:
        """Note changed commands."""
        self.commands.update({c.command_id: c for c in commands})

    @property
    def beside_rows(self) -> bool:
        """Whether more than rows came."""
        return bool(self.segments or self.checkpoints or self.incidents or self.commands)

    def __bool__(self) -> bool:
        return bool(self.placed) or self.beside_rows
