"""Bounds the names of metrics of one run: a job that writes the step into a name would make a million of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from stabilitybackend.base.name_sets import NameSet, key_of
from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.lineage.consumer import Consumer
from stabilityclient.wire import Frame, NodeFrame, PointsBlock

__all__ = ["MAX_METRICS_A_RUN", "MetricNames"]

#: Names of metrics that a run keeps; values under further ones are counted and left out. Charts of 20,000 names can
#: still be searched, and each name costs some KiB in every process that follows the run.
MAX_METRICS_A_RUN = 20_000
#: Names beyond them that are kept for agents' readings of machines, which no job may crowd out.
_READINGS = 2_000
#: Remembered sets of names, and names in all of them together.
_SETS, _IN_SETS = 4_096, 200_000
#: A message with so many new names is not folded in one go.
MANY = 256


def _points_of(message: Frame | NodeFrame) -> Iterator[PointsBlock]:
    blocks: Sequence[object] = message.tables if isinstance(message, NodeFrame) else message.blocks
    return (block for block in blocks if isinstance(block, PointsBlock))


class MetricNames(Stateful, Consumer):
    """The names that a run keeps.

    Attributes:
        left_out: values under other names. first_left_out: the first of these names.
    """

    _known: dict[str, None] = fresh(dict)
    left_out: int = 0
    first_left_out: str = ""

    def __init__(self) -> None:
        super().__init__()
        #: One list for each recurring set of names: comparisons find the same object.
        self._sets: dict[tuple[str, ...], NameSet] = {}
        self._in_sets = 0

    def state(self) -> Mapping[str, Stateful]:
        return {"metric_names": self}

    def bound(self, message: Frame | NodeFrame) -> None:
        """Take the values whose names are too many out of a message; its rows stay, they tell how far the job is."""
        if isinstance(message, NodeFrame):
            readings = all(part.source.rank is None for part in message.parts)
        else:
            readings = message.source.rank is None
        for block in _points_of(message):
            self._take(block, readings)

    def first_met(self, message: Frame | NodeFrame) -> list[str]:
        """Return the names of a message that ``bound`` will meet for the first time, where they are many; else none."""
        room = MAX_METRICS_A_RUN - len(self._known)
        if room <= 0:
            return []
        many = [block for block in _points_of(message) if len(block.names) >= MANY and not self.knows(block.names)]
        return [name for block in many for name in block.names if name not in self._known][:room]

    def knows(self, names: list[str]) -> bool:
        """Return whether all of some names are kept."""
        return key_of(names) in self._sets

    def _take(self, block: PointsBlock, readings: bool) -> None:
        row = tuple(block.names)
        known = self._sets.get(row)
        if known is not None:
            block.names = known
            return
        room = MAX_METRICS_A_RUN + _READINGS * readings
        if len(self._known) + len(row) <= room:
            self._known.update(dict.fromkeys(row))
            kept = block.names
        else:
            kept = [name for name in row if self._keep(name, room)]
        if len(kept) < len(row):
            self._leave_out(block, frozenset(kept))
        if self._in_sets > _IN_SETS or len(self._sets) >= _SETS:
            self._sets, self._in_sets = {}, 0
        fresh_set = NameSet(block.names)
        self._sets[fresh_set.key] = block.names = fresh_set
        self._in_sets += len(kept)

    def _keep(self, name: str, room: int) -> bool:
        if name not in self._known and len(self._known) < room:
            self._known[name] = None
        return name in self._known

    def _leave_out(self, block: PointsBlock, kept: frozenset[str]) -> None:
        rows = len(block.steps) // 8
        places = [place for place, name in enumerate(block.names) if name in kept]
        self.left_out += rows * (len(block.names) - len(places))
        self.first_left_out = self.first_left_out or next(name for name in block.names if name not in kept)
        values = np.frombuffer(block.values, "<f8").reshape(len(block.names), rows)
        block.values = values[places].tobytes()
        block.names = [block.names[place] for place in places]

    @property
    def note(self) -> str:
        """Return a text for the page, empty while nothing was left out."""
        if not self.left_out:
            return ""
        return (
            f"A run keeps {MAX_METRICS_A_RUN:,} names of metrics: {self.left_out:,} values under further names were "
            f"left out, first those of {self.first_left_out!r}. Is the step, or a batch, in the names?"
        )
