"""Sets of metric names that come with row after row: to hash twenty thousand names at each look is most of a row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["NameKey", "NameSet", "key_of"]


class NameKey(tuple[str, ...]):
    """The names of a set as a key of dictionaries, equal to the plain tuple; it is hashed once."""

    _hash: int

    def __new__(cls, names: Iterable[str]) -> NameKey:
        key = super().__new__(cls, names)
        key._hash = tuple.__hash__(key)
        return key

    def __hash__(self) -> int:
        return self._hash


class NameSet(list[str]):
    """The names of a set, in the order of its columns; immutable by convention. Equal sets share one object.

    Attributes:
        key: the names as a key.
    """

    __slots__ = ("key",)

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(names)
        self.key = NameKey(self)


def key_of(names: Sequence[str]) -> tuple[str, ...]:
    """Return some names as a key, at no cost a name for a ``NameSet`` and a ``NameKey``.

    Example:
        >>> key_of(["loss", "lr"]) == key_of(NameSet(["loss", "lr"])) == ("loss", "lr")
        True
    """
    if isinstance(names, NameSet):
        return names.key
    return names if isinstance(names, NameKey) else tuple(names)
