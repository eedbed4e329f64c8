"""All detectors of one run on its effective path, with rewinds to a fork step."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.base.name_sets import key_of
from stabilitybackend.base.saving import SavedPart, Unfit, pack, part_of, restore, unpack, unpacked
from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.judging.detectors.engine.base import Detector, Finding, Mark, Point, Row
from stabilitybackend.judging.detectors.engine.context import Context
from stabilitybackend.judging.detectors.engine.long_past import LongPast
from stabilitybackend.judging.detectors.engine.row_blocks import LARGEST, QuietRows, RowBlock, rows_in_order
from stabilitybackend.judging.detectors.engine.row_plans import MAX_REMEMBERED_SETS, RowPlan, RowPlans

__all__ = ["BEFORE_FIRST_STEP", "DetectorBank"]

# Batches of rows: detectors take quiet rows together, only the others one by one. In a quiet run nearly all rows only
# grow a list of a detector until its next block is full. Each detector selects its own quiet rows
# (``Detector.take_quiet``); it gets the next one by ``update``, in its turn among the others and with the context of
# that row. So findings and states are those of single rows.

#: Rows that make a batch worthwhile.
MANY_ROWS = 8


#: Index in a row, detector, metric, values. The indices differ, so that comparisons end there.
_Turn = tuple[int, str, str, Sequence[float]]


def quiet_rows(block: RowBlock, after: int) -> QuietRows | None:
    """Return rows for a batch; None for rows to be fed one by one, or too few.

    Args:
        after: the newest step so far. Evenly spaced rows after it make a batch, others not.
    """
    _, steps, times, columns = block
    if len(steps) < MANY_ROWS or not columns:
        return None
    distance = steps[1] - steps[0]
    if steps[0] <= after or distance <= 0 or list(steps) != list(range(steps[0], steps[-1] + 1, distance)):
        return None
    ranges = {}
    for name, values in columns.items():
        if math.isfinite(sum(values)):
            low, high = min(values), max(values)
            if low > -LARGEST and high < LARGEST:
                ranges[name] = (low, high)
    return QuietRows(steps, times, columns, ranges)


class Feeder:
    """Feeds rows to the detectors of a bank.

    Args:
        names, plan: metrics of the rows, and their receivers.
        detectors: by name, looked up each time, since one that raises is replaced.
        failed: replaces a detector that raised.
    """

    def __init__(
        self,
        rows: QuietRows,
        names: Sequence[str],
        plan: RowPlan,
        detectors: Callable[[], Mapping[str, Detector]],
        failed: Callable[[Detector, Exception], object],
    ) -> None:
        columns = rows.columns
        self._rows, self._detectors, self._failed = rows, detectors, failed
        self._companions = [(role, columns[of], rows.ranges.get(of)) for role, of in plan.companions if of in columns]
        wanted = [(names[place], name) for place, who in plan.receivers if names[place] in columns for name in who]
        #: Detector -> its metrics with values, each with its index in a row.
        self._points: dict[str, list[_Turn]] = {name: [] for _, name in wanted}
        for turn, (metric, name) in enumerate(wanted):
            self._points[name].append((turn, name, metric, columns[metric]))
        #: Detectors -> the points of all of them.
        self._turns: dict[tuple[str, ...], list[_Turn]] = {}
        #: Detector -> its first missing row.
        self._next = dict.fromkeys(self._points, 0)

    def feed(self, context: Context, start: int, stop: int, rank: int) -> tuple[int, list[tuple[float, Finding]]]:
        """Feed rows to all: the one of ``start``, and quiet ones after it.

        Args:
            start: the bank has entered its step.
            stop: no row from here on.

        Returns:
            The first row that was not fed, and the findings.
        """
        rows, following, found = self._rows, self._next, list[tuple[float, Finding]]()
        context.enter(rows.steps[start], rows.times[start])
        for role, values, _ in self._companions:
            context.companion(role, values[start])
        stop = context.calm(rows.steps, self._companions, start, stop)
        at = start
        while True:
            due = [name for name, row in following.items() if row == at]
            found += self._row(at, due, rank)
            if at + 1 == stop:
                self._next = dict.fromkeys(following, stop)
                return stop, found
            for name in due:
                following[name] = self._quiet(name, at + 1, stop)
            then = min(following.values(), default=stop)
            last = min(then, stop - 1)
            context.advance(rows.steps, rows.times, self._companions, at + 1, last + 1)
            if then == stop:
                return stop, found
            at = then

    def _row(self, at: int, due: Sequence[str], rank: int) -> list[tuple[float, Finding]]:
        """Feed a row to some of the detectors."""
        rows, detectors, found = self._rows, self._detectors(), list[tuple[float, Finding]]()
        step, time = rows.steps[at], rows.times[at]
        make = tuple.__new__  # a named tuple's own constructor costs twice as much
        for _, name, metric, values in self._turns_of(due):
            try:
                news = detectors[name].update(make(Point, (step, metric, values[at], time, rank)))
            except Exception as error:
                self._failed(detectors[name], error)
                detectors = self._detectors()
                continue
            if news:
                found += [(time, finding) for finding in news]
        return found

    def _turns_of(self, due: Sequence[str]) -> list[_Turn]:
        """Return the points of some detectors in order; the same ones are requested repeatedly."""
        if len(due) == 1:
            return self._points[due[0]]
        who = tuple(due)
        turns = self._turns.get(who)
        if turns is None:
            turns = self._turns[who] = sorted(chain.from_iterable(self._points[name] for name in due))
        return turns

    def _quiet(self, name: str, start: int, stop: int) -> int:
        detector = self._detectors()[name]
        if not takes_quiet(type(detector)):
            return start
        try:
            return detector.take_quiet(self._rows, start, stop)
        except Exception as error:
            self._failed(detector, error)
            return start


@cache
def takes_quiet(kind: type[Detector]) -> bool:
    """Return whether batches are allowed: no subclass of the owner of ``take_quiet`` has another ``update``."""
    own = next(each for each in kind.__mro__ if {"update", "take_quiet"} & vars(each).keys())
    return "take_quiet" in vars(own)


#: Snapshots kept. The state of a detector set takes some ten KiB, so that this is about 1 MiB a run.
MAX_SNAPSHOTS = 32
#: Steps with rows between two snapshots: near the head a rollback feeds about so many again, in some ten milliseconds.
#: Saving all detectors costs as much as judging 30 rows.
SNAPSHOT_EVERY_STEPS = 1_024
#: Rows in a row behind the newest step that are a restarted order, not late ones.
LATE_ROWS_ACCEPTED_AFTER = 32
#: Name of the context among the detectors that share it.
_CONTEXT = "context"
#: Step of the empty state, before every step of a run.
BEFORE_FIRST_STEP = -1


_log = logging.getLogger(__name__)


#: A metric, its values, and ``update`` of its receivers.
_Wanted = tuple[str, Sequence[float], list[Callable[[Point], list[Finding]]]]


class DetectorBank(Stateful):
    """Feeds points to detectors and rewinds them with the run.

    Points come in the order of their steps, of the primary rank, on the effective path. After a rollback ``rewind``
    restores the newest saved state at or before the fork step; the caller then feeds the effective points after the
    returned step, and the marks between them. The state is then that of a bank that never saw the dead points, with the
    same keys of findings. All detectors of a bank share one context, which is filled with a whole row before any of its
    points is judged.

    A detector that raises is replaced by a fresh one and counted in ``failures``: one bad plug-in never stops the
    others.

    Attributes:
        detectors, context: by name, and the shared one; other objects after a rewind.
        last_step: newest step fed, BEFORE_FIRST_STEP before any.
        late_points: rows refused because a later step had been fed already. failures: exceptions by detector name.

    Args:
        factories: name -> maker of a fresh detector, called again on a rewind to before the first snapshot.
        snapshot_every_steps: steps with points between two snapshots, >= 1.
        in_order: False for rows of many ranks: no row is late then, and no rewind is possible.
    """

    _settings: dict[str, dict[str, float]] = fresh(dict)
    #: (step, state of the detectors and their context after it), ascending.
    _snapshots: list[tuple[int, dict[str, bytes]]] = fresh(list)
    _steps_since_snapshot: int = 0
    _late_in_a_row: int = 0
    #: Whether a mark followed the newest step: the state is no longer that of this step alone.
    _just_marked: bool = False
    #: Detectors' memory of the whole run, besides their state in the snapshots.
    _pasts: dict[str, LongPast] = fresh(dict)
    last_step: int = BEFORE_FIRST_STEP
    late_points: int = 0
    failures: dict[str, int] = fresh(dict)

    def __init__(
        self,
        factories: Mapping[str, Callable[[], Detector]],
        snapshot_every_steps: int = SNAPSHOT_EVERY_STEPS,
        in_order: bool = True,
    ) -> None:
        if snapshot_every_steps < 1:
            raise ValueError(f"snapshot_every_steps is {snapshot_every_steps}, expected at least 1")
        super().__init__()
        self._factories = factories
        self._every = snapshot_every_steps
        self._in_order = in_order
        self._adopt({name: make() for name, make in self._factories.items()}, Context())
        self._plans = RowPlans(self.detectors, with_companions=in_order)

    def configure(self, settings: Mapping[str, Mapping[str, float]]) -> None:
        """Set the parameters of detectors by detector and name, all others to their default; the state stays.

        Raises:
            SettingError: a setting is unknown or out of range; nothing is changed then. Detectors outside this bank are
                ignored.
        """
        for name, make in self._factories.items():
            make().configure(settings.get(name, {}))
        self._settings = {name: dict(settings[name]) for name in self._factories if settings.get(name)}
        self._adopt(self.detectors, self.context)

    def feed(self, point: Point) -> list[Finding]:
        """Feed one point, a row of its own, and return changed findings."""
        return self.feed_row(Row(point.step, point.time, {point.metric: point.value}, point.rank))

    def feed_row(self, row: Row) -> list[Finding]:
        """Feed one row and return changed findings."""
        columns = {name: [value] for name, value in row.values.items() if self.wants(name)}
        found = self.feed_rows(list(row.values), [row.step], [row.time], columns, row.rank)
        return [finding for _, finding in found]

    def wants(self, metric: str) -> bool:
        """Return whether points of ``metric`` have any receiver."""
        return self._plans.wants(metric)

    def wanted(self, names: Sequence[str]) -> tuple[tuple[int, str], ...]:
        """Return the wanted metrics of a row, each with its index in ``names``."""
        return self._plans.of(names).wanted

    def feed_rows(
        self,
        names: Sequence[str],
        steps: Sequence[int],
        times: Sequence[float],
        columns: Mapping[str, Sequence[float]],
        rank: int = 0,
    ) -> list[tuple[float, Finding]]:
        """Feed whole rows and return changed findings, each with the log time of its point.

        Unwanted metrics cost nothing. NaN is a value: a row has all of its metrics.

        Args:
            names: the metrics of the rows.
            steps, times: one for each row.
            columns: values of the wanted ones of ``names``.
            rank: of the rows.
        """
        return self.feed_blocks([RowBlock(names, steps, times, columns)], rank)

    def feed_blocks(self, blocks: Sequence[RowBlock], rank: int = 0) -> list[tuple[float, Finding]]:
        """Like ``feed_rows``, for interleaved rows of several sets of metrics, in the order of steps."""
        if not self._in_order:
            return [found for block in blocks for found in self._feed_rank(block, rank)]
        rows = quiet_rows(blocks[0], max(self.last_step, self.context.step)) if len(blocks) == 1 else None
        if rows is not None:
            return self._feed_at_once(rows, blocks[0].names, rank)
        wanting: list[tuple[RowBlock, list[_Wanted], list[tuple[str, Sequence[float]]]]] = []
        for block in blocks:
            plan, columns = self._plans.of(block.names), block.columns
            wanted = self._wanted(plan, block.names, columns)
            companions = [(role, columns[name]) for role, name in plan.companions if name in columns]
            if wanted or companions:
                wanting.append((block, wanted, companions))
        context, found = self.context, list[tuple[float, Finding]]()
        make = tuple.__new__  # a named tuple's own constructor costs twice as much, and this is the innermost loop
        for step, time, at, row in rows_in_order([block for block, _, _ in wanting]):
            _, wanted, companions = wanting[at]
            if step > self.last_step:
                self._enter_step(step)
            elif step < self.last_step and not self._order_restarted(step):
                continue
            self._late_in_a_row = 0
            context.enter(step, time)
            for role, column in companions:
                context.companion(role, column[row])
            for name, values, updates in wanted:
                point = make(Point, (step, name, values[row], time, rank))
                for update in updates:
                    try:
                        news = update(point)
                    except Exception as error:
                        another = self._failed(update.__self__, error)  # type: ignore[attr-defined]  # a bound method
                        for _, _, others in (one for _, those, _ in wanting for one in those):
                            others[:] = [another.update if other == update else other for other in others]
                        continue
                    if news:
                        found += [(time, finding) for finding in news]
        return found

    def _feed_at_once(self, rows: QuietRows, names: Sequence[str], rank: int) -> list[tuple[float, Finding]]:
        """Feed consecutive, complete rows; snapshots are due between the same ones."""
        feeder = Feeder(rows, names, self._plans.of(names), lambda: self.detectors, self._failed)
        found: list[tuple[float, Finding]] = []
        at, count, self._late_in_a_row = 0, len(rows.steps), 0
        while at < count:
            self._enter_step(rows.steps[at])
            room = max(1, self._every - self._steps_since_snapshot)
            stop, news = feeder.feed(self.context, at, min(count, at + room), rank)
            found += news
            self._steps_since_snapshot += stop - at - 1
            at, self.last_step = stop, rows.steps[stop - 1]
        return found

    def _feed_rank(self, block: RowBlock, rank: int) -> list[tuple[float, Finding]]:
        names, steps, times, columns = block
        return self.feed_rank(names, steps, times, lambda place: columns[names[place]], rank) if columns else []

    def feed_rank(
        self,
        names: Sequence[str],
        steps: Sequence[int],
        times: Sequence[float],
        column: Callable[[int], Sequence[float]],
        rank: int,
    ) -> list[tuple[float, Finding]]:
        """Feed rows of one of many ranks, metric by metric, without an order between ranks.

        Args:
            names, steps, times: as of ``feed_rows``.
            column: returns the values of the metric at an index in ``names``, for wanted ones.
        """
        found: list[tuple[float, Finding]] = []
        receivers = self._plans.of(names).receivers
        if receivers:
            self.context.enter_all(steps, times)
        for place, who in receivers:
            values = column(place)
            for name in who:
                detector = self.detectors[name]
                try:
                    found += detector.update_column(names[place], steps, values, times, rank)
                except Exception as error:
                    self._failed(detector, error)
        return found

    def feed_turn(
        self, names: Sequence[str], steps: Sequence[int], times: Sequence[float], values: NDArray[np.float64],
        ranks: Sequence[int],
    ) -> list[tuple[int, Finding]]:  # fmt: skip
        """Feed a row of each of some ranks, as ``feed_rank`` for one after the other; return (place, finding).

        Args:
            steps, times: of each rank. values: (metrics, ranks).
        """
        found, looked_at = list[tuple[int, Finding]](), list[tuple[int, str, list[float]]]()
        for place, who in self._plans.of(names).receivers:
            column = values[place].tolist()
            for name in who:
                try:
                    if self.detectors[name].update_turn(names[place], steps, column, ranks):
                        continue
                except Exception as error:
                    self._failed(self.detectors[name], error)
                looked_at.append((place, name, column))
        for at, rank in enumerate(ranks):
            step, time = [steps[at]], [times[at]]
            self.context.enter_all(step, time)
            for place, name, column in looked_at:
                detector = self.detectors[name]
                try:
                    news = detector.update_column(names[place], step, [column[at]], time, rank)
                except Exception as error:
                    self._failed(detector, error)
                else:
                    found += [(at, finding) for _, finding in news]
        return found

    def feed_table(
        self, names: Sequence[str], steps: NDArray[np.int64], times: NDArray[np.float64],
        values: NDArray[np.float64], ranks: Sequence[int],
    ) -> list[tuple[float, Finding]]:  # fmt: skip
        """Feed rows to the detectors that compare ranks.

        Args:
            values: (metrics, rows). ranks: of the rows, or the one that all are of.
        """
        found: list[tuple[float, Finding]] = []
        for detector in list(self.detectors.values()):
            try:
                found += detector.update_table(names, steps, times, values, ranks)
            except Exception as error:
                self._failed(detector, error)
        return found

    def mark(self, mark: Mark) -> list[Finding]:
        """Pass a mark to the context and every detector; return changed findings.

        The state before it is saved: a later rollback to the same step must not include it.
        """
        if self._in_order and self.last_step != BEFORE_FIRST_STEP and not self._just_marked:
            self._save(mark.step)
        self._just_marked = True
        self.context.mark(mark)
        found: list[Finding] = []
        for detector in list(self.detectors.values()):
            try:
                found += detector.note(mark)
            except Exception as error:
                self._failed(detector, error)
        return found

    def _wanted(self, plan: RowPlan, names: Sequence[str], columns: Mapping[str, Sequence[float]]) -> list[_Wanted]:
        """Return (metric, its values, ``update`` of its receivers) for all wanted metrics."""
        updates = self._updates.get(row := key_of(names))
        if updates is None:
            if len(self._updates) >= MAX_REMEMBERED_SETS:
                self._updates.clear()
            updates = self._updates[row] = [
                [self.detectors[receiver].update for receiver in receivers] for _, receivers in plan.receivers
            ]
        return [
            (name, columns[name], those)
            for (place, _), those in zip(plan.receivers, updates, strict=True)
            if (name := names[place]) in columns
        ]

    def _adopt(self, detectors: dict[str, Detector], context: Context) -> None:
        """Take ``detectors`` as the ones of this bank, with the present settings and their shared context."""
        self.detectors, self.context = detectors, context
        self._updates: dict[tuple[str, ...], list[list[Callable[[Point], list[Finding]]]]] = {}
        for name, detector in detectors.items():
            detector.context = context
            if detector.remembers:
                detector.past = self._pasts.setdefault(name, detector.past)
            detector.configure(self._settings.get(name, {}))

    def rewind(self, fork_step: int) -> int:
        """Forget all after ``fork_step`` and return the step after which points have to be fed again.

        Args:
            fork_step: the step whose state the new segment starts from; below 0 for the very beginning.

        Returns:
            The step of the restored state, ``BEFORE_FIRST_STEP`` for the empty one. Never above ``fork_step`` unless
                that is negative.
        """
        self._late_in_a_row = 0
        if BEFORE_FIRST_STEP < self.last_step <= fork_step and not self._just_marked:
            return self.last_step
        self._just_marked = False
        while self._snapshots and self._snapshots[-1][0] > fork_step:
            self._snapshots.pop()
        self._steps_since_snapshot = 0
        made, context, self.last_step = {name: make() for name, make in self._factories.items()}, Context(), -1
        if self._snapshots:
            self.last_step, state = self._snapshots[-1]
            for name, detector in made.items():
                detector.take_over(unpack(type(detector), state[name], name))
            context = unpack(Context, state[_CONTEXT], _CONTEXT)
        self._adopt(made, context)
        return self.last_step

    def saved(self, name: str) -> list[SavedPart]:
        """Return the whole state: of the bank, called ``name``, of the context and of each detector by itself."""
        state = self.state()
        parts: dict[str, object] = {_CONTEXT: self.context, **self.detectors}
        return [part_of(name, self), *(part_of(f"{name}.{one}", part, state[one]) for one, part in parts.items())]

    def restore(self, name: str, parts: Mapping[str, SavedPart]) -> dict[str, str]:
        """Restore the result of ``saved``.

        Returns:
            Detector with an unfit or missing state, which has to judge the past again -> reason.

        Raises:
            Unfit: the state of the bank itself does not fit.
        """
        restore(self, parts.get(name), name)
        detectors, unfit, context = {one: make() for one, make in self._factories.items()}, {}, Context()
        try:
            context = unpacked(Context, parts.get(f"{name}.{_CONTEXT}"), _CONTEXT)
        except Unfit as error:
            unfit = dict.fromkeys(detectors, str(error))  # claims of one are input of the others
        for one in detectors.keys() - unfit.keys():
            try:
                restore(detectors[one], parts.get(f"{name}.{one}"), one)
            except Unfit as error:
                unfit[one] = str(error)
        self._adopt(detectors, context)
        return unfit

    def empty(self) -> DetectorBank:
        """Return an unfed bank with the same detectors and settings."""
        other = DetectorBank(self._factories, self._every, self._in_order)
        other.configure(self._settings)
        return other

    def replace(self, names: Collection[str], other: DetectorBank) -> None:
        """Replace some detectors, their claims, and the snapshots by those of a bank with the same points."""
        context = other.context if self.detectors.keys() == set(names) else self.context
        context.take_claims(other.context, names, self._factories)
        self._pasts |= {name: past for name, past in other._pasts.items() if name in names}
        self._adopt({**self.detectors, **{name: other.detectors[name] for name in names}}, context)
        self._snapshots = other._snapshots

    def past(self, name: str) -> LongPast:
        """Return a detector's memory of the whole effective path; empty for none."""
        return self._pasts[name].copy() if name in self._pasts else LongPast()

    def snapshot_steps(self) -> list[int]:
        """Return the steps with a snapshot, ascending."""
        return [step for step, _ in self._snapshots]

    def state(self) -> dict[str, bytes]:
        """Return the state of the context and of each detector, for comparison and for size checks too."""
        found = {_CONTEXT: pack(self.context)}
        for name, detector in list(self.detectors.items()):
            try:
                found[name] = pack(detector)
            except Exception as error:
                found[name] = pack(self._failed(detector, error))
        return found

    def _enter_step(self, step: int) -> None:
        """Save the state of the steps so far when one is due, before the first point of ``step``."""
        if self.last_step != BEFORE_FIRST_STEP:
            self._steps_since_snapshot += 1
            if self._steps_since_snapshot >= self._every and not self._just_marked:
                self._save(step)
        self._just_marked = False
        self.last_step = step

    def _save(self, head: int) -> None:
        if self._snapshots and self._snapshots[-1][0] == self.last_step:
            return
        self._snapshots.append((self.last_step, self.state()))
        self._steps_since_snapshot = 0
        if len(self._snapshots) > MAX_SNAPSHOTS:
            self._thin(head)

    def _thin(self, head: int) -> None:
        """Drop the least useful snapshot: small gap, far from the head. The newest one stays."""
        steps = self.snapshot_steps()

        def cost(i: int) -> float:
            before = steps[i - 1] if i else BEFORE_FIRST_STEP
            return (steps[i + 1] - before) / max(1, head - steps[i])

        del self._snapshots[min(range(len(steps) - 1), key=cost)]

    def _order_restarted(self, step: int) -> bool:
        """Count a late row; after many in a row follow them, or one stray huge step would block the bank."""
        self.late_points += 1
        self._late_in_a_row += 1
        if self._late_in_a_row < LATE_ROWS_ACCEPTED_AFTER:
            return False
        self._snapshots = [snapshot for snapshot in self._snapshots if snapshot[0] < step]
        self.last_step = step
        return True

    def _failed(self, detector: Detector, error: Exception) -> Detector:
        name = detector.name
        self.failures[name] = self.failures.get(name, 0) + 1
        if self.failures[name] == 1:
            _log.exception("detector %s failed and starts afresh: %s", name, error)
        self._adopt({**self.detectors, name: self._factories[name]()}, self.context)
        return self.detectors[name]
