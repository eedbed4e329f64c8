"""Builds the library of fake_nvml.c and sets what its GPUs answer: the test's hand on a node of real NVML calls.

node = FakeNvml(folder, gpus=8)
subprocess.Popen([...], env=os.environ | node.environ)
node.gpu[3].ecc_uncorrected = 1          # any field of the structure below, at once
node.xid(3, 48)                          # an event for whoever waits in an event set
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import shutil
import subprocess
import time
from ctypes import c_char, c_double, c_uint32, c_uint64
from pathlib import Path
from typing import Any

__all__ = ["GPU_IS_LOST", "RESET_REQUIRED", "XID", "FakeNvml", "build", "compiler"]

MAX_GPUS = 16
MAX_EVENTS = 256
_MAGIC = 0x4D4C564E

DRIVER_NOT_LOADED = 9
GPU_IS_LOST = 15
RESET_REQUIRED = 16
UNKNOWN_ERROR = 999
#: Bit of an Xid among the event types.
XID = 0x8
_SOURCE = Path(__file__).with_name("fake_nvml.c")


class _Counter(ctypes.Structure):
    _fields_ = [("base_ns", c_uint64), ("since_ns", c_uint64), ("rate", c_double)]
    base_ns: int
    since_ns: int
    rate: float

    def run(self, share: float) -> None:
        """From now on the counter grows by ``share`` seconds a second."""
        now = time.monotonic_ns()
        self.base_ns += int((now - self.since_ns) * self.rate)
        self.since_ns = now
        self.rate = share


def _wide(names: str) -> list[tuple[str, Any]]:
    return [(name, c_uint64) for name in names.split()]


def _narrow(names: str) -> list[tuple[str, Any]]:
    return [(name, c_uint32) for name in names.split()]


class Gpu(ctypes.Structure):
    """One GPU, as ``Gpu`` in fake_nvml.c."""

    _fields_ = [
        *(("uuid", c_char * 96), ("name", c_char * 96), ("serial", c_char * 32), ("bus_id", c_char * 32)),
        *_wide("mem_total mem_used reasons ecc_corrected ecc_uncorrected pcie_replays"),
        *_wide("nvlink_crc nvlink_replay nvlink_recovery supported_events calls refused"),
        *((name, _Counter) for name in ("sw_power", "sw_therm", "hw_therm", "hw_brake")),
        ("pid_memory", c_uint64 * 8),
        ("pids", c_uint32 * 8),
        *_narrow("processes util temp mem_temp temp_slowdown temp_gpu_max temp_mem_max power_mw power_limit_mw"),
        *_narrow("clock_sm clock_mem sram_threshold remap_cor remap_unc remap_pending remap_failure"),
        *_narrow("retired_sbe retired_dbe retired_pending pcie_gen pcie_gen_max pcie_width pcie_width_max"),
        *_narrow("links links_down recovery_action mig_devices present fault slow_ms"),
        ("hang", c_char * 64),
        ("unsupported", c_char * 256),
    ]

    def without(self, *names: str) -> None:
        """Calls (``nvmlDeviceGetMigMode``) and fields (``field:230``) that this GPU does not support."""
        self.unsupported = f",{','.join(names)},".encode()

    def runs(self, *pids: int, mib: int = 1_000) -> None:
        """The compute processes of this GPU."""
        for at, pid in enumerate(pids):
            self.pids[at] = pid
            self.pid_memory[at] = mib << 20
        self.processes = len(pids)


class _Event(ctypes.Structure):
    _fields_ = [("gpu", c_uint64), ("type", c_uint64), ("data", c_uint64)]


class _State(ctypes.Structure):
    _fields_ = [
        *_narrow("magic bytes gpus driver_error driver_generation waits"),
        *_wide("calls events_written"),
        *(("driver", c_char * 80), ("hang", c_char * 64), ("unsupported", c_char * 256)),
        ("events", _Event * MAX_EVENTS),
        ("gpu", Gpu * MAX_GPUS),
    ]


def compiler() -> str | None:
    """Return the C compiler of this machine, None where there is none."""
    return os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")


def build(folder: Path) -> Path:
    """Return the folder with ``libnvidia-ml.so.1``, compiled where it is not there yet."""
    cc = compiler()
    assert cc is not None, "no C compiler here: install gcc"
    home = folder / hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    library = home / "libnvidia-ml.so.1"
    if not library.exists():
        home.mkdir(parents=True, exist_ok=True)
        fresh = library.with_suffix(f".{os.getpid()}")
        flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{library.name}"]
        subprocess.run([cc, *flags, "-o", str(fresh), str(_SOURCE)], check=True)
        os.replace(fresh, library)
    return home


class FakeNvml:
    """A node of GPUs.

    Args:
        library: folder of the library, from ``build``. folder: where its state file goes. gpus: 0 to 16.
    """

    def __init__(self, library: Path, folder: Path, gpus: int = 2) -> None:
        self.path = folder / "nvml.state"
        self.path.write_bytes(bytes(ctypes.sizeof(_State)))
        with open(self.path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self.state = _State.from_buffer(self._map)
        self.state.bytes = ctypes.sizeof(_State)
        self.state.gpus = gpus
        self.state.driver = b"580.65.06"
        self.state.driver_generation = 1
        self.gpu = self.state.gpu
        for index in range(gpus):
            _make_healthy(self.gpu[index], index)
        self.state.magic = _MAGIC
        path = os.environ.get("LD_LIBRARY_PATH")
        #: For the environment of a process: the loader reads it at the start, so a running process can't change.
        self.environ = {
            "FAKE_NVML_STATE": str(self.path),
            "LD_LIBRARY_PATH": f"{library}:{path}" if path else str(library),
        }

    @property
    def waits(self) -> int:
        """How often somebody began to wait for events: what is told from then on reaches him."""
        return int(self.state.waits)

    def xid(self, gpu: int, number: int, kind: int = XID) -> None:
        """Tell an event to those who wait for it."""
        event = self.state.events[self.state.events_written % MAX_EVENTS]
        event.gpu, event.type, event.data = gpu, kind, number
        self.state.events_written += 1

    def unload_driver(self) -> None:
        """From now on every call says that there is no driver."""
        self.state.driver_error = DRIVER_NOT_LOADED
        self.state.driver_generation += 1

    def load_driver(self) -> None:
        """The driver is back; a process has to shut NVML down and initialise it anew to see it."""
        self.state.driver_error = 0


def _make_healthy(gpu: Gpu, index: int) -> None:
    gpu.uuid = f"GPU-{index:08x}-1111-4222-8333-444455556666".encode()
    gpu.name = b"NVIDIA H100 80GB HBM3"
    gpu.serial = f"16500{index:05d}".encode()
    gpu.bus_id = f"00000000:{0x10 + index:02X}:00.0".encode()
    gpu.mem_total, gpu.mem_used = 80 << 30, 40 << 30
    gpu.util, gpu.temp, gpu.mem_temp = 97, 55, 60
    gpu.temp_slowdown, gpu.temp_gpu_max, gpu.temp_mem_max = 90, 87, 95
    gpu.power_mw, gpu.power_limit_mw, gpu.clock_sm, gpu.clock_mem = 650_000, 700_000, 1_980, 2_619
    gpu.pcie_gen = gpu.pcie_gen_max = 5
    gpu.pcie_width = gpu.pcie_width_max = 16
    gpu.links = 18
    gpu.supported_events = 0x1F
    gpu.present = 1
    for counter in (gpu.sw_power, gpu.sw_therm, gpu.hw_therm, gpu.hw_brake):
        counter.run(0.0)
