"""The GPUs of one run and their faults, from agents' events.

A fold over events: the same events give the same faults. Only the end of a fault after silence depends on the clock, in
``tick``. One physical fault is one incident, with any number of signs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.gpus.faults import BURST_S, GROUP_S, NodeGpu, PhysicalFault, finding_of, keeps_to_one_gpu
from stabilitybackend.judging.gpus.signs import Sign, sign_of
from stabilitybackend.lineage.changes import LineageEvent
from stabilitybackend.schema.gpus import CriticalFault, KernelLogLine
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.json_data import MAX_RANKS, NAME_CHARS, SENTENCE_CHARS

__all__ = ["GPU_EVENTS", "GpuWatch", "place"]

#: GPUs of one node; no machine has more.
MAX_GPUS_A_NODE = 128
#: Ranks that share one GPU, with MIG or for tests.
MAX_RANKS_A_GPU = 64
_BUS = re.compile(r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})")


def devices_of(node: str, data: Mapping[str, Any]) -> list[NodeGpu]:
    """Return the GPUs of a ``gpu_inventory`` event."""
    return [replace(place(node, gpu), missing=gpu.get("missing") is True) for gpu in data["gpus"][:MAX_GPUS_A_NODE]]


def place(node: str, data: Mapping[str, Any]) -> NodeGpu:
    """Return the GPU named by an event's data, with its present fields."""
    memory = data.get("memory_mib")
    return NodeGpu(
        node=node,
        uuid=_text(data.get("uuid")),
        index=data.get("index"),
        name=_text(data.get("name")),
        bus_id=_text(data.get("bus_id")),
        serial=_text(data.get("serial")),
        memory_mib=None if memory is None else float(memory),
        ranks=sorted(set(data.get("ranks") or ()))[:MAX_RANKS_A_GPU],
    )


def bus_key(bus_id: str) -> tuple[int, int, int] | None:
    """Return domain, bus and device of a PCI address: NVML writes 00000000:1B:00.0, the kernel 0000:1b:00."""
    found = _BUS.match(bus_id)
    return None if found is None else (int(found[1] or "0", 16), int(found[2], 16), int(found[3], 16))


def _text(value: str | int | None) -> str:
    return "" if value is None else str(value)[:NAME_CHARS]


#: Types of events for ``GpuWatch.event``.
GPU_EVENTS = frozenset({"gpu", "gpu_inventory", "kernel"})
#: Faults remembered per run; closed ones are dropped first.
MAX_FAULTS = 512
#: Lone symptoms, remembered per run: their fault may follow.
MAX_SYMPTOMS = 256
#: Lines of kernel logs without a GPU, remembered per run for the cause of a stop.
MAX_KERNEL_LINES = 128
#: A fault without a lasting condition and without a need to reset ends after so long without a sign, seconds.
QUIET_S = 600.0
#: Time of a new agent to report present faults of its GPUs, seconds; its slow poll is 60 s.
SEEN_AGAIN_AFTER_S = 75.0


