"""Says of one stop of the job what kind of interruption it was: rules in order, with the evidence and what is unsure.

The rules see symptoms. Which switch, cable, power supply or board it was nobody sees from inside a job; the text says
so, and people can correct the category.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stabilitybackend.judging.liveness.death.messages import meaning
from stabilitybackend.schema.commands import Restart
from stabilitybackend.schema.evidence import Death, DeathFacts, GpuFaultFacts, HangFacts, Raised, facts
from stabilitybackend.schema.fleet import Confidence
from stabilitybackend.schema.gpus import KernelLogLine
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.json_data import MAX_LISTED, SENTENCE_CHARS

__all__ = ["Judgement", "Stop", "judge"]

#: What a GPU fault is about -> category.
_OF_FAMILY = {
    "hbm": "gpu_hbm3",
    "sram": "gpu_sram",
    "processor": "gpu_system_processor",
    "thermal": "gpu_thermal",
}
#: What a line of the kernel's log is about -> category.
_OF_KERNEL = {"mce": "cpu", "edac": "system_memory", "io": "ssd"}
#: What a line about a link names -> category: a switch between the GPUs of a node, a slot or its board, a network card.
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
class Stop:
    """All that is known of one stop of the job.

    Args:
        deaths, hangs, lost, faults: incidents of kind process_death, hang, agent_lost and gpu_fault that belong to it.
        kernel: lines of kernel logs near it.
        restarts: ordered while it hung.
        scheduled: a scheduler started the job, as its variables show; None where they are not known.
        hang_first: the job had been hung for a while before its first process died: what died then was ended for it.
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
        """Return the nodes that are suspected."""
        found: list[str] = []
        for incident in (*self.faults, *self.hangs, *self.deaths, *self.lost):
            found += incident.verdict.nodes
            found += [incident.node] if incident.node else []
        return list(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class Judgement:
    """What kind of interruption it was.

    Args:
        category: a key of the table. confidence: high, medium or low.
        unsure: what can't be seen from here; "" where nothing is in doubt.
        evidence: lines for people.
    """

    category: str
    confidence: Confidence
    unsure: str = ""
    evidence: Sequence[str] = ()


def judge(stop: Stop) -> Judgement:
    """Return the category of a stop: the first rule that has evidence."""
    found = next((found for rule in _RULES if (found := rule(stop)) is not None), _NOTHING)
    evidence = [*found.evidence, *(_line(i) for i in (*stop.faults, *stop.hangs, *stop.deaths, *stop.lost))]
    evidence += [meaning(facts(death.evidence, DeathFacts).explained) for death in stop.deaths]
    evidence += [f"kernel log of {line.node}: {line.text}" for line in stop.kernel]
    evidence += [f"restart ordered by {restart.issuer or 'somebody'}: {restart.reason}" for restart in stop.restarts]
    lines = [line.strip()[:SENTENCE_CHARS].rstrip() for line in dict.fromkeys(evidence) if line]
    return Judgement(found.category, found.confidence, found.unsure, lines[:MAX_LISTED])


_NOTHING = Judgement("unknown", "low", "Nobody saw why the job stopped.")


def _by_hand(stop: Stop) -> Judgement | None:
    if stop.hangs or any(fault.severity == "critical" for fault in stop.faults):
        return None  # people end a job that hangs: that is not why it was interrupted
    interrupted = [
        i for i in stop.deaths if _exception(i).type == "KeyboardInterrupt" or _first(i).signal_name == "SIGINT"
    ]
    if interrupted:
        return Judgement("user_stop", "high")
    if stop.restarts:
        return Judgement("user_stop", "high", "", ["a restart was ordered while the job ran"])
    return None


def _gpu(stop: Stop) -> Judgement | None:
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


def _oom(stop: Stop) -> Judgement | None:
    for death in stop.deaths:
        if death.verdict.kind == "oom_kill" or _first(death).cause == "oom_kill":
            return Judgement("oom", "high", "Which process filled the memory is not always the one that was killed.")
    return None


def _kernel(stop: Stop) -> Judgement | None:
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


def _by_message(stop: Stop) -> Judgement | None:
    """By what the first process to die said."""
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


def _signalled(stop: Stop) -> Judgement | None:
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


def _hung_first(stop: Stop) -> Judgement | None:
    """By the verdict of a hang that was there before anything died."""
    known = (found for hang in stop.hangs if (found := _of_hang(hang)) is not None)
    return next(known, None) if stop.hang_first else None


def _of_hang(hang: Incident) -> Judgement | None:
    if hang.verdict.kind == "peer_missing" and facts(hang.evidence, HangFacts).finished:
        return _UNEQUAL
    return _HANGS.get(hang.verdict.kind)


def _hung(stop: Stop) -> Judgement | None:
    for hang in stop.hangs:
        found = _of_hang(hang)
        if found is not None:
            return found
    if stop.hangs:
        return Judgement(
            "nccl_timeout", "low", "The job hung and nothing says why: a stall of the network looks the same."
        )
    return None


def _vanished(stop: Stop) -> Judgement | None:
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
    """Return the death of an incident that the others follow from."""
    deaths = facts(death.evidence, DeathFacts).deaths
    return deaths[0] if deaths else Death("", -1, "", -1, death.opened)


def _exception(death: Incident) -> Raised:
    return facts(death.evidence, DeathFacts).exception or _first(death).exception or Raised()


def _line(incident: Incident) -> str:
    return incident.verdict.text or incident.title
