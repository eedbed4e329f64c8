"""Reads the node's GPUs through NVML. A GPU that fails is a finding, none at all is a fact: neither is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["GpuReader", "GpuReading"]

_MIB = 1024 * 1024


class GpuReading(NamedTuple):
    """One look at all GPUs of the node.

    Args:
        metrics: ``gpu/<i>/<field>`` to its value; what a GPU does not have is not there.
        visible: whether NVML answered and sees a GPU.
        text: one line for people; when something is wrong, what.
    """

    metrics: dict[str, float]
    visible: bool
    text: str


class GpuReader:
    """Reads each GPU: utilisation, memory, temperature, power, ECC errors, reasons for lower clocks.

    Args:
        load: returns the module ``pynvml``, or raises.
    """

    def __init__(self, load: Callable[[], Any] | None = None) -> None:
        self._load = load or _load_pynvml
        self._nvml: Any = None

    def read(self) -> GpuReading:
        """Return what the GPUs say now. Blocks for as long as the driver takes; a sick GPU can take very long."""
        try:
            if self._nvml is None:
                module = self._load()
                module.nvmlInit()
                self._nvml = module
            count = int(self._nvml.nvmlDeviceGetCount())
        except Exception as error:  # ImportError, NVMLError of any kind, a driver library that is broken
            self._nvml = None
            return GpuReading({}, False, f"no GPU visible here: {_reason(error)}")
        if count == 0:
            return GpuReading({}, False, "no GPU visible here: NVML sees 0 devices")
        metrics: dict[str, float] = {}
        troubles = []
        name = ""
        for index in range(count):
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                name = name or _text(self._nvml.nvmlDeviceGetName(handle))
            except Exception as error:
                troubles.append(f"GPU {index}: {_reason(error)}")
                continue
            troubles += self._read_one(index, handle, metrics)
        return GpuReading(metrics, True, "; ".join(troubles) or f"{count} x {name}")

    def _read_one(self, index: int, handle: Any, metrics: dict[str, float]) -> list[str]:
        """Add the metrics of one GPU; return what it could not answer although it should."""
        nvml = self._nvml
        corrected, uncorrected = nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        volatile = nvml.NVML_VOLATILE_ECC
        reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        reasons = reasons or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
        fields: dict[str, Callable[[], float]] = {
            "util_pct": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "mem_used_mib": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used / _MIB,
            "temp_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "ecc_corrected": lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, corrected, volatile),
            "ecc_uncorrected": lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, uncorrected, volatile),
            "throttle_reasons": lambda: reasons(handle),
        }
        troubles = []
        for field, read in fields.items():
            try:
                metrics[f"gpu/{index}/{field}"] = float(read())
            except Exception as error:
                if type(error).__name__ != "NVMLError_NotSupported":  # e.g. ECC on a consumer card
                    troubles.append(f"GPU {index}: {field}: {_reason(error)}")
        return troubles


def _load_pynvml() -> Any:
    import pynvml

    return pynvml


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:200]


def _text(name: object) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
