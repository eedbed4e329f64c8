"""Costs of a run's rollbacks. Definitions: docs/api.md, "Rollback costs"."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from stabilitybackend.schema.lineage import Cause
from stabilitybackend.schema.resumes import ResumeGrade


class RollbackCost(msgspec.Struct):
    """One rollback or restart that went back.

    Attributes:
        changes: requested, or declared by the job. applied: reported by the job, null for none.
        downtime_s: null when the job ended without a new row.
        batches_skipped: null for a request without a report of the job.
        undone: a person undid the segment: listed, and not counted.
        resume: whether the job's state was restored, null for unknown.
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
    """Sums over the rollbacks of a run, and the effective share of its time.

    Attributes:
        effective_s, dead_s, idle_s: time of effective steps, of lost steps, and the rest of ``wall_s``.
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


class SaveInterval(msgspec.Struct):
    """Cost of saving checkpoints, and the best interval.

    Attributes:
        saves: with a measured time. interval_s, save_s: medians of the newest 64; null without a phase.
        share: ``save_s / interval_s``.
        mtbi_s: mean time between the ``interruptions`` of this ``run``, or of ``all`` runs, by GPU-hours for as many
            ranks as this one has; null without one.
        best_s: ``sqrt(2 x save_s x mtbi_s)``. cost, best_cost: share of the time spent on saves and on training again
            after interruptions, at the interval now and at the best one.
    """

    saves: int
    interval_s: float
    save_s: float | None
    share: float | None
    mtbi_s: float | None
    interruptions: int
    interruptions_of: Literal["run", "all"]
    best_s: float | None
    cost: float | None
    best_cost: float | None


class RollbackCosts(msgspec.Struct):
    """Rollbacks oldest first, and their sum. ``problems``: read errors.

    Attributes:
        saving: null before the second checkpoint.
    """

    rollbacks: list[RollbackCost]
    totals: RollbackCostTotals
    problems: list[str]
    saving: SaveInterval | None = None
