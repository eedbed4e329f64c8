"""The GPUs of a run in API form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from stabilitybackend.judging.gpus.faults import PhysicalFault
from stabilitybackend.judging.gpus.watch import GpuWatch
from stabilitybackend.schema.gpus import Gpu, GpuFault, GpuState, Offences
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.json_data import MAX_LISTED

__all__ = ["gpus_view"]


def gpus_view(
    watch: GpuWatch,
    incidents: Iterable[Incident],
    offences: Callable[[str], Offences | None],
    readings: Callable[[str], Mapping[str, Mapping[str, float]]],
) -> list[Gpu]:
    """Return the GPUs by node and index.

    Args:
        offences: UUID -> faults in other runs, None for none.
        readings: node -> its GPUs' newest readings by index.
    """
    ids = {i.key: i.incident_id for i in incidents if i.kind == "gpu_fault"}
    faults: dict[str, list[GpuFault]] = {}
    states: dict[str, set[GpuState]] = {}
    for fault in watch.faults:
        for ident in fault.devices:
            faults.setdefault(ident, []).append(_shown(fault, ids.get(fault.key)))
            states.setdefault(ident, set()).add(_state(fault))
    for ident, sign in watch.symptoms:
        faults.setdefault(ident, []).append(
            GpuFault(
                time=sign.first, last=sign.last, step=None, what=sign.what, text=sign.text, class_=sign.cls,
                severity=sign.severity, open=False, count=sign.count, xids=[] if sign.xid is None else [sign.xid],
                incident_id=None,
            )
        )  # fmt: skip
    return [
        Gpu(
            node=device.node,
            index=device.index,
            uuid=device.uuid,
            name=device.name,
            bus_id=device.bus_id,
            serial=device.serial,
            memory_mib=device.memory_mib,
            ranks=device.ranks,
            state=_worst(states.get(device.ident, set()) | _read(readings(device.node).get(str(device.index), {}))),
            faults=sorted(faults.get(device.ident, []), key=lambda fault: fault.last, reverse=True)[:MAX_LISTED],
            offences=offences(device.uuid) if device.uuid else None,
        )
        for device in sorted(watch.devices, key=lambda d: (d.node, 1024 if d.index is None else d.index, d.uuid))
    ]


def _worst(states: set[GpuState]) -> GpuState:
    worst_first: tuple[GpuState, ...] = ("lost", "sick", "watch")
    return next((state for state in worst_first if state in states), "ok")


def _read(fields: Mapping[str, float]) -> set[GpuState]:
    """Return faults by the readings alone: errors from before the agent's start, without a report."""
    return {"sick"} if fields.get("ecc_uncorrected", 0.0) > 0 else set()


def _state(fault: PhysicalFault) -> GpuState:
    if fault.over is not None or fault.gravity == "info":
        return "ok"
    if fault.is_loss:
        return "lost"
    return "sick" if fault.gravity == "critical" else "watch"


def _shown(fault: PhysicalFault, incident_id: str | None) -> GpuFault:
    root = fault.root
    return GpuFault(
        time=fault.first,
        last=fault.last,
        step=fault.onset_step,
        what=root.what,
        text=root.text,
        class_=fault.cls,
        severity=fault.severity,
        open=fault.over is None,
        count=root.count,
        xids=fault.xids,
        incident_id=incident_id,
    )
