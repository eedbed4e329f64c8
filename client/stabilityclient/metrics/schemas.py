"""Sets of metric names: which can be stored as a row, and their schemas in each chunk of the spool."""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MAX_NAMES", "MAX_NAME_CHARS", "Schemas", "name_trouble"]

#: Names of one process, and so of one row. A name that holds the step, say, would make the server's memory grow without
#: end; further ones are refused and counted.
MAX_NAMES = 20_000
#: Longest metric name, characters. Longer names are refused where they are logged.
MAX_NAME_CHARS = 200
#: Sets whose schema is kept from one chunk to the next, their bytes, and sets remembered as refused.
MAX_KEPT, MAX_KEPT_BYTES, MAX_REFUSED = 1024, 1024 * 1024, 16


class Schemas:
    """The sets of names that one process logs. A wide set is checked once, and not at each of its rows.

    Args:
        most_bytes: of the schema of a set and one row, which lie in one chunk.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._kept: dict[tuple[str, ...], tuple[struct.Struct, bytes]] = {}
        self._kept_bytes = 0
        self._refused: dict[tuple[str, ...], str] = {}
        self._names: set[str] = set()

    def of(self, names: tuple[str, ...]) -> tuple[struct.Struct, bytes]:
        """Return the packing of a row of this set, and its names as JSON.

        Raises:
            ValueError: it can't be one row; the text has the reason.
        """
        known = self._kept.get(names)
        if known is not None:
            return known
        if names in self._refused:
            raise ValueError(self._refused[names])
        try:
            text = self._checked(names)
        except ValueError as error:
            if len(self._refused) >= MAX_REFUSED:
                self._refused.clear()
            self._refused[names] = str(error)
            raise
        self._names.update(names)
        if self._kept_bytes > MAX_KEPT_BYTES or len(self._kept) >= MAX_KEPT:
            self._kept.clear()
            self._kept_bytes = 0
        self._kept_bytes += len(text)
        known = self._kept[names] = struct.Struct(f"<B3xIqd{len(names)}d"), text
        return known

    def fitting(self, names: Iterable[str]) -> list[tuple[str, ...]]:
        """Return the sets in which these names can be stored, without those beyond MAX_NAMES.

        Args:
            names: each of them valid (``name_trouble``).
        """
        import json

        sets: list[list[str]] = [[]]
        room, new = self._most_bytes, MAX_NAMES - len(self._names)
        for name in names:
            if name not in self._names:
                if new <= 0:
                    continue
                new -= 1
            size = len(json.dumps(name)) + 2 + 8
            if size + _set_bytes(0, 0) > room:
                sets.append([])
                room = self._most_bytes
            room -= size
            sets[-1].append(name)
        return [tuple(each) for each in sets if each]

    def _checked(self, names: tuple[str, ...]) -> bytes:
        import json

        _check(names)
        if len(self._names) + len(names) > MAX_NAMES and len(self._names) + len(set(names) - self._names) > MAX_NAMES:
            raise ValueError(f"there are names beyond the {MAX_NAMES:,} that a run can have")
        text = json.dumps(names).encode()
        if _set_bytes(len(names), len(text)) > self._most_bytes:
            raise ValueError(f"{len(names)} names of {len(text)} bytes, expected at most {self._most_bytes} with a row")
        return text


def name_trouble(name: object) -> str:
    """Return why ``name`` can't name a metric, or nothing."""
    if not isinstance(name, str):
        return f"metric name {name!r} is a {type(name).__name__}, expected a string"[:200]
    if not 1 <= len(name) <= MAX_NAME_CHARS:
        shown = repr(name[:40]) + ("..." if len(name) > 40 else "")
        return f"metric name {shown} has {len(name)} characters, expected 1 to {MAX_NAME_CHARS}"
    if not name.isascii() and any("\ud800" <= char <= "\udfff" for char in name):
        return f"metric name {name[:40]!a} has half a surrogate pair, expected valid Unicode"
    return ""


def _check(names: tuple[str, ...]) -> None:
    """Raise ValueError unless there is a name and all are names of metrics."""
    if not names:
        raise ValueError("no metric was given, expected at least one")
    try:
        lengths = set(map(len, names))
        good = "".join(names).isascii() and min(lengths) >= 1 and max(lengths) <= MAX_NAME_CHARS
    except TypeError:
        good = False
    for name in () if good else names:
        refused = name_trouble(name)
        if refused:
            raise ValueError(refused)


def _set_bytes(names: int, text_bytes: int) -> int:
    """Return the bytes in a chunk of the schema of a set and of one row, at most."""
    return (16 + text_bytes + 15) + (8 + 24 + 8 * names + 15)
