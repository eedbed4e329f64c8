"""What a launcher should do next; docs/restart.md says how that is decided."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from stabilitybackend.schema.lineage import SpoiledBy

__all__ = ["Plan", "PlannedCheckpoint", "PlannedSuspect"]


class PlannedCheckpoint(msgspec.Struct):
    """Where training goes on. ``inside``: the open incident at or after whose onset it was saved."""

    step: int
    path: str
    inside: SpoiledBy | None


class PlannedSuspect(msgspec.Struct):
    """Who is blamed. ``gpu``: its UUID."""

    rank: int
    node: str | None
    gpu: str | None


class Plan(msgspec.Struct):
    """What a launcher should do next.

    Attributes:
        checkpoint: null: none is known. warning: what speaks against it, a sentence.
        skip_range: the steps whose batches are left out, [first, last].
        exclude_nodes: nodes to come up without.
        verdict: of the incident.
        text: sentences for people.
        exit_code: of ``stabilityboard plan``.
    """

    version: int
    run_id: str
    written: float
    action: Literal["none", "wait", "relaunch", "relaunch_without", "stop"]
    checkpoint: PlannedCheckpoint | None
    warning: str | None
    skip_batches: int | None
    skip_range: tuple[int, int] | None
    lr_scale: float | None
    exclude_nodes: list[str]
    suspects: list[PlannedSuspect]
    incident_id: str | None
    verdict: dict[str, Any] | None
    exit_code: int
    text: str
