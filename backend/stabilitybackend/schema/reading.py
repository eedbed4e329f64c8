"""Fits free data to its type: misfits are left out and named, so later code needs no checks.

A death with a strange ``signal_name`` is still a death: only that field is left out. Without a required field the whole
is unreadable. Fields outside the type pass unchanged: newer agents may send more.
"""

from __future__ import annotations

import copy
import re
from typing import Any, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)

#: Fields left out of one object; one with more is unreadable.
MAX_LEFT_OUT = 16
#: Longest quote of a misfit, characters.
SHOWN_CHARS = 40

#: msgspec's form of a path: ``$.gpus[3].index``, ``$.phases[...]``.
_PLACE = re.compile(r" - at (?:`key` in )?`\$(?P<path>[^`]*)`$")
_STEP = re.compile(r"\.(?P<name>[A-Za-z_0-9]+)|\[(?P<at>\d+)\]|(?P<any>\[\.\.\.\])")


class Misfit(Exception):
    """Data that does not fit its type; the text has path, value and expectation."""


def fitted(data: dict[str, Any], kind: type[msgspec.Struct]) -> tuple[dict[str, Any], list[str]]:
    """Return ``data`` fitted to ``kind``, and the fields left out: see ``typed``.

    The same object is returned where the whole fits, with its extra fields.
    """
    data, _, left_out = _read(data, kind)
    return data, left_out


def typed(data: dict[str, Any], kind: type[T]) -> tuple[T, list[str]]:
    """Return a ``kind`` of ``data``, which is not changed, and a sentence for each field left out.

    Raises:
        Misfit: a required field is missing or wrong, or too many fields are wrong.
    """
    _, struct, left_out = _read(data, kind)
    return struct, left_out


def _read(given: dict[str, Any], kind: type[T]) -> tuple[dict[str, Any], T, list[str]]:
    data = given
    left_out: list[str] = []
    while True:
        try:
            return data, msgspec.convert(data, kind), left_out
        except (msgspec.ValidationError, OverflowError) as error:
            problem = str(error)
        if data is given:
            data = copy.deepcopy(given)
        place = _PLACE.search(problem)
        path = place["path"] if place else ""
        if not path:
            raise Misfit(left_out[-1] if left_out else problem)
        sentence = f"{path.removeprefix('.')}: {_PLACE.sub('', problem)}, {_leave_out(data, path)} came"
        if len(left_out) >= MAX_LEFT_OUT:
            raise Misfit(f"{sentence}, and {len(left_out)} more")
        left_out.append(sentence)


def _leave_out(data: dict[str, Any], path: str) -> str:
    """Remove the field at ``path``, the whole table where its entries have no names; return the removed prefix."""
    steps: list[Any] = []
    for step in _STEP.finditer(path):
        if step["any"]:
            break
        steps.append(step["name"] if step["name"] is not None else int(step["at"]))
    inner: Any = data
    for one in steps[:-1]:
        inner = inner[one]
    given = inner[steps[-1]]
    del inner[steps[-1]]
    return repr(given)[:SHOWN_CHARS]
