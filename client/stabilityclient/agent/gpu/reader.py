"""Asks NVML, on one thread and nowhere else: the identity of the GPUs, and their state now.

Each answer of NVML is a fact: a GPU that is lost has a ``fault``, a driver that is gone makes the node not visible,
a question that a GPU does not support is asked once. No exception of NVML leaves ``sample``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stabilityclient.agent.gpu.calls import CallWatch
from stabilityclient.agent.gpu.nvml_queries import DriverGone, NvmlDevice, error_code, error_text
from stabilityclient.agent.gpu.samples import GpuInfo, GpuSample, NodeSample, NvmlFault, mute_key
from stabilityclient.agent.watch.kernel_lines import bus_key

__all__ = ["GpuReader"]

#: GPUs of one node that are read; no machine has more.
MAX_GPUS = 64
#: MIG instances of one GPU.
MAX_MIG = 16
_MIB = 1024 * 1024
#: ``nvmlDeviceGetTemperatureThreshold``: slowdown, memory's and GPU's maximum (NVML_TEMPERATURE_THRESHOLD_*).
_SLOWDOWN, _MEMORY_MAX, _GPU_MAX = 1, 2, 3


class GpuReader:
    """The node's GPUs.

    Args:
        may_close: called before NVML is shut down; False: another thread still waits in it, so it is not.

    Attributes:
        watch: the calls of the thread that uses this object; None before pynvml was loaded.
        generation: grows with each ``nvmlInit``: handles of an older one are of no use.
    """

    def __init__(self, may_close: Callable[[], bool] = lambda: True) -> None:
        self._may_close = may_close
        self.watch: CallWatch | None = None
        self.generation = 0
        self._open = False
        self._count = 0
        self._driver = ""
        self._devices: dict[str, NvmlDevice] = {}  # those that NVML counts now
        self._known: dict[str, GpuInfo] = {}  # every one that was ever seen

    def devices(self) -> list[NvmlDevice]:
        """Return the GPUs that NVML counts, with their handles."""
        return list(self._devices.values())

    def sample(self, dear: bool, processes: bool = False) -> NodeSample:
        """Return the state of the GPUs. Blocks for as long as the driver takes; a faulty GPU can take without end.

        Args:
            dear: also slow questions: memory errors, links, the recovery action. processes: also those on each GPU.
        """
        try:
            watch = self._opened()
            count = int(watch.call("nvmlDeviceGetCount", ""))
            if count != self._count or not self._devices or (dear and any(d.handle is None for d in self.devices())):
                self._enumerate(watch, count)
            samples = {key: device.sample(dear, processes) for key, device in self._devices.items()}
        except Exception as error:  # ImportError, NVMLError of any kind, a driver library that is broken
            self.close()
            return self._nothing(f"no GPU visible here: {error_text(error)}", _why(error))
        if not samples:
            return self._nothing("no GPU visible here: NVML sees 0 devices", "NVML sees 0 GPUs")
        missing = frozenset(self._known) - frozenset(self._devices)
        return NodeSample(
            True,
            self._text(samples, missing),
            self._driver,
            dict(self._known),
            samples,
            missing,
            self._gaps(dear, samples),
        )

    def close(self) -> None:
        """Shut NVML down; the next sample opens it again."""
        if self._open and self.watch is not None:
            self._open = False
            try:
                if self._may_close():
                    self.watch.call("nvmlShutdown", "")
            except Exception:  # it is gone anyway
                pass
        self._devices = {}
        self._count = 0

    def _opened(self) -> CallWatch:
        if self.watch is None:
            import pynvml  # it loads the driver's library at nvmlInit

            self.watch = CallWatch(pynvml)
        if not self._open:
            self.watch.call("nvmlInit", "")
            self._open = True
            self.generation += 1
            self._driver = _decoded(_asked(self.watch, "nvmlSystemGetDriverVersion", ""))
        return self.watch

    def _enumerate(self, watch: CallWatch, count: int) -> None:
        """Ask each GPU for its identity. One without an answer is identified by its index."""
        devices: dict[str, NvmlDevice] = {}
        mute: list[tuple[int, str]] = []
        for index in range(min(count, MAX_GPUS)):
            before = next((facts.key for facts in self._known.values() if facts.index == index), mute_key(index))
            try:
                handle = watch.call("nvmlDeviceGetHandleByIndex", before, index)
                facts = self._identify(watch, handle, index, _decoded(watch.call("nvmlDeviceGetUUID", before, handle)))
            except Exception as error:
                if error_code(error) in DriverGone.CODES:
                    raise
                mute.append((index, error_text(error)))
                continue
            self._known[facts.key] = facts
            device = self._devices.get(facts.key) or NvmlDevice(watch, handle, facts, None)
            device.handle, device.no_handle = handle, None
            devices[facts.key] = device
        for index, text in mute:
            # Most likely an identified one that no other index is: NVML's order stays, it only leaves gaps out.
            left = [facts for key, facts in self._known.items() if key not in devices]
            same = [facts for facts in left if facts.index == index] or (left if len(mute) == 1 else [])
            facts = same[0] if len(same) == 1 else GpuInfo(index, "")
            self._known[facts.key] = facts
            fault = NvmlFault("lost", "nvmlDeviceGetHandleByIndex", text)
            devices[facts.key] = NvmlDevice(watch, None, facts, fault)
        named = {facts.index for facts in self._known.values() if facts.uuid}
        for key in [key for key, facts in self._known.items() if not facts.uuid and facts.index in named]:
            del self._known[key]  # identified since
            devices.pop(key, None)
        self._devices, self._count = devices, count

    def _identify(self, watch: CallWatch, handle: Any, index: int, uuid: str) -> GpuInfo:
        known = self._known.get(uuid)
        if known is not None:
            return known

        def ask(name: str, *arguments: Any) -> Any:
            return _asked(watch, name, uuid, handle, *arguments)  # a consumer card has no serial number

        pci, memory = ask("nvmlDeviceGetPciInfo"), ask("nvmlDeviceGetMemoryInfo")
        limits = {kind: ask("nvmlDeviceGetTemperatureThreshold", kind) for kind in (_SLOWDOWN, _MEMORY_MAX, _GPU_MAX)}
        taken = {gpu.index for gpu in self._known.values() if gpu.uuid}
        free = next((at for at in (index, *range(MAX_GPUS)) if at not in taken), index)
        return GpuInfo(
            index=free,
            uuid=uuid,
            name=_decoded(ask("nvmlDeviceGetName")),
            bus_id="" if pci is None else bus_key(_decoded(pci.busId)) or "",
            serial=_decoded(ask("nvmlDeviceGetSerial")),
            memory_mib=None if memory is None else int(memory.total // _MIB),
            mig=tuple(_instances(watch, uuid, ask)),
            limit_c=_positive(limits[_GPU_MAX]) or _positive(limits[_SLOWDOWN]),
            memory_limit_c=_positive(limits[_MEMORY_MAX]),
        )

    def _nothing(self, text: str, why: str) -> NodeSample:
        return NodeSample(False, text, self._driver, dict(self._known), {}, frozenset(), {"gpu": why})

    def _text(self, samples: dict[str, GpuSample], missing: frozenset[str]) -> str:
        troubles = [f"GPU {self._known[key].index} is gone" for key in sorted(missing)]
        for key, sample in samples.items():
            index = self._known[key].index
            if sample.fault is not None:
                troubles.append(f"GPU {index}: {sample.fault.text}")
            troubles += [f"GPU {index}: {call}: {text}" for call, text in sample.troubles.items()]
        names = sorted({facts.name for facts in self._known.values() if facts.name})
        return "; ".join(troubles)[:500] or f"{len(samples)} x {', '.join(names)}"

    def _gaps(self, dear: bool, samples: dict[str, GpuSample]) -> dict[str, str]:
        if not dear:
            return {}
        without = [
            self._known[key].index for key, sample in samples.items() if sample.fault is None and _no_ecc(sample)
        ]
        if not without:
            return {}
        return {"gpu_ecc": f"ECC not supported or switched off on GPU {', '.join(str(i) for i in sorted(without))}"}


def _asked(watch: CallWatch, name: str, gpu: str, *arguments: Any) -> Any:
    """Return an answer of NVML, None where it gives none; raises when the driver is gone."""
    try:
        return watch.call(name, gpu, *arguments)
    except Exception as error:
        if error_code(error) in DriverGone.CODES:
            raise
        return None


def _instances(watch: CallWatch, uuid: str, ask: Callable[..., Any]) -> list[str]:
    """Return the UUIDs of a GPU's MIG instances."""
    mode = ask("nvmlDeviceGetMigMode")
    count = min(int(ask("nvmlDeviceGetMaxMigDeviceCount") or 0), MAX_MIG) if mode and mode[0] else 0
    handles = [ask("nvmlDeviceGetMigDeviceHandleByIndex", at) for at in range(count)]
    found = [_asked(watch, "nvmlDeviceGetUUID", uuid, handle) for handle in handles if handle is not None]
    return [_decoded(text) for text in found if text is not None]


def _no_ecc(sample: GpuSample) -> bool:
    return "ecc_uncorrected" not in sample.values and bool(sample.values)


def _why(error: Exception) -> str:
    if isinstance(error, ImportError):
        return f"no module pynvml: {error_text(error)}"
    known = {9: "no NVIDIA driver", 12: "no NVML library", 18: "the driver changed while this agent ran"}
    return f"{known.get(error_code(error), 'NVML does not answer')}: {error_text(error)}"


def _positive(value: Any) -> float | None:
    return float(value) if value else None


def _decoded(text: object) -> str:
    if text is None:
        return ""
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
