"""Makes the finding of a stored incident again: a restarted server goes on with it."""

from __future__ import annotations

from stabilitybackend.detectors.contract import Finding
from stabilitybackend.schema.incidents import Incident

__all__ = ["finding_of"]


def finding_of(incident: Incident) -> Finding:
    """Return the finding that an incident of this monitor was made of."""
    return Finding(
        detector="liveness",
        key=incident.key,
        kind=incident.kind,
        state=incident.state,
        severity=incident.severity,
        title=incident.title,
        text=incident.text,
        onset_step=incident.onset_step,
        step=incident.step,
        now_step=incident.now_step,
        rank=incident.rank,
        node=incident.node,
        score=incident.score,
        evidence=dict(incident.evidence),
    )
