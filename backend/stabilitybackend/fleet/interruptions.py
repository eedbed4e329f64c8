"""Finds the interruptions of one run: one for each stop of the job, with its kind and what it cost. Pure.

A run is a row of stretches in which its job logged. What stopped the job between two of them is one interruption,
however many incidents report it: a hang that ends in deaths, the ranks that it pulls down, the GPU behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from msgspec import structs

from stabilitybackend.fleet.interruption_rules import Judgement, Stop, judge
from stabilitybackend.fleet.interruption_table import CATEGORIES, NOT_COUNTED
from stabilitybackend.schema.commands import Restart
from stabilitybackend.schema.evidence import DeathFacts, GpuFaultFacts, HangFacts, facts
from stabilitybackend.schema.fleet import (
    Correction,
    Interruption,
    InterruptionNumbers,
    JudgedInterruption,
    RunNames,
    SetBy,
    StoppedRun,
    What,
)
from stabilitybackend.schema.gpus import KernelLogLine
from stabilitybackend.schema.incidents import Incident
from stabilityclient.wire import pid_of

__all__ = ["FEW_GPU_HOURS", "OPEN_COUNTS_S", "JobStory", "TrainingInterval", "interruptions_of", "shown", "summed"]

#: An interruption after which the job never came back counts for at most so long, seconds: a run that somebody gave up
#: is not down without limit.
OPEN_COUNTS_S = 86_400.0
#: GPU-hours below which nothing is said of a thousand of them.
FEW_GPU_HOURS = 10.0
#: A GPU fault or a line of a kernel's log belongs to a stop when it came at most so long before it, seconds.
NEAR_BEFORE_S = 120.0
#: ... or so long after its last sign: a watchdog may end the job long after a GPU went.
NEAR_AFTER_S = 60.0
#: A job that was stalled for so long before its first process died hung first, seconds: what died then was ended for
#: it.
HANG_FIRST_S = 10.0
#: What torch says of workers of a data loader that were killed, which are the job's own processes too.
_NAMED_PIDS = re.compile(r"\(pid(?:\(s\))? ([\d, ]+)\)")
#: Interruptions kept of one run, newest ones.
MAX_INTERRUPTIONS = 512


@dataclass(slots=True)
class TrainingInterval:
    """A time in which one start of the job logged, seen from its lowest rank.

    Args:
        source: id of the process. began, ended: log times of its first and newest row, unix seconds.
        first_step, last_step: of these rows. ranks: of the job. finished: the process said that it was done.
        made: steps that it made, also those that a rollback repeated; 0 where it is not known.
    """

    source: str
    began: float
    ended: float
    first_step: int
    last_step: int
    ranks: int = 1
    finished: bool = False
    made: int = 0

    @property
    def step_s(self) -> float:
        """Return the seconds of a step, 0 where only one row came."""
        steps = self.made or self.last_step - self.first_step
        return max(0.0, self.ended - self.began) / steps if steps > 0 else 0.0


@dataclass(frozen=True, slots=True)
class JobStory:
    """What is known of a run.

    Args:
        stretches: oldest first.
        incidents: of the kinds of ``Stop``.
        kernel: lines of kernel logs.
        restarts: those that people or we ordered.
        watched: an agent was there. Of an imported run nobody can say why its process was replaced.
        scheduled: a scheduler started it, as its variables show; None where they are not known.
    """

    stretches: Sequence[TrainingInterval]
    incidents: Sequence[Incident]
    kernel: Sequence[KernelLogLine] = ()
    restarts: Sequence[Restart] = ()
    watched: bool = True
    scheduled: bool | None = None


@dataclass(slots=True)
class _Gap:
    """The time after one stretch and before the next."""

    before: TrainingInterval | None
    after: TrainingInterval | None
    stop: Stop = field(default_factory=Stop)
    times: list[float] = field(default_factory=list)


def interruptions_of(story: JobStory) -> list[JudgedInterruption]:
    """Return the interruptions of a run, oldest first."""
    stretches = sorted(story.stretches, key=lambda stretch: stretch.began)
    gaps = [_Gap(None, stretches[0] if stretches else None)]
    gaps += [_Gap(one, next_one) for one, next_one in zip_longest(stretches, stretches[1:])]
    for gap in gaps:
        gap.stop.scheduled = story.scheduled
    found: list[JudgedInterruption] = []
    for incident in sorted(story.incidents, key=lambda i: (i.opened, i.incident_id)):
        kind = incident.kind
        if kind == "hang" and _went_on(incident):
            found.append(_stall(incident))
        elif kind in ("process_death", "hang") or (kind == "agent_lost" and _is_open(incident)):
            at = _at(incident)
            gap = _gap_of(gaps, at)
            {"process_death": gap.stop.deaths, "hang": gap.stop.hangs}.get(kind, gap.stop.lost).append(incident)
            gap.times.append(at)
        elif kind == "agent_lost":
            gap = _gap_of(gaps, _at(incident))
            if gap.after is not None and gap.before is not None and gap.before.ended <= _at(incident):
                gap.stop.lost.append(incident)  # the node went silent, and the next thing is a new start
                gap.times.append(_at(incident))
    for restart in story.restarts:
        gap = _gap_of(gaps, restart.issued)
        if gap.after is not None:
            gap.stop.restarts.append(restart)
            gap.times.append(restart.issued)
    for gap in gaps:
        replaced = gap.before is not None and gap.after is not None and not gap.before.finished and story.watched
        if gap.times or replaced:
            found.append(_interruption(gap, story))
    found.sort(key=lambda one: one.since)
    return found[-MAX_INTERRUPTIONS:]


def shown(
    one: JudgedInterruption, run: RunNames, now: float, correction: Correction | None = None, *, deleted: bool = False
) -> Interruption:
    """Return an interruption as people see it.

    Args:
        run: whose it is. deleted: the run is gone.
        now: up to when a job that has not come back costs time, unix seconds.
        correction: what a person said that it was.
    """
    category = one.seen_category if correction is None else correction.category
    by_hand = category in NOT_COUNTED
    left = one.since if by_hand else min(now, one.since + OPEN_COUNTS_S)
    downtime_s = max(0.0, (left if one.resumed is None else one.resumed) - one.since)
    return Interruption(
        **structs.asdict(one),
        run_id=run.run_id,
        run_name=run.name or run.run_id,
        project=run.project,
        category=category,
        label=CATEGORIES[category].label if category in CATEGORIES else category,
        visible=CATEGORIES[category].visible if category in CATEGORIES else "no",
        counted=one.what != "stall" and not by_hand,
        downtime_s=downtime_s,
        time_lost_s=0.0 if by_hand else downtime_s + one.redone_s,
        set_by=None if correction is None else SetBy(correction.who, correction.time),
        deleted=deleted,
    )


def summed(runs: Iterable[tuple[Iterable[Interruption], StoppedRun]], since: float) -> InterruptionNumbers:
    """Return the numbers over the interruptions of some runs.

    Args:
        runs: interruptions that began since then, and what is remembered of their run.
        since: what was before counts for nothing, unix seconds.
    """
    count = on_gpus = 0
    lost_s = running_s = rank_s = gpu_s = 0.0
    for interruptions, run in runs:
        counted = [one for one in interruptions if one.counted]
        count += len(counted)
        on_gpus += len(counted) if run.gpus != 0 else 0
        lost_s += sum(one.time_lost_s for one in counted)
        for began, ended, ranks in run.stretches:
            length_s, ranks = max(0.0, ended - max(began, since)), max(1, ranks)
            running_s += length_s
            rank_s += length_s * ranks
            gpu_s += length_s * (ranks if run.gpus is None else min(run.gpus, ranks))
    gpu_hours = gpu_s / 3600
    return InterruptionNumbers(
        count=count,
        time_lost_s=lost_s,
        running_s=running_s,
        rank_s=rank_s,
        gpu_hours=gpu_hours,
        mtbi_s=running_s / count if count else None,
        per_1000_gpu_hours=1000 * on_gpus / gpu_hours if gpu_hours >= FEW_GPU_HOURS else None,
    )


def _gap_of(gaps: Sequence[_Gap], at: float) -> _Gap:
    """Return the gap in which a stop lies: after the last stretch that had begun by then."""
    return next((gap for gap in reversed(gaps) if gap.before is not None and gap.before.began <= at), gaps[0])


def _at(incident: Incident) -> float:
    """Return when the job stopped by what an incident says, unix seconds."""
    if incident.kind == "process_death":
        deaths = facts(incident.evidence, DeathFacts).deaths
        if deaths:
            return min(death.time for death in deaths)
    since = incident.verdict.since
    if since is not None and since > 0:
        return since
    return incident.opened - facts(incident.evidence, HangFacts).stood_s


def _went_on(hang: Incident) -> bool:
    """Say whether a hang ended with steps that went on: the same processes, no restart."""
    return hang.state != "open" and hang.recovered_step is not None


def _is_open(lost: Incident) -> bool:
    return lost.verdict.training == "stands"


def _stall(hang: Incident) -> JudgedInterruption:
    judgement = judge(Stop(hangs=[hang]))
    since = _at(hang)
    return _reported(
        judgement, Stop(hangs=[hang]), what="stall", since=since, resumed=hang.resolved or since,
        step=hang.onset_step, resumed_step=hang.recovered_step,
    )  # fmt: skip


def _interruption(gap: _Gap, story: JobStory) -> JudgedInterruption:
    before, after, stop = gap.before, gap.after, gap.stop
    since = before.ended if before is not None else min(gap.times)
    first, last = min([since, *gap.times]), max([since, *gap.times])
    for fault in story.incidents:
        if fault.kind == "gpu_fault":
            seen = facts(fault.evidence, GpuFaultFacts)
            begin = seen.since or fault.opened
            end = max(begin, seen.last or begin)
            if begin <= last + NEAR_AFTER_S and end >= first - NEAR_BEFORE_S:
                stop.faults.append(fault)
    near = [line for line in story.kernel if first - NEAR_BEFORE_S <= line.time <= last + NEAR_AFTER_S]
    own = _processes(gap)
    stop.kernel += [line for line in near if not _of_others(line, own)][:4]
    hung, died = [_at(hang) for hang in stop.hangs], [_at(death) for death in stop.deaths]
    stop.hang_first = bool(hung) and (not died or min(hung) + HANG_FIRST_S < min(died))
    judgement = judge(stop)
    evidence = list(judgement.evidence)
    if not evidence:
        evidence.append("A new process took over, and nothing shows why the one before had ended.")
    redone = 0 if before is None or after is None else max(0, before.last_step - after.first_step + 1)
    what: What = "death" if stop.deaths else "hang" if stop.hangs else "node_lost" if stop.lost else "restart"
    return _reported(
        Judgement(judgement.category, judgement.confidence, judgement.unsure, evidence), stop,
        what=what, since=since, resumed=None if after is None else max(after.began, since),
        step=None if before is None else before.last_step,
        resumed_step=None if after is None else after.first_step,
        redone=redone, redone_s=redone * before.step_s if before is not None else 0.0,
        source="" if after is None else after.source,
    )  # fmt: skip


def _processes(gap: _Gap) -> set[tuple[str, int | None]]:
    """Return (node, pid) of the job's processes that a stop names, "" for a node that is not known.

    No pid stands for all of a node: a rank was killed for memory there, and only its group's counter says so, so that
    its container counts pids otherwise than the kernel's log does.
    """
    found: set[tuple[str, int | None]] = {("", pid_of(gap.before.source))} if gap.before is not None else set()
    for death in gap.stop.deaths:
        for one in facts(death.evidence, DeathFacts).deaths:
            found.add((one.node, pid_of(one.source) if one.pid is None else one.pid))
            if one.oom is not None and one.oom.get("source") == "cgroup":
                found.add((one.node, None))
            named = _NAMED_PIDS.findall("" if one.exception is None else one.exception.message)
            found |= {(one.node, int(pid)) for pids in named for pid in re.findall(r"\d+", pids)}
    for hang in gap.stop.hangs:
        found |= {(one.node, one.pid) for one in facts(hang.evidence, HangFacts).ranks.values()}
    return found


def _of_others(line: KernelLogLine, own: set[tuple[str, int | None]]) -> bool:
    """Say whether a line reports a kill for memory of a process that is not the job's: nothing that stopped it."""
    node, pid = line.node, line.pid
    return line.what == "oom" and pid is not None and own.isdisjoint({(node, pid), (node, None), ("", pid)})


