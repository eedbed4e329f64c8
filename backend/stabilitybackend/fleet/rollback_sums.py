"""Sums over the rollbacks of all runs, each reported by its run."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from msgspec import structs

from stabilitybackend.schema.fleet import FleetRollbacks, LostToRollback, RollbacksOfRun, RollbackSum, RunRollbacks
from stabilitybackend.schema.rollback_cost import RollbackCost

__all__ = ["remembered", "summed_rollbacks"]

#: Rollbacks remembered of one run, newest ones.
MAX_ROLLBACKS = 512
#: Runs in one answer; its totals are over all.
MAX_LISTED = 500


def remembered(costs: Iterable[RollbackCost]) -> list[LostToRollback]:
    """Return the stored rollbacks of a run: all that count."""
    return [
        LostToRollback(one.segment, one.created, one.steps_lost, one.wall_lost_s, one.downtime_s, one.gpu_hours_lost)
        for one in costs
        if not one.undone
    ][-MAX_ROLLBACKS:]


def month_began(now: float) -> float:
    """Return the start of the month of ``now`` in UTC, unix seconds."""
    return datetime.fromtimestamp(now, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()


def sum_of(rollbacks: Iterable[LostToRollback]) -> RollbackSum:
    """Return the sum of some rollbacks."""
    every = list(rollbacks)
    return RollbackSum(
        rollbacks=len(every),
        steps_lost=sum(one.steps_lost for one in every),
        wall_lost_s=sum(one.wall_lost_s for one in every),
        downtime_s=sum(one.downtime_s or 0.0 for one in every),
        gpu_hours_lost=sum(one.gpu_hours_lost for one in every),
    )


def summed_rollbacks(
    runs: Iterable[RunRollbacks], now: float, days: float | None, project: str | None, unknown: int
) -> FleetRollbacks:
    """Return the rollbacks of some runs.

    Args:
        runs: of the project. now: unix seconds. days: only the last ones; None for all.
        unknown: runs with costs not computed yet.
    """
    since = float("-inf") if days is None else now - days * 86_400.0
    began = month_began(now)
    every, of_month, rows = [], [], []
    for entry in runs:
        of_month += [one for one in entry.rollbacks if one.created >= began]
        within = [one for one in entry.rollbacks if one.created >= since]
        every += within
        if within:
            rows.append(
                RollbacksOfRun(
                    **structs.asdict(sum_of(within)),
                    run_id=entry.run.run_id,
                    run_name=entry.run.name or entry.run.run_id,
                    project=entry.run.project,
                    last=max(one.created for one in within),
                    deleted=entry.deleted,
                )
            )
    rows.sort(key=lambda one: (-one.gpu_hours_lost, -one.last, one.run_id))
    return FleetRollbacks(
        **structs.asdict(sum_of(every)),
        days=days,
        project=project,
        now=now,
        month=sum_of(of_month),
        month_began=began,
        runs=rows[:MAX_LISTED],
        run_count=len(rows),
        unknown=unknown,
    )
