"""Writes down the state of a part of a run as bytes, by its declared types, and reads it back. No code is read.

A part is a ``Stateful`` object or a dataclass. Its bytes are MessagePack without names of classes: their meaning is
the type that they are read with, so that their author can make values of these types and no others. With them
is a version, which a person raises, and a shape, which changes with any declared name or type.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import cache
from typing import Any, TypeVar, get_args, get_origin

import msgspec
import numpy as np

from stabilitybackend.base.quiet_log import QuietLog
from stabilitybackend.base.stateful import Stateful, fields_of

__all__ = ["SavedPart", "Unfit", "pack", "part_of", "restore", "unpack", "unpacked", "unpacked_list"]

T = TypeVar("T")
_quiet = QuietLog(logging.getLogger(__name__))
#: Runs are restored in several threads. msgspec's description of a type is seen by others while it is half done, and
#: reading by it then ended the process with a segmentation fault. Under Python's lock one at a time costs nothing.
_one_at_a_time = threading.RLock()


class SavedPart(msgspec.Struct, frozen=True, array_like=True):
    """The state of one part of a run; ``version`` and ``shape`` are of its declaration when it was written."""

    name: str
    version: int
    shape: bytes
    data: bytes


class Unfit(ValueError):
    """A part was written by another version, is missing, or is none. The text names it and why."""


def part_of(name: str, whole: Any, data: bytes | None = None) -> SavedPart:
    """Return the present state of ``whole``; one that can't be written down is logged, and fits no reader.

    Args:
        data: its bytes, where they exist already.
    """
    try:
        data = pack(whole) if data is None else data
    except Exception as error:
        _quiet.log(logging.ERROR, f"the state of {name} can't be saved, a restart takes longer: {error}", error)
        data = b""
    return SavedPart(name, _version(type(whole)), _shape(type(whole)), data)


def restore(whole: Stateful, part: SavedPart | None, name: str) -> None:
    """Put the state of ``part`` into ``whole``, or raise Unfit as ``unpacked`` does, without any change."""
    whole.take_over(unpacked(type(whole), part, name))


def unpacked(kind: type[T], part: SavedPart | None, name: str) -> T:
    """Return the object that ``part`` holds.

    Raises:
        Unfit: there is none, it is of another version or shape, or damaged.
    """
    if part is None:
        raise Unfit(f"{name} is not in it")
    if (part.version, part.shape) != (_version(kind), _shape(kind)):
        found, expected = f"{part.version}/{part.shape.hex()}", f"{_version(kind)}/{_shape(kind).hex()}"
        raise Unfit(f"{name} has version {found}, expected {expected}")
    return unpack(kind, part.data, name)


def pack(whole: Any) -> bytes:
    """Return the state of a part as bytes.

    Raises:
        TypeError, ValueError, OverflowError: an attribute holds a value that can't be written down.
    """
    return _encoder.encode(whole.saved_values() if isinstance(whole, Stateful) else whole)


def unpack(kind: type[T], data: bytes | memoryview, name: str) -> T:
    """Return an object of ``kind`` with the state in ``data``. Of a ``Stateful`` class it has the state alone.

    Raises:
        Unfit: ``data`` is none of ``kind``.
    """
    try:
        with _one_at_a_time:
            values = _decoder(kind).decode(data)
            found: T = _made(kind, values) if issubclass(kind, Stateful) else values
            return found
    except Exception as error:  # damaged bytes raise almost anything in those who take the values over
        raise Unfit(f"{name} can't be read: {error or type(error).__name__}") from error


def unpacked_list(data: bytes) -> dict[str, SavedPart]:
    """Return the parts in ``data`` by name. Raises Unfit where it holds none."""
    try:
        return {part.name: part for part in msgspec.msgpack.decode(data, type=list[SavedPart])}
    except Exception as error:
        raise Unfit(f"it holds no parts: {error or type(error).__name__}") from error


def _made(kind: Any, values: tuple[Any, ...]) -> Any:
    made = object.__new__(kind)
    for name, value in zip(fields_of(kind), values, strict=True):
        setattr(made, name, value)
    return made


def _decoder_of(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(_wire_type(kind), dec_hook=_decoded)


def _wire_type(kind: Any) -> Any:
    return tuple[tuple(fields_of(kind).values())] if issubclass(kind, Stateful) else kind  # type: ignore[misc]


def _encoded(value: Any) -> Any:
    """Return a type that is foreign to msgspec in plain values."""
    if isinstance(value, deque):
        return value.maxlen, list(value)
    if isinstance(value, Stateful):
        return value.saved_values()
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} can't be written down, expected a type of stateful.py")


def _decoded(kind: Any, value: Any) -> Any:
    """Return the value of ``kind`` that ``_encoded`` made ``value`` of."""
    origin = get_origin(kind) or kind
    if origin is deque:
        maxlen, items = msgspec.convert(value, tuple[int | None, list[get_args(kind)[0]]], dec_hook=_decoded)  # type: ignore[misc]
        return deque(items, maxlen)
    if origin is np.ndarray:
        dtype = get_args(get_args(kind)[1])[0]
        shape, data = msgspec.convert(value, tuple[tuple[int, ...], bytes])
        return np.frombuffer(data, dtype).reshape(shape)
    if issubclass(origin, Stateful):
        return _made(origin, msgspec.convert(value, _wire_type(origin), dec_hook=_decoded))
    raise TypeError(f"{kind} is no type of a state")


def _version(kind: type) -> int:
    return int(getattr(kind, "version", 1))


def _shape_of(kind: Any) -> bytes:
    """Return 8 bytes that change with the name or type of anything in the state of ``kind``."""
    found: dict[str, str] = {}
    with _one_at_a_time:
        _describe(kind, found)
    return hashlib.sha256(repr(sorted(found.items())).encode()).digest()[:8]


def _describe(kind: Any, found: dict[str, str]) -> None:
    for part in get_args(kind):
        _describe(part, found)
    if not isinstance(kind, type) or kind.__name__ in found or not _is_declared(kind):
        return
    hints = fields_of(kind)
    found[kind.__name__] = re.sub(r"[\w.]+\.", "", repr(hints))  # without the modules: a class may move
    for hint in hints.values():
        _describe(hint, found)


def _is_declared(kind: type) -> bool:
    return is_dataclass(kind) or issubclass(kind, Stateful | msgspec.Struct) or hasattr(kind, "_fields")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encoded)
_decoder: Callable[[Any], msgspec.msgpack.Decoder[Any]] = cache(_decoder_of)
_shape: Callable[[Any], bytes] = cache(_shape_of)
