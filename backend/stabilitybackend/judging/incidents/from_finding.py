"""Makes the fields of an incident from a finding, and undoes what a rollback left behind. Pure."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from msgspec.structs import replace

from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.schema.incidents import Incident, RolledBack
from stabilitybackend.schema.json_data import TEXT_CHARS
from stabilitybackend.schema.kinds import kind_of
from stabilitybackend.schema.numbers import json_number

__all__ = ["bounded", "discarded", "fields_of", "gone_back", "incident_id_of"]

#: Entries that evidence may have, and how deep it may go: it is shown to people and travels in every update.
MAX_EVIDENCE_ENTRIES = 64
MAX_EVIDENCE_DEPTH = 4


#: Between the first sentence of a text and the next one.
_SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z])")
#: Words of a first sentence that hold while an incident lasts -> those that hold when it is over.
_PAST = (
    (" and stays there.", "."),
    ("has not been finite since step", "was not finite from step"),
    ("have not been finite since step", "were not finite from step"),
    ("and is flat at", "and was flat at"),
    (", since step", ", from step"),
)


def fields_of(finding: Finding) -> dict[str, Any]:
    """Return the fields of an incident that a finding sets."""
    return {field.name: getattr(finding, field.name) for field in fields(finding)} | {
        "score": finding.score if math.isfinite(finding.score) else 0.0,
        "evidence": bounded(finding.evidence),
        "rolled_back": None,
    }


def incident_id_of(run_id: str, finding: Finding, segment: int) -> str:
    """Return the id that this event has whoever computes it: a second worker or a re-feed names the same incident."""
    parts = (run_id, finding.kind, finding.metric, finding.rank, segment, finding.onset_step, finding.key)
    return "i-" + hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]


def discarded(incident: Incident, by: RolledBack, time: float) -> Incident:
    """Return an incident that a rollback left behind; of an open one no sentence stays that holds only while it lasts.

    Detectors begin with what happened; the sentences after that are about how it is now, and what is not known yet.
    """
    if incident.state == "open":
        text = incident.text
        if kind_of(incident.kind).about != "user":  # the job's own words
            text = _SENTENCE_END.split(text, maxsplit=1)[0]
            for present, past in _PAST:
                text = text.replace(present, past)
        incident = replace(incident, state="resolved", resolved=time, text=text)
    text = f"{incident.text} The run went back to step {by.step}; this happened on the branch that was left."
    return replace(incident, dead=True, rolled_back=by, suggestion=None, text=text)


def gone_back(incident: Incident, fork_step: int) -> Incident:
    """Undo what became known about an incident after the fork; its detector will say again how it goes on."""
    closed_step = incident.now_step if incident.closed_step is None else incident.closed_step
    recovered = incident.recovered_step
    new = replace(incident, now_step=fork_step)
    if incident.recovery is not None and (recovered is None or recovered > fork_step):
        new = replace(new, recovery="pending")
    if incident.state == "open" or closed_step <= fork_step:
        return new
    text = f"{incident.text} That was on a branch that was left: the run went back to step {fork_step}."
    return replace(new, state="open", recovered_step=None, resolved=None, closed_step=None, text=text)


def bounded(value: Any, depth: int = 0) -> Any:
    """Return evidence that is JSON: bounded, string keys, and non-finite numbers as the API spells them."""
    if isinstance(value, bool | int | None):
        return value
    if isinstance(value, float):
        return json_number(value)
    if isinstance(value, Mapping) and depth < MAX_EVIDENCE_DEPTH:
        entries = list(value.items())[:MAX_EVIDENCE_ENTRIES]
        return {str(name)[:200]: bounded(entry, depth + 1) for name, entry in entries}
    if isinstance(value, list | tuple | set | frozenset) and depth < MAX_EVIDENCE_DEPTH:
        return [bounded(entry, depth + 1) for entry in list(value)[:MAX_EVIDENCE_ENTRIES]]
    return str(value)[:TEXT_CHARS]
