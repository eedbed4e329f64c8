"""Says what to do about incidents of processes and machines; going back to a checkpoint does not cure them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stabilitybackend.policy import literature as lit
from stabilitybackend.policy.suggestion import Case, over, say

__all__ = ["MACHINE_RULES"]


def _throughput(case: Case) -> dict[str, Any]:
    if case.incident["state"] != "open":
        return over(case.incident)
    text = "The job trains on, but slower. Find the phase that grew, then the rank, then the machine."
    return say("inspect", text, checklist=lit.LOADER_CHECKS)


def _straggler(case: Case) -> dict[str, Any]:
    if case.incident["state"] != "open":
        return over(case.incident)
    rank, node = case.incident["rank"], case.incident["node"]
    who = " ".join(word for word in (f"rank {rank}" if rank is not None else "", f"on {node}" if node else "") if word)
    text = (
        f"All ranks wait for {who or 'one of them'}. A job with a spare node loses less by swapping it than by waiting."
    )
    return say("inspect", text, checklist=lit.STRAGGLER_CHECKS)


def _hang(case: Case) -> dict[str, Any]:
    return say(
        "inspect",
        "Look at the suspect rank first: its stack shows what it waits for. A restart now loses the cause.",
    )


def _agent_lost(case: Case) -> dict[str, Any]:
    return say("wait", "The job itself may be well. Look at the node and its network; the spool keeps what it logs.")


def _death(case: Case) -> dict[str, Any]:
    if case.incident["state"] != "open":
        return say("none", "Nothing to do: the job runs again.")
    steps = [c["step"] for c in case.checkpoints if c["available"] and not c["dead"]]
    where = f" It can resume from the checkpoint of step {max(steps)}." if steps else " No checkpoint is known."
    return say("restart", "Start the job again if its launcher does not." + where, checklist=lit.RESUME_CHECKS)


#: Incident kind -> its rule.
MACHINE_RULES: Mapping[str, Callable[[Case], dict[str, Any] | None]] = {
    "throughput": _throughput,
    "straggler": _straggler,
    "hang": _hang,
    "agent_lost": _agent_lost,
    "process_death": _death,
}
