"""Stands in for modules that a framework imports when it is imported and that its CPU job never uses.

torchvision's wheels need the torch that they were built with; torchtitan's kernels need triton, which is there with a
GPU only.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from typing import Any

__all__ = ["standing_in_for"]


class _Named(type):
    """Kind of whatever is asked for: a class, a decorator, or what makes one."""

    def __getattr__(cls, name: str) -> Any:
        return _named(name)


def _named(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Named(name, (), {"__new__": _new, "__call__": lambda self, given: given})


def _new(cls: Any, *given: Any, **named: Any) -> Any:
    return given[0] if given and callable(given[0]) else object.__new__(cls)


@contextmanager
def standing_in_for(module_name: str, *parts: str) -> Iterator[None]:
    """Let a module, with these modules of it, be importable within this context."""
    names = [module_name, *(f"{module_name}.{part}" for part in parts)]
    for name in names:
        module = types.ModuleType(name)
        module.__getattr__ = _named  # type: ignore[method-assign]
        module.__path__, module.__spec__ = [], ModuleSpec(name, None)
        sys.modules[name] = module
        parent, _, own = name.rpartition(".")
        if parent in names:
            setattr(sys.modules[parent], own, module)
    yield
    for name in names:
        del sys.modules[name]
