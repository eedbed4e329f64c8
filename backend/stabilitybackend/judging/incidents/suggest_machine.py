"""Says what to do about incidents of processes and machines; going back to a checkpoint does not cure them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stabilitybackend.judging.incidents import references as lit
from stabilitybackend.judging.incidents.suggestion import Case, suggestion
from stabilitybackend.schema.evidence import DeathFacts, GpuFaultFacts, HangFacts, SdcFacts, StragglerFacts, facts
from stabilitybackend.schema.incidents import Action, Suggestion
from stabilitybackend.schema.verdicts import SuspectGpu

__all__ = ["MACHINE_RULES"]


def _throughput(case: Case) -> Suggestion:
    text = "The job trains on, but slower. Find the phase that grew, then the rank, then the machine."
    return suggestion("inspect", text, checklist=lit.LOADER_CHECKS)


def _straggler(case: Case) -> Suggestion:
    rank, node = case.incident.rank, case.incident.node
    who = " ".join(word for word in (f"rank {rank}" if rank is not None else "", f"on {node}" if node else "") if word)
    waits = facts(case.incident.evidence, StragglerFacts).waits
    text = f"Look at {who or 'the slow rank'} first: its data, then its machine."
    if waits is not False:
        begin = "All ranks wait" if waits else "Where ranks meet in each step, all wait"
        text = f"{begin} for {who or 'one of them'}. A job with a spare node loses less by swapping it than by waiting."
    return suggestion("inspect", text, checklist=lit.STRAGGLER_CHECKS)


# --- verdicts of liveness ---------------------------------------------------------------------------------------------


def _hang(case: Case) -> Suggestion:
    found = case.incident.verdict.kind
    action = _HANG_ACTIONS.get(found, "inspect")
    text = _HANGS.get(found, "Look at the suspect rank first: its stack shows what it waits for.")
    if found == "peer_missing" and case.incident.onset_step < 0:
        text = _NOT_COME
    checks = lit.COLLECTIVE_CHECKS if found in ("collective_stuck", "peer_missing", "desync") else lit.HANG_CHECKS
    if facts(case.incident.evidence, HangFacts).finished:
        return suggestion("inspect", f"{_DONE_FIRST} The job does not end by itself.", sources=[lit.HANG_CAUSES])
    if action == "restart":
        text += _where(case)
    return suggestion(action, text, checklist=checks, sources=[lit.HANG_CAUSES])


#: Of a rank that has finished while the others wait for it.
_DONE_FIRST = "The suspect is done and the others train on: give all ranks as many batches (drop_last, Join)."
#: Of a rank that the others wait for before the first step. The variables are those of torch's rendezvous.
_NOT_COME = (
    "Read the log of the rank that has not come: did its process start, does it still load, does its node reach"
    " MASTER_ADDR at MASTER_PORT? Its launcher may start with a node too few."
)
#: Class of a hang's verdict -> first sentence.
_HANGS: Mapping[str, str] = {
    "data_loader": "The suspect's data loader is stuck: look at its storage and its workers before a restart.",
    "peer_missing": "The others wait for the suspect: its stack, its exit and its node say why it stays away.",
    "livelock": "The suspect computes without making a step: its stack names the loop. A restart alone meets it again.",
    "gil_held": "A native call holds Python's lock: the C part of the stack or the driver. Look at its GPU as well.",
    "stopped": (
        "The process is stopped, not broken: find who stopped it (SIGSTOP, a debugger, a frozen group), let it go on."
    ),
    "blocked": "Look at the suspect's stack and wchan: it waits in a system call, and they say for what.",
    "lock": (
        "The suspect waits for a lock that is not given back: the stacks of its other threads show who holds it. A"
        " thread that ended with it, as by an exception after acquire(), never gives it back: take it by `with`."
    ),
    "io": "The suspect waits for a disk or file system in the kernel: no signal ends that. Look at the mount first.",
    "collective_stuck": (
        "Start the job again, without a node that is named: all joined and none came out, which nothing in it mends."
    ),
    "desync": "Ranks called different collectives: that is a bug of the program, and comes again after a restart.",
    "overdue": (
        "A long phase takes longer than ever. Look at its storage; declare its length (expect_s) if it is right."
    ),
    "node_lost": "A node is silent and the others wait: start again without it, and have it looked at.",
}
#: What to do about it; about all others: inspect.
_HANG_ACTIONS: Mapping[str, Action] = {"collective_stuck": "restart", "node_lost": "restart", "overdue": "wait"}


def _agent_lost(case: Case) -> Suggestion:
    verdict = case.incident.verdict
    if verdict.training == "stands":
        return suggestion(
            "restart",
            "The node is silent and the others are stalled: start again without it." + _where(case),
            checklist=lit.NODE_CHECKS,
        )
    if verdict.kind == "agent_dead":
        text = "Only our agent ended; the ranks start it again by themselves. What they log stays in the spool."
        return suggestion("wait", text, checklist=lit.NODE_CHECKS)
    text = "The job itself may be well. Look at the node and its network; the spool keeps what it logs."
    return suggestion("wait", text, checklist=lit.NODE_CHECKS)


def _death(case: Case) -> Suggestion:
    known = facts(case.incident.evidence, DeathFacts)
    if case.incident.state != "open":
        text = "Nothing to do: the job runs again."
        return suggestion("none", text, checklist=known.explained.next, sources=[known.explained.source])
    if case.incident.severity == "info":
        return suggestion("none", "Somebody stopped it by hand (Ctrl-C): nothing to do unless that was a mistake.")
    first: str
    checks: Sequence[str]
    first, checks = _DEATHS.get(case.incident.verdict.kind, ("", ()))
    if known.hung:
        first, checks = "It hung and was ended: read the incident of the hang, its suspect is the one to look at.", ()
    elif known.explained.next:
        first, *checks = known.explained.next
    text = f"{first} Start the job again if its launcher does not.".lstrip() + _where(case)
    return suggestion("restart", text, checklist=checks, sources=[known.explained.source])


#: Class of a death's verdict -> first sentence, and what to look at.
_DEATHS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "oom_kill": (
        "Host memory ran out, the node's or its container's, not the GPU's: the same again will end alike.",
        lit.OOM_CHECKS,
    ),
    "preempted": ("The job was asked to end: nothing in it is broken.", ()),
    "signal": ("Somebody or something ended it from outside: find out who before it happens again.", lit.SIGNAL_CHECKS),
    "crash": ("It crashed in native code.", lit.CRASH_CHECKS),
    "exit_code": ("It ended by itself: its own log says why.", ()),
    "exception": ("Read the exception first: a bug comes again after a restart.", ()),
}


def _where(case: Case) -> str:
    newest = case.checkpoints.newest()
    return " No checkpoint is known." if newest is None else f" It can resume from the checkpoint of step {newest}."


# --- GPUs -------------------------------------------------------------------------------------------------------------


def _gpu_fault(case: Case) -> Suggestion:
    fault, critical = facts(case.incident.evidence, GpuFaultFacts), case.incident.severity == "critical"
    if fault.foreign:
        return suggestion("none", "Nothing to do for this job: none of its ranks is on this GPU.")
    again = fault.history.faults
    source = [lit.XID_CATALOG if fault.xids else lit.GPU_THRESHOLDS]
    if fault.recovery_action:
        source = [lit.RECOVERY_ACTION]
    if fault.asks == "application" and not fault.blames_hardware:
        text = "Look for the bug in the program first: an address out of range, a wrong shape, a broken kernel."
        return suggestion("inspect", text, checklist=lit.APPLICATION_XID_CHECKS, sources=source)
    if fault.family in ("thermal", "power"):
        text = "The job goes on, slower. Look at the cooling and power of this node, and at its neighbours'."
        return suggestion("inspect", text, checklist=lit.THERMAL_CHECKS, sources=source)
    if fault.asks == "application":
        text = "The job that met the error has to start again; the GPU replaces the memory row with its next reset."
        return suggestion("restart", text + _where(case), checklist=lit.GPU_CHECKS, sources=source)
    way = _WAYS.get(fault.asks)
    if way is None:
        return suggestion(
            "inspect" if again else "wait", "Nothing to do now: watch whether it comes again.", sources=source
        )
    text = f"{'Start the job again without this GPU' if critical else 'At the next stop'}: {way}."
    if again:
        text += f" It is fault number {again} of this GPU in two weeks: take it out, don't only reset it."
    if critical:
        return suggestion("restart", text + _where(case), checklist=lit.GPU_CHECKS, sources=[*source, *_lemon(again)])
    return suggestion("inspect", text, checklist=lit.GPU_CHECKS, sources=[*source, *_lemon(again)])


_WAYS: Mapping[str, str] = {
    "reset": "reset the GPU before anything runs on it",
    "reboot": "reboot its node before anything runs on it",
    "drain": "take it out of use and have it tested",
}


def _lemon(again: int) -> list[str]:
    return [lit.LEMON_NODES] if again else []


def _sdc_suspect(case: Case) -> Suggestion:
    found, sources = facts(case.incident.evidence, SdcFacts), [lit.MEGATRON, lit.GEMINI_REPLAY]
    who = _suspect_of(case, found)
    if case.incident.severity != "critical":
        text = f"Run the same step again on {who}, and on another device: only a difference proves it. At the next stop"
        text += " give its data to another rank: the sign goes with the data or stays with the device."
        return suggestion("inspect", text, checklist=lit.SDC_CHECKS, sources=sources)
    good = case.checkpoints.newest(case.onset - 1 if found.whole_until is None else found.whole_until)
    back = "from a checkpoint before it" if good is None else f"from the checkpoint of step {good}"
    if case.incident.state != "open":
        text = f"The ranks are equal again. Where nothing was loaded since, compare all their weights, and test {who}."
        return suggestion("inspect", text, checklist=lit.SDC_CHECKS, sources=sources)
    text = f"The ranks train on different states. Start the job again without the device of {who}, {back}: those since"
    text += " may hold either state. Test the device before it computes again: a rollback alone leaves it in the job."
    return suggestion("restart", text, checklist=lit.SDC_CHECKS, sources=sources)


def _suspect_of(case: Case, found: SdcFacts) -> str:
    """Return "rank 2 on gpu-03, GPU 5 (GPU-1f...)" with what is known of it, of two of which one is wrong both."""
    if case.incident.rank is None:
        return f"one of ranks {' and '.join(map(str, found.ranks[:2]))}" if found.ranks else "the suspect"
    gpu = found.gpus[0] if found.gpus else SuspectGpu()
    node = f" on {case.incident.node}" if case.incident.node else ""
    index = "" if gpu.index is None else f", GPU {gpu.index}"
    return f"rank {case.incident.rank}{node}{index}{f' ({gpu.uuid})' if gpu.uuid else ''}"


#: Incident kind -> its rule.
MACHINE_RULES: Mapping[str, Callable[[Case], Suggestion]] = {
    "throughput": _throughput,
    "straggler": _straggler,
    "hang": _hang,
    "agent_lost": _agent_lost,
    "process_death": _death,
    "gpu_fault": _gpu_fault,
    "sdc_suspect": _sdc_suspect,
}
