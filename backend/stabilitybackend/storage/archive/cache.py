"""Decoded arrays of the archive that were read last, of all runs together, within a bound in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

__all__ = ["ByteCache"]

T = TypeVar("T")

#: Bytes of an entry in addition to its arrays: key, list links, array headers.
ENTRY_BYTES = 1_000


class ByteCache:
    """A least-recently-used cache of at most ``max_bytes``. Safe to call from any thread.

    Values are shared by all readers: they must not be written to.

    Args:
        max_bytes: bound on all entries together. A value larger than that is not stored.

    Attributes:
        bytes: held now.
    """

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 0:
            raise ValueError(f"max_bytes is {max_bytes}: expected 0 or more bytes")
        self.max_bytes = max_bytes
        self.bytes = 0
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._loading: dict[Hashable, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Any | None:
        """Return the entry, None where there is none."""
        with self._lock:
            return self._find(key)

    def put(self, key: Hashable, value: object, size: int) -> None:
        """Store ``value``, ``size`` bytes large, and drop the least recently used entries where room is needed."""
        size += ENTRY_BYTES
        with self._lock:
            old = self._entries.pop(key, None)
            if old is not None:
                self.bytes -= old[1]
            if size > self.max_bytes:
                return
            self._entries[key] = (value, size)
            self.bytes += size
            while self.bytes > self.max_bytes:
                _, (_, freed) = self._entries.popitem(last=False)
                self.bytes -= freed

    def load(self, key: Hashable, read: Callable[[], tuple[T, int]]) -> T:
        """Return the entry; where there is none read it, once however many threads ask for it at the same time.

        Args:
            read: returns the value and its bytes. Where it raises nothing is kept and the next to ask tries again.
        """
        with self._lock:
            found = self._find(key)
            if found is not None:
                return cast(T, found)
            turn = self._loading.setdefault(key, threading.Lock())
        with turn:
            with self._lock:
                entry = self._entries.get(key)
            if entry is not None:
                return cast(T, entry[0])
            try:
                value, size = read()
                self.put(key, value, size)
            finally:
                with self._lock:
                    self._loading.pop(key, None)
        return value

    def _find(self, key: Hashable) -> Any | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]