class GpuWatch(Stateful):
    """The GPUs of one run, and their faults."""

    _devices: dict[str, NodeGpu] = fresh(dict)
    _agents: dict[str, str] = fresh(dict)
    _listed: dict[str, frozenset[str]] = fresh(dict)  # node -> GPUs of its newest inventory
    _holders: dict[int, str] = fresh(dict)  # rank -> its GPU
    _faults: dict[str, PhysicalFault] = fresh(dict)
    _symptoms: dict[tuple[str, str, float], Sign] = fresh(dict)
    #: GPU -> failures of programs on it, and time of the last one.
    _application: dict[str, tuple[int, float]] = fresh(dict)
    #: Returned GPU -> since when, and until when its agent may report its faults.
    _returned: dict[str, tuple[float, float | None]] = fresh(dict)
    kernel_lines: list[KernelLogLine] = fresh(list)
    #: GPUs left out beyond MAX_RANKS.
    not_followed: int = 0
    _newest_step: int = -1

    # --- events ---------------------------------------------------------------------------------------------------

    def event(self, event: LineageEvent, now_step: int) -> list[Finding]:
        """Take one of GPU_EVENTS and return its findings; ``now_step``: -1 before the first step."""
        self._newest_step = max(self._newest_step, now_step)
        time, node, data = event.time, event.source.node, event.data
        if event.type == "gpu_inventory":
            return self._inventory(node, event.source.source, data, time)
        if event.type == "kernel":
            return self._kernel(node, data, time)
        sign = sign_of(data, time)
        if sign is None:
            return []
        # A call that hangs before it is about one GPU is about all of the node; others without a name are ignored, but
        # for the kernel's lines: some forms of "fallen off the bus" do not name the GPU.
        device = self._device(place(node, data), nameless=sign.what == "call_hangs")
        if device is None:
            return []
        if data.get("state") == "off" or (sign.what == "recovery_action" and sign.facts.get("action") == 0):
            return self._off(device, sign)
        return self._seen(device, sign)

    def _inventory(self, node: str, source: str, data: Mapping[str, Any], time: float) -> list[Finding]:
        another, found = self._agents.get(node, source) != source, devices_of(node, data)
        self._agents[node] = source
        before, self._listed[node] = self._listed.get(node, frozenset()), frozenset(device.ident for device in found)
        for gone in self._devices.keys() & (before - self._listed[node]):
            self._devices[gone].missing = True
        for device in found:
            if device.ident not in self._devices and len(self._devices) >= MAX_RANKS:
                self.not_followed += 1
                continue
            known = self._devices.get(device.ident)
            if not device.missing and (another or (known is not None and known.missing)):
                self._returned[device.ident] = (time, None)
            self._devices[device.ident] = device
            for rank in device.ranks:
                held = self._devices.get(self._holders.get(rank, ""))
                if held is not None and held is not device:
                    held.ranks = [other for other in held.ranks if other != rank]
                self._holders[rank] = device.ident
        reported = []
        for fault in self._open():
            if fault.foreign and (ranks := self._ranks_on(fault)):
                next(iter(fault.devices.values())).ranks = ranks
                reported += self._report(fault)
            moved = all(self._holders.get(rank, "") not in {*fault.devices, ""} for rank in fault.ranks)
            # A new agent can't assign a missing GPU to its rank: by order the rank gets another one.
            guessed = fault.node == node and any(self._is_missing(ident) for ident in fault.devices)
            if fault.ranks and moved and not guessed and fault.last < time:
                reported += self._end(fault, "The job runs on other GPUs now; this one is as it was left.")
        return reported

    def _is_missing(self, ident: str) -> bool:
        device = self._devices.get(ident)
        return device is not None and device.missing is True

    def _ranks_on(self, fault: PhysicalFault) -> list[int]:
        devices = (self._devices.get(ident) for ident in fault.devices)
        return sorted({rank for device in devices if device is not None for rank in device.ranks})

    def _kernel(self, node: str, data: Mapping[str, Any], time: float) -> list[Finding]:
        what, line = data["what"], (data.get("text") or "")[:SENTENCE_CHARS]
        if what != "xid":
            self.kernel_lines.append(KernelLogLine(node, what, time, line, data.get("pid")))
            del self.kernel_lines[:-MAX_KERNEL_LINES]
            return []
        device = self._device(place(node, data), nameless=True)
        facts = {"xid": data.get("xid"), "source": "kernel"}
        sign = sign_of({"what": "xid", "state": "event", "facts": facts, "text": line}, time)
        return [] if device is None or sign is None else self._seen(device, sign)

    def _device(self, reported: NodeGpu, *, nameless: bool = False) -> NodeGpu | None:
        """Return the GPU of an event, by its UUID, else by its bus or index on its node.

        Args:
            reported: the event's fields about it. nameless: whether one without a name means its whole node.
        """
        known = self._devices.get(reported.uuid) if reported.uuid else None
        of_node = [] if known is not None else [one for one in self._devices.values() if one.node == reported.node]
        if known is None:
            bus = bus_key(reported.bus_id)
            for device in of_node:
                same_bus = reported.bus_id and bus_key(device.bus_id) == bus
                if not (reported.uuid and device.uuid) and (
                    same_bus or (not reported.bus_id and reported.index is not None and device.index == reported.index)
                ):
                    known = device
                    break
        if known is not None:
            known.ranks = reported.ranks or known.ranks
            return known
        if not reported.is_named:
            return reported if nameless else None
        if len(self._devices) >= MAX_RANKS or len(of_node) >= MAX_GPUS_A_NODE:
            self.not_followed += 1
            return None
        self._devices[reported.ident] = reported
        return reported

    # --- signs ----------------------------------------------------------------------------------------------------

    def _seen(self, device: NodeGpu, sign: Sign) -> list[Finding]:
        ident = device.ident
        fault = next((fault for fault in self._open() if fault.takes(ident, sign)), None)
        if fault is None and (sign.what == "lost" or sign.xid == 79):
            fault = self._node_loss(device, sign)
        if fault is None:
            if sign.cls == "symptom":
                self._symptoms[(ident, sign.name, sign.first)] = sign
                while len(self._symptoms) > MAX_SYMPTOMS:
                    del self._symptoms[next(iter(self._symptoms))]
                return []
            fault = self._new(device, sign)
            news = True
        else:
            news = fault.add(ident, sign)
        if sign.cls == "application" and sign.family == "software":
            times, last = self._application.get(ident, (0, -math.inf))
            self._application[ident] = (times + (sign.first - last > BURST_S), max(last, sign.last))
            news |= self._suspects(fault, ident)
            if fault.suspected:
                fault.root.count = max(fault.root.count, self._application[ident][0])
        return self._acquitted() + (self._report(fault) if news else [])

    def _suspects(self, fault: PhysicalFault, ident: str) -> bool:
        """Suspect the hardware if programs fail on this GPU and hardly on another; return whether that is new."""
        times = self._application[ident][0]
        others = max((count for other, (count, _) in self._application.items() if other != ident), default=0)
        used = [device for device in self._devices.values() if device.ranks] or [*self._devices.values()]
        before, fault.suspected = fault.suspected, len(used) > 1 and keeps_to_one_gpu(times, others)
        return before != fault.suspected

    def _acquitted(self) -> list[Finding]:
        """Return cleared suspects: programs fail on other GPUs as well."""
        suspects = [(fault, ident) for fault in self._open() if fault.suspected for ident in fault.devices]
        return [
            reported for fault, ident in suspects if self._suspects(fault, ident) for reported in self._report(fault)
        ]

    def _node_loss(self, device: NodeGpu, sign: Sign) -> PhysicalFault | None:
        """Return the loss of another GPU of the node within GROUP_S, with this one added to it."""
        for fault in self._open():
            if fault.node == device.node and fault.is_loss and abs(sign.first - fault.last) <= GROUP_S:
                fault.devices.setdefault(device.ident, replace(device))
                return fault
        return None

    def _new(self, device: NodeGpu, sign: Sign) -> PhysicalFault:
        ident = device.ident
        before = {
            (ident, name): symptom
            for (of, name, _), symptom in self._symptoms.items()
            if of == ident and 0 <= sign.first - symptom.last <= GROUP_S
        }
        self._symptoms = {key: one for key, one in self._symptoms.items() if one not in before.values()}
        step = self._newest_step
        key = f"gpu_fault:{ident}:{sign.name}:{sign.first:.0f}"
        signs = {**before, (ident, sign.name): sign}
        fault = PhysicalFault(key, device.node, {ident: replace(device)}, signs, sign.first, sign.last, step, step)
        self._faults[key] = fault
        while len(self._faults) > MAX_FAULTS:
            del self._faults[min(self._faults, key=lambda k: (self._faults[k].over is None, self._faults[k].last))]
        return fault

    def _off(self, device: NodeGpu, sign: Sign) -> list[Finding]:
        """End a condition; the end of a recovery action is a reset of the GPU."""
        reported = []
        for fault in self._open():
            known = fault.signs.get((device.ident, sign.name))
            if known is None or not known.lasts:
                continue
            known.lasts, known.last = False, max(known.last, sign.last)
            healed = _HEALED.get(sign.what)
            waits = any(s.xid is not None and s.severity == "critical" for s in fault.signs.values())
            if fault.lasts or (waits and healed is None):
                reported += self._report(fault)
            else:
                reported += self._end(
                    fault, f"{healed or 'The condition is over'}: {device.label} of {device.node} is back."
                )
        return reported

    # --- the clock ------------------------------------------------------------------------------------------------

    @property
    def expects(self) -> bool:
        """Whether ``tick`` may have findings: an open fault, or a returned GPU."""
        return bool(self._returned or self._open())

    def tick(self, now: float) -> list[Finding]:
        """Return the faults that ended by silence. Call it about once a second."""
        reported = []
        for ident, (since, until) in list(self._returned.items()):
            if until is None:
                self._returned[ident] = (since, now + SEEN_AGAIN_AFTER_S)
            elif not until - SEEN_AGAIN_AFTER_S <= now < until:
                del self._returned[ident]
                reported += self._seen_again(ident, since)
        for fault in self._open():
            resting = not fault.lasts and not fault.needs_reset
            if resting and now - fault.last > QUIET_S:
                reported += self._end(fault, f"Nothing more came for {QUIET_S / 60:.0f} min.")
        return reported

    def _seen_again(self, ident: str, since: float) -> list[Finding]:
        """End the faults of a returned GPU that its agent did not report again in time.

        Args:
            since: of a new agent, or a newly loaded driver, unix seconds of the node.
        """
        reported = []
        for fault in self._open():
            known = [device for other in fault.devices if (device := self._devices.get(other)) is not None]
            counted = [device.missing for device in known if device.missing is not None]
            # A fault of GPUs that no agent ever counted is one of the node: any present GPU is evidence for it.
            its = ident in fault.devices if counted else fault.node == self._devices[ident].node
            if its and not any(counted) and fault.last < since:
                reported += self._end(fault, "The GPU is there again, and a new agent sees nothing wrong.")
        return reported

    def _open(self) -> list[PhysicalFault]:
        """Return the open faults, newest first."""
        return [fault for fault in reversed(self._faults.values()) if fault.over is None]

    def _end(self, fault: PhysicalFault, why: str) -> list[Finding]:
        fault.over = why
        for sign in fault.signs.values():
            sign.lasts = False
        return self._report(fault)

    def _report(self, fault: PhysicalFault) -> list[Finding]:
        fault.now_step = max(fault.now_step, self._newest_step)
        named = all(device.is_named for device in fault.devices.values())
        on_node = any(device.ranks for device in self._devices.values() if device.node == fault.node)
        fault.foreign = named and not fault.ranks and on_node
        return [finding_of(fault)]

    # --- requests -------------------------------------------------------------------------------------------------

    @property
    def devices(self) -> Iterable[NodeGpu]:
        """Return the GPUs, in order of detection."""
        return self._devices.values()

    @property
    def faults(self) -> list[PhysicalFault]:
        """Return the faults, newest first."""
        return sorted(self._faults.values(), key=lambda fault: fault.last, reverse=True)

    def broken(self) -> list[CriticalFault]:
        """Return the open critical faults, newest first and one a GPU."""
        return [
            CriticalFault(device.node, device.uuid, device.index, device.ranks, fault.root.text, fault.first)
            for fault in self._open()
            if fault.severity == "critical"
            for device in fault.devices.values()
        ]

    @property
    def symptoms(self) -> Iterable[tuple[str, Sign]]:
        """Return (GPU, sign) of the lone symptoms, oldest first."""
        return ((ident, sign) for (ident, _, _), sign in self._symptoms.items())

    def load(self, incidents: Iterable[Incident]) -> None:
        """Take the stored incidents of the run: later reports have to be newer."""
        for incident in incidents:
            fault = self._faults.get(incident.key)
            if fault is not None:
                fault.now_step = max(fault.now_step, incident.now_step)


#: Conditions whose end is a reset or return of the GPU -> text.
_HEALED = {
    "recovery_action": "The driver asks for nothing any more",
    "lost": "It answers again",
    "reset_required": "It needs no reset any more",
}
