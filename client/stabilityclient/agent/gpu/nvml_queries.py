"""The questions to one GPU: cheap ones at each sample, dear ones at slow ones; unanswered ones are asked once."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from stabilityclient.agent.gpu.calls import CallWatch
from stabilityclient.agent.gpu.conditions import CONDITIONS
from stabilityclient.agent.gpu.samples import GpuInfo, GpuSample, NvmlFault

__all__ = [
    "CHEAP_FIELDS",
    "DEAR_FIELDS",
    "NVLINK_ERRORS",
    "PORT_FIELDS",
    "DriverGone",
    "FieldAnswers",
    "NvmlDevice",
    "error_code",
    "error_text",
    "read_fields",
]

#: Own name to id, asked at each sample. Times at lowered clocks are counters in ns since the driver was loaded.
CHEAP_FIELDS: Mapping[str, int] = {
    "mem_temp_c": 82,  # NVML_FI_DEV_MEMORY_TEMP
    "sw_thermal_ns": 269,  # NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN
    "hw_thermal_ns": 270,  # NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN
    "power_brake_ns": 271,  # NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN
}
#: Asked at the slow samples, in addition to those of `conditions.py`. Pages and rows are counted for the GPU's life.
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
#: NVML's stand-in for a missing value: NVML_VALUE_NOT_AVAILABLE (-1), as 32 and 64 bits without sign.
_NOT_AVAILABLE = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})


class FieldAnswers(NamedTuple):
    """Answers by our names: ``values``, and ``errors`` as NVML's return codes."""

    values: dict[str, float]
    errors: dict[str, int]


