"""Which versions of Stabilityboard may work on one Redis at the same time. Pure.

Data between processes (frames, snapshots, orders, entries) is read by the minor version before and after.
The processes there first work on: an upgrade that skips a version stops at its first process, and the server stays up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

__all__ = ["allowed", "taking_no_part"]

_One = TypeVar("_One")


def taking_no_part(in_order: Iterable[_One], version_of: Callable[[_One], str]) -> list[_One]:
    """Return those whose version is more than one minor version from that of one before them that takes part.

    Args:
        in_order: those that were here first come first. A version that is none (of a checkout) takes part.
    """
    there, apart = set[tuple[int, int]](), list[_One]()
    for one in in_order:
        minor = _minor(version_of(one))
        if minor is None:
            continue
        if all(major == minor[0] and abs(other - minor[1]) <= 1 for major, other in there):
            there.add(minor)
        else:
            apart.append(one)
    return apart


def allowed(versions: Collection[str]) -> str:
    """Return, for display, the minor versions that may join these, which work together: "0.2 or 0.3"."""
    minors = sorted(minor for minor in map(_minor, versions) if minor is not None)
    if not minors:
        return "of any number"
    (major, lowest), (_, highest) = minors[0], minors[-1]
    fitting = [f"{major}.{one}" for one in range(max(0, highest - 1), lowest + 2)]
    return " or ".join(filter(None, (", ".join(fitting[:-1]), fitting[-1])))


def _minor(version: str) -> tuple[int, int] | None:
    parts = version.split(".")
    try:
        return int(parts[0]), int(parts[1])
    except (ValueError, IndexError):
        return None
