"""GPUs: those of one run with their faults, and all of which the server remembers a fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from stabilitybackend.schema.ranks import Tone

#: What NVIDIA asks for after a fault. application: an error of the job itself. symptom: something else failed first.
FaultClass = Literal["application", "reset", "reboot", "drain", "watch", "symptom"]
GpuState = Literal["ok", "watch", "sick", "lost"]
_Severity = Literal["info", "warning", "critical"]

_CLASSES: Mapping[FaultClass, str] = {
    "application": "the program's own error: the GPU should be healthy",
    "reset": "the GPU has to be reset",
    "reboot": "the node has to be rebooted",
    "drain": "take the node out of service",
    "watch": "watch it",
    "symptom": "a symptom of something else",
}


class _StateFacts(msgspec.Struct, frozen=True):
    """What follows for people from the state of a GPU: its label, the shape in its cell, its tone."""

    label: str
    mark: Literal["", "cross", "up", "dash", "hatch"]
    tone: Tone = ""


#: Worst first; ``none``: nothing has been read of it.
_STATES: Mapping[GpuState | Literal["none"], _StateFacts] = {
    "lost": _StateFacts("lost", "cross", "critical"),
    "sick": _StateFacts("sick", "up", "critical"),
    "watch": _StateFacts("to watch", "dash", "warning"),
    "ok": _StateFacts("", ""),
    "none": _StateFacts("no reading", "hatch"),
}


class _Throttle(NamedTuple):
    """Why clocks are lowered: the bit of ``throttle_reasons``, and whether that costs speed that was paid for."""

    bit: int
    label: str
    slows: bool = True


#: NVML's bits that mean trouble (nvml.h, nvmlClocksEventReason*); idle and user caps don't. A power cap at full load is
#: how these GPUs run.
_THROTTLES = (
    _Throttle(0x4, "power cap", slows=False),
    _Throttle(0x8, "hardware slowdown"),
    _Throttle(0x20, "heat, by software"),
    _Throttle(0x40, "heat, by hardware"),
    _Throttle(0x80, "power brake"),
)
#: What the pages get with their head.
GPUS: dict[str, Any] = {
    "classes": _CLASSES,
    "states": msgspec.to_builtins(_STATES),
    "throttles": [one._asdict() for one in _THROTTLES],
}


class GpuFault(msgspec.Struct):
    """A fault of a GPU in one run.

    Attributes:
        what: the first sign, e.g. xid, ecc_uncorrected, lost.
        incident_id: null for a symptom alone.
    """

    time: float
    last: float
    step: int | None
    what: str
    text: str
    class_: FaultClass = msgspec.field(name="class")
    severity: _Severity
    open: bool
    count: int
    xids: list[int]
    incident_id: str | None


class Offences(msgspec.Struct):
    """What is remembered of a GPU from other runs."""

    runs: int
    faults: int
    last: float


class Gpu(msgspec.Struct):
    """A GPU of a run's nodes.

    Attributes:
        state: sick: it stops or endangers the job, has to be reset or has memory errors; watch: something is known;
            lost: the node does not reach it.
        faults: newest first, at most 16.
    """

    node: str
    index: int | None
    uuid: str
    name: str
    bus_id: str
    serial: str
    memory_mib: float | None
    ranks: list[int]
    state: GpuState
    faults: list[GpuFault]
    offences: Offences | None


class Gpus(msgspec.Struct):
    """The GPUs of a run by node and index."""

    gpus: list[Gpu]


class CriticalFault(msgspec.Struct, frozen=True):
    """An open critical fault of a GPU, as the liveness monitor looks for the ranks on it.

    Attributes:
        ranks: of the inventory. text: the first sign in words. since: unix seconds.
    """

    node: str
    uuid: str
    index: int | None
    ranks: list[int]
    text: str
    since: float


class KernelLogLine(NamedTuple):
    """A line of a node's kernel log that is about no GPU. ``pid``: whom it is about, None where that is not known."""

    node: str
    what: str
    time: float
    text: str
    pid: int | None = None


class FleetFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that the server remembers, whatever becomes of the run."""

    run_id: str
    run_name: str = ""
    project: str = ""
    incident_id: str
    time: float
    node: str
    index: int | None
    ranks: list[int] = []
    what: str = ""
    xids: list[int] = []
    class_: str = msgspec.field(name="class", default="")
    severity: _Severity = "warning"
    title: str
    open: bool = False


class RememberedFault(FleetFault, frozen=True, kw_only=True):
    """The same as it is stored, with its GPU."""

    uuid: str
    name: str


class FleetGpu(msgspec.Struct):
    """A GPU of which a fault is remembered. Errors of the job itself are not counted.

    Attributes:
        count: faults in ``runs`` runs. recent: those of the last 14 days.
        faults: newest first, at most 32.
    """

    uuid: str
    name: str
    node: str
    index: int | None
    count: int
    runs: int
    first: float
    last: float
    recent: int
    faults: list[FleetFault]


class FleetGpus(msgspec.Struct):
    """Every GPU of which a fault is remembered, newest fault first."""

    gpus: list[FleetGpu]
