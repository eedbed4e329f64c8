"""Lets Megatron-LM, which knows CUDA only, train on the CPU: what it asks of ``torch.cuda`` is answered there.

Nothing of Megatron is replaced, but for a compiler that its package does not need (its extension is built already).
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
import torch._dynamo  # it notes torch's functions when it is imported, which must be torch's own then
from torch.overrides import TorchFunctionMode

__all__ = ["pretend"]


def _on_cuda(device: object) -> bool:
    return str(device).startswith("cuda") if isinstance(device, str | torch.device) else False


class _OnCpu(TorchFunctionMode):
    """Makes on the CPU what is asked for on CUDA."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if _on_cuda(named.get("device")):
            named["device"] = "cpu"
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1:  # asserted where gradients are clipped
            return func(*args).replace("torch.", "torch.cuda.")
        return func(*("cpu" if _on_cuda(one) else one for one in args), **named)


class _Stream:
    def wait_stream(self, other: object) -> None: ...


def pretend() -> None:
    """Call it before Megatron is imported."""
    cuda: Any = torch.cuda
    nothing = lambda *given: None  # noqa: E731
    zero = lambda *given: 0  # noqa: E731
    answers = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: "cpu",
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "default_generators": (torch.default_generator,),
        "get_device_properties": lambda device=None: SimpleNamespace(major=10),
        "Stream": _Stream,
        "current_stream": lambda device=None: _Stream(),
        "stream": lambda stream: nullcontext(),
    }
    answers |= dict.fromkeys(("set_device", "synchronize", "manual_seed", "empty_cache"), nothing)
    memory = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")
    answers |= dict.fromkeys((*memory, "device_memory_used"), zero)
    for name, answer in answers.items():
        setattr(cuda, name, answer)
    cuda.random.get_rng_state = answers["get_rng_state"]
    module: Any = torch.nn.Module
    module.cuda = lambda self, device=None: self
    begin = torch.distributed.init_process_group

    def init_process_group(*given: Any, device_id: object = None, **named: Any) -> None:
        begin(*given, **named)  # gloo takes no device

    torch.distributed.init_process_group = init_process_group
    _OnCpu().__enter__()
    from megatron.core.datasets import utils

    utils.compile_helpers = nothing
