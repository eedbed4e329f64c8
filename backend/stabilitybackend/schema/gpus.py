"""GPUs: of one run with their faults, and all with a remembered fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from stabilitybackend.schema.ranks import Tone

#: Action asked for by NVIDIA after a fault. application: an error of the job itself. symptom: effect of an earlier
#: failure.
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
    """Appearance of a GPU's state: label, shape in its cell, tone."""

    label: str
    mark: Literal["", "cross", "up", "dash", "hatch"]
    tone: Tone = ""


#: Worst first; ``none``: no reading.
_STATES: Mapping[GpuState | Literal["none"], _StateFacts] = {
    "lost": _StateFacts("lost", "cross", "critical"),
    "sick": _StateFacts("sick", "up", "critical"),
    "watch": _StateFacts("to watch", "dash", "warning"),
    "ok": _StateFacts("", ""),
    "none": _StateFacts("no reading", "hatch"),
}


class _Throttle(NamedTuple):
    """Reason for lowered clocks: bit of ``throttle_reasons``, and whether it costs usable speed."""

    bit: int
    label: str
    slows: bool = True


#: Harmful bits of NVML (nvml.h, nvmlClocksEventReason*); idle, user caps and a power cap at full load are normal.
_THROTTLES = (
    _Throttle(0x4, "power cap", slows=False),
    _Throttle(0x8, "hardware slowdown"),
    _Throttle(0x20, "heat, by software"),
    _Throttle(0x40, "heat, by hardware"),
    _Throttle(0x80, "power brake"),
)
#: Sent with the head of the pages.
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
    """Faults of a GPU in other runs."""

    runs: int
    faults: int
    last: float


class Gpu(msgspec.Struct):
    """A GPU of a run's nodes.

    Attributes:
        state: sick: stops or endangers the job, needs a reset or has memory errors; watch: minor faults; lost: the node
            does not reach it.
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
    """An open critical fault of a GPU, for the liveness monitor of its ranks.

    Attributes:
        ranks: of the inventory. text: the first sign as text. since: unix seconds.
    """

    node: str
    uuid: str
    index: int | None
    ranks: list[int]
    text: str
    since: float


class KernelLogLine(NamedTuple):
    """A line of a node's kernel log without a GPU. ``pid``: its subject, None for unknown."""

    node: str
    what: str
    time: float
    text: str
    pid: int | None = None


class FleetFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that the server keeps beyond the run."""

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
    """The same as stored, with its GPU."""

    uuid: str
    name: str


class FleetGpu(msgspec.Struct):
    """A GPU with a remembered fault; errors of the job itself are not counted.

    Attributes:
        count: faults in ``runs`` runs. recent: of the last 14 days.
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
    """Every GPU with a remembered fault, newest fault first."""

    gpus: list[FleetGpu]
