"""Numbers of NVML that ``nvmlDeviceGetFieldValues`` gives many at a time, and how their values are read.

Ids and value types: nvidia-ml-py 13.615, names beside them. Which GPUs have which is asked, never assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["CHEAP_FIELDS", "DEAR_FIELDS", "NVLINK_ERRORS", "PORT_FIELDS", "FieldAnswers", "read_fields"]

#: Name of ours to id, asked at each sample. Times at lowered clocks are counters in ns since the driver was loaded.
CHEAP_FIELDS: Mapping[str, int] = {
    "mem_temp_c": 82,  # NVML_FI_DEV_MEMORY_TEMP
    "sw_thermal_ns": 269,  # NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN
    "hw_thermal_ns": 270,  # NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN
    "power_brake_ns": 271,  # NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN
}
#: Asked at the slow samples, beside those of `conditions.py`. Pages and rows are counted for the GPU's life.
DEAR_FIELDS: Mapping[str, int] = {
    "retired_single": 29,  # NVML_FI_DEV_RETIRED_SBE
    "retired_double": 30,  # NVML_FI_DEV_RETIRED_DBE
    "retired_pending": 31,  # NVML_FI_DEV_RETIRED_PENDING
    "nvlink_crc_flit": 38,  # NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL
    "nvlink_crc_data": 45,  # NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL
    "nvlink_replay": 52,  # NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL
    "nvlink_recovery": 59,  # NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL
    "nvlink_links": 91,  # NVML_FI_DEV_NVLINK_LINK_COUNT
    "pcie_replays": 94,  # NVML_FI_DEV_PCIE_REPLAY_COUNTER
    "remapped_corrected": 142,  # NVML_FI_DEV_REMAPPED_COR
    "remapped_uncorrected": 143,  # NVML_FI_DEV_REMAPPED_UNC
    "recovery_action": 230,  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
}
#: Those of DEAR_FIELDS whose sum is ``nvlink_errors``.
NVLINK_ERRORS = ("nvlink_crc_flit", "nvlink_crc_data", "nvlink_replay", "nvlink_recovery")
#: Errors of one NVLink (its number is the scope of the question), added to ``nvlink_errors``: the GPUs since Hopper
#: count by link and do not know the totals above.
PORT_FIELDS: tuple[int, ...] = (
    161,  # NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY
    162,  # NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY
    208,  # NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS
    215,  # NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS
)

#: Member of the value's union for each value type (NVML_VALUE_TYPE_DOUBLE 0 to _UNSIGNED_SHORT 6).
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
#: What NVML says in a value's place where there is none: NVML_VALUE_NOT_AVAILABLE (-1), as 32 and 64 bits without sign.
_NOT_AVAILABLE = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})


class FieldAnswers(NamedTuple):
    """Answers by our names: ``values``, and ``errors`` as NVML's return codes."""

    values: dict[str, float]
    errors: dict[str, int]


def read_fields(names: list[str], answers: Any) -> FieldAnswers:
    """Return the values of one ``nvmlDeviceGetFieldValues``.

    Args:
        names: ours, in the order in which the fields were asked. answers: what pynvml returned.
    """
    values: dict[str, float] = {}
    errors: dict[str, int] = {}
    for name, answer in zip(names, answers, strict=True):
        if answer.nvmlReturn != 0:
            errors[name] = int(answer.nvmlReturn)
        elif 0 <= answer.valueType < len(_MEMBERS):
            value = getattr(answer.value, _MEMBERS[answer.valueType])
            if value not in _NOT_AVAILABLE:
                values[name] = float(value)
    return FieldAnswers(values, errors)
