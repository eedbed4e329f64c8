"""Interruptions of one run: one for each stop of the job, with category and cost. Pure.

A run is a row of intervals in which its job logged. A stop between two of them is one interruption, however many
incidents report it: a hang that ends in deaths, the ranks ended by it, the GPU behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from msgspec import structs

from stabilitybackend.fleet.interruption_table import CATEGORIES, NOT_COUNTED
from stabilitybackend.judging.liveness.death.monitor import meaning
from stabilitybackend.schema.commands import Restart
from stabilitybackend.schema.evidence import Death, DeathFacts, GpuFaultFacts, HangFacts, Raised, facts
from stabilitybackend.schema.fleet import (
    Confidence,
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
from stabilitybackend.schema.json_data import MAX_LISTED, SENTENCE_CHARS
from stabilityclient.wire import pid_of

__all__ = ["OPEN_COUNTS_S", "JobStop", "JobStory", "TrainingInterval", "interruptions_of", "judge", "shown", "summed"]

# Category of a stop: rules in order, with evidence and doubts. The rules see symptoms. The switch, cable, power supply
# or board at fault is invisible from inside a job; the text has that, and the category can be corrected.

#: Family of a GPU fault -> category.
_OF_FAMILY = {
    "hbm": "gpu_hbm3",
    "sram": "gpu_sram",
    "processor": "gpu_system_processor",
    "thermal": "gpu_thermal",
}
#: Subject of a kernel's line -> category.
_OF_KERNEL = {"mce": "cpu", "edac": "system_memory", "io": "ssd"}
#: Part of a link -> category: a switch between the GPUs of a node, a slot or its board, a network card.
_OF_LINK = (
    (re.compile(r"SXid|NVSwitch", re.I), "faulty_gpu"),
    (re.compile(r"PCIe Bus Error|\bAER\b"), "io_expansion_board"),
    (re.compile(r"mlx\d|\bib\w*\d|\beth\d|\ben[opsx]\w*\d|bond\d|bnxt|i40e|\bice\b|\befa\b|link is down", re.I), "nic"),
)
_NCCL_TIMEOUT = re.compile(
    r"watchdog.{0,80}time|collective operation timeout|timed out waiting|Timeout\(ms\)", re.I | re.S
)
_NETWORK = re.compile(
    r"ncclRemoteError|ncclSystemError|NET/IB|ibv_|Connection (?:reset|closed) by (?:remote )?peer|"
    r"unhandled system error|remote process exited|socketProgress|Broken pipe", re.I,
)  # fmt: skip
_ECC = re.compile(r"uncorrectable (?:NVLink )?(?:ECC )?error|cudaErrorECCUncorrectable", re.I)
_GPU_GONE = re.compile(
    r"no CUDA-capable device|device.{0,20}lost|cudaErrorDevicesUnavailable|hardware (?:stack )?error", re.I
)
_CUDA_OOM = re.compile(
    r"CUDA (?:error: )?out of memory|ncclUnhandledCudaError.{0,200}out of memory|OutOfMemoryError|std::bad_alloc|"
    r"Cannot allocate memory|^MemoryError", re.I | re.M | re.S,
)  # fmt: skip
_SHARED_MEMORY = re.compile(
    r"out of shared memory|shared memory.{0,80}No space left|unable to allocate shared memory|"
    r"killed by signal: Bus error", re.I | re.S,
)  # fmt: skip
_WORKER_KILLED = re.compile(r"DataLoader worker.{0,80}killed by signal: Killed", re.I | re.S)
_DISK = re.compile(r"(?:Input/output|Remote I/O) error|Errno (?:5|121)\]|Stale file handle|Read-only file system", re.I)
_FULL = re.compile(
    r"No space left|Errno 28\]|Disk quota exceeded|Errno 122\]|PytorchStreamWriter failed writing file", re.I
)
_DEPENDENCY = re.compile(
    r"ModuleNotFoundError|ImportError|ConnectionRefused|HTTPError|HTTPSConnection|Name or service not known|"
    r"Temporary failure in name resolution|SSLError|botocore|\bS3\b|gcsfs|huggingface\.co|GatedRepoError", re.I,
)  # fmt: skip


@dataclass(slots=True)
class JobStop:
    """Evidence about one stop of the job.

    Args:
        deaths, hangs, lost, faults: its incidents of kind process_death, hang, agent_lost and gpu_fault.
        kernel: lines of kernel logs near it.
        restarts: commanded while it hung.
        scheduled: a scheduler started the job, by its variables; None for unknown.
        hang_first: the job hung for a while before its first process died, so the deaths are an effect.
    """

    deaths: list[Incident] = field(default_factory=list)
    hangs: list[Incident] = field(default_factory=list)
    lost: list[Incident] = field(default_factory=list)
    faults: list[Incident] = field(default_factory=list)
    kernel: list[KernelLogLine] = field(default_factory=list)
    restarts: list[Restart] = field(default_factory=list)
    hang_first: bool = False
    scheduled: bool | None = None

    @property
    def ranks(self) -> list[int]:
        """Return the ranks that are suspected or died first."""
        found: list[int] = []
        for incident in (*self.hangs, *self.deaths):
            found += incident.verdict.culprits or ([] if incident.rank is None else [incident.rank])
        return list(dict.fromkeys(found))

    @property
    def nodes(self) -> list[str]:
        """Return the suspected nodes."""
        found: list[str] = []
        for incident in (*self.faults, *self.hangs, *self.deaths, *self.lost):
            found += incident.verdict.nodes
            found += [incident.node] if incident.node else []
        return list(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class Judgement:
    """Category of an interruption.

    Args:
        category: a key of the table. confidence: high, medium or low.
        unsure: invisible part; "" for no doubt.
        evidence: lines of text.
    """

    category: str
    confidence: Confidence
    unsure: str = ""
    evidence: Sequence[str] = ()


def judge(stop: JobStop) -> Judgement:
    """Return the category of a stop: the first rule that has evidence."""
    found = next((found for rule in _RULES if (found := rule(stop)) is not None), _NOTHING)
    evidence = [*found.evidence, *(_line(i) for i in (*stop.faults, *stop.hangs, *stop.deaths, *stop.lost))]
    evidence += [meaning(facts(death.evidence, DeathFacts).explained) for death in stop.deaths]
    evidence += [f"kernel log of {line.node}: {line.text}" for line in stop.kernel]
    evidence += [f"restart ordered by {restart.issuer or 'somebody'}: {restart.reason}" for restart in stop.restarts]
    lines = [line.strip()[:SENTENCE_CHARS].rstrip() for line in dict.fromkeys(evidence) if line]
    return Judgement(found.category, found.confidence, found.unsure, lines[:MAX_LISTED])


_NOTHING = Judgement("unknown", "low", "Nobody saw why the job stopped.")


def _by_hand(stop: JobStop) -> Judgement | None:
    if stop.hangs or any(fault.severity == "critical" for fault in stop.faults):
        return None  # a job that hangs is ended by hand: that is not why it was interrupted
    interrupted = [
        i for i in stop.deaths if _exception(i).type == "KeyboardInterrupt" or _first(i).signal_name == "SIGINT"
    ]
    if interrupted:
        return Judgement("user_stop", "high")
    if stop.restarts:
        return Judgement("user_stop", "high", "", ["a restart was ordered while the job ran"])
    return None


def _gpu(stop: JobStop) -> Judgement | None:
    grave = [fault for fault in stop.faults if fault.severity == "critical" and _fault(fault).blames_hardware]
    if not grave:
        return None
    suspects = set(stop.ranks)
    close = [fault for fault in grave if suspects & set(_fault(fault).ranks)]
    fault = (close or grave)[0]
    of_node = fault.node in {i.node for i in (*stop.deaths, *stop.hangs) if i.node}
    confidence: Confidence = "high" if close else "medium" if of_node or not suspects else "low"
    seen = _fault(fault)
    if len(seen.gpus) > 1:
        return Judgement(
            "io_expansion_board", "low",
            "Several GPUs of one node went at once: board, power supply and chassis look the same from here.",
            [_line(fault)],
        )  # fmt: skip
    category = _OF_FAMILY.get(seen.family, "faulty_gpu")
    unsure = "" if close else "The faulty GPU is not the one of the rank that stopped first: the two may be unrelated."
    if seen.family == "link":
        unsure = "An NVLink error can come from the GPU, the board or a switch. " + unsure
    return Judgement(category, confidence, unsure.strip(), [_line(fault)])


def _oom(stop: JobStop) -> Judgement | None:
    for death in stop.deaths:
        if death.verdict.kind == "oom_kill" or _first(death).cause == "oom_kill":
            return Judgement("oom", "high", "Which process filled the memory is not always the one that was killed.")
    return None


def _kernel(stop: JobStop) -> Judgement | None:
    nodes = set(stop.nodes)
    for line in stop.kernel:
        category = _OF_KERNEL.get(line.what)
        if line.what == "link":
            category = next((found for words, found in _OF_LINK if words.search(line.text)), None)
        if category is not None:
            near = line.node in nodes
            return Judgement(
                category, "medium" if near else "low",
                "The kernel's log reports it at the same time; that it was the cause is likely, not certain.",
            )  # fmt: skip
    return None


def _by_message(stop: JobStop) -> Judgement | None:
    """Judge by the last message of the first process to die."""
    for death in stop.deaths:
        raised = _exception(death)
        text = f"{raised.type}: {raised.message}\n{_first(death).fatal}".strip(": \n")
        if not text:
            continue
        for pattern, judgement in _WORDS:
            if pattern.search(text):
                if judgement.category in ("nccl_timeout", "network_switch_cable") and _first(death).over_before:
                    return _UNEQUAL
                return judgement
        if raised.type not in ("", "KeyboardInterrupt"):
            return Judgement(
                "software_bug", "medium", "An exception names the place that gave up, not always the cause."
            )
    return None


def _signalled(stop: JobStop) -> Judgement | None:
    if stop.hang_first:
        return None
    for death in stop.deaths:
        name = _first(death).signal_name
        if _first(death).preempted and not name:
            return Judgement(
                "host_maintenance", "medium", f"The job says that it was preempted ({_first(death).preempted})."
            )
        if name in ("SIGTERM", "SIGHUP") and stop.scheduled is False and not stop.lost:
            return Judgement(
                "user_stop", "medium",
                f"{name} came from outside, and no scheduler had started the job: a person, or a script of one.",
            )  # fmt: skip
        if name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU"):
            return Judgement(
                "host_maintenance", "low",
                f"{name} comes from a scheduler, a launcher or a person (preemption, time limit, maintenance): "
                "who sent it is not seen.",
            )  # fmt: skip
        if name == "SIGBUS":
            return Judgement(
                "system_memory", "low", "SIGBUS: bad memory, or a mapped file whose disk failed or is full."
            )
        if name in ("SIGSEGV", "SIGABRT", "SIGFPE", "SIGILL", "SIGSYS"):
            return Judgement(
                "software_bug", "medium", f"{name}: a crash in native code; the GPU or a library may be behind it."
            )
        if name == "SIGKILL":
            return Judgement(
                "unknown", "low",
                "Killed from outside, and the kernel reports no lack of memory: a scheduler, a launcher or a person.",
            )  # fmt: skip
    return None


def _hung_first(stop: JobStop) -> Judgement | None:
    """Judge by the verdict of a hang before any death."""
    known = (found for hang in stop.hangs if (found := _of_hang(hang)) is not None)
    return next(known, None) if stop.hang_first else None


def _of_hang(hang: Incident) -> Judgement | None:
    if hang.verdict.kind == "peer_missing" and facts(hang.evidence, HangFacts).finished:
        return _UNEQUAL
    return _HANGS.get(hang.verdict.kind)


def _hung(stop: JobStop) -> Judgement | None:
    for hang in stop.hangs:
        found = _of_hang(hang)
        if found is not None:
            return found
    if stop.hangs:
        return Judgement(
            "nccl_timeout", "low", "The job hung and nothing says why: a stall of the network looks the same."
        )
    return None


def _vanished(stop: JobStop) -> Judgement | None:
    if stop.lost:
        return _SILENT
    if any(death.verdict.kind == "exit_code" for death in stop.deaths):
        return Judgement("software_bug", "low", "The process ended with an exit code and said nothing more.")
    return None


_RULES = (_by_hand, _gpu, _oom, _kernel, _hung_first, _by_message, _signalled, _hung, _vanished)
_UNEQUAL = Judgement("software_bug", "medium", "A rank was done before the others: they have unequal data.")
_SILENT = Judgement(
    "unknown", "low",
    "A node went silent: power supply, chassis, network card, maintenance or its kernel look the same from here.",
)  # fmt: skip
_HANGS: Mapping[str, Judgement] = {
    "node_lost": _SILENT,
    "collective_stuck": Judgement(
        "nccl_timeout",
        "medium",
        "All ranks joined and none came out: network card, switch, cable and NCCL look the same from here.",
    ),
    "peer_missing": Judgement("nccl_timeout", "low", "One rank did not come; why it stayed away is not seen."),
    "data_loader": Judgement(
        "software_bug", "low", "The data loader was stuck: its code, the storage or the network behind it."
    ),
    "io": Judgement("ssd", "low", "A process waits in the kernel for a disk or a network file system."),
    "livelock": Judgement("software_bug", "medium", ""),
    "gil_held": Judgement("software_bug", "medium", "A native call that does not return may be a waiting driver."),
    "desync": Judgement("software_bug", "high", ""),
    "lock": Judgement("software_bug", "high", ""),
    "blocked": Judgement("software_bug", "low", "A call outside anything we know did not return."),
    "overdue": Judgement("software_bug", "low", "A long phase took too long: storage, network or the code."),
    "stopped": Judgement("unknown", "low", "The process was stopped (SIGSTOP or a frozen group); by whom is not seen."),
}
_WORDS: tuple[tuple[re.Pattern[str], Judgement], ...] = (
    (
        _ECC,
        Judgement("gpu_hbm3", "medium", "CUDA reports a memory error; the driver's own numbers did not arrive."),
    ),
    (_GPU_GONE, Judgement("faulty_gpu", "low", "CUDA lost its device; the driver's own numbers did not arrive.")),
    (_CUDA_OOM, Judgement("oom", "high", "")),
    (
        _NCCL_TIMEOUT,
        Judgement(
            "nccl_timeout", "medium", "The watchdog ends what waits too long; why it waited is unknown by definition."
        ),
    ),
    (
        _NETWORK,
        Judgement(
            "network_switch_cable",
            "low",
            "A connection broke: a rank that died elsewhere, a network card, a switch, a cable look alike from here.",
        ),
    ),
    (
        _SHARED_MEMORY,
        Judgement("oom", "medium", "The shared memory (/dev/shm) is full, which a container often limits."),
    ),
    (
        _WORKER_KILLED,
        Judgement("oom", "low", "A worker of the data loader was killed, which is mostly for its memory."),
    ),
    (_FULL, Judgement("storage_full", "high", "")),
    (_DISK, Judgement("ssd", "medium", "A file could not be read or written: disk or network storage.")),
    (_DEPENDENCY, Judgement("dependency", "low", "Something that the job needs did not answer.")),
)


# --- reading incidents ------------------------------------------------------------------------------------------------


def _fault(incident: Incident) -> GpuFaultFacts:
    return facts(incident.evidence, GpuFaultFacts)


def _first(death: Incident) -> Death:
    """Return the first death of an incident, the cause of the others."""
    deaths = facts(death.evidence, DeathFacts).deaths
    return deaths[0] if deaths else Death("", -1, "", -1, death.opened)


def _exception(death: Incident) -> Raised:
    return facts(death.evidence, DeathFacts).exception or _first(death).exception or Raised()


def _line(incident: Incident) -> str:
    return incident.verdict.text or incident.title


#: Longest time that counts for a job without a return, seconds: an abandoned run is not down without limit.
OPEN_COUNTS_S = 86_400.0
#: GPU-hours needed for a rate per thousand.
FEW_GPU_HOURS = 10.0
#: A GPU fault or a line of a kernel's log belongs to a stop if at most so long before it, seconds.
NEAR_BEFORE_S = 120.0
#: ... or so long after its last sign: a watchdog may end the job long after a GPU failed.
NEAR_AFTER_S = 60.0
#: A stall of this duration before the first death means a hang first, seconds.
HANG_FIRST_S = 10.0
#: torch's message about killed workers of a data loader, which are the job's own processes too.
_NAMED_PIDS = re.compile(r"\(pid(?:\(s\))? ([\d, ]+)\)")
#: Interruptions kept of one run, newest ones.
MAX_INTERRUPTIONS = 512


@dataclass(slots=True)
class TrainingInterval:
    """An interval in which one start of the job logged, seen from its lowest rank.

    Args:
        source: id of the process. began, ended: log times of its first and newest row, unix seconds.
        first_step, last_step: of these rows. ranks: of the job. finished: reported by the process.
        made: its steps, also those repeated by a rollback; 0 for unknown.
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
        """Return the seconds of a step, 0 for a single row."""
        steps = self.made or self.last_step - self.first_step
        return max(0.0, self.ended - self.began) / steps if steps > 0 else 0.0

    def extend(self, first: int, last: int, ended: float) -> None:
        """Add the rows of some steps; steps repeated by a rollback count again."""
        self.made += max(0, first - self.last_step) + max(0, last - first)
        self.ended = max(self.ended, ended)
        self.last_step = last


