"""Puts incidents that were judged again in the place of stored ones, after a segment was taken back.

With another lineage other points are effective: incidents that were called dead are not, some lie in another segment,
some never were. Users refer to the stored ones by ids and have acknowledged them, receivers count their versions:
both stay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from stabilitybackend.fleet.gpu_history import with_same_history
from stabilitybackend.schema.evidence import BY_OTHER_RUNS
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.kinds import kind_of

if TYPE_CHECKING:
    from stabilitybackend.runs.state import RunState

__all__ = ["Reconciliation", "reconciled"]


class Reconciliation:
    """One judging again, until all frames have been folded without the segment that was taken back."""

    def __init__(self) -> None:
        self._fork_step = 0
        self._stored: list[Incident] = []

    def begun(self, stored: list[Incident], fork_step: int | None) -> list[Incident] | None:
        """Keep the stored incidents; return those that frames alone do not give, None where nothing is judged again.

        Args:
            fork_step: of the segment; None where none was taken back since incidents were stored.
        """
        if fork_step is None:
            return None
        self._fork_step, self._stored = fork_step, stored
        return _of_processes(stored)

    def end(self, state: RunState, now: float) -> list[Incident]:
        """Put all incidents into ``state`` as they are from now on; return those that changed."""
        incidents = reconciled(self._stored, state.incidents.all(), self._fork_step, now)
        known = {incident.incident_id: incident.version for incident in self._stored}
        state.incidents.load(incidents)
        state.reconciling, self._stored = False, []
        return [one for one in incidents if one.version != known.get(one.incident_id)]


def _of_processes(incidents: Iterable[Incident]) -> list[Incident]:
    """Return the incidents that do not follow from a run's frames alone: hangs, deaths, machines, data of others."""
    return [incident for incident in incidents if incident.detector in ("liveness", "autopilot", BY_OTHER_RUNS)]


def reconciled(stored: Iterable[Incident], retold: Iterable[Incident], fork_step: int, now: float) -> list[Incident]:
    """Return all incidents as they are to be stored; a changed one has a higher version.

    Args:
        stored: before. retold: all findings on the present lineage.
        fork_step: of the segment that was taken back; incidents that began at or before it have happened.
        now: unix seconds.
    """
    kept = {incident.incident_id: incident for incident in _of_processes(stored)}
    before: dict[str, list[Incident]] = defaultdict(list)
    for incident in sorted(stored, key=_age):
        if incident.incident_id not in kept:
            before[incident.key].append(incident)
    result = list(kept.values())
    for incident in sorted((one for one in retold if one.incident_id not in kept), key=_age):
        known = before[incident.key]
        same = next((one for one in known if one.segment == incident.segment), known[0] if known else None)
        if same is None:
            result.append(incident)
            continue
        known.remove(same)
        result.append(_merged(same, incident, now))
    result += [_withdrawn(one, fork_step, now) for ones in before.values() for one in ones]
    return result


def _age(incident: Incident) -> tuple[Any, ...]:
    return incident.opened, incident.onset_step, incident.segment, incident.incident_id


def _merged(old: Incident, new: Incident, now: float) -> Incident:
    """Return the incidents found again under their stored identity."""
    kept = ("incident_id", "opened", "acknowledged_by", "acknowledged", "version", "updated")
    merged = replace(new, **{name: getattr(old, name) for name in kept})
    if merged.kind == "gpu_fault":
        text, evidence = with_same_history(old, merged.text, merged.evidence)
        if evidence is not merged.evidence:  # the advice follows from the history, too
            merged = replace(merged, text=text, evidence=evidence, suggestion=old.suggestion)
    if kind_of(merged.kind).about == "user" and merged.acknowledged_by is not None:
        merged = replace(merged, state=old.state, resolved=old.resolved)
    # The step up to which nothing new was found is not stored each time.
    if replace(merged, now_step=old.now_step) == old:
        return old
    return replace(merged, version=old.version + 1, updated=now)


def _withdrawn(incident: Incident, fork_step: int, now: float) -> Incident:
    """Return an incident that is not found any more; it stays in the list, as it may have been seen."""
    if incident.dead or incident.onset_step <= fork_step or kind_of(incident.kind).of_machine:
        return incident
    return replace(
        incident,
        dead=True,
        state="resolved",
        resolved=incident.resolved or now,
        suggestion=None,
        text=f"{incident.text} It was judged after a restart that has been taken back.",
        version=incident.version + 1,
        updated=now,
    )
