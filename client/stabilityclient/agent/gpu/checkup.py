"""One sample of the GPUs for ``stabilityboard doctor``: the view of an agent here, within a bounded time."""

from __future__ import annotations

import threading
from typing import NamedTuple

from stabilityclient.agent.gpu.listener import XID
from stabilityclient.agent.gpu.reader import GpuReader
from stabilityclient.agent.gpu.samples import NodeSample

__all__ = ["GpuCheckup", "check_gpus"]

#: Longest time that NVML is waited for, seconds; ``nvmlInit`` alone takes some on a node whose driver sleeps.
TIMEOUT_S = 20.0


class GpuCheckup(NamedTuple):
    """``well``: all that an agent reads can be read. ``text``: the findings. ``advice``: empty without a fault."""

    well: bool
    text: str
    advice: str


def check_gpus(timeout_s: float = TIMEOUT_S) -> GpuCheckup:
    """Return the visible state of the GPUs of this machine. A call that hangs is a finding like any other."""
    reader = GpuReader()
    samples: list[NodeSample] = []
    deaf: list[int] = []

    def sample() -> None:
        samples.append(reader.sample(True, True))
        for device in reader.devices():
            if device.handle is None or reader.watch is None:
                continue
            try:
                types = int(reader.watch.call("nvmlDeviceGetSupportedEventTypes", device.facts.key, device.handle))
            except Exception:  # with any error no events arrive
                types = 0
            if not types & XID:
                deaf.append(device.facts.index)
        reader.close()

    thread = threading.Thread(target=sample, daemon=True)  # the doctor ends even when NVML does not
    thread.start()
    thread.join(timeout_s)
    if not samples or thread.is_alive():
        call = reader.watch.current if reader.watch is not None else None
        name = call.name if call is not None else "NVML"
        advice = "a GPU or its driver is stuck: reset the GPU or reboot the node"
        return GpuCheckup(False, f"{name} did not come back within {timeout_s:.0f} s", advice)
    return _judged(samples[0], deaf)


def _judged(sample: NodeSample, deaf: list[int]) -> GpuCheckup:
    if not sample.visible:
        advice = (
            "nothing to do unless this machine has an NVIDIA GPU: then check its driver (nvidia-smi), and in a "
            "container that the GPUs are given to it"
        )
        return GpuCheckup(False, sample.text, advice)
    sick = [(sample.gpus[key].index, seen.fault) for key, seen in sample.samples.items() if seen.fault is not None]
    if sick:
        faults = ", ".join(f"GPU {index}: {fault.text}" for index, fault in sick)
        return GpuCheckup(False, f"{len(sample.samples)} counted, but {faults}", "reset it or reboot the node")
    text = f"{sample.text}, driver {sample.driver or 'unknown'}"
    missing = [*sample.blind.values()]
    if deaf:
        missing.append(f"no Xid events from GPU {', '.join(map(str, sorted(deaf)))}")
    if missing:
        advice = "Xids come from the kernel's log too, where it can be read" if deaf else "ECC: nvidia-smi -e 1"
        return GpuCheckup(False, f"{text}; {'; '.join(missing)}", advice)
    return GpuCheckup(True, f"{text}; memory errors and Xid events can be seen", "")
