"""A run's points in the list of runs: newest values, newest step, number of live and dead points.

It is asked for every second, of runs of any length. So it is kept up to date row by row, and reads the store only for
two exceptions: the newest value before a fork, and the number of points that a fork discarded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.lineage.batch import Batch, Source, Table
from stabilitybackend.lineage.changes import Forked
from stabilitybackend.lineage.consumer import Consumer, Effects
from stabilitybackend.lineage.lineage import Lineage
from stabilitybackend.lineage.tree import SegmentTree
from stabilitybackend.schema.json_data import json_number
from stabilitybackend.storage.points.points import Points
from stabilitybackend.storage.points.store import RunStore, SeriesKey
from stabilitybackend.storage.points.timestamps import last_row
from stabilitybackend.storage.points.watched_metric import Watching

__all__ = ["COUNTED", "MAX_LATEST", "RunSummary"]

#: Metrics whose newest value is shown: the first ones that the run logged, and the loss.
MAX_LATEST = 200
#: Rows a step from which on a run shows the number.
MANY_ROWS_A_STEP = 1.5
#: Sets of metrics of which it is remembered which of them are shown.
_MAX_PLACES = 256
#: The metric whose points are counted; where a run never logs it, the first one that it logged.
COUNTED = "loss"
#: Series that are counted again in one go after a fork.
RECOUNTED_AT_ONCE = 256
#: Whose a series is. The least one is shown where several have the newest step: rank 0, rank 1, ..., agents by node.
_Who = tuple[bool, int, str]


class _Newest(NamedTuple):
    step: int
    who: _Who
    segment: int
    value: float


class _Row(NamedTuple):
    """A row of metrics ``names``; ``values`` are those of the ``shown`` ones."""

    names: list[str]
    step: int
    who: _Who
    segment: int
    shown: list[str]
    values: NDArray[np.float64]


class _ShownOf(NamedTuple):
    """Which metrics of a ``row`` are shown: their places and names."""

    row: list[str]
    places: list[int]
    names: list[str]


@dataclass(slots=True)
class _Count:
    """Of one series: greatest step, different steps up to it, rows, and how many of these are effective."""

    high: int = -1
    total: int = 0
    alive: int = 0
    steps: int = 0

    def row(self, step: int) -> None:
        """Take an effective row of a step that is not below the greatest one."""
        self.total, self.alive = self.total + 1, self.alive + 1
        if step > self.high:
            self.high, self.steps = step, self.steps + 1

    def rows(self, steps: NDArray[np.int64], alive: int) -> None:
        """Take rows, of which ``alive`` are effective. A step that comes late is no other step."""
        highest = np.maximum.accumulate(steps)
        before = np.append(self.high, highest[:-1])
        self.steps += int((highest > np.maximum(before, self.high)).sum())
        self.high = max(self.high, int(highest[-1]))
        self.total += len(steps)
        self.alive += alive


class RunSummary(Stateful, Consumer):
    """The summary of one run."""

    reads = (Lineage, Points)

    #: The metrics whose newest value is kept, in the order in which they appeared.
    _names: dict[str, None] = fresh(dict)
    _newest: dict[str, _Newest] = fresh(dict)
    #: Metrics whose newest value is on a dead branch now: looked up when they are asked for.
    _lost: set[str] = fresh(set)
    _counted: str | None = None
    #: Segment -> series of the counted metric there; strays are under None and always dead.
    _counts: dict[int | None, dict[_Who, _Count]] = fresh(dict)
    _total: int = 0
    _alive: int = 0
    #: Segment of the effective path -> its greatest effective step, None for all.
    _limits: dict[int, int | None] = fresh(lambda: {0: None})
    _head: int = 0
    _stale: bool = False
    #: Series whose effective points are to be counted again: a fork of a large job concerns thousands of them.
    _recount: dict[tuple[int, _Who], None] = fresh(dict)

    def __init__(self, lineage: Lineage, points: Points) -> None:
        super().__init__()
        self._fold, self._tree, self._points = lineage.fold, lineage.fold.tree, points
        self._shown: set[str] = set()
        self._watching = Watching()
        #: The newest row, while rows of the same metrics follow each other in an unchanged tree. It goes into
        #: ``_newest`` when that is asked for: 200 entries a row were a quarter of the whole fold of wide rows.
        self._last: _Row | None = None
        #: By the id of a list of names: those come again and again (``MetricNames``).
        self._places: dict[int, _ShownOf] = {}

    def saved_values(self) -> list[Any]:
        self._settle_last()
        return super().saved_values()

    def restored(self) -> None:
        self._shown = set(self._names)
        self._last, self._places = None, {}

    # --- events --------------------------------------------------------------------------------------------------

    def watched(self, loss: str | None, missing: str) -> dict[str, Any]:
        """Return ``metric_count``, ``loss_metric``, ``unwatched`` of docs/api.md; arguments as of ``Watching.view``."""
        store = self._points.store
        return self._watching.view(store.metric_count, store.metrics, loss, missing)

    @property
    def rows_note(self) -> str:
        """Return the number of rows a step that the job logs, where it is more than one, for users; else "".

        By the counted metric of its lowest rank; rows logged again after a restart make no half.
        """
        alive = [(who, one) for series in self._counts.values() for who, one in series.items() if one.steps]
        lowest = min((who for who, _ in alive), default=None)
        rows = sum(one.total for who, one in alive if who == lowest)
        steps = sum(one.steps for who, one in alive if who == lowest)
        each = rows / max(1, steps)
        if each < MANY_ROWS_A_STEP:
            return ""
        about = f"{each:.0f}" if abs(each - round(each)) < 0.05 else f"about {each:.1f}"
        return f"This job logs {about} rows of {self._counted} a step: each is stored, drawn and exported."

    def state(self) -> Mapping[str, Stateful]:
        return {"summary": self}

    def forked(self, fork: Forked, effects: Effects) -> None:
        self._stale = True  # the consequences are computed on request

    def tick(self, now: float, effects: Effects) -> Generator[None]:
        yield from self.settling()

    def rows(self, batch: Batch, effects: Effects) -> None:
        for table in batch.tables:
            if not table.names:
                continue
            if self._stale:
                self._regroup()
            if self._has_room(table.names) and not self._shown.issuperset(table.names):
                self._take_names(table.names)
            if self._counted in self._shown_of(table.names).names:
                self._count(batch, table)
            if not batch.stray and batch.segment in self._limits:
                self._note_newest(batch.segment, table)

    def _has_room(self, names: Sequence[str]) -> bool:
        """Return whether one of some names may have to be shown, too."""
        if COUNTED in self._names:
            return len(self._names) <= MAX_LATEST
        return len(self._names) < MAX_LATEST or COUNTED in names

    def _take_names(self, names: Iterable[str]) -> None:
        self._settle_last()
        self._places = {}
        for name in names:
            if name == COUNTED or len(self._names) - (COUNTED in self._names) < MAX_LATEST:
                self._names.setdefault(name)
                self._shown.add(name)
        if self._counted != COUNTED:
            counted = COUNTED if COUNTED in self._names else next(iter(self._names))
            if counted != self._counted:
                self._counted, self._counts, self._recount = counted, {}, {}
                self._total = self._alive = 0

    def _note_newest(self, segment: int, table: Table) -> None:
        found = _newest_row(table, self._limits[segment])
        if found is None:
            return
        row, at, who = found
        step, last = int(table.steps[row, at]), self._last
        if last is not None and segment == last.segment and table.names == last.names:
            if step < last.step or (step == last.step and who > last.who):
                return
        else:
            self._settle_last()
        shown = self._shown_of(table.names)
        newest = _Row(table.names, step, who, segment, shown.names, table.values[shown.places, row, at])
        if self._lost:
            self._settle(newest)
        else:
            self._last = newest

    def _settle_last(self) -> None:
        if self._last is not None:
            self._settle(self._last)
            self._last = None

    def _settle(self, row: _Row) -> None:
        """Put a row's values into ``_newest`` where nothing newer is."""
        step, who, segment, make = row.step, row.who, row.segment, tuple.__new__  # the own constructor costs twice
        for name, value in zip(row.shown, row.values.tolist(), strict=True):
            if name in self._lost:
                if segment != self._head:
                    continue  # the lost one may be newer: it is looked up
                self._lost.discard(name)  # all other segments of the path end before this one
            else:
                known = self._newest.get(name)
                if known is not None and (step < known.step or (step == known.step and who > known.who)):
                    continue
            self._newest[name] = make(_Newest, (step, who, segment, value))

    def _shown_of(self, row: list[str]) -> _ShownOf:
        """Return which metrics of a row are shown."""
        known = self._places.get(id(row))
        if known is None or known.row is not row:
            if len(self._places) >= _MAX_PLACES:
                self._places = {}
            places = [place for place, name in enumerate(row) if name in self._shown]
            known = self._places[id(row)] = _ShownOf(row, places, [row[place] for place in places])
        return known

    def _count(self, batch: Batch, table: Table) -> None:
        series = self._counts.setdefault(None if batch.stray else batch.segment, {})
        limit = -1 if batch.stray else self._limits.get(batch.segment, -1)
        plain = len(table.steps) == 1 and batch.segment == self._head and not batch.stray
        for at, source in enumerate(table.sources):
            who = _who(source)
            if batch.stray:
                who = (who[0], who[1], f"{batch.segment}/{who[2]}")
            count = series.get(who)
            if count is None:
                count = series[who] = _Count()
            if plain and (step := int(table.steps[0, at])) >= count.high:
                count.row(step)  # as nearly always
                self._alive += 1
                continue
            steps = table.steps[:, at]
            alive = len(steps) if limit is None else int((steps <= limit).sum())
            count.rows(steps, alive)
            self._alive += alive
        self._total += table.steps.size

    # --- after a fork --------------------------------------------------------------------------------------------

    def _regroup(self) -> None:
        """Compute the effects of a changed tree: newest values that died, and the number of points."""
        self._settle_last()
        self._stale, tree = False, self._tree
        before = self._limits
        self._limits = {part.segment: part.last for part in tree.path()}
        self._head = tree.head
        changed = [s for s in {*before, *self._limits} if before.get(s, -1) != self._limits.get(s, -1)]
        # The head is new and empty at this moment. Any other segment that is effective again may hold newer values.
        if any(_end(self._limits, s) > _end(before, s) and s != tree.head and tree[s].points for s in changed):
            self._lost |= set(self._names)
        for name, newest in self._newest.items():
            if newest.step > _end(self._limits, newest.segment):
                self._lost.add(name)
        for segment in changed:
            self._recount |= dict.fromkeys((segment, who) for who in self._counts.get(segment, ()))

    def settling(self) -> Generator[None]:
        """Compute the effects of forks on counts and newest values, as soon as all points are there.

        It yields where others may be served.
        """
        self._settle_last()
        store = self._points.store
        if self._stale:
            self._regroup()
            yield
        if store.loading:
            return
        while self._recount:
            for segment, who in list(itertools.islice(self._recount, RECOUNTED_AT_ONCE)):
                del self._recount[segment, who]
                count = self._counts[segment][who]
                alive = self._alive_of(count, segment, who, store)
                self._alive += alive - count.alive
                count.alive = alive
            yield
        while self._lost:
            name = next(iter(self._lost))
            found = self._find(name, store, self._tree)
            self._lost.discard(name)
            if found is None:
                self._newest.pop(name, None)
            else:
                self._newest[name] = found
            yield

    def _alive_of(self, count: _Count, segment: int, who: _Who, store: RunStore) -> int:
        limit = self._limits.get(segment, -1)
        if limit is None or limit >= count.high:
            return count.total
        if limit < 0:
            return 0
        assert self._counted is not None
        key = SeriesKey(self._counted, segment, None if who[0] else who[1], who[2])
        return count.total - len(store.rows(key, limit + 1, count.high))

    @staticmethod
    def _find(metric: str, store: RunStore, tree: SegmentTree) -> _Newest | None:
        """Return the newest effective row of ``metric`` from the store."""
        series: dict[int, list[SeriesKey]] = {}
        for key in store.keys(metric):
            if not key.stray:
                series.setdefault(key.segment, []).append(key)
        for part in reversed(tree.path()):
            best: _Newest | None = None
            seen = tree[part.segment]
            first, last = max(part.first, seen.first_step or 0), seen.last_step or 0
            last = last if part.last is None else min(last, part.last)
            for key in sorted(series.get(part.segment, ()), key=lambda key: key.who):
                found = last_row(store, key, first if best is None else best.step + 1, last)
                if len(found):
                    best = _Newest(int(found.steps[0]), key.who, part.segment, float(found.values[0]))
                    if best.step == last:
                        break  # none can be newer
            if best is not None:
                return best
        return None

    # --- requests of users ---------------------------------------------------------------------------------------

    def view(self) -> dict[str, Any]:
        """Return ``latest``, ``last_step``, ``effective_points`` and ``dead_points`` of docs/api.md."""
        for _ in self.settling():
            pass
        store, fold = self._points.store, self._fold
        names = [COUNTED] * (COUNTED in self._names) + [name for name in self._names if name != COUNTED]
        own = fold.axis.own  # their places are independent of the run's place
        ends = [n.step for name, n in self._newest.items() if not n.who[0] and name not in own]
        if not own or not ends:  # a metric beyond the first MAX_LATEST counts here too
            ends += [step for s, step in store.newest.items() if step <= _end(self._limits, s)]
        pending = sum(len(rows.steps) for rows in fold.pending() if self._counted in rows.names)
        return {
            "latest": {name: json_number(self._newest[name].value) for name in names if name in self._newest},
            "last_step": max(ends, default=None),
            "effective_points": self._alive,
            "dead_points": self._total - self._alive + pending,
        }


