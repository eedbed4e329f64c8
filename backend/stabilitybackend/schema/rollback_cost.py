"""What the rollbacks of a run cost. docs/api.md says what each number means ("Rollback costs")."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from stabilitybackend.schema.lineage import Cause
from stabilitybackend.schema.resumes import ResumeGrade

__all__ = ["RollbackCost", "RollbackCostTotals", "RollbackCosts"]


class RollbackCost(msgspec.Struct):
    """One rollback or restart that went back.

    Attributes:
        changes: what was ordered, or declared by the job. applied: what the job says that it did, null for nothing.
        downtime_s: null when the job ended without a new row.
        batches_skipped: null where some were ordered and the job reported nothing.
        undone: a person undid the segment: listed, and not counted.
        resume: whether the job came back as it was, null where that is not kept.
    """

    segment: int
    parent: int
    fork_step: int
    last_dead_step: int | None
    cause: Cause
    reason: str
    issuer: str | None
    command_id: str | None
    changes: dict[str, Any]
    applied: dict[str, Any] | None
    created: float
    steps_lost: int
    wall_lost_s: float
    downtime_s: float | None
    gpu_hours_lost: float
    batches_skipped: int | None
    incidents: list[str]
    undone: bool
    notes: list[str]
    resume: ResumeGrade | None = None


class RollbackCostTotals(msgspec.Struct):
    """All rollbacks of a run together, and how much of its time was worth it.

    Attributes:
        effective_s, dead_s, idle_s: time of effective steps, of steps that were lost, and the rest of ``wall_s``.
        goodput: ``effective_s / wall_s``. ettr: ``effective_s / (startup_s + wall_s)``. Null before the second row.
    """

    rollbacks: int
    steps_lost: int
    wall_lost_s: float
    downtime_s: float
    gpu_hours_lost: float
    batches_skipped: int
    wall_s: float
    effective_s: float
    dead_s: float
    idle_s: float
    startup_s: float
    goodput: float | None
    ettr: float | None
    world_size: int
    gpus: int
    gpus_from: Literal["agents", "world_size"]
    notes: list[str]


class RollbackCosts(msgspec.Struct):
    """Rollbacks oldest first, and their sum. ``problems``: what could not be read, and where."""

    rollbacks: list[RollbackCost]
    totals: RollbackCostTotals
    problems: list[str]
