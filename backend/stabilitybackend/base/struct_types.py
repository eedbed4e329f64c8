"""Type information of msgspec, computed before there are threads: msgspec shares it half computed.

Two threads that first read related types at one moment made a server crash in msgspec 0.22.0 with a segmentation fault
while several runs were restored. Types of saved state are read under one lock besides (``saving.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

__all__ = ["prepare_struct_types"]


def prepare_struct_types() -> int:
    """Work out all Structs that are imported, and return how many; call it before threads read any."""
    kinds = set(_below(msgspec.Struct))
    for kind in kinds:
        msgspec.msgpack.Decoder(kind, dec_hook=_unused)
    return len(kinds)


def _below(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)


def _unused(kind: Any, value: Any) -> Any:
    raise NotImplementedError
