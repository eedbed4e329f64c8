"""A part of a run as it is after it was saved and taken over by another server."""

from __future__ import annotations

from typing import TypeVar

from stabilitybackend.base.saving import part_of, restore
from stabilitybackend.base.stateful import Stateful

__all__ = ["taken_over"]

S = TypeVar("S", bound=Stateful)


def taken_over(saved: Stateful, by: S) -> S:
    """Return ``by`` with the state of ``saved``, which went through its bytes."""
    restore(by, part_of("part", saved), "part")
    return by
