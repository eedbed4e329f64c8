"""Next action of a launcher (docs/restart.md)."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from stabilitybackend.schema.lineage import SpoiledBy
from stabilitybackend.schema.verdicts import Verdict

PlannedAction = Literal["none", "wait", "relaunch", "relaunch_without", "stop"]


class PlannedCheckpoint(msgspec.Struct):
    """Checkpoint to start from. ``inside``: the open incident at or after whose onset it was saved."""

    step: int
    path: str | None
    inside: SpoiledBy | None = None


class PlannedSuspect(msgspec.Struct):
    """A suspect. ``gpu``: its UUID."""

    rank: int
    node: str | None
    gpu: str | None


class Plan(msgspec.Struct):
    """Next action of a launcher.

    Attributes:
        checkpoint: null: none. warning: reason against it, a sentence.
        skip_range: the steps whose batches are left out, [first, last]. skip_batches: their number for a job that can
            only leave out those right behind the checkpoint.
        seed: new one of the data order; only from a person's command.
        exclude_nodes: nodes to come up without.
        verdict: of the incident.
        text: sentences for display.
        exit_code: of ``stabilityboard plan``.
        command_id: of its restart command.
    """

    version: int
    run_id: str
    written: float
    action: PlannedAction
    checkpoint: PlannedCheckpoint | None = None
    warning: str | None = None
    skip_batches: int | None = None
    skip_range: tuple[int, int] | None = None
    lr_scale: float | None = None
    seed: int | UnsetType = UNSET
    exclude_nodes: list[str] = []
    suspects: list[PlannedSuspect] = []
    incident_id: str | None = None
    verdict: Verdict | None = None
    exit_code: int = 0
    text: str = ""
    command_id: str | UnsetType = UNSET
