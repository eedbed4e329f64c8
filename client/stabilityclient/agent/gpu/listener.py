"""Waits for NVML's events on a thread of its own: Xids come immediately, not with the next sample."""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from stabilityclient.agent.gpu.calls import CallWatch
from stabilityclient.agent.gpu.nvml_queries import DriverGone, NvmlDevice, error_code, error_text

__all__ = ["WAIT_S", "EventListener", "GpuEvent"]

#: Longest wait of one call, seconds: a thread that has to end does so within it.
WAIT_S = 5.0
#: Pause after an error, seconds: a set with a GPU that is lost answers immediately, again and again.
ERROR_PAUSE_S = 1.0
#: Errors in a row after which the thread ends; it is started again with the GPUs that still answer.
MAX_ERRORS = 3
#: Events that wait for the agent's loop.
MAX_EVENTS = 1_000

#: nvmlEventTypeXidCriticalError; its data is the Xid, 999 where NVML does not know it.
XID = 0x8
#: Double-bit ECC errors, and those of newer drivers that mean: read the counters and the recovery action now
#: (nvmlEventTypeDramRetirementEvent to nvmlEventTypeGpuRecoveryAction of nvidia-ml-py 13.615).
SAMPLE_NOW = 0x2 | 0x400 | 0x800 | 0x1000 | 0x2000 | 0x4000 | 0x8000
_TIMEOUT = 10


class GpuEvent(NamedTuple):
    """``gpu``: key of the GPU. ``xid``: its number, None: only a reason to sample. ``time``: monotonic seconds."""

    gpu: str
    xid: int | None
    time: float


class EventListener(threading.Thread):
    """One event set and the thread that waits in it. It ends by itself where NVML has no events for these GPUs.

    Args:
        module: pynvml, initialised. devices: GPUs with handles.
        events: where events go. wake: called after each.

    Attributes:
        watch: its calls. blind: why no events come; None while they do. supported: False: asking again won't help.
    """

    def __init__(
        self,
        module: Any,
        devices: Iterable[NvmlDevice],
        events: deque[GpuEvent],
        wake: Callable[[], None],
    ) -> None:
        super().__init__(name="nvml-events", daemon=True)  # a call that hangs must not keep the agent from leaving
        self.watch = CallWatch(module)
        self.blind: str | None = None
        self.supported = True
        self._devices = [(device.facts.key, device.facts.index, device.handle) for device in devices]
        self._events = events
        self._wake = wake
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Ask the thread to end; it does within WAIT_S."""
        self._stopping.set()

    def run(self) -> None:
        """Register, then wait until there is nothing to wait for."""
        try:
            events = self.watch.call("nvmlEventSetCreate", "")
        except Exception as error:
            self._end(f"no events: {error_text(error)}", error)
            return
        try:
            if self._register(events):
                self._wait(events)
        finally:
            try:
                self.watch.call("nvmlEventSetFree", "", events)
            except Exception:  # the driver is gone
                pass

    def _register(self, events: Any) -> bool:
        without = []
        for key, index, handle in self._devices:
            try:
                types = int(self.watch.call("nvmlDeviceGetSupportedEventTypes", key, handle)) & (XID | SAMPLE_NOW)
                if not types & XID:
                    raise ValueError("no Xid among its event types")
                self.watch.call("nvmlDeviceRegisterEvents", key, handle, types, events)
            except Exception as error:
                without.append((index, error))
        if without:
            which = ", ".join(str(index) for index, _ in without)
            self.blind = f"events not supported on GPU {which}: {error_text(without[0][1])}"
        if len(without) == len(self._devices):
            self.supported = False
            return False
        return True

    def _wait(self, events: Any) -> None:
        keys = {_address(handle): key for key, _, handle in self._devices}
        errors = 0
        while not self._stopping.is_set():
            try:
                data = self.watch.call("nvmlEventSetWait_v2", "", events, int(WAIT_S * 1000))
            except Exception as error:
                if error_code(error) == _TIMEOUT:
                    errors = 0
                    continue
                errors += 1
                if error_code(error) in DriverGone.CODES or errors >= MAX_ERRORS:
                    self._end(f"events stopped: {error_text(error)}", error)
                    return
                self._stopping.wait(ERROR_PAUSE_S)
                continue
            errors = 0
            key = keys.get(_address(data.device))
            if key is not None and len(self._events) < MAX_EVENTS:
                xid = int(data.eventData) if int(data.eventType) & XID else None
                self._events.append(GpuEvent(key, xid, time.monotonic()))
                self._wake()

    def _end(self, blind: str, error: Exception) -> None:
        self.blind = blind
        self.supported = error_code(error) not in (3, 13)  # not supported, function not found


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
