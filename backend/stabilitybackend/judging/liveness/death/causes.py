"""Cause of a process's end: itself, another process, or a signal from outside. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from typing import Any

from stabilitybackend.judging.liveness.format import MAX_NAMED_RANKS
from stabilitybackend.judging.liveness.job_snapshot import STARTS_APART_NS
from stabilitybackend.judging.liveness.rank_watch import RankWatch
from stabilitybackend.schema.evidence import Death, DeathGpu
from stabilityclient.wire import started_ns

#: Exceptions of a stop by hand.
STOPPED_BY_HAND = frozenset({"KeyboardInterrupt"})
#: A death so soon after the first one may be its effect, seconds: failing collectives, a launcher that ends all.
CASCADE_S = 60.0
#: Signals of a launcher that ends the other processes of a job.
LAUNCHER_SIGNALS = frozenset({"SIGTERM", "SIGINT", "SIGHUP"})
#: Signals of a scheduler, a launcher or a person that ends a job from outside.
OUTSIDE_SIGNALS = LAUNCHER_SIGNALS | {"SIGKILL"}
#: Exceptions that a framework makes of such a signal: torch.distributed.elastic, Lightning.
SIGNAL_EXCEPTIONS = frozenset({"SignalException", "SIGTERMException"})
#: Exit codes by which a handler, or a shell, passes such a signal on: 128 + its number.
_SIGNAL_CODES = frozenset(128 + signal.Signals[name] for name in LAUNCHER_SIGNALS)
#: Least time between a request (SIGTERM) and a kill, seconds: torchrun, Slurm and Kubernetes wait 30 s. A restart by
#: this server waits 10 s and is no death at all.
LEAST_GRACE_S = 5.0
#: Exceptions that pass on the death of a peer, in lower case.
PASSED_ON = (
    "nccl", "gloo", "connection closed by peer", "connection reset by peer", "broken pipe", "connection refused",
    "remote process exited", "socket timeout", "processgroup", "distbackenderror", "distnetworkerror", "watchdog",
)  # fmt: skip
#: An agent's causes; "unknown" for all others.
_CAUSES = frozenset({"oom_kill", "signal", "crash", "exit_code", "exception"})

__all__ = [
    "STOPPED_BY_HAND",
    "asked_to_end",
    "cause_of",
    "from_outside",
    "is_cascade",
    "known_beside",
    "passes_on",
    "root_of",
    "stopped_from_outside",
    "weight_of",
]


def root_of(by_time: list[Death]) -> Death:
    """Return the death that causes the others: the earliest that no other death explains.

    Clocks of nodes differ by seconds, and a launcher ends the peers within them: a death that only passes on another
    one, or is a launcher's, is not the first while one within CASCADE_S has a cause of its own.
    """
    near = [death for death in by_time if death.time - by_time[0].time <= CASCADE_S]
    return next((death for death in near if not is_cascade(death)), near[0])


def stopped_from_outside(by_time: list[Death]) -> bool:
    """Return whether the ranks were only asked to end: a preemption, a cancel, a time limit.

    A rank killed a grace period after the first request did not leave in time. One killed immediately may be the reason
    for the others' end.
    """
    first = by_time[0]
    near = by_time[-1].time - first.time <= CASCADE_S
    return near and asked_to_end(first) and all(_was_asked(death, first) for death in by_time)


def _was_asked(death: Death, first: Death) -> bool:
    killed_late = death.signal_name == "SIGKILL" and death.time - first.time >= LEAST_GRACE_S
    return asked_to_end(death) or (killed_late and death.cause == "signal")


def asked_to_end(death: Death) -> bool:
    """Return whether a process was asked to end (SIGTERM and its like), and died of that or left for it."""
    if death.preempted:
        return True
    if death.exception is not None:
        return death.exception.type in SIGNAL_EXCEPTIONS
    return death.signal_name in LAUNCHER_SIGNALS or (death.cause == "exit_code" and death.exit_code in _SIGNAL_CODES)


def is_cascade(death: Death) -> bool:
    """Return whether a death only passes on another one, or is a launcher's."""
    if death.exception is not None:
        message = f"{death.exception.type} {death.exception.message}".lower()
        return any(word in message for word in PASSED_ON)
    fatal = death.fatal.lower()
    if death.signal_name == "SIGABRT" and any(word in fatal for word in ("nccl", "gloo", "watchdog")):
        return True
    return death.signal_name in LAUNCHER_SIGNALS


def weight_of(death: Death) -> int:
    """Return 0 for a death with a cause of its own, 1 for one without a cause, 2 for an effect of another."""
    if is_cascade(death):
        return 2
    return 0 if cause_of(death) in ("exception", "crash", "oom_kill", "signal", "preempted") else 1


def passes_on(death: Death) -> bool:
    """Return whether a process ended itself for missing peers, by its message."""
    return is_cascade(death) and not (death.signal_name in LAUNCHER_SIGNALS and death.exception is None)


def from_outside(death: Death) -> bool:
    """Return whether a process was ended by a signal from outside only, Ctrl-C included."""
    if death.preempted:
        return True
    if death.exception is not None:
        return death.exception.type in STOPPED_BY_HAND
    return death.cause == "signal" and death.signal_name in OUTSIDE_SIGNALS


def known_beside(dead: RankWatch, ranks: Iterable[RankWatch]) -> dict[str, Any]:
    """Return ``gpu``, ``over_before`` and ``job_step`` of a ``Death``, where available.

    Args:
        ranks: the newest process of each rank.
    """
    since = started_ns(dead.source) - STARTS_APART_NS
    started = [one for one in ranks if started_ns(one.source) >= since]
    over = sorted(one.rank for one in started if one.state in ("finished", "left") and one is not dead)
    newest = max((one.step for one in started), default=-1)
    found: dict[str, Any] = {"over_before": over[:MAX_NAMED_RANKS]} if over else {}
    if dead.gpu is not None:
        found["gpu"] = DeathGpu(dead.gpu.index, dead.gpu.uuid)
    if dead.step < 0 <= newest:
        found["job_step"] = newest
    return found


def cause_of(death: Death) -> str:
    """Return the cause of an end: "preempted" where reported, an agent's term, or "unknown"."""
    if death.preempted:
        return "preempted"
    if death.exception is not None and death.cause not in ("oom_kill", "signal", "crash"):
        return "exception"
    return death.cause if death.cause in _CAUSES else "unknown"
