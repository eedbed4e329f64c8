"""Reads ``stacks`` events (docs/wire.md): one for all ranks of a node, or, as older agents send them, one for each.

What comes may be anything: references that lead nowhere are passed over, and nothing that is written once and referred
to many times may grow without bound here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stabilitybackend.judging.liveness.stacks.collectives import MAX_GROUPS
from stabilitybackend.judging.liveness.stacks.parse import MAX_CHARS
from stabilitybackend.schema.json_data import MAX_RANKS

#: Ranks read of one event: an agent follows 256.
MAX_EVENT_RANKS = 1_024
#: Members of process groups that the runs of one event may stand for; groups beyond tell no members. A node of 8 ranks
#: in a job of 2,048 has some ten groups a rank, of which those of all ranks are the same.
MAX_EVENT_MEMBERS = 500_000

__all__ = ["ranks_of"]


def ranks_of(data: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Return what an event says of each rank, in the form of an older event: one whole text, members as a list.

    Args:
        data: of the event, in either form.
    """
    ranks = data.get("ranks")
    if not isinstance(ranks, list):
        yield data
        return
    threads, groups = _list(data.get("threads")), _Groups(_list(data.get("pgs")))
    for sample in ranks[:MAX_EVENT_RANKS]:
        if not isinstance(sample, Mapping):
            continue
        entry = {**sample, "request": data.get("request")}
        if isinstance(sample.get("stack"), list):
            entry["stack"] = _joined(threads, sample["stack"]) or None
        collectives = sample.get("collectives")
        if isinstance(collectives, Mapping):
            entry["collectives"] = {**collectives, "pgs": groups.of(_list(collectives.get("pgs")))}
        yield entry


def _joined(threads: list[Any], places: list[Any]) -> str:
    """Return the text of some threads; of one that is too long the end, where the main thread is."""
    parts: list[str] = []
    room = MAX_CHARS
    for place in reversed(places[-MAX_CHARS:]):
        part = threads[place] if type(place) is int and 0 <= place < len(threads) else None
        if isinstance(part, str):
            parts.append(part)
            room -= len(part)
            if room <= 0:
                break
    return "".join(reversed(parts))[-MAX_CHARS:]


class _Groups:
    """The process groups of one event."""

    def __init__(self, groups: list[Any]) -> None:
        self._groups = groups
        self._whole: dict[int, Any] = {}
        self._members: dict[tuple[tuple[int, int, int], ...], list[int]] = {}
        self._room = MAX_EVENT_MEMBERS

    def of(self, places: list[Any]) -> list[Any]:
        """Return some groups with their members; one that is not in the table but is here itself is left so."""
        found = []
        for place in places[:MAX_GROUPS]:
            if type(place) is not int:
                found.append(place)
            elif 0 <= place < len(self._groups):
                if place not in self._whole:
                    self._whole[place] = self._expanded(self._groups[place])
                found.append(self._whole[place])
        return found

    def _expanded(self, group: Any) -> Any:
        if not isinstance(group, Mapping):
            return group
        runs = tuple(
            (run[0], run[1], run[2])
            for run in _list(group.get("ranks"))
            if isinstance(run, list) and len(run) == 3 and all(type(number) is int for number in run)
        )
        if runs not in self._members:
            size = sum(max(0, count) for _, count, _ in runs)
            fits = size <= min(self._room, MAX_RANKS)
            self._room -= size if fits else 0
            self._members[runs] = (
                [first + at * stride for first, count, stride in runs for at in range(count)] if fits else []
            )
        return {**group, "ranks": self._members[runs]}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
