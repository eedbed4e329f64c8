"""Fits free data to its type: what does not fit is left out and named, so that no code behind has to ask.

A death with a strange ``signal_name`` is still a death: only the field is left out. Where a field is missing that the
thing is nothing without, the whole is unreadable. Fields that the type does not know pass as they are: newer agents
may say more.
"""

from __future__ import annotations

import copy
import re
from typing import Any, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)

#: Fields left out of one thing; one with more of them is unreadable.
MAX_LEFT_OUT = 16
#: Characters shown of a value that does not fit.
SHOWN_CHARS = 40

#: How msgspec names a place: ``$.gpus[3].index``, ``$.phases[...]``.
_PLACE = re.compile(r" - at (?:`key` in )?`\$(?P<path>[^`]*)`$")
_STEP = re.compile(r"\.(?P<name>[A-Za-z_0-9]+)|\[(?P<at>\d+)\]|(?P<any>\[\.\.\.\])")


class Misfit(Exception):
    """Data that is nothing of its type; the text says where, what came and what is expected."""


def fitted(data: dict[str, Any], kind: type[msgspec.Struct]) -> tuple[dict[str, Any], list[str]]:
    """Return ``data`` as ``kind`` describes it, and what was left out for that: see ``typed``.

    The same object comes back where all of it fits; then fields that the type does not know are still in it.
    """
    data, _, left_out = _read(data, kind)
    return data, left_out


def typed(data: dict[str, Any], kind: type[T]) -> tuple[T, list[str]]:
    """Return ``data``, which is not changed, as a ``kind``, and what was left out for that, one sentence each.

    Raises:
        Misfit: a field is missing or wrong without which it is nothing, or too many fields are wrong.
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
    """Remove what ``path`` names, of a table whose entries have no names the whole; return how it began."""
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
