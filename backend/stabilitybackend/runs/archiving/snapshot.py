"""Writes down what was folded from a run's frames, so that a restart folds only the frames that came after.

A snapshot is never the truth: the frames are. Whoever can't load one (``SnapshotError``) folds the frames again and
comes to the same state. It holds all of ``RunState`` but the points, the incidents and the commands, which are stored
elsewhere, and what was seen of agents and slots, which does not stand in frames.

Bytes: magic ``SBST``, version (u16), shape (8 bytes), length of the pickle (u64), CRC-32 of what follows (u32), all
little-endian, then the pickle compressed with zlib. (zlib's own checksum is of the content: some flips unpack alike.)
The pickle is read by an unpickler that knows only our classes of state, plain containers and numpy arrays: an archive
may lie on a disk or in a bucket that others can write. So a foreign snapshot runs no code; what a run says of itself is
as true as its archive is.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import pickle
import struct
import zlib
from collections.abc import Callable, Collection
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from msgspec import Struct

from stabilitybackend.detection.run_detection import Judge
from stabilitybackend.detectors.engine.base import Detector
from stabilitybackend.detectors.registry import DETECTORS
from stabilitybackend.errors import SnapshotError
from stabilitybackend.runs.state import RunState

__all__ = ["SnapshotError", "dump", "freeze", "load", "loads_restricted", "seal"]

#: Raise it when the meaning of something in the state changes; a change of its fields changes the shape by itself.
VERSION = 5
#: Largest pickle that is read, bytes. 2,048 ranks that log 12 metrics take 1 MiB.
MAX_STATE_BYTES = 512 * 1024 * 1024
#: zlib's fastest level: the state is written once a part and read once a restart.
_LEVEL = 1
_MAGIC = b"SBST"
_HEADER = struct.Struct("<4sH8sQI")

#: Modules whose own classes are state. A class that is only imported there is not taken.
_STATE_MODULES = frozenset(
    {
        "stabilitybackend.gpus.faults",
        "stabilitybackend.gpus.signs",
        "stabilitybackend.lineage.changes",
        "stabilitybackend.lineage.checkpoints",
        "stabilitybackend.lineage.fold",
        "stabilitybackend.lineage.launches",
        "stabilitybackend.lineage.relaunches",
        "stabilitybackend.lineage.sources",
        "stabilitybackend.lineage.tree",
        "stabilitybackend.liveness.budgets",
        "stabilitybackend.liveness.stacks.collectives",
        "stabilitybackend.liveness.death.monitor",
        "stabilitybackend.liveness.stacks.dumps",
        "stabilitybackend.liveness.rank_watch",
        "stabilitybackend.liveness.stacks.parse",
        "stabilitybackend.schema.evidence",
        "stabilitybackend.schema.health",
    }
)
#: Detectors are plug-ins: every class of this package can be part of one.
_DETECTORS = "stabilitybackend.detectors."
_FOREIGN = frozenset(
    {
        ("collections", "OrderedDict"),
        ("collections", "deque"),
        ("numpy", "dtype"),
        ("numpy", "ndarray"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy._core.numeric", "_frombuffer"),
    }
)


def dump(state: RunState) -> bytes:
    """Return the snapshot of ``state``. The same as ``seal(freeze(state))``."""
    return seal(freeze(state))


def freeze(state: RunState) -> bytes:
    """Return what ``seal`` needs: a copy of the state as it is now, made in one go while nothing else touches it."""
    return pickle.dumps(state.saved(), protocol=5)


def seal(frozen: bytes, *, packed: bool = True) -> bytes:
    """Return the snapshot for ``freeze``'s answer. Pure and the longer part of the work: may run in a thread.

    Args:
        packed: make it small; else make it fast, for one that is soon replaced.
    """
    body = zlib.compress(frozen, _LEVEL if packed else zlib.Z_NO_COMPRESSION)
    return _HEADER.pack(_MAGIC, VERSION, _shape(), len(frozen), zlib.crc32(body)) + body


def load(data: bytes, run_id: str, clock: Callable[[], float], undone: Collection[str] = ()) -> RunState:
    """Return the state that ``dump`` wrote: ready for the next frame, its store, incidents and commands empty.

    Args:
        data: a snapshot.
        run_id: the run.
        clock: unix seconds now.
        undone: keys of the inferred segments that somebody said are none, as they are stored now.

    Raises:
        SnapshotError: it is damaged, was made by another version, holds what no snapshot holds, or a segment in it
            has been undone since.
    """
    frozen = _open(data)
    state = RunState(run_id, clock, undone)
    try:
        state.restore(loads_restricted(frozen), loads_restricted)
    except SnapshotError:
        raise
    except Exception as error:
        raise SnapshotError(
            f"the snapshot of run {run_id} is not one of a run's state: {error or type(error).__name__}",
            hint="the frames are folded again",
        ) from error
    return state


def loads_restricted(data: bytes) -> Any:
    """Return the object that ``data`` pickles.

    Raises:
        SnapshotError: it names a class or function that is no state, or is no pickle.
    """
    try:
        return _Restricted(io.BytesIO(data)).load()
    except SnapshotError:
        raise
    except Exception as error:  # damaged pickles raise almost anything
        raise SnapshotError(
            f"a snapshot's content can't be read: {error or type(error).__name__}", hint="the frames are folded again"
        ) from error


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _FOREIGN:
            return getattr(importlib.import_module(module), name)
        if module in _STATE_MODULES or module.startswith(_DETECTORS):
            try:
                found = vars(importlib.import_module(module)).get(name)
            except ImportError:
                found = None
            if isinstance(found, type) and found.__module__ == module:
                return found
        raise SnapshotError(
            f"a snapshot names {module}.{name}, which is no part of a run's state",
            hint="it was made by another version, or by somebody else: the frames are folded again",
        )


def _open(data: bytes) -> bytes:
    """Return the pickle of a snapshot after checking everything that can be checked without reading it."""
    if len(data) < _HEADER.size:
        raise _damaged(f"has {len(data)} bytes, expected at least {_HEADER.size}")
    magic, version, shape, size, checksum = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise _damaged(f"begins with {magic!r}, expected {_MAGIC!r}")
    if (version, shape) != (VERSION, _shape()):
        raise SnapshotError(
            f"the snapshot has version {version}/{shape.hex()}, this server writes {VERSION}/{_shape().hex()}",
            hint="nothing is lost: the frames are folded again, which takes longer",
        )
    if size > MAX_STATE_BYTES:
        raise _damaged(f"says that it holds {size} bytes, expected at most {MAX_STATE_BYTES}")
    body = memoryview(data)[_HEADER.size :]
    if zlib.crc32(body) != checksum:
        raise _damaged("does not have the checksum that it names")
    unpacker = zlib.decompressobj()
    try:
        frozen = unpacker.decompress(body, size + 1)
    except zlib.error as error:
        raise _damaged(f"can't be unpacked ({error})") from error
    if len(frozen) != size or not unpacker.eof or unpacker.unused_data:
        raise _damaged(f"does not hold the {size} bytes that it names")
    return frozen


def _damaged(what: str) -> SnapshotError:
    return SnapshotError(f"the snapshot {what}", hint="it is damaged: the frames are folded again")


@cache
def _shape() -> bytes:
    """Return 8 bytes that change with the fields of any class of state: older snapshots are not read into new code."""
    parts = [repr(sorted(DETECTORS))]
    modules = {*_STATE_MODULES, *(type(make()).__module__ for make in DETECTORS.values())}
    modules |= {f"{_DETECTORS}{name}" for name in ("engine.bank", "stats.baseline", "engine.context", "engine.base")}
    modules |= {RunState.__module__, Judge.__module__}
    for module in sorted(modules):
        for name, found in sorted(vars(importlib.import_module(module)).items()):
            if isinstance(found, type) and found.__module__ == module and found is not Detector:
                parts.append(f"{module}.{name}: {_fields(found)}")
    return hashlib.sha256("\n".join(parts).encode()).digest()[:8]


def _fields(kind: type) -> list[str]:
    """Return the names of what an object of ``kind`` holds: its fields, else the names that its ``__init__`` uses."""
    if is_dataclass(kind):
        return [field.name for field in fields(kind)]
    if issubclass(kind, Struct):
        return list(kind.__struct_fields__)
    if issubclass(kind, tuple):
        return list(getattr(kind, "_fields", ()))
    code = getattr(vars(kind).get("__init__"), "__code__", None)
    return [] if code is None else sorted(code.co_names)
