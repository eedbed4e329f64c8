"""Changes that the lineage fold makes of a frame: placed rows, new segments, all other events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stabilitybackend.lineage.batch import Placed
from stabilitybackend.lineage.tree import FoldedSegment
from stabilityclient.wire import SourceInfo

__all__ = ["Change", "Forked", "LineageEvent"]


@dataclass(frozen=True)
class Forked:
    """A new segment was added; ``is_head``: whether the effective timeline changed with it."""

    segment: FoldedSegment
    is_head: bool


@dataclass(frozen=True)
class LineageEvent:
    """Any other event, with the segment that its source was in."""

    source: SourceInfo
    segment: int
    type: str
    time: float
    step: int | None
    data: dict[str, Any]


Change = Placed | Forked | LineageEvent
