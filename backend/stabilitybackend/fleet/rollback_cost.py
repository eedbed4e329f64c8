"""Costs of the rollbacks of a run: discarded steps, downtime, effective time.

Pure. Definitions and sources: docs/api.md ("Rollback costs").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from stabilitybackend.lineage.left_out import left_out
from stabilitybackend.lineage.tree import ROOT_FORK, FoldedSegment
from stabilitybackend.schema.fleet import InterruptionNumbers
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.rollback_cost import RollbackCost, RollbackCostTotals, SaveInterval

__all__ = ["OWN_INTERRUPTIONS", "CostFacts", "best_interval_s", "rollback_costs", "save_interval"]

#: A run with fewer interruptions is judged by those of all runs: with three, the interval is still off by a third.
OWN_INTERRUPTIONS = 3
#: Newest saves that count.
NEWEST = 64


def best_interval_s(save_s: float, mtbi_s: float) -> float:
    """Return the seconds between two saves with the least cost of saves and repeated training.

    The first-order optimum, sqrt(2 x save time x mean time between interruptions): J. W. Young, "A first order
    approximation to the optimum checkpoint interval", CACM 17(9), 1974; where a save takes half of that mean time or
    more, the mean time itself (J. T. Daly, Future Generation Computer Systems 22(3), 2006).

    Example:
        >>> round(best_interval_s(12, 6 * 3600))
        720
    """
    return math.sqrt(2 * save_s * mtbi_s) if save_s < mtbi_s / 2 else mtbi_s


def save_interval(
    saves: Iterable[tuple[int, int, float, float | None]],
    own: InterruptionNumbers,
    everybodys: InterruptionNumbers,
    ranks: int,
) -> SaveInterval | None:
    """Return the costs of the saves of a run, None before the second one of a segment.

    Args:
        saves: (segment, step, unix seconds, duration in seconds or None) of each announced checkpoint, oldest first.
        own, everybodys: interruptions of this run, and of all visible runs.
        ranks: of the job; with twice as many, others' interruptions are twice as frequent.
    """
    steps: dict[tuple[int, int], tuple[float, float | None]] = {}
    for segment, step, time, took_s in saves:
        first, known = steps.get((segment, step), (time, None))
        together = None if known is None and took_s is None else (known or 0.0) + (took_s or 0.0)
        steps[segment, step] = (first, together)  # one step may be saved twice, as ``last`` too
    newest = list(steps.items())[-NEWEST - 1 :]
    gaps = [
        after[1][0] - before[1][0]
        for before, after in pairwise(newest)
        if before[0][0] == after[0][0] and after[1][0] > before[1][0]
    ]
    if not gaps:
        return None
    interval_s = median(gaps)
    taken = [took_s for _, (_, took_s) in newest if took_s is not None]
    save_s = median(taken) if taken else None
    if own.count >= OWN_INTERRUPTIONS:
        of, count, mtbi_s = "run", own.count, own.mtbi_s
    else:
        of, count = "all", everybodys.count
        mtbi_s = everybodys.rank_s / count / max(1, ranks) if count else None
    best_s = best_interval_s(save_s, mtbi_s) if save_s and mtbi_s else None

    def cost(every_s: float | None) -> float | None:
        if every_s is None or save_s is None or not mtbi_s:
            return None
        return save_s / every_s + every_s / (2 * mtbi_s)

    return SaveInterval(
        saves=len(taken),
        interval_s=interval_s,
        save_s=save_s,
        share=None if save_s is None else save_s / interval_s,
        mtbi_s=mtbi_s,
        interruptions=count,
        interruptions_of="run" if of == "run" else "all",
        best_s=best_s,
        cost=cost(interval_s),
        best_cost=cost(best_s),
    )


_CLOCK = "the clock of the job went back here: what would be below 0 s counts as 0 s"


#: Log time of the last row of a segment at or before a step, of its first row for None: unix seconds by the clock of
#: the job. None for segments without rows.
LogTimes = Callable[[int, int | None], float | None]


@dataclass(frozen=True, slots=True)
class CostFacts:
    """Facts of the job.

    Args:
        world_size: its ranks.
        gpus: ranks with a GPU; None without an agent, then every rank counts as one.
        started: of its first process, unix seconds; None for unknown.
        until: now, for a job under way, else the end of its last process: idle time before it is lost. None for
            unknown: then its last row is the end.
    """

    world_size: int
    gpus: int | None = None
    started: float | None = None
    until: float | None = None


@dataclass(slots=True)
class _Loss:
    """Steps ``low + 1 .. high`` of a segment discarded by a rollback."""

    segment: int
    low: float
    high: float


@dataclass(slots=True)
class _Rollback:
    segment: FoldedSegment
    left: int | None = None  # the head before it; None for one that was never the head itself
    losses: list[_Loss] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def rollback_costs(
    segments: Sequence[FoldedSegment],
    heads: Sequence[int],
    times: LogTimes,
    incidents: Iterable[Incident],
    job: CostFacts,
) -> tuple[list[RollbackCost], RollbackCostTotals]:
    """Return the cost of each rollback, oldest first, and the totals.

    Args:
        segments: all of them, by id.
        heads: ids of former heads, in order, without the root.
        times: called a few times per segment.
        job: owner of the time.
    """
    known = list(incidents)
    # A continued run lost nothing.
    rollbacks = [one for one in _who_killed_what(segments, heads) if one.segment.cause != "resume"]
    gpus = job.world_size if job.gpus is None else job.gpus
    entries = [_entry(rollback, segments, heads, times, known, job.until, gpus) for rollback in rollbacks]
    return entries, _totals(entries, segments, heads, times, job, gpus)


# --- lineage: each dead step belongs to the rollback that killed it ---------------------------------------------------


def _path(segments: Sequence[FoldedSegment], head: int) -> dict[int, float]:
    """Return segment -> its greatest effective step (infinity: no end), for the path to ``head``."""
    limits: dict[int, float] = {}
    current: int | None = head
    last = math.inf
    while current is not None:
        limits[current] = last
        last, current = segments[current].fork_step, segments[current].parent
    return limits


def _who_killed_what(segments: Sequence[FoldedSegment], heads: Sequence[int]) -> list[_Rollback]:
    led, head = set(heads), 0
    limits = _path(segments, head)
    rollbacks: list[_Rollback] = []
    for segment in segments[1:]:
        rollback = _Rollback(segment)
        rollbacks.append(rollback)
        if segment.undone:
            continue
        if segment.id not in led:  # late rows of a process from before the rollback: dead from the start, no wait
            rollback.losses.append(_Loss(segment.id, segment.fork_step, math.inf))
            continue
        rollback.left = head
        for touched, before, now in _moved(segments, limits, head, segment):
            if now < before:
                rollback.losses.append(_Loss(touched, now, before))
            elif now > before:
                _revive(rollbacks, touched, before, now)
        head = segment.id
    return rollbacks


def _moved(
    segments: Sequence[FoldedSegment], limits: dict[int, float], head: int, segment: FoldedSegment
) -> list[tuple[int, float, float]]:
    """Let ``segment`` follow ``head``; return (segment, greatest effective step before, and now) of the changed ones.

    Off the path nothing of a segment lives: that is its fork step, because all its own steps are after it.

    Args:
        limits: of the path to ``head``; becomes that of the path to ``segment``.
    """
    parent = segment.parent
    if parent in limits and segment.fork_step <= limits[parent]:  # nearly always: only the rest changes
        moved: list[tuple[int, float, float]] = []
        while head != parent:
            moved.append((head, limits.pop(head), segments[head].fork_step))
            head = segments[head].parent or 0
        moved.append((parent, limits[parent], segment.fork_step))
        limits[parent] = segment.fork_step
        limits[segment.id] = math.inf
        return moved
    after = _path(segments, segment.id)
    forks = {touched: float(segments[touched].fork_step) for touched in {*limits, *after} - {segment.id}}
    found = [(touched, limits.get(touched, fork), after.get(touched, fork)) for touched, fork in forks.items()]
    limits.clear()
    limits.update(after)
    return found


def _revive(rollbacks: Sequence[_Rollback], segment: int, low: float, high: float) -> None:
    """Mark steps ``low + 1 .. high`` as effective again, and remove them from their rollbacks."""
    for rollback in rollbacks:
        kept: list[_Loss] = []
        for loss in rollback.losses:
            if loss.segment != segment or loss.high <= low or loss.low >= high:
                kept.append(loss)
                continue
            parts = (_Loss(segment, loss.low, low), _Loss(segment, high, loss.high))
            kept += [part for part in parts if part.low < part.high]
        rollback.losses = kept


# --- one rollback -----------------------------------------------------------------------------------------------------


def _entry(
    rollback: _Rollback,
    segments: Sequence[FoldedSegment],
    heads: Sequence[int],
    times: LogTimes,
    incidents: Sequence[Incident],
    until: float | None,
    gpus: int,
) -> RollbackCost:
    segment = rollback.segment
    steps, wall_s, last_dead = 0, 0.0, None
    losses = [loss for loss in (_cut(loss, segments) for loss in rollback.losses) if loss is not None]
    for loss in losses:
        steps += int(loss.high - loss.low)
        last_dead = int(max(loss.high, last_dead or 0))
        if rollback.left is not None:  # the time of late words passed while the job was elsewhere
            wall_s += _stretch_s(segments[loss.segment], int(loss.low), int(loss.high), times, rollback.notes)
    left_at, downtime_s = _downtime(rollback, segments, heads, times, until)
    ordered = left_out(segment.changes, segment.fork_step)
    skipped = left_out(segment.applied or {}, segment.fork_step)
    return RollbackCost(
        segment=segment.id,
        parent=segment.parent or 0,
        fork_step=segment.fork_step,
        last_dead_step=last_dead,
        cause=segment.cause,
        reason=segment.reason,
        issuer=segment.issuer,
        command_id=segment.command_id,
        changes=segment.changes,
        applied=segment.applied,
        created=segment.created,
        steps_lost=steps,
        wall_lost_s=wall_s,
        downtime_s=downtime_s,
        gpu_hours_lost=(wall_s + (downtime_s or 0.0)) * gpus / 3600,
        batches_skipped=skipped[1] - skipped[0] + 1 if skipped is not None else None if ordered else 0,
        incidents=[] if segment.undone else _led_to(segment, losses, left_at, incidents),
        undone=segment.undone,
        notes=rollback.notes,
    )


def _cut(loss: _Loss, segments: Sequence[FoldedSegment]) -> _Loss | None:
    """Return the part of a loss with steps, None for none."""
    segment = segments[loss.segment]
    if segment.last_step is None or segment.first_step is None:
        return None
    high, low = min(loss.high, segment.last_step), loss.low
    if low == ROOT_FORK:
        low = segment.first_step - 1  # a job that begins at a later step than 0 has not lost those before
    return _Loss(loss.segment, low, high) if high > low else None


def _stretch_s(segment: FoldedSegment, low: int, high: int, times: LogTimes, notes: list[str]) -> float:
    """Return the seconds from the log time of step ``low`` (at the start: of the first row) to that of ``high``."""
    begin = times(segment.id, low) if low > segment.fork_step else None
    begin = times(segment.id, None) if begin is None else begin
    end = times(segment.id, high)
    if begin is None or end is None:
        return 0.0
    if end < begin:
        notes.append(_CLOCK)
    return max(0.0, end - begin)


def _downtime(
    rollback: _Rollback, segments: Sequence[FoldedSegment], heads: Sequence[int], times: LogTimes, until: float | None
) -> tuple[float, float | None]:
    """Return (end of the old segment, seconds from then to the first row of the new one).

    The seconds are None before a row of an ended job. Another rollback before the first row counts from its own
    start.
    """
    segment = rollback.segment
    left_at = segment.created
    if rollback.left is None:
        return left_at, 0.0
    old = segments[rollback.left]
    if old.last_step is not None:
        left_at = times(old.id, old.last_step) or left_at
    back_at = times(segment.id, None) if segment.last_step is not None else None
    if back_at is None:
        later = [head for head in heads if head > segment.id]
        back_at = segments[later[0]].created if later else until
    if back_at is None:
        return left_at, None
    if back_at < left_at:
        rollback.notes.append(_CLOCK)
    return left_at, max(0.0, back_at - left_at)


def _led_to(
    segment: FoldedSegment, losses: Sequence[_Loss], left_at: float, incidents: Sequence[Incident]
) -> list[str]:
    """Return the incidents that began in the discarded steps, or were open at the rollback."""
    found = []
    for incident in incidents:
        in_dead = any(
            loss.segment == incident.segment and loss.low < incident.onset_step <= loss.high for loss in losses
        )
        over = incident.resolved
        if in_dead or (incident.opened <= segment.created and (over is None or over >= left_at)):
            found.append((incident.opened, incident.incident_id))
    return [incident_id for _, incident_id in sorted(found)]


# --- all of them ------------------------------------------------------------------------------------------------------


def _totals(
    entries: Sequence[RollbackCost],
    segments: Sequence[FoldedSegment],
    heads: Sequence[int],
    times: LogTimes,
    job: CostFacts,
    gpus: int,
) -> RollbackCostTotals:
    notes: list[str] = []
    counted = [entry for entry in entries if not entry.undone]
    lost_s = sum(entry.wall_lost_s for entry in counted)
    effective_s = 0.0
    for segment_id, limit in _path(segments, heads[-1] if heads else 0).items():
        segment = segments[segment_id]
        if segment.last_step is not None and limit > segment.fork_step:
            high = int(min(limit, segment.last_step))
            effective_s += _stretch_s(segment, segment.fork_step, high, times, notes)
    lived = [segment for segment in segments if segment.last_step is not None]
    begins = [time for segment in lived if (time := times(segment.id, None)) is not None]
    ends = [time for segment in lived if (time := times(segment.id, segment.last_step or 0)) is not None]
    begin = min(begins, default=0.0)
    end = max([*ends, *([job.until] if job.until is not None and ends else [])], default=0.0)
    wall_s = max(0.0, end - begin)
    startup_s = max(0.0, begin - job.started) if job.started and begins else 0.0
    effective_s = min(effective_s, wall_s)
    return RollbackCostTotals(
        rollbacks=len(counted),
        steps_lost=sum(entry.steps_lost for entry in counted),
        wall_lost_s=lost_s,
        downtime_s=sum(entry.downtime_s or 0.0 for entry in counted),
        gpu_hours_lost=sum(entry.gpu_hours_lost for entry in counted),
        batches_skipped=sum(entry.batches_skipped or 0 for entry in counted),
        wall_s=wall_s,
        effective_s=effective_s,
        dead_s=lost_s,
        idle_s=max(0.0, wall_s - effective_s - lost_s),
        startup_s=startup_s,
        goodput=effective_s / wall_s if wall_s > 0 else None,
        ettr=effective_s / (wall_s + startup_s) if wall_s > 0 else None,
        world_size=job.world_size,
        gpus=gpus,
        gpus_from="world_size" if job.gpus is None else "agents",
        notes=[*dict.fromkeys(notes)],
    )
