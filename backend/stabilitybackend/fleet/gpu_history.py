"""Earlier faults of GPUs by UUID, over all runs of the server. Pure: ``fleet.py`` stores it.

A fault counts once, for any number of changes and replays: its identity is the run and the key of the finding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.schema.evidence import FaultyGpu, GpuFaultFacts, facts
from stabilitybackend.schema.fleet import RunNames
from stabilitybackend.schema.gpus import FleetFault, FleetGpu, Offences, RememberedFault
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.json_data import MAX_NAMED

__all__ = ["GpuFaultHistory", "counts", "with_same_history"]

#: Remembered GPUs; the one with the oldest last fault is dropped first.
MAX_GPUS = 4_096
#: Faults remembered of one GPU, newest ones.
MAX_FAULTS = 32
#: Age of recent faults, days. Own choice: two weeks hold several runs and not yet the GPU's next service.
RECENT_DAYS = 14.0
_DAY_S = 86_400.0
_ORDINALS = {2: "second", 3: "third", 4: "fourth", 5: "fifth", 6: "sixth", 7: "seventh", 8: "eighth", 9: "ninth"}


def counts(severity: str, fault: GpuFaultFacts) -> bool:
    """Return whether a fault counts against its GPU: not errors of the application, and not mere notes."""
    return severity != "info" and fault.blames_hardware


class GpuFaultHistory:
    """The faults of the fleet's GPUs."""

    def __init__(self) -> None:
        #: UUID -> identity of the fault -> fault.
        self._gpus: dict[str, dict[str, RememberedFault]] = {}

    def add(self, incident: Incident, run: RunNames) -> list[tuple[str, RememberedFault | None]]:
        """Take a ``gpu_fault``; return (field, fault) to store, None: to forget."""
        changed: list[tuple[str, RememberedFault | None]] = []
        if incident.kind != "gpu_fault":
            return changed
        seen = facts(incident.evidence, GpuFaultFacts)
        for gpu in seen.gpus:
            uuid = gpu.uuid or ""
            field = _field(uuid, run.run_id, incident.key)
            known = self._gpus.get(uuid, {}).get(field)
            if not uuid or (known is None and not counts(incident.severity, seen)):
                continue
            fault = _fault(incident, seen, gpu, run)
            if fault != known:
                changed.append((field, fault))
                changed += [(gone, None) for gone in self.put(field, fault)]
        return changed

    def put(self, field: str, fault: RememberedFault) -> list[str]:
        """Take a fault, new or stored; return the fields of the dropped ones."""
        uuid = fault.uuid
        faults = self._gpus.setdefault(uuid, {})
        faults[field] = fault
        gone = []
        if len(faults) > MAX_FAULTS:
            gone.append(min(faults, key=lambda name: faults[name].time))
            del faults[gone[0]]
        if len(self._gpus) > MAX_GPUS:
            oldest = min(self._gpus, key=lambda name: max(f.time for f in self._gpus[name].values()))
            gone += list(self._gpus.pop(oldest))
        return gone

    def with_history(self, finding: Finding, run_id: str, known: Incident | None = None) -> Finding:
        """Return a finding about a GPU with its faults of the days before.

        Args:
            known: its present incident. Its history is kept: other runs may have reported faults of that time since,
                and findings depend on frames alone.
        """
        if finding.kind != "gpu_fault":
            return finding
        fault = facts(finding.evidence, GpuFaultFacts)
        if not counts(finding.severity, fault):
            return finding
        stored = None if known is None else facts(known.evidence, GpuFaultFacts)
        if known is not None and stored is not None and counts(known.severity, stored) and _keeps_history(stored):
            text, evidence = with_same_history(known, finding.text, finding.evidence)
            return replace(finding, text=text, evidence=dict(evidence))
        history = {}
        for gpu in fault.gpus:
            uuid = gpu.uuid or ""
            before = self._before(uuid, run_id, finding.key, fault.since or 0.0)
            if before:
                history[uuid] = before
        if not history:
            return finding
        uuid, before = max(history.items(), key=lambda item: len(item[1]))
        runs = list(dict.fromkeys([*(fault.run_id for fault in before), run_id]))
        count = len(before) + 1
        named = ", ".join(runs[:MAX_NAMED]) + (f" and {len(runs) - MAX_NAMED} more" if len(runs) > MAX_NAMED else "")
        which = "this GPU" if len(fault.gpus) == 1 else f"the GPU {uuid}"
        text = (
            f"{_ORDINALS.get(count, f'{count}th').capitalize()} fault of {which} in {RECENT_DAYS:.0f} days, "
            f"in {len(runs)} run{'s' if len(runs) > 1 else ''} ({named})."
        )
        remembered = {
            "faults": count,
            "days": RECENT_DAYS,
            "runs": runs[:16],
            "last": max(fault.time for fault in before),
            "titles": [fault.title for fault in before][-4:],
            "text": text,
        }
        return replace(finding, text=f"{finding.text} {text}", evidence={**finding.evidence, "history": remembered})

    def offences(self, uuid: str, but: str = "", project: str | None = None) -> Offences | None:
        """Return the faults of a GPU in runs other than ``but``, None for none; with a project only of its runs."""
        known = self._gpus.get(uuid, {}).values()
        faults = [one for one in known if one.run_id != but and (project is None or one.project == project)]
        if not faults:
            return None
        return Offences(len({fault.run_id for fault in faults}), len(faults), max(fault.time for fault in faults))

    def all(self, now: float, project: str | None = None) -> list[FleetGpu]:
        """Return the GPUs, newest fault first; if given, of one project."""
        found = []
        for uuid, known in self._gpus.items():
            seen = [fault for fault in known.values() if project is None or fault.project == project]
            faults = sorted(seen, key=lambda fault: fault.time, reverse=True)
            if not faults:
                continue
            newest = faults[0]
            found.append(
                FleetGpu(
                    uuid=uuid,
                    name=newest.name,
                    node=newest.node,
                    index=newest.index,
                    count=len(faults),
                    runs=len({fault.run_id for fault in faults}),
                    first=faults[-1].time,
                    last=newest.time,
                    recent=sum(fault.time >= now - RECENT_DAYS * _DAY_S for fault in faults),
                    faults=[_without_gpu(fault) for fault in faults],
                )
            )
        return sorted(found, key=lambda gpu: (gpu.last, gpu.uuid), reverse=True)

    def _before(self, uuid: str, run_id: str, key: str, at: float) -> list[RememberedFault]:
        """Return the other faults of a GPU in the RECENT_DAYS before a time, oldest first."""
        own, since = _field(uuid, run_id, key), at - RECENT_DAYS * _DAY_S
        faults = [f for field, f in self._gpus.get(uuid, {}).items() if field != own and since <= f.time <= at]
        return sorted(faults, key=lambda fault: fault.time)


