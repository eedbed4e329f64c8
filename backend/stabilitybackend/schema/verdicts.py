"""Verdicts of hangs, deaths and lost agents (docs/api.md, Verdict)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

Confidence = Literal["high", "medium", "low"]
#: State of the other ranks while the agents of some are lost.
Training = Literal["goes on", "stands", "unknown"]

#: Class of a verdict -> label (docs/liveness.md).
_CLASSES = {
    "data_loader": "stuck in the data loader",
    "peer_missing": "a peer is missing",
    "livelock": "Python runs, no step is made",
    "gil_held": "a C call holds Python's lock",
    "stopped": "the process is stopped",
    "blocked": "blocked outside Python",
    "lock": "waits for a lock",
    "io": "waits for a disk or file system",
    "collective_stuck": "a collective is stuck",
    "desync": "ranks run different collectives",
    "overdue": "a long phase is overdue",
    "node_lost": "a node is silent",
    "oom_kill": "killed for memory",
    "signal": "killed from outside",
    "preempted": "preempted",
    "crash": "crashed",
    "exit_code": "ended with an error code",
    "exception": "an exception ended it",
    "agent_dead": "the agent died",
    "partition": "the node can't reach the server",
    "unknown": "cause unknown",
}
_CONFIDENCES: Mapping[Confidence, str] = {
    "high": "the evidence leaves no other reading that we know of",
    "medium": "the evidence fits, others are possible",
    "low": "a suspicion: look before you act",
}
_TRAININGS: Mapping[Training, str] = {"goes on": "goes on", "stands": "stalled", "unknown": "not known"}
#: Labels for the pages, sent with their head.
WORDS = {"classes": _CLASSES, "confidences": _CONFIDENCES, "trainings": _TRAININGS}


class SuspectGpu(msgspec.Struct, frozen=True):
    """The GPU of a suspect."""

    rank: int | None = None
    node: str | None = None
    index: int | None = None
    uuid: str | None = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True, rename={"kind": "class"}):
    """One verdict.

    Attributes:
        kind: its class, by kind of incident (docs/api.md).
        parts: of a hang, the text in pieces, with a start time (unix seconds) for each duration.
        culprits: suspected ranks. because, blind: evidence, and gaps in it.
        since: unix seconds. dump: id of the requested stacks.
        training: of lost agents.
    """

    kind: str = ""
    text: str = ""
    parts: list[str | float] | UnsetType = UNSET
    confidence: Confidence = "low"
    culprits: list[int] = []
    nodes: list[str] = []
    gpus: list[SuspectGpu] = []
    because: list[str] = []
    blind: list[str] = []
    since: float | None = None
    decided_after_s: float | None = None
    dump: str | None = None
    training: Training | UnsetType = UNSET
