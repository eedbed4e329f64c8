"""Next action of a launcher: nothing, start again (from a checkpoint, without some nodes), or ask people. Pure.

A launcher restarts blindly; the plan adds the good checkpoint, suspect nodes, and a stop after starts without progress.
A node is left out on hard evidence only (its GPU needs a reset, it is gone, a person named it), or after two blames:
one is a suspicion, and a job without its spare nodes does not start at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import UNSET

from stabilitybackend.acting.commands.request import check_behind, check_outside, last_good, usable_checkpoint, withheld
from stabilitybackend.judging.incidents.affecting import affects_weights, damaged_by
from stabilitybackend.judging.incidents.incidents import stops_job
from stabilitybackend.judging.liveness.format import sentence
from stabilitybackend.schema.commands import CommandRequest
from stabilitybackend.schema.evidence import DeathFacts, GpuFaultFacts, HangFacts, JudgedFacts, facts
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.json_data import MAX_LISTED
from stabilitybackend.schema.kinds import kind_of
from stabilitybackend.schema.lineage import Checkpoint, Offer
from stabilitybackend.schema.plan import Plan, PlannedAction, PlannedCheckpoint, PlannedSuspect
from stabilitybackend.schema.verdicts import SuspectGpu, Verdict

__all__ = ["EXIT_CODES", "MAX_FRUITLESS", "RestartFacts", "make_plan"]

#: Action -> exit code of ``stabilityboard plan``. Avoided: 0 to 2, 16 and 17 (Megatron), 64 to 78 (sysexits), 93 (NVRx:
#: no restart), 126 to 165 (shells and signals) and 255.
EXIT_CODES: Mapping[str, int] = {"none": 0, "wait": 0, "relaunch": 40, "relaunch_without": 41, "stop": 42}
#: Launches in a row without progress before people have to look. NVRx's launcher stops after 3 cycles in which the
#: checkpoint did not advance (max_no_progress_cycles, nvidia_resiliency_ext/fault_tolerance/config.py).
MAX_FRUITLESS = 3
#: Time for the verdict of a hang, seconds; later the job starts again without one.
UNDECIDED_S = 60.0
#: Megatron's exit code for a failed validation of a result: the same again would not help
#: (core/rerun_state_machine.py).
MEGATRON_FAILED = 17

#: Statuses of a job that hangs now: other incidents that stop one may be older.
_HUNG = ("stalled", "unreachable")
#: Verdicts about a node as such.
_NODE_CLASSES = frozenset({"node_lost"})
#: Verdicts that blame no machine, however often they occur.
_SOFTWARE_CLASSES = frozenset({
    "exception", "exit_code", "signal", "preempted", "oom_kill", "overdue", "collective_stuck", "desync", "partition",
    "stopped",
})  # fmt: skip
#: Blames of a node's ranks before it is left out.
_BLAMES = 2


@dataclass(frozen=True)
class RestartFacts:
    """Input of the plan.

    Attributes:
        status, note: of the Run (docs/api.md).
        incidents, checkpoints: newest first.
        nodes: of the job's ranks.
        fruitless: newest launches in a row without progress.
        settled: False while the last messages of an ended job may still arrive: the first dead rank need not be the
            cause.
        offer: the advised rollback (``commands/rollback_offer.py``), None for none.
        stopped: a person commanded its end; see the note.
    """

    status: str
    note: str
    incidents: Sequence[Incident]
    checkpoints: Sequence[Checkpoint]
    nodes: Collection[str]
    fruitless: int
    settled: bool = True
    offer: Offer | None = None
    stopped: bool = False


def make_plan(run_id: str, job: RestartFacts, now: float, request: CommandRequest | None = None) -> Plan:
    """Return the plan in the shape of docs/restart.md.

    Args:
        now: unix seconds.
        request: of people who want a restart in any case; their choices win.

    Raises:
        BadRequest: an unusable checkpoint, or batches that are not trained again.
        Conflict: a checkpoint from inside an open incident, not accepted.
    """
    stopping = sorted(
        filter(stops_job, job.incidents), key=lambda i: (i.opened, i.incident_id)
    )  # the first cause first
    cause = stopping[0] if stopping else None
    hung = next((incident for incident in stopping if kind_of(incident.kind).status in _HUNG), None)
    verdict = _verdict(cause) or _verdict(hung)
    hard, soft = _blamed(job.incidents, stopping)
    named = set(request.exclude_nodes or ()) if request is not None else set[str]()
    # Suspicion alone must not empty the job.
    kept = set(request.keep_nodes or ()) if request is not None else set[str]()
    hard, soft = hard - kept, soft - kept
    exclude = sorted(named | hard | (soft if set(job.nodes) - hard - named - soft else set()))
    action, why = _action(job, cause, hung, now)
    if request is not None:
        action, why = "relaunch", sentence(request.reason) or ("" if cause is None else _why(cause, job))
    if action == "relaunch" and exclude:
        action = "relaunch_without"
    relaunch = action.startswith("relaunch")
    start = _start_from(job, request) if relaunch else _PlannedStart()
    seed = None if request is None else request.seed
    return Plan(
        version=1,
        run_id=run_id,
        written=now,
        action=action,
        checkpoint=start.checkpoint,
        warning=start.warning,
        skip_batches=start.skip_batches,
        skip_range=start.skip_range,
        lr_scale=start.lr_scale,
        seed=UNSET if seed is None else seed,
        exclude_nodes=exclude if relaunch else [],
        suspects=_suspects(verdict),
        incident_id=None if cause is None else cause.incident_id,
        verdict=verdict,
        exit_code=EXIT_CODES[action],
        text=" ".join(
            [*([why] if why else []), *(_sentences(start, seed, exclude, job.checkpoints) if relaunch else [])]
        ),
    )


@dataclass(frozen=True)
class _PlannedStart:
    checkpoint: PlannedCheckpoint | None = None
    skip_batches: int | None = None
    skip_range: tuple[int, int] | None = None
    lr_scale: float | None = None
    #: Reason against the checkpoint, one sentence; None for none.
    warning: str | None = None


def _verdict(incident: Incident | None) -> Verdict | None:
    return None if incident is None else facts(incident.evidence, JudgedFacts).verdict


def _blamed(incidents: Iterable[Incident], stopping: Sequence[Incident]) -> tuple[set[str], set[str]]:
    """Return (unusable nodes, suspect nodes)."""
    hard: set[str] = set()
    for incident in stopping:
        verdict = incident.verdict
        if incident.kind == "gpu_fault":
            node = incident.node or facts(incident.evidence, GpuFaultFacts).gpu.node
            hard |= {node} if node else set()
        elif verdict.kind in _NODE_CLASSES and verdict.confidence != "low":
            hard.update(verdict.nodes)
    open_names = {node for incident in stopping for node in incident.verdict.nodes}
    blames: Counter[str] = Counter()
    for incident in incidents:
        verdict = incident.verdict
        hang = facts(incident.evidence, HangFacts)
        machine = verdict.kind not in _SOFTWARE_CLASSES and not (hang.finished or hang.left)
        if machine and verdict.confidence != "low":
            blames.update(set(verdict.nodes))
    return hard, {node for node in open_names if blames[node] >= _BLAMES}


def _action(job: RestartFacts, cause: Incident | None, hung: Incident | None, now: float) -> tuple[PlannedAction, str]:
    """Return action and reason; ``cause`` and ``hung`` are the first open incidents that stop a job."""
    if job.stopped:
        return ("stop", f"{job.note} Nobody but a person starts it again.")
    if job.status == "finished":
        return ("none", "The job is finished.")
    if job.status == "offline":
        return ("none", "The run was imported: there is no job.")
    if job.status == "unreachable":
        return ("wait", job.note)
    if job.status in ("crashed", "preempted", "stopped"):
        if not job.settled:
            return ("wait", f"{_why(cause, job)} Its last messages may still be on their way.")
        if job.fruitless >= MAX_FRUITLESS:
            return (
                "stop",
                f"{_why(cause, job)} The last {job.fruitless} starts made no progress: a human has to look.",
            )
        deaths = [] if cause is None else facts(cause.evidence, DeathFacts).deaths
        if deaths and deaths[0].exit_code == MEGATRON_FAILED:
            return ("stop", f"{_why(cause, job)} Exit code 17: Megatron's own check of a result failed.")
        return ("relaunch", _why(cause, job))
    if hung is not None:
        verdict = _verdict(hung)
        undecided = verdict is None and now - hung.opened < UNDECIDED_S
        if undecided or (verdict is not None and verdict.kind in ("overdue", "partition")):
            return ("wait", f"{_why(hung, job)} That is not decided yet.")
        # A GPU that failed first is the cause of the hang.
        return ("relaunch", " ".join(dict.fromkeys((_why(cause, job), _why(hung, job)))))
    if cause is not None:
        return ("none", f"The job runs on. {_why(cause, job)}")
    return ("none", job.note or "The job runs.")


def _why(cause: Incident | None, job: RestartFacts) -> str:
    return sentence(job.note if cause is None else (cause.verdict.text or cause.title))


def _start_from(job: RestartFacts, request: CommandRequest | None) -> _PlannedStart:
    """Return the checkpoint: requested, else of the advised rollback, else the newest.

    A job that died of its machine continues where it was, with a warning inside a spike without an advised rollback:
    most pass, and discarding steps is a person's decision.
    """
    skip, given, scale = (
        (None, None, None) if request is None else (request.skip_batches, request.skip_range, request.lr_scale)
    )
    span = None if given is None else (given[0], given[1])
    spoiled = affects_weights(job.incidents)
    if request is not None and request.to_step is not None:
        path = usable_checkpoint(request.to_step, job.checkpoints, accept_unverified=request.accept_unverified)
        check_outside(request, job.checkpoints, spoiled)
        step = request.to_step
    else:
        usable = [c for c in job.checkpoints if c.usable]
        advised = job.offer
        chosen = next((c for c in usable if advised is not None and c.step == advised.to_step), None)
        if chosen is not None and advised is not None:
            if skip is None and span is None:
                skip = advised.skip_batches
                span = None if advised.skip_range is None else (advised.skip_range[0], advised.skip_range[1])
            scale = advised.lr_scale if scale is None else scale
        else:
            chosen = max(usable, key=lambda c: (c.step, c.time), default=None)
        if chosen is None:
            return _PlannedStart(None, skip, span, scale)
        step, path = chosen.step, chosen.path
    found, warning = damaged_by(step, spoiled), None
    if found is not None:
        warning = f"The checkpoint of step {step} was {found.text}; {last_good(job.checkpoints, spoiled)}."
    if span is not None:
        check_behind(span, step)
        skip = span[1] - step
    elif skip:
        span = (step + 1, step + skip)
    return _PlannedStart(PlannedCheckpoint(step, path, found), skip, span, scale, warning)


def _suspects(verdict: Verdict | None) -> list[PlannedSuspect]:
    if verdict is None:
        return []
    gpus = {gpu.rank: gpu for gpu in verdict.gpus}
    nodes = set(verdict.nodes)
    found = []
    for rank in verdict.culprits[:MAX_LISTED]:
        gpu = gpus.get(rank, SuspectGpu())
        found.append(PlannedSuspect(rank, gpu.node or (min(nodes) if len(nodes) == 1 else None), gpu.uuid))
    return found


def _sentences(
    start: _PlannedStart, seed: int | None, exclude: Sequence[str], known: Sequence[Checkpoint]
) -> Iterator[str]:
    """Yield sentences about the new start."""
    if start.checkpoint is not None:
        where = f"from the checkpoint of step {start.checkpoint.step}"
    else:
        where = "from the beginning: no checkpoint can be used" if known else "from where it finds its state"
    without = f" without {', '.join(exclude)}" if exclude else ""
    yield f"Start the job again{without}, {where}."
    newer = [c for c in withheld(known) if start.checkpoint is None or c.step > start.checkpoint.step]
    if newer:
        yield f"That of step {newer[0].step} is not used: {newer[0].unfit}."
    if start.skip_range is not None and (start.checkpoint is None or start.skip_range[0] > start.checkpoint.step + 1):
        first, last = start.skip_range
        yield f"Leave out the batches of the steps {first} to {last}."
    elif start.skip_batches:
        yield f"Leave out {start.skip_batches} batches behind it."
    if start.lr_scale is not None:
        yield f"Multiply the learning rate that the schedule of this checkpoint gives by {start.lr_scale:g}."
    if seed is not None:
        yield f"Draw the data in the order of seed {seed}."