def _keeps_history(stored: GpuFaultFacts) -> bool:
    """Return whether an incident has a stored history."""
    return bool(stored.history.text) or not stored.history.faults


def with_same_history(known: Incident, text: str, evidence: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return text and evidence of a repeated fault with the history of ``known``."""
    history = known.evidence.get("history")
    if not history or "text" not in history:
        return text, evidence
    return f"{text} {history['text']}", {**evidence, "history": history}


def _without_gpu(fault: RememberedFault) -> FleetFault:
    return FleetFault(**{name: getattr(fault, name) for name in FleetFault.__struct_fields__})


def _field(uuid: str, run_id: str, key: str) -> str:
    return f"{uuid}|{run_id}|{key}"


def _fault(incident: Incident, seen: GpuFaultFacts, gpu: FaultyGpu, run: RunNames) -> RememberedFault:
    return RememberedFault(
        uuid=gpu.uuid or "",
        name=gpu.name or "",
        run_id=run.run_id,
        run_name=run.name or run.run_id,
        project=run.project,
        incident_id=incident.incident_id,
        time=seen.since or incident.opened,
        node=gpu.node or "",
        index=gpu.index,
        ranks=gpu.ranks,
        what=seen.what,
        xids=seen.xids,
        class_=seen.asks,
        severity=incident.severity,
        title=incident.title,
        open=incident.state == "open",
    )