@dataclass(frozen=True, slots=True)
class JobStory:
    """Facts of a run.

    Args:
        stretches: oldest first.
        incidents: of the kinds of ``JobStop``.
        kernel: lines of kernel logs.
        restarts: commanded by a person or the server.
        watched: by an agent. The ends of an imported run's processes are unexplained.
        scheduled: a scheduler started it, by its variables; None for unknown.
    """

    stretches: Sequence[TrainingInterval]
    incidents: Sequence[Incident]
    kernel: Sequence[KernelLogLine] = ()
    restarts: Sequence[Restart] = ()
    watched: bool = True
    scheduled: bool | None = None


@dataclass(slots=True)
class _Gap:
    """The time between two intervals."""

    before: TrainingInterval | None
    after: TrainingInterval | None
    stop: JobStop = field(default_factory=JobStop)
    times: list[float] = field(default_factory=list)

    def add(self, incident: Incident) -> None:
        """Count an incident as a reason of the stop.

        A node that is heard of again was silent only, unless a new start is the next event after it.
        """
        at, kind = _at(incident), incident.kind
        was_restarted = self.after is not None and self.before is not None and self.before.ended <= at
        if kind == "agent_lost" and not _is_open(incident) and not was_restarted:
            return
        {"process_death": self.stop.deaths, "hang": self.stop.hangs}.get(kind, self.stop.lost).append(incident)
        self.times.append(at)


