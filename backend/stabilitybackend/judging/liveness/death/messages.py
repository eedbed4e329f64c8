"""The sentences about the death of a process, and the verdict on it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stabilitybackend.judging.liveness.death.causes import asked_to_end, is_cascade, passes_on
from stabilitybackend.judging.liveness.format import MAX_NAMED_RANKS, capital, name_ranks
from stabilitybackend.schema.evidence import Death, Explained, Hung
from stabilitybackend.schema.json_data import SENTENCE_CHARS
from stabilitybackend.schema.verdicts import SuspectGpu, Verdict

#: How an agent knows the end of a process (``how`` of docs/wire.md), in words.
KNOWN_BY = {
    "pidfd": "by its exit status, which the kernel kept",
    "zombie": "by its exit status, read before its launcher asked",
    "kernel log": "by the kernel's log",
    "slot": "by what it wrote down before it ended",
}

#: Who asks a whole job to end, by SIGTERM and its like.
WHO_ASKS = "a scheduler (preemption, time limit, eviction), a launcher or a person"

__all__ = [
    "WHO_ASKS",
    "cut",
    "fact_text",
    "gpu_text",
    "how_it_died",
    "meaning",
    "others_after",
    "pulled",
    "step_of",
    "verdict_of",
    "where_it_was",
]


def how_it_died(who: str, cause: str, death: Death) -> str:
    """Say how a process died, without an end: "Rank 1 was killed by the kernel for memory (OOM)"."""
    who = who[:1].upper() + who[1:]
    name = death.signal_name or (f"signal {death.signal}" if death.signal else "a signal")
    if death.preempted:
        return f"{who} was preempted" + (f" by {name}" if death.signal_name else f" ({cut(death.preempted)})")
    raised = "" if death.exception is None else death.exception.type
    code = "an exit code" if death.exit_code is None else f"exit code {death.exit_code}"
    return {
        "oom_kill": f"{who} was killed by the kernel for memory (OOM)",
        "signal": f"{who} was {'ended' if asked_to_end(death) else 'killed'} from outside by {name}",
        "crash": f"{who} crashed with {name}",
        "exception": f"{who} ended with {raised or 'an exception'}",
        "exit_code": f"{who} ended with {code}",
    }.get(cause, f"The process of {who[:1].lower() + who[1:]} died")


def gpu_text(death: Death) -> str:
    """Return ", GPU 3" where it is known on which one a process was."""
    return "" if death.gpu is None or death.gpu.index is None else f", GPU {death.gpu.index}"


def others_after(ranks: int, nodes: int) -> str:
    """Say how many ranks followed: "63 ranks of 8 nodes died after it"."""
    where = f" of {nodes} nodes" if nodes > 1 else ""
    return f"{ranks} {'rank' if ranks == 1 else 'ranks'}{where} died after it"


def pulled(first: Death, others: Sequence[Death], more: int) -> str:
    """Say who else died: "After it died: ranks 1, 2 and 61 more."."""
    after = [death.rank for death in others]
    shown = ", ".join(str(rank) for rank in after[:MAX_NAMED_RANKS])
    rest = more + len(after) - min(len(after), MAX_NAMED_RANKS)
    earlier = [death.rank for death in others if death.time < first.time]
    text = f"{'Also' if earlier else 'After it'} died: {'rank' if len(after) == 1 else 'ranks'} {shown}"
    text += f" and {rest} more." if rest else "."
    cascade = [death.rank for death in others if is_cascade(death)]
    if cascade:
        text += f" Pulled down by it, by what {'it says' if len(cascade) == 1 else 'they say'}: {name_ranks(cascade)}."
    if earlier:
        clock = "the clock of its node" if len(earlier) == 1 else "the clocks of their nodes"
        text += f" {capital(name_ranks(earlier))} died earlier by {clock}, but only passed on an end."
    return text


def verdict_of(
    first: Death, others: Sequence[Death], cause: str, text: str, together: bool, hung: Hung | None
) -> Verdict:
    """Return the verdict."""
    because = [] if hung is None else [f"the job hung before: {hung.title}"]
    blind = []
    if first.evidence:
        because.append(fact_text(first.evidence))
    if first.how not in ("", "none"):
        because.append(f"known {KNOWN_BY.get(first.how, 'by ' + cut(first.how))}")
    if first.fatal:
        because.append(f"its last output: {cut(first.fatal)}")
    if first.oom is not None:
        because.append(fact_text(first.oom))
    because += [f"rank {death.rank} died {_apart(death.time - first.time)}" for death in others[:8]]
    if cause == "unknown":
        blind.append("how the process ended: its exit status was not read")
    gpus = []
    if first.gpu is not None and not together:
        gpus = [SuspectGpu(first.rank, first.node, first.gpu.index, first.gpu.uuid)]
    certain = cause in ("oom_kill", "crash", "exception", "exit_code", "preempted") or (
        cause == "signal" and first.signal
    )
    alone = not others or min(death.time for death in others) - first.time > 1.0
    sure = cause == "preempted" or (not passes_on(first) and (alone or not is_cascade(first)))
    return Verdict(
        kind=cause,
        text=text,
        confidence="high" if certain and sure else ("medium" if certain else "low"),
        culprits=[] if together else [first.rank],
        nodes=[first.node] if first.node and not together else [],
        gpus=gpus,
        because=because,
        blind=blind,
        since=first.time,
        decided_after_s=round(max(0.0, first.heard - first.time), 1) if first.heard else None,
    )


def meaning(known: Explained) -> str:
    """Return the meaning of a known error as sentences behind others, "" for one that is not known."""
    return f" {known.name}: {known.means} Usual cause: {known.cause}" if known.name else ""


def _apart(seconds: float) -> str:
    return f"{abs(seconds):.1f} s {'later' if seconds >= 0 else 'earlier'}"


def where_it_was(death: Death) -> str:
    """Say at which step; a process of less than a heartbeat reported none, and in many jobs only rank 0 reports."""
    of_job = "before its first step" if step_of(death) < 0 else f"while the job was at step {step_of(death)}"
    return f"at step {death.step}" if death.step >= 0 else of_job


def step_of(death: Death) -> int:
    """Return the step of a process that died, of one that reported none its job's."""
    return max(death.step, death.job_step)


def fact_text(evidence: object) -> str:
    """Return what the agent saw, in its own words where it has some."""
    if isinstance(evidence, Mapping):
        text = evidence.get("text") or ", ".join(f"{name} {value}" for name, value in evidence.items())
        return cut(text)
    return cut(evidence)


def cut(text: object) -> str:
    whole = str(text)
    return whole if len(whole) <= SENTENCE_CHARS else whole[: SENTENCE_CHARS - 1] + "…"
