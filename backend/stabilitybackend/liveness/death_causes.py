"""What ended a process: itself, another one that pulled it down, or a signal from outside. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stabilitybackend.liveness.naming import MAX_NAMED_RANKS
from stabilitybackend.liveness.rank_watch import RankWatch, start_of
from stabilitybackend.liveness.scene import STARTS_APART_NS

#: Exceptions by which people stop a job on purpose.
STOPPED_BY_HAND = frozenset({"KeyboardInterrupt"})
#: Deaths so soon after the first one may be its consequence, seconds: collectives that fail, a launcher that ends all.
CASCADE_S = 60.0
#: Signals by which a launcher ends the other processes of a job that has lost one.
LAUNCHER_SIGNALS = frozenset({"SIGTERM", "SIGINT", "SIGHUP"})
#: Signals by which a scheduler, a launcher or a person ends a job from outside.
OUTSIDE_SIGNALS = LAUNCHER_SIGNALS | {"SIGKILL"}
#: What an exception says that only passes on the death of a peer, in lower case.
PASSED_ON = (
    "nccl", "gloo", "connection closed by peer", "connection reset by peer", "broken pipe", "connection refused",
    "remote process exited", "socket timeout", "processgroup", "distbackenderror", "distnetworkerror", "watchdog",
)  # fmt: skip
CAUSES = frozenset({"oom_kill", "signal", "crash", "exit_code", "exception", "unknown"})

__all__ = [
    "STOPPED_BY_HAND",
    "cause_of",
    "ended_together",
    "from_outside",
    "is_cascade",
    "known_beside",
    "passes_on",
    "root_of",
    "weight_of",
]


def root_of(by_time: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the death that the others follow from: the earliest that no other death explains.

    Clocks of nodes differ by seconds, and a launcher ends the peers within them: a peer that only passes on what
    happened elsewhere, or that the launcher ended, is not the first while one within CASCADE_S has a cause of its own.
    """
    near = [death for death in by_time if death["time"] - by_time[0]["time"] <= CASCADE_S]
    return next((death for death in near if not is_cascade(death)), near[0])


def ended_together(by_time: list[dict[str, Any]]) -> bool:
    """Say whether one signal ended several ranks at once, and nothing else ended any: a preemption, a cancel."""
    names = {death.get("signal_name") for death in by_time}
    near = by_time[-1]["time"] - by_time[0]["time"] <= CASCADE_S
    calm = near and len(by_time) > 1 and not any(death.get("exception") for death in by_time)
    return calm and len(names) == 1 and names <= LAUNCHER_SIGNALS


def is_cascade(death: Mapping[str, Any]) -> bool:
    """Say whether a death only passes on another one, or is a launcher's doing."""
    exception = death.get("exception")
    if exception is not None:
        said = f"{exception.get('type', '')} {exception.get('message', '')}".lower()
        return any(word in said for word in PASSED_ON)
    fatal = (death.get("fatal") or "").lower()
    if death.get("signal_name") == "SIGABRT" and any(word in fatal for word in ("nccl", "gloo", "watchdog")):
        return True
    return death.get("signal_name") in LAUNCHER_SIGNALS


def weight_of(death: Mapping[str, Any]) -> int:
    """Return 0 for a death with a cause of its own, 1 for one that tells none, 2 for one that follows from another."""
    if is_cascade(death):
        return 2
    return 0 if cause_of(death) in ("exception", "crash", "oom_kill", "signal") else 1


def passes_on(death: Mapping[str, Any]) -> bool:
    """Say whether a process ended itself because others did not come: by what it says, it is no cause of theirs."""
    return is_cascade(death) and not (death.get("signal_name") in LAUNCHER_SIGNALS and not death.get("exception"))


def from_outside(death: Mapping[str, Any]) -> bool:
    """Say whether a signal from outside ended a process, Ctrl-C included, and nothing of its own."""
    exception = death.get("exception")
    if exception:
        return exception.get("type") in STOPPED_BY_HAND
    return death.get("cause") == "signal" and death.get("signal_name") in OUTSIDE_SIGNALS


def known_beside(dead: RankWatch, ranks: Iterable[RankWatch]) -> dict[str, Any]:
    """Return what is known of a process beside what is told of its death.

    Args:
        dead: the process. ranks: the newest process of each rank.

    Returns:
        ``gpu`` of the process, ``over_before``: ranks of its start that had finished or left, and where it told no step
        ``job_step``: the newest one of its start.
    """
    since = start_of(dead.source) - STARTS_APART_NS
    started = [one for one in ranks if start_of(one.source) >= since]
    over = sorted(one.rank for one in started if one.state in ("finished", "left") and one is not dead)
    newest = max((one.step for one in started), default=-1)
    found: dict[str, Any] = {"over_before": over[:MAX_NAMED_RANKS]} if over else {}
    if dead.gpu is not None:
        found["gpu"] = {name: dead.gpu.get(name) for name in ("index", "uuid")}
    if dead.step < 0 <= newest:
        found["job_step"] = newest
    return found


def cause_of(death: Mapping[str, Any]) -> str:
    """Return one of CAUSES."""
    if death.get("exception") and death.get("cause") not in ("oom_kill", "signal", "crash"):
        return "exception"
    cause = death.get("cause")
    return cause if cause in CAUSES else "unknown"
