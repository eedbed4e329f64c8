"""Turns an alert of the job (``run.alert``) into a finding. Pure."""

from __future__ import annotations

from stabilitybackend.judging.detectors.engine.base import SEVERITIES, Finding
from stabilitybackend.lineage.changes import LineageEvent

__all__ = ["alert_finding"]


def alert_finding(event: LineageEvent) -> Finding:
    """Return the finding of an ``alert`` event. One a title and step; acknowledging it closes it."""
    title, step = str(event.data.get("title") or "alert"), event.step or 0
    severity = event.data.get("severity")
    return Finding(
        detector="job",
        key=f"alert:{step}:{title}",
        kind="alert",
        state="open",
        severity=severity if severity in SEVERITIES else "warning",
        title=title,
        text=str(event.data.get("text") or ""),
        onset_step=step,
        step=step,
        now_step=step,
        rank=event.source.rank,
        node=event.source.node or None,
    )
