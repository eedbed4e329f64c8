"""Declared state: attributes of an object with their types and initial values. Standard library only."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from copy import copy
from functools import cache
from typing import Any, ClassVar, get_origin, get_type_hints

__all__ = ["Stateful", "fields_of", "fresh"]


_MISSING = object()


class _Fresh:
    """Factory of the initial value of an attribute, called for each object."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


def fresh(make: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return the initial value of an annotated attribute that objects do not share.

    Example:
        >>> class Counter(Stateful):
        ...     newest: list[int] = fresh(list)
        >>> Counter().newest
        []
    """
    return _Fresh(lambda: make(*args, **options))


class Stateful:
    """An object whose annotated attributes are its state; ``saving.py`` writes them down and takes them over.

    They are annotated in the class, each with its initial value, of which every object gets a copy (``fresh`` makes
    values that a copy would share). Types: numbers, texts, containers and deques of these, named tuples, dataclasses,
    and other ``Stateful`` classes. An attribute without an annotation in the class is none of the state.

    Class attributes:
        version: of the state. Raise it when a value gets another meaning; another name or type is noticed by itself.
    """

    version: ClassVar[int] = 1

    def __init__(self) -> None:
        for name in fields_of(type(self)):
            begin = getattr(type(self), name, _MISSING)
            if begin is _MISSING:
                raise TypeError(f"{type(self).__name__}.{name} is annotated, expected a value that it begins with, too")
            setattr(self, name, begin.make() if isinstance(begin, _Fresh) else copy(begin))

    def saved_values(self) -> list[Any]:
        """Return the values of the declared attributes; to be overwritten where they are saved in another form."""
        return [getattr(self, name) for name in fields_of(type(self))]

    def restored(self) -> None:
        """Called after a restore: derive attributes from the state here."""

    def take_over(self, other: Stateful) -> None:
        """Become as ``other`` is; dicts, deques and parts stay the objects that they are, others may hold them."""
        for name in fields_of(type(self)):
            mine, value = getattr(self, name), getattr(other, name)
            if isinstance(mine, Stateful):
                mine.take_over(value)
            elif isinstance(mine, dict):
                mine.clear()
                mine.update(value)
            elif isinstance(mine, deque):
                mine.clear()
                mine.extend(value)
            else:
                setattr(self, name, value)
        self.restored()


def _fields_of(kind: Any) -> dict[str, Any]:
    """Return the types of the attributes that are declared as the state of ``kind``, by name, in their order."""
    return {name: hint for name, hint in get_type_hints(kind).items() if get_origin(hint) is not ClassVar}


fields_of: Callable[[Any], dict[str, Any]] = cache(_fields_of)
