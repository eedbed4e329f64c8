"""A tensor that says that it lies on a GPU. Imports torch, which takes seconds: only a test that runs imports this."""

from __future__ import annotations

import threading
from typing import Any

import torch

__all__ = ["Calls", "OnGpu", "on_gpu", "pretend"]

#: What was asked of PyTorch with a tensor that pretends to lie on a GPU: (function, thread).
Calls = list[tuple[str, str]]


class OnGpu(torch.Tensor):
    """A real tensor that says that it lies on a GPU and notes what is done with it."""

    seen: Calls = []  # noqa: RUF012 - one for all of them
    is_cuda = True
    is_cpu = False

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name not in ("__get__", "numel"):  # attributes are no work for a GPU
            cls.seen.append((name, threading.current_thread().name))
        return super().__torch_function__(function, types, args, kwargs or {})  # type: ignore[no-untyped-call]


def on_gpu(value: float, dtype: Any = torch.float32) -> OnGpu:
    """Return a tensor of one element that pretends."""
    return torch.tensor(value, dtype=dtype).as_subclass(OnGpu)


def pretend(monkeypatch: Any) -> Calls:
    """Put the edge of a GPU in place: its stream, and an event that comes when a copy has arrived; return the calls."""
    seen: Calls = []

    class Event:
        def __init__(self, *, blocking: bool) -> None:
            assert blocking

        def record(self, stream: str) -> None:
            seen.append(("record", stream))

        def synchronize(self) -> None:
            seen.append(("synchronize", threading.current_thread().name))

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    OnGpu.seen = seen
    return seen
