"""Digests of the random number generators of this process: whether a resume has the states that were saved.

Nothing is imported and nothing drawn: a generator whose module the job has not imported is none of its own. That of a
CUDA device keeps its state on the host, so reading it waits for no kernel. Some 0.1 ms, mostly NumPy's copy.
"""

from __future__ import annotations

import struct
import sys
from zlib import crc32

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

__all__ = ["random_states"]


def random_states() -> dict[str, str]:
    """Return generator (``python``, ``numpy``, ``torch``, ``cuda``) -> 8 hex digits of its state.

    One that is not there, is not in use yet (CUDA), or can't be read at this moment (a graph is being captured) is
    left out. Two states with one digest are equal but for a chance of one in 4 billion.
    """
    found = {}
    for name, read in _READERS.items():
        try:
            state = read(sys.modules)
        except Exception:  # a module half imported, a mode of torch in which tensors hold nothing: not seen
            continue
        if state is not None:
            found[name] = f"{crc32(state):08x}"
    return found


def _python(modules: Mapping[str, Any]) -> bytes | None:
    random = modules.get("random")
    if random is None:
        return None
    version, numbers, gauss = random.getstate()
    return struct.pack(f"{len(numbers)}I", *numbers) + repr((version, gauss)).encode()


def _numpy(modules: Mapping[str, Any]) -> bytes | None:
    random = modules.get("numpy.random")
    if random is None:
        return None
    name, keys, *rest = random.get_state()
    data: bytes = keys.tobytes() + repr((name, *map(float, rest))).encode()
    return data


def _torch(modules: Mapping[str, Any]) -> bytes | None:
    torch = modules.get("torch")
    return None if torch is None else _bytes(torch.get_rng_state(), modules)


def _cuda(modules: Mapping[str, Any]) -> bytes | None:
    torch = modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    return _bytes(generator.get_state(), modules)


def _bytes(state: Any, modules: Mapping[str, Any]) -> bytes:
    data: bytes = state.numpy().tobytes() if "numpy" in modules else bytes(state.tolist())
    return data


_READERS: dict[str, Callable[[Mapping[str, Any]], bytes | None]] = {
    "python": _python,
    "numpy": _numpy,
    "torch": _torch,
    "cuda": _cuda,
}
