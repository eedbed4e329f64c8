"""Checks of a class that a plug-in adds: one that can't work is refused at the start."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

__all__ = ["check_class", "check_name"]

_NAME = re.compile(r"[a-z][a-z0-9_]*")


def check_class(given: object, base: type, has: Sequence[str], taken: Collection[str]) -> None:
    """Refuse a class that is no ``base``, lacks an attribute of such classes, or has a taken name.

    Args:
        has: attributes and methods that ``given`` must have by itself.

    Raises:
        TypeError: it inherits from something else, or lacks something.
        ValueError: its name has the wrong form, or is taken.
    """
    called = given.__name__ if isinstance(given, type) else repr(given)
    if not isinstance(given, type) or not issubclass(given, base):
        raise TypeError(f"{called} must inherit from {base.__name__} of {base.__module__}")
    lacking = [name for name in has if getattr(given, name, None) is getattr(base, name, None)]
    if lacking:
        raise TypeError(f"{called} lacks {', '.join(lacking)}, expected in every class below {base.__name__}")
    check_name(f"{'an' if base.__name__[0] in 'AEIOU' else 'a'} {base.__name__.lower()}", given.name, taken)  # type: ignore[attr-defined]  # it lacks none


def check_name(what: str, name: object, taken: Collection[str]) -> None:
    """Refuse a name that has the wrong form or is taken.

    Args:
        what: has the name, with its article.

    Raises:
        ValueError: names the fault and the expected value.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{what} has the name {name!r}, expected lower-case letters, digits and _, as in full_disk")
    if name in taken:
        raise ValueError(f"there is {what} {name!r} already, give this one another name")