def _reported(
    judgement: Judgement,
    stop: Stop,
    *,
    what: What,
    since: float,
    resumed: float | None,
    step: int | None,
    resumed_step: int | None,
    redone: int = 0,
    redone_s: float = 0.0,
    source: str = "",
) -> JudgedInterruption:
    """Return an interruption; the incident that names it is the first of those that reported the stop itself."""
    incidents = [i.incident_id for i in (*stop.hangs, *stop.deaths, *stop.lost, *stop.faults)]
    gpus = [gpu.uuid for fault in stop.faults for gpu in facts(fault.evidence, GpuFaultFacts).gpus]
    return JudgedInterruption(
        id=incidents[0] if incidents else f"stop-{source}",
        incident_id=incidents[0] if incidents else None,
        incidents=list(dict.fromkeys(incidents)),
        what=what,
        since=since,
        resumed=resumed,
        open=resumed is None,
        step=step,
        resumed_step=resumed_step,
        redone_steps=redone,
        redone_s=redone_s,
        ranks=stop.ranks[:64],
        nodes=stop.nodes[:64],
        gpus=list(dict.fromkeys(uuid for uuid in gpus if uuid))[:64],
        evidence=list(judgement.evidence),
        confidence=judgement.confidence,
        unsure=judgement.unsure,
        seen_category=judgement.category,
    )
