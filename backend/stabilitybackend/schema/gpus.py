"""GPUs: those of one run with their faults, and all of which the server remembers a fault."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

__all__ = [
    "CriticalFault",
    "FleetFault",
    "FleetGpu",
    "FleetGpus",
    "Gpu",
    "GpuFault",
    "GpuState",
    "Gpus",
    "KernelLogLine",
    "Offences",
    "RememberedFault",
]

#: What NVIDIA asks for after a fault. application: an error of the job itself. symptom: something else failed first.
FaultClass = Literal["application", "reset", "reboot", "drain", "watch", "symptom"]
GpuState = Literal["ok", "watch", "sick", "lost"]
_Severity = Literal["info", "warning", "critical"]


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
