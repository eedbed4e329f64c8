"""Sample of the node's GPUs: plain values, handed from the thread that asks NVML to the agent's loop."""

from __future__ import annotations

from dataclasses import dataclass, field

from stabilityclient.agent.gpu.conditions import CONDITIONS

__all__ = ["GpuInfo", "GpuSample", "NodeSample", "NvmlFault", "index_of_mute", "mute_key", "row_of"]

#: Fields that are points unchanged, in addition to the counters of `conditions.py`.
_FIELDS = (
    *("util_pct", "mem_used_mib", "temp_c", "mem_temp_c", "power_w", "power_limit_w", "clock_sm_mhz", "clock_mem_mhz"),
    *("throttle_reasons", "remapped_corrected", "remapped_uncorrected"),
    *("retired_pages", "pcie_replays", "nvlink_errors", "recovery_action"),
)
#: Time counters of NVML in ns to points in seconds since the agent's start.
_TIMES = {
    "hw_thermal_ns": "throttle_hw_thermal_s",
    "sw_thermal_ns": "throttle_sw_thermal_s",
    "power_brake_ns": "throttle_power_brake_s",
}
_MUTE = "index "


def mute_key(index: int) -> str:
    """Return the key of a GPU without an identity."""
    return f"{_MUTE}{index}"


def index_of_mute(key: str) -> int | None:
    """Return the index in such a key, None for the key of a GPU that has a UUID."""
    number = key.removeprefix(_MUTE)
    return int(number) if key.startswith(_MUTE) and number.isdecimal() else None


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """Identity of a GPU.

    Args:
        index: as NVML counted it when it was first seen; it stays with the UUID when another GPU vanishes.
        uuid: ``GPU-...``; empty where even that can't be asked. name: of the product. bus_id: ``0000:05:00``.
        serial: of the board. memory_mib: in all.
        mig: UUIDs of its MIG instances, empty without MIG.
        limit_c, memory_limit_c: temperatures from which the GPU or its memory is too hot; None: not reported.
    """

    index: int
    uuid: str
    name: str = ""
    bus_id: str = ""
    serial: str = ""
    memory_mib: int | None = None
    mig: tuple[str, ...] = ()
    limit_c: float | None = None
    memory_limit_c: float | None = None

    @property
    def key(self) -> str:
        """Return its unique key on the node."""
        return self.uuid or mute_key(self.index)


@dataclass(frozen=True, slots=True)
class NvmlFault:
    """Why a GPU does not answer.

    Args:
        what: ``lost`` or ``reset_required``. call: of NVML that returned it. text: NVML's text.
    """

    what: str
    call: str
    text: str


@dataclass(slots=True)
class GpuSample:
    """Answers of one GPU in one sample.

    Args:
        time: monotonic seconds at its end. dear: whether the slow questions were asked too.
        values: field of ``gpu/<i>/<field>`` to its value, and those for ``changes`` alone (``remap_pending``, ...).
            Fields that a GPU lacks, or did not answer, are absent.
        links_up: NVLinks that are active; None: not asked or no NVLink.
        pids: compute processes and the memory that each uses, MiB; None: not asked.
        fault: why it does not answer. troubles: call to NVML's text, where a question went wrong.
        took_ms: wall time of the sample.
    """

    time: float
    dear: bool = False
    values: dict[str, float] = field(default_factory=dict)
    links_up: frozenset[int] | None = None
    pids: dict[int, float] | None = None
    fault: NvmlFault | None = None
    troubles: dict[str, str] = field(default_factory=dict)
    took_ms: float = 0.0


@dataclass(slots=True)
class NodeSample:
    """One sample of all GPUs.

    Args:
        visible: whether NVML answers and sees a GPU. text: one line, with the problem, if any.
        driver: version, empty if unknown.
        gpus: every GPU that was ever seen, by key. samples: those that were read now.
        missing: keys of GPUs that NVML does not count any more.
        blind: ``what`` (``gpu``, ``gpu_ecc``) to the reason why it can't be seen here.
    """

    visible: bool
    text: str
    driver: str = ""
    gpus: dict[str, GpuInfo] = field(default_factory=dict)
    samples: dict[str, GpuSample] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()
    blind: dict[str, str] = field(default_factory=dict)


def row_of(gpu: GpuInfo, sample: GpuSample, times: dict[str, tuple[float, float]]) -> dict[str, float]:
    """Return the points of one sample, ``gpu/<i>/<field>`` (docs/wire.md); none of a GPU that answered nothing.

    Args:
        times: last value and sum of each time counter, ns; kept here from sample to sample. A counter that went back
            (its driver was loaded again) continues from the sum that it had.
    """
    if not sample.values:
        return {}
    counters = (what for what, condition in CONDITIONS.items() if condition.counts)
    row = {name: sample.values[name] for name in (*_FIELDS, *counters) if name in sample.values}
    for counter, name in _TIMES.items():
        value = sample.values.get(counter)
        if value is not None:
            last, total = times.get(counter, (value, 0.0))
            times[counter] = (value, total + max(0.0, value - last))
            row[name] = times[counter][1] / 1e9
    row["poll_ms"] = sample.took_ms
    return {f"gpu/{gpu.index}/{name}": value for name, value in row.items()}
