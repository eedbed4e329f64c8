"""Puts the samples of all ranks of a node into few events: what several ranks have in common is written once in each.

Nearly all ranks of a hanging job are at one place, and each of them says it in kilobytes. Threads are shared one by
one and not whole texts: the main threads are alike while a loader's thread is a line further here and there. The
address in a thread's heading differs by process and says nothing once the process is gone, so it is written ``0x0``;
nothing else is changed. Members of process groups are written as runs: a group of 2,048 ranks outweighs the stacks.

An event is whole: what it refers to is in it. So the server keeps nothing between two of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from stabilityclient.agent.agent_events import within_limits

__all__ = ["MAX_PART_CHARS", "runs", "stack_events", "threads"]

#: Characters of JSON after which the next ranks go into another event, and which no event of several ranks passes: the
#: spool takes 256 KiB, and a rank alone is cut to fit if it must be (its stacks have 60,000 characters at most).
FULL_CHARS, MAX_PART_CHARS = 100_000, 240_000

_ADDRESS = re.compile(r"^(Current thread|Thread) 0x[0-9a-fA-F]+", re.MULTILINE)


def stack_events(request: str, ranks: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the data of the ``stacks`` events (docs/wire.md) for one request.

    Args:
        request: id of the command.
        ranks: what was seen of each, with the text of its stacks under ``stack`` and the members of each process group
            as a list under ``collectives.pgs[].ranks``. What is None is left out.
    """
    events: list[_Part] = []
    for each in ranks:
        # First of all: what the job's side wrote is of any depth.
        rank = within_limits(each)
        chars = events[-1].chars if events else FULL_CHARS
        if chars >= FULL_CHARS or chars + len(json.dumps(rank)) > MAX_PART_CHARS:
            events.append(_Part())
        events[-1].add(rank)
    return [{"request": request, **part.data()} for part in events]


def threads(text: str) -> list[str]:
    """Return the parts of a text in faulthandler's format: what is before the first thread, then each thread.

    They give the text again when they are joined, but for the addresses.
    """
    cuts = [match.start() for match in _ADDRESS.finditer(text)]
    edges = [0, *cuts, len(text)]
    parts = [text[begin:end] for begin, end in pairwise(edges) if end > begin]
    return [_ADDRESS.sub(r"\1 0x0", part, count=1) for part in parts]


def runs(members: list[int]) -> list[list[int]]:
    """Return numbers as runs ``[first, count, stride]``, in their order: one or few for a process group."""
    found: list[list[int]] = []
    for member in members:
        if found:
            first, count, stride = run = found[-1]
            if count == 1:
                run[1:] = [2, member - first]
                continue
            if member == first + count * stride:
                run[1] = count + 1
                continue
        found.append([member, 1, 0])
    return found


class _Part:
    """One event in the making."""

    def __init__(self) -> None:
        self.chars = 0
        self._threads = _ValueTable()
        self._groups = _ValueTable()
        self._ranks: list[dict[str, Any]] = []

    def add(self, rank: Mapping[str, Any]) -> None:
        """Take one rank."""
        entry = {name: value for name, value in rank.items() if value is not None}
        before = self._threads.chars + self._groups.chars
        if "stack" in entry:
            entry["stack"] = [self._threads.at(part) for part in threads(entry["stack"])]
        if "collectives" in entry:
            entry["collectives"] = self._collectives(entry["collectives"])
        self._ranks.append(entry)
        self.chars += len(json.dumps(entry)) + self._threads.chars + self._groups.chars - before

    def _collectives(self, found: Mapping[str, Any]) -> dict[str, Any]:
        # Written by the job's side, read from a file: other shapes than ours travel as they are.
        groups = found.get("pgs")
        if not isinstance(groups, list):
            return dict(found)
        return {**found, "pgs": [self._groups.at(_group(each)) for each in groups]}

    def data(self) -> dict[str, Any]:
        """Return what the event says beside its request."""
        return {"threads": self._threads.values, "pgs": self._groups.values, "ranks": self._ranks}


class _ValueTable:
    """Different values in the order in which they came, and their characters as JSON."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.chars = 0
        self._known: dict[str, int] = {}

    def at(self, value: Any) -> int:
        """Return the place of a value that is exactly this one."""
        key = json.dumps(value)
        if key not in self._known:
            self._known[key] = len(self.values)
            self.values.append(value)
            self.chars += len(key)
        return self._known[key]


def _group(group: Any) -> Any:
    if not isinstance(group, dict):
        return group
    members = group.get("ranks")
    if not isinstance(members, list) or not all(type(member) is int for member in members):
        return group
    return {**group, "ranks": runs(members)}
