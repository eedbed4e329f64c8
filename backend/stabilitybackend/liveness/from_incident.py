"""Makes the finding of a stored incident again: a restarted server goes on with it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from stabilitybackend.detectors.engine.base import Finding
from stabilitybackend.schema.incidents import Incident

__all__ = ["finding_of"]


def finding_of(incident: Incident) -> Finding:
    """Return the finding that an incident of this monitor was made of."""
    known: dict[str, Any] = {field.name: getattr(incident, field.name) for field in fields(Finding)}
    return Finding(**known | {"evidence": dict(incident.evidence)})