def read_fields(names: list[str], answers: Any) -> FieldAnswers:
    """Return the values of one ``nvmlDeviceGetFieldValues``.

    Args:
        names: own ones, in the order in which the fields were asked. answers: returned by pynvml.
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


_MIB = 1024 * 1024
#: NVLinks of one GPU (NVML_NVLINK_MAX_LINKS of nvidia-ml-py 13.615).
MAX_LINKS = 36
#: Temperature from which a sensor reads nonsense, degrees: every GPU switches itself off long before.
MAX_TEMP_C = 150.0
#: Return codes of NVML (nvml.h, nvmlReturn_t).
_INVALID_ARGUMENT, _NOT_SUPPORTED, _NO_PERMISSION, _FUNCTION_NOT_FOUND = 2, 3, 4, 13
_GPU_IS_LOST, _RESET_REQUIRED, _VERSION, _DEPRECATED, _GPU_NOT_FOUND = 15, 16, 25, 26, 28
#: Errors after which this GPU is never asked again: the answer will not change while the driver is loaded.
_NEVER = frozenset({_INVALID_ARGUMENT, _NOT_SUPPORTED, _NO_PERMISSION, _FUNCTION_NOT_FOUND, _VERSION, _DEPRECATED})
_CLOCK_SM, _CLOCK_MEMORY, _SENSOR_GPU = 1, 2, 0


class DriverGone(Exception):
    """NVML answers no call any more: uninitialized, no driver, or another driver than its library."""

    CODES: ClassVar[frozenset[int]] = frozenset({1, 9, 18})

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.value = code


class _Lost(Exception):
    """This GPU answers nothing any more: the rest of the sample is not asked."""


class NvmlDevice:
    """One GPU that NVML counts.

    Args:
        watch: makes the calls. handle: NVML's. facts: its identity.
        no_handle: why there is no handle.
    """

    def __init__(self, watch: CallWatch, handle: Any, facts: GpuInfo, no_handle: NvmlFault | None) -> None:
        self.handle = handle
        self.facts = facts
        self.no_handle = no_handle
        self._watch = watch
        self._never: set[str] = set()
        self._sample = GpuSample(0.0)
        self._answers = 0

    def sample(self, dear: bool, processes: bool) -> GpuSample:
        """Ask; return the answers. A sample in which nothing is answered is that of a lost GPU.

        Args:
            dear: also the slow questions. processes: also the processes on it.
        """
        started = time.monotonic()
        sample = self._sample = GpuSample(started, dear, fault=self.no_handle)
        self._answers = 0
        try:
            if self.no_handle is None:
                self._cheap(sample)
                if dear:
                    self._dear(sample)
                if processes:
                    self._processes(sample)
        except _Lost:
            pass
        if sample.fault is None and not self._answers and sample.troubles:
            call, text = next(iter(sample.troubles.items()))
            sample.fault = NvmlFault("lost", call, text)
        sample.time = time.monotonic()
        sample.took_ms = (sample.time - started) * 1000.0
        return sample

    # --- questions -------------------------------------------------------------------------------------------------

    def _cheap(self, sample: GpuSample) -> None:
        values = sample.values
        rates = self._ask("nvmlDeviceGetUtilizationRates")
        if rates is not None:
            values["util_pct"] = float(rates.gpu)
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        if memory is not None:
            values["mem_used_mib"] = memory.used / _MIB
        if not self._number("temp_c", "nvmlDeviceGetTemperature", _SENSOR_GPU):
            self._number("temp_c", "nvmlDeviceGetTemperatureV", _SENSOR_GPU)  # the first goes with CUDA 14
        self._number("power_w", "nvmlDeviceGetPowerUsage", scale=0.001)
        self._number("clock_sm_mhz", "nvmlDeviceGetClockInfo", _CLOCK_SM)
        self._number("clock_mem_mhz", "nvmlDeviceGetClockInfo", _CLOCK_MEMORY)
        if not self._number("throttle_reasons", "nvmlDeviceGetCurrentClocksEventReasons"):
            self._number("throttle_reasons", "nvmlDeviceGetCurrentClocksThrottleReasons")  # drivers before 535
        self._fields(sample, {name: (number, 0) for name, number in CHEAP_FIELDS.items()})
        for sensor in ("temp_c", "mem_temp_c"):
            if not 0.0 < values.get(sensor, 1.0) < MAX_TEMP_C:
                del values[sensor]  # 0 and 255 come from a sensor that can't be read

    def _dear(self, sample: GpuSample) -> None:
        values = sample.values
        self._number("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", scale=0.001)
        fields = {**DEAR_FIELDS, **{name: condition.field for name, condition in CONDITIONS.items()}}
        self._fields(sample, {name: (number, 0) for name, number in fields.items()})
        self._nvlink(sample)
        retired = [values.pop(name) for name in ("retired_single", "retired_double") if name in values]
        if retired:
            values["retired_pages"] = sum(retired)
        self._sram(sample)
        for name, call in (
            ("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth"),
            ("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth"),
            ("pcie_gen", "nvmlDeviceGetCurrPcieLinkGeneration"),
            ("pcie_gen_max", "nvmlDeviceGetMaxPcieLinkGeneration"),
        ):
            self._number(name, call)

    def _processes(self, sample: GpuSample) -> None:
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses")
        if processes is not None:
            pids: dict[int, float] = {}
            for process in processes:
                pids[int(process.pid)] = pids.get(int(process.pid), 0.0) + (process.usedGpuMemory or 0) / _MIB
            sample.pids = pids

    def _nvlink(self, sample: GpuSample) -> None:
        links = min(int(sample.values.pop("nvlink_links", 0.0)), MAX_LINKS)
        if links:
            states = {link: self._ask("nvmlDeviceGetNvLinkState", link) for link in range(links)}
            if any(state is not None for state in states.values()):
                sample.links_up = frozenset(link for link, state in states.items() if state)
            by_link = {f"port {number} {link}": (number, link) for number in PORT_FIELDS for link in range(links)}
            self._fields(sample, by_link)
        counted = [name for name in sample.values if name in NVLINK_ERRORS or name.startswith("port ")]
        if counted:
            sample.values["nvlink_errors"] = sum(sample.values.pop(name) for name in counted)

    def _sram(self, sample: GpuSample) -> None:
        name = "nvmlDeviceGetSramEccErrorStatus"
        if name in self._never:
            return
        try:
            status = self._watch.module.c_nvmlEccSramErrorStatus_v1_t()
        except AttributeError:  # an nvidia-ml-py of before 2024
            self._never.add(name)
            return
        if self._ask(name, ctypes.byref(status)) is not None:
            sample.values["sram_threshold"] = float(bool(status.bThresholdExceeded))

    # --- asking ----------------------------------------------------------------------------------------------------

    def _number(self, field: str, call: str, *arguments: Any, scale: float = 1.0) -> bool:
        value = self._ask(call, *arguments)
        if value is not None:
            self._sample.values[field] = float(value) * scale
        return value is not None

    def _fields(self, sample: GpuSample, asked: dict[str, tuple[int, int]]) -> None:
        """Ask many fields in one call; those that this GPU does not have are left out from the next time on."""
        names = [name for name in asked if name not in self._never]
        answers = self._ask("nvmlDeviceGetFieldValues", [asked[name] for name in names]) if names else None
        if answers is None:
            return
        found = read_fields(names, answers)
        sample.values.update(found.values)
        for name, code in found.errors.items():
            self._note_reply("nvmlDeviceGetFieldValues", code, name, f"field {asked[name][0]}: code {code}")

    def _ask(self, call: str, *arguments: Any) -> Any:
        """Return the answer, None where there is none; raises ``_Lost`` and ``DriverGone``."""
        key = " ".join([call, *(str(given) for given in arguments if isinstance(given, int))])
        if key in self._never:
            return None
        try:
            answer = self._watch.call(call, self.facts.key, self.handle, *arguments)
        except Exception as error:  # NVMLError; AttributeError of an old pynvml; UnicodeDecodeError of a broken name
            code = _FUNCTION_NOT_FOUND if isinstance(error, AttributeError) else error_code(error)
            self._note_reply(call, code, key, error_text(error))
            return None
        self._answers += 1
        return answer

    def _note_reply(self, call: str, code: int, key: str, text: str) -> None:
        """Take note of an error of NVML."""
        if code in DriverGone.CODES:
            raise DriverGone(text, code)
        if code in _NEVER:
            self._never.add(key)
        elif code in (_GPU_IS_LOST, _GPU_NOT_FOUND):
            self._sample.fault = NvmlFault("lost", call, text)
            raise _Lost
        elif code == _RESET_REQUIRED:
            self._sample.fault = self._sample.fault or NvmlFault("reset_required", call, text)
        else:
            self._sample.troubles[key] = text


def error_code(error: BaseException) -> int:
    """Return NVML's return code of an exception, -1 where it has none."""
    code = getattr(error, "value", None)
    return code if isinstance(code, int) else -1


def error_text(error: BaseException) -> str:
    """Return the text of an exception, at most 200 characters."""
    return (str(error) or type(error).__name__)[:200]
