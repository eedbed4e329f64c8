"""Which rank computes on which GPU: what NVML sees, else what its launcher set, else its place on the node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from stabilityclient.agent.gpu.samples import GpuInfo

__all__ = ["device_for", "visible_devices"]

#: Bytes read of a process's environment.
MAX_ENVIRON_BYTES = 1024 * 1024
#: Processes whose environment is remembered.
MAX_REMEMBERED = 256
#: Prefix of a MIG instance's name that has its GPU's in it (drivers before 470): MIG-GPU-<uuid>/<instance>/<instance>.
_OLD_MIG = "MIG-GPU-"


def device_for(
    gpus: Sequence[GpuInfo], pids: Mapping[str, float], local_rank: int | None, visible: str | None
) -> GpuInfo | None:
    """Return the GPU of one rank, None where nothing says which.

    Args:
        gpus: of the node. pids: key of each GPU on which the rank's process computes, to the memory that it uses.
        local_rank: rank on the node. visible: its CUDA_VISIBLE_DEVICES; None: not set, so it sees all.
    """
    expected = _expected(gpus, local_rank, visible)
    found = [gpu for gpu in gpus if gpu.key in pids]
    if expected in found or not found:
        return expected
    # Several when a process left a context on GPU 0 by accident: the one with its model is the one it trains on.
    return max(found, key=lambda gpu: pids[gpu.key])


def _expected(gpus: Sequence[GpuInfo], local_rank: int | None, visible: str | None) -> GpuInfo | None:
    in_order = sorted(gpus, key=lambda gpu: gpu.index)
    if visible is None:
        return in_order[local_rank] if local_rank is not None and 0 <= local_rank < len(in_order) else None
    names = [name.strip() for name in visible.split(",")] if visible.strip() else []
    seen: list[GpuInfo] = []
    for name in names:
        gpu = _named(in_order, name)
        if gpu is None:
            break  # CUDA too takes only what is before the first name that is none
        seen.append(gpu)
    if len(seen) == 1:
        return seen[0]  # each rank was given its own
    return seen[local_rank] if local_rank is not None and 0 <= local_rank < len(seen) else None


def _named(gpus: Sequence[GpuInfo], name: str) -> GpuInfo | None:
    if name.isdigit():
        return next((gpu for gpu in gpus if gpu.index == int(name)), None)
    if name.startswith(_OLD_MIG):
        name = name.removeprefix("MIG-").partition("/")[0]
    if name.startswith("MIG-"):
        return next((gpu for gpu in gpus if any(mig.startswith(name) for mig in gpu.mig)), None)
    found = [gpu for gpu in gpus if gpu.uuid.startswith(name)] if name.startswith("GPU-") else []
    return found[0] if len(found) == 1 else None


@lru_cache(MAX_REMEMBERED)
def visible_devices(pid: int) -> str | None:
    """Return the CUDA_VISIBLE_DEVICES with which a process started, None where it has none or can't be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            text = file.read(MAX_ENVIRON_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry).get("CUDA_VISIBLE_DEVICES")