def interruptions_of(story: JobStory) -> list[JudgedInterruption]:
    """Return the interruptions of a run, oldest first."""
    stretches = sorted(story.stretches, key=lambda stretch: stretch.began)
    gaps = [_Gap(None, stretches[0] if stretches else None)]
    gaps += [_Gap(one, next_one) for one, next_one in zip_longest(stretches, stretches[1:])]
    for gap in gaps:
        gap.stop.scheduled = story.scheduled
    found: list[JudgedInterruption] = []
    for incident in sorted(story.incidents, key=lambda i: (i.opened, i.incident_id)):
        if incident.kind == "hang" and _went_on(incident):
            found.append(_stall(incident))
        elif incident.kind in ("process_death", "hang", "agent_lost"):
            _gap_of(gaps, _at(incident)).add(incident)
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
    """Return an interruption as shown.

    Args:
        run: its run. deleted: the run is.
        now: end of the costs of a job that has not come back, unix seconds.
        correction: of a person.
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
        runs: interruptions that began since then, and facts of their runs.
        since: earlier times do not count, unix seconds.
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
    """Return the gap of a stop: after the last interval that had begun by then."""
    return next((gap for gap in reversed(gaps) if gap.before is not None and gap.before.began <= at), gaps[0])


def _at(incident: Incident) -> float:
    """Return the time of the stop by an incident, unix seconds."""
    if incident.kind == "process_death":
        deaths = facts(incident.evidence, DeathFacts).deaths
        if deaths:
            return min(death.time for death in deaths)
    since = incident.verdict.since
    if since is not None and since > 0:
        return since
    return incident.opened - facts(incident.evidence, HangFacts).stood_s


def _went_on(hang: Incident) -> bool:
    """Return whether a hang ended with further steps of the same processes."""
    return hang.state != "open" and hang.recovered_step is not None


def _is_open(lost: Incident) -> bool:
    return lost.verdict.training == "stands"


def _stall(hang: Incident) -> JudgedInterruption:
    judgement = judge(JobStop(hangs=[hang]))
    since = _at(hang)
    return _reported(
        judgement, JobStop(hangs=[hang]), "stall", since, hang.resolved or since,
        _Steps(hang.onset_step, hang.recovered_step),
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
        what, since, None if after is None else max(after.began, since),
        _Steps(
            None if before is None else before.last_step, None if after is None else after.first_step,
            redone, redone * before.step_s if before is not None else 0.0,
        ),
        "" if after is None else after.source,
    )  # fmt: skip


def _processes(gap: _Gap) -> set[tuple[str, int | None]]:
    """Return (node, pid) of the job's processes in a stop, "" for an unknown node.

    No pid covers all of a node: a rank was killed for memory there, and only its group's counter shows it, so its
    container counts pids otherwise than the kernel's log.
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
    """Return whether a line reports a kill for memory of a foreign process."""
    node, pid = line.node, line.pid
    return line.what == "oom" and pid is not None and own.isdisjoint({(node, pid), (node, None), ("", pid)})


@dataclass(frozen=True, slots=True)
class _Steps:
    """The step before a stop and the one after it, and the steps that were done again, with their seconds."""

    step: int | None
    resumed_step: int | None
    redone: int = 0
    redone_s: float = 0.0


def _reported(
    judgement: Judgement,
    stop: JobStop,
    what: What,
    since: float,
    resumed: float | None,
    steps: _Steps,
    source: str = "",
) -> JudgedInterruption:
    """Return an interruption, named by the first of the incidents that report the stop itself."""
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
        step=steps.step,
        resumed_step=steps.resumed_step,
        redone_steps=steps.redone,
        redone_s=steps.redone_s,
        ranks=stop.ranks[:64],
        nodes=stop.nodes[:64],
        gpus=list(dict.fromkeys(uuid for uuid in gpus if uuid))[:64],
        evidence=list(judgement.evidence),
        confidence=judgement.confidence,
        unsure=judgement.unsure,
        seen_category=judgement.category,
    )
