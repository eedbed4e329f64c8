"""What is wrong and with whom: the verdict of a hang, of deaths and of lost agents (docs/api.md, Verdict)."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

__all__ = ["Confidence", "SuspectGpu", "Training", "Verdict"]

Confidence = Literal["high", "medium", "low"]
#: What the other ranks do while the agents of some are lost.
Training = Literal["goes on", "stands", "unknown"]


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
        culprits: suspected ranks. because, blind: what speaks for it, and what could not be seen.
        since: unix seconds. dump: id of the stacks that were asked for.
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
