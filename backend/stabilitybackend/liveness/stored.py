"""Makes the finding of a stored incident again: a restarted server goes on with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stabilitybackend.detectors.contract import Finding

__all__ = ["finding_of"]


def finding_of(incident: Mapping[str, Any]) -> Finding:
    """Return the finding that an incident of this monitor was made of."""
    evidence = incident["evidence"]
    return Finding(
        detector="liveness",
        key=evidence["key"],
        kind=incident["kind"],
        state=incident["state"],
        severity=incident["severity"],
        title=incident["title"],
        text=incident["text"],
        onset_step=incident["onset_step"],
        step=incident["step"],
        now_step=evidence["now_step"],
        rank=incident["rank"],
        node=incident["node"],
        score=incident["score"],
        evidence={name: value for name, value in evidence.items() if name not in ("key", "detector", "now_step")},
    )
