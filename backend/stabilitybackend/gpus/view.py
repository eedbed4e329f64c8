"""Shows the GPUs of a run in the shape of docs/api.md (Gpu)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from stabilitybackend.gpus.faults import Fault
from stabilitybackend.gpus.watch import GpuWatch
from stabilitybackend.schema.incidents import Incident

__all__ = ["gpus_view"]

#: Faults shown of one GPU, newest first.
MAX_SHOWN = 16


def gpus_view(
    watch: GpuWatch,
    incidents: Iterable[Incident],
    offences: Callable[[str], dict[str, Any] | None],
    readings: Callable[[str], Mapping[str, Mapping[str, float]]],
) -> list[dict[str, Any]]:
    """Return the GPUs by node and index.

    Args:
        watch: of the run.
        incidents: of the run.
        offences: UUID -> what other runs remember of it, None for nothing.
        readings: node -> its GPUs' newest readings by index.
    """
    ids = {i.key: i.incident_id for i in incidents if i.kind == "gpu_fault"}
    faults: dict[str, list[dict[str, Any]]] = {}
    states: dict[str, set[str]] = {}
    for fault in watch.faults:
        for ident in fault.devices:
            faults.setdefault(ident, []).append(_shown(fault, ids.get(fault.key)))
            states.setdefault(ident, set()).add(_state(fault))
    for ident, sign in watch.symptoms:
        faults.setdefault(ident, []).append(
            {
                "time": sign.first, "last": sign.last, "step": None, "what": sign.what, "text": sign.text,
                "class": sign.cls, "severity": sign.severity, "open": False, "count": sign.count,
                "xids": [sign.xid], "incident_id": None,
            }
        )  # fmt: skip
    return [
        {
            "node": device.node,
            "index": device.index,
            "uuid": device.uuid,
            "name": device.name,
            "bus_id": device.bus_id,
            "serial": device.serial,
            "memory_mib": device.memory_mib,
            "ranks": device.ranks,
            "state": _worst(states.get(device.ident, set()) | _read(readings(device.node).get(str(device.index), {}))),
            "faults": sorted(faults.get(device.ident, []), key=lambda f: float(f["last"]), reverse=True)[:MAX_SHOWN],
            "offences": offences(device.uuid) if device.uuid else None,
        }
        for device in sorted(watch.devices, key=lambda d: (d.node, 1024 if d.index is None else d.index, d.uuid))
    ]


def _worst(states: set[str]) -> str:
    return next((state for state in ("lost", "sick", "watch") if state in states), "ok")


def _read(fields: Mapping[str, float]) -> set[str]:
    """Return what is wrong by the readings alone: errors from before its agent began, of which nobody reported one."""
    return {"sick"} if fields.get("ecc_uncorrected", 0.0) > 0 else set()


def _state(fault: Fault) -> str:
    if fault.over is not None or fault.gravity == "info":
        return "ok"
    if fault.is_loss:
        return "lost"
    return "sick" if fault.gravity == "critical" else "watch"


def _shown(fault: Fault, incident_id: str | None) -> dict[str, Any]:
    root = fault.root
    return {
        "time": fault.first,
        "last": fault.last,
        "step": fault.onset_step,
        "what": root.what,
        "text": root.text,
        "class": fault.cls,
        "severity": fault.severity,
        "open": fault.over is None,
        "count": root.count,
        "xids": fault.xids,
        "incident_id": incident_id,
    }