def _end(limits: Mapping[int, int | None], segment: int) -> float:
    """Return the greatest effective step of a segment: infinity for no end, -1 off the path."""
    limit = limits.get(segment, -1)
    return math.inf if limit is None else limit


def _who(source: Source) -> _Who:
    return (True, 0, source.node) if source.rank is None else (False, source.rank, "")


def _newest_row(table: Table, limit: int | None) -> tuple[int, int, _Who] | None:
    """Return turn, place and process of the greatest step <= limit; None where there is none.

    Of equal steps it is the one of the least process, and of its rows the last.
    """
    steps = table.steps
    if steps.size == 1:
        return (0, 0, _who(table.sources[0])) if limit is None or steps[0, 0] <= limit else None
    if len(steps) == 1:  # lists are faster there
        row = [step if limit is None or step <= limit else -1 for step in steps[0].tolist()]
        if (newest := max(row)) < 0:
            return None
        who, at = min((_who(table.sources[at]), at) for at, step in enumerate(row) if step == newest)
        return 0, at, who
    if limit is not None and not (steps <= limit).any():
        return None
    greatest = (steps if limit is None else np.where(steps <= limit, steps, -1)).max()
    turns, places = np.nonzero(steps == greatest)
    at = min(set(places.tolist()), key=lambda place: _who(table.sources[place]))
    return int(turns[places == at][-1]), at, _who(table.sources[at])
