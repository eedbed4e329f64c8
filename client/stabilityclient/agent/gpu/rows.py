"""The points of one GPU, ``gpu/<i>/<field>``, from what a sample gave. Names and units: docs/wire.md."""

from __future__ import annotations

from stabilityclient.agent.gpu.conditions import CONDITIONS
from stabilityclient.agent.gpu.samples import GpuInfo, GpuSample

__all__ = ["row_of"]

#: Fields that are points as they are, beside the counters of `conditions.py`.
_FIELDS = (
    *("util_pct", "mem_used_mib", "temp_c", "mem_temp_c", "power_w", "power_limit_w", "clock_sm_mhz", "clock_mem_mhz"),
    *("throttle_reasons", "remapped_corrected", "remapped_uncorrected"),
    *("retired_pages", "pcie_replays", "nvlink_errors", "recovery_action"),
)
#: Time counters of NVML in ns to points in seconds since the agent came.
_TIMES = {
    "hw_thermal_ns": "throttle_hw_thermal_s",
    "sw_thermal_ns": "throttle_sw_thermal_s",
    "power_brake_ns": "throttle_power_brake_s",
}


def row_of(gpu: GpuInfo, sample: GpuSample, times: dict[str, tuple[float, float]]) -> dict[str, float]:
    """Return the points of one sample, empty for a GPU that answered nothing.

    Args:
        times: last value and sum of each time counter, ns; kept here from sample to sample. A counter that went back
            (its driver was loaded again) goes on from the sum that it had.
    """
    if not sample.values:
        return {}
    counters = (what for what, condition in CONDITIONS.items() if condition.counts)
    row = {field: sample.values[field] for field in (*_FIELDS, *counters) if field in sample.values}
    for counter, field in _TIMES.items():
        value = sample.values.get(counter)
        if value is not None:
            last, total = times.get(counter, (value, 0.0))
            times[counter] = (value, total + max(0.0, value - last))
            row[field] = times[counter][1] / 1e9
    row["poll_ms"] = sample.took_ms
    return {f"gpu/{gpu.index}/{field}": value for field, value in row.items()}
