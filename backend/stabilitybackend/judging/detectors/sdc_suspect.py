"""Finds the rank that computes something else than the others: a suspect of silent data corruption (SDC)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.schema.metric_roles import NAMES_REMEMBERED, of_machine

from .engine.base import SENSITIVITY, SEVERITIES, Detector, Event, Finding, Mark, Parameter, Point, Row, Severity, fresh
from .stats.rank_rows import RankRows, StepRows
from .stats.robust import MAD_TO_SIGMA, MEDIAN_ERROR

#: Rows from which it is learned how the ranks compare, and in which they are compared.
CHUNK = 8
#: The same of a checksum: equal by chance are two of them once in billions.
CHECKSUM_CHUNK = 3
#: Chunks before ranks are compared by their own past. From then on so many are gathered and the last is looked at; the
#: others as well where anything moved in it. Fewer where that would be more values.
WARM_CHUNKS = 8
GATHERED_CHUNKS = 16
MOST_GATHERED = 131_072
#: Part of a chunk in what is usual of a rank, and by how much of its deviation a chunk may move that.
LEARNED_PART = 1 / 16
#: Robust sigmas of a rank's own distance from the others beyond which a value counts.
SIGMAS = 5.0
#: The distance that counts: so many times what the healthy ranks differ by, within these bounds, as logarithms. Data
#: sets make losses and norms of ranks differ by less than half; ranks that are equal up to rounding by less than 0.1 %.
TIMES_SPREAD = 32.0
LEAST, MOST = 1e-3, math.log(1.5)
#: A relative difference that rounding makes.
ROUNDING = 1e-5
#: Stretches of a healthy rank that are reported, for each of its values: 0.01 in 100,000.
FALSE_A_VALUE = 1e-7
#: Weight of what is assumed before any stretch was seen: each row ends four stretches of five.
STRETCHES_END = 4
#: Part of a rank's move from which another one, or the ranks together, move as well: it is no single device then.
MOVES_TOO = 0.25
#: Error of a distance from the middle of three ranks of which one is far off, in that of one rank.
CENTRE_ERROR = 1.5
#: Fewer ranks than these say less, by the square.
FEW_RANKS = 8
#: Fewer ranks' own values are not compared: of two, the data of one explains it as well.
OWN_RANKS = 3
#: Rows after which a move within what the ranks differ by is usual.
ACCEPTED = 64
#: A copy that differs now and then is an alarm from so many times within so many steps on.
AGAIN, AGAIN_STEPS = 3, 200
#: Metrics that an event names.
MAX_NAMED = 8

_CHECKSUM = re.compile(r"checksum|check_sum|hash|digest|crc|fingerprint", re.IGNORECASE)
_STATE = re.compile(r"weight|param|moment|exp_avg|optim|state", re.IGNORECASE)

__all__ = ["SdcSuspectDetector"]


@dataclass(slots=True)
class _Apart(Event):
    """A rank that is apart from the others.

    Args:
        rank: None where two differ and none tells which is wrong. ranks: that are compared.
        value, expected: at the newest proof. times: how far from its own place, as a factor; 0 for a copy.
        quiet: metric -> rows in a row in which it is with the others again; back: the first of them.
        whole: newest step before the onset at which it was compared and was with the others.
        steps: newest ones at which a copy differed.
    """

    rank: int | None
    ranks: list[int]
    value: float
    expected: float
    times: float = 0.0
    rows: int = 1
    quiet: dict[str, int] = field(default_factory=dict)
    back: int = 0
    whole: int = -1
    steps: list[int] = field(default_factory=list)


class _Compared(NamedTuple):
    """A chunk of metrics of which each rank has its own values: (rows, ranks, metrics).

    Args:
        places: of the metrics. steps: (rows, metrics). before: (metrics,), the step compared before.
        logs: of the values. expected: what the others lead to expect.
        away: how far a rank is from its place. moved, outside: whether that is more than its own spread, and further
            than ranks are from each other.
    """

    places: NDArray[np.int64]
    steps: NDArray[np.int64]
    before: NDArray[np.int64]
    values: NDArray[np.float64]
    logs: NDArray[np.float64]
    expected: NDArray[np.float64]
    away: NDArray[np.float64]
    moved: NDArray[np.bool_]
    outside: NDArray[np.bool_]


class _Measured(NamedTuple):
    """A chunk and, (ranks, metrics), places of ranks, their deviations, which are new, how far they were from them."""

    now: _Compared
    place: NDArray[np.float64]
    sigma: NDArray[np.float64]
    new: NDArray[np.bool_]
    size: NDArray[np.float64]


class SdcSuspectDetector(Detector):
    """Names the rank whose values leave those of the others and its own past.

    Idea: a metric that several ranks log is either a copy (a checksum, a reduced norm: equal on some ranks bit for bit,
    whatever its value), or each rank's own (the loss of its data). Which it is, its first rows tell. A copy that
    differs on one rank while most of the others agree is news at once. Of the ranks' own values each has its place
    among the others, a factor, and a spread, both learned; the median over the ranks takes out what all of them do. A
    rank is outside where it is 5 robust sigmas from its place, and further from all others than any two ranks were
    from each other. Whether the stretch is no chance tell the run's own stretches (``_is_no_chance``). Where several
    ranks move it is the data or the model: their new places are usual then.

    Args:
        sensitivity: 0 opens nothing.

    Source: comparison of replicas before and after the reduction, see docs/detectors/sdc_suspect.md.

    Example:
        >>> detector, found = SdcSuspectDetector(), []
        >>> for step in range(80):
        ...     for rank in range(4):
        ...         state = (step * 2654435761) % 2**32 + (rank == 2 and step >= 60)
        ...         found += detector.update(Point(step, "checksum/weights", state, 0.0, rank))
        >>> [(f.rank, f.onset_step, f.severity) for f in found]
        [(2, 60, 'critical')]
    """

    name: ClassVar[str] = "sdc_suspect"
    kinds: ClassVar[tuple[str, ...]] = ("sdc_suspect",)
    title: ClassVar[str] = "Suspected SDC"
    every_rank: ClassVar[bool] = True
    side_by_side: ClassVar[bool] = True
    parameters: ClassVar[dict[str, Parameter]] = {"sensitivity": SENSITIVITY}

    _rows: RankRows = fresh(RankRows)
    #: By place of the metric: rows that are gathered, how many are to be (0: a chunk), chunks so far; the newest step
    #: that was compared; whether it was ever negative.
    _filled: NDArray[np.int64] = fresh(lambda: np.zeros(0, np.int64))
    _chunks: NDArray[np.int64] = fresh(lambda: np.zeros(0, np.int64))
    _need: NDArray[np.int64] = fresh(lambda: np.zeros(0, np.int64))
    _compared: NDArray[np.int64] = fresh(lambda: np.full(0, -1))
    _signed: NDArray[np.bool_] = fresh(lambda: np.zeros(0, np.bool_))
    #: By places of rank and metric: the first rank that has the same value, -1 where none has; its place among the
    #: others and its deviation; its own level; rows outside, and rows moved, in a row; the first of these, and the
    #: step compared before it; rows that were usual, stretches outside that ended, and their rows.
    _copy_of: NDArray[np.int32] = fresh(lambda: np.zeros((0, 0), np.int32))
    _place: NDArray[np.float64] = fresh(lambda: np.zeros((0, 0)))
    _sigma: NDArray[np.float64] = fresh(lambda: np.zeros((0, 0)))
    _level: NDArray[np.float64] = fresh(lambda: np.zeros((0, 0)))
    _out: NDArray[np.int32] = fresh(lambda: np.zeros((0, 0), np.int32))
    _moved: NDArray[np.int32] = fresh(lambda: np.zeros((0, 0), np.int32))
    _onset: NDArray[np.int64] = fresh(lambda: np.zeros((0, 0), np.int64))
    _whole: NDArray[np.int64] = fresh(lambda: np.zeros((0, 0), np.int64))
    _usual: NDArray[np.int32] = fresh(lambda: np.zeros((0, 0), np.int32))
    _turns: NDArray[np.int32] = fresh(lambda: np.zeros((0, 0), np.int32))
    _turn_rows: NDArray[np.int32] = fresh(lambda: np.zeros((0, 0), np.int32))
    #: (rows, ranks, metrics), with the steps of the rows.
    _chunk: NDArray[np.float64] = fresh(lambda: np.zeros((CHUNK, 0, 0)))
    _steps: NDArray[np.int64] = fresh(lambda: np.zeros((CHUNK, 0), np.int64))
    _events: list[_Apart] = fresh(list)

    def restored(self) -> None:
        for name in (*_BY_METRIC, *_BY_RANK, "_chunk", "_steps"):
            setattr(self, name, getattr(self, name).copy())  # what was read can't be written to
        self._know()

    def _know(self) -> None:
        """Derive by place of the metric: rows of its chunk, whether ranks have copies of it."""
        sizes = [CHECKSUM_CHUNK if _is_checksum(name) else CHUNK for name in self._rows.metrics]
        self._sizes = np.array(sizes[: self._place.shape[1]], np.int64)
        self._copied: NDArray[np.bool_] = np.array((self._copy_of >= 0).any(0))

    def configured(self) -> None:
        self._on = self.settings["sensitivity"] > 0
        self._sensitivity = self.settings["sensitivity"] or 1.0
        self._know()

    @classmethod
    def story(cls) -> Sequence[Row | Mark]:
        return [
            Row(
                step,
                1e9 + step,
                {
                    "grad_norm_local": (1 + 0.02 * ((step * 7 + rank * 3) % 11))
                    * (6 if rank == 2 and step >= 200 else 1)
                },
                rank,
            )
            for step in range(300)
            for rank in range(4)
        ]

    def wants(self, metric: str) -> bool:
        return not _is_of_machine(metric)

    def note(self, mark: Mark) -> list[Finding]:
        if mark.kind == "fork":
            self._rows.restart(mark.step)
            self._filled[:], self._need[:], self._out[:], self._moved[:] = 0, 0, 0, 0
        return []

    def update(self, point: Point) -> list[Finding]:
        step, metric, value, time, rank = point
        found = self.update_table([metric], np.array([step]), np.array([time]), np.array([[value]]), [rank])
        return [finding for _, finding in found]

    def update_table(
        self, names: Sequence[str], steps: NDArray[np.int64], times: NDArray[np.float64],
        values: NDArray[np.float64], ranks: Sequence[int],
    ) -> list[tuple[float, Finding]]:  # fmt: skip
        found = list[tuple[float, Finding]]()
        for rows in self._rows.add(names, steps, times, values, ranks, self.wants) if self._on else ():
            self._make_room(*rows.values.shape[1:])
            shared = np.count_nonzero(~np.isnan(rows.values), axis=1) >= 2
            ends = np.flatnonzero((shared[1:] != shared[:-1]).any(1)) + 1 if len(shared) > 1 else ()
            for begin, end in pairwise([0, *ends, len(shared)]):
                places, at = np.flatnonzero(shared[begin]), begin
                while len(places) and at < end:
                    count, news = self._judge(rows, at, end, places)
                    at += count
                    found += [(float(rows.times[at - 1]), finding) for finding in news]
        return found

    def _judge(self, rows: StepRows, at: int, end: int, places: NDArray[np.int64]) -> tuple[int, list[Finding]]:
        """Judge rows that log the same metrics, until a chunk is full or a copy differs; return how many, and news."""
        found = list[Finding]()
        need = np.where(self._need[places] > 0, self._need[places], self._sizes[places])
        count, ranks = min(end - at, int((need - self._filled[places]).min())), rows.values.shape[1]
        copied = places[self._copied[places]]
        if len(copied):
            alike = 0 if self._events else self._alike(rows.values[at : at + count], copied)
            count = max(1, alike)
            if not alike:
                found += self._compare_copies(rows.values[at], int(rows.steps[at]), places)
        into = self._filled[places] + np.arange(count)[:, None]
        self._chunk[into, :ranks, places] = rows.values[at : at + count, :, places].swapaxes(1, 2)
        self._steps[into, places] = rows.steps[at : at + count, None]
        self._filled[places] += count
        full = self._filled[places] == need
        self._filled[places[full]] = 0
        for size in np.unique(need[full]).tolist() if np.count_nonzero(full) else ():
            found += self._judge_gathered(places[full & (need == size)], ranks, size)
        return count, found

    def _judge_gathered(self, places: NDArray[np.int64], ranks: int, size: int) -> list[Finding]:
        """Judge so many rows: the last chunk of them, and all of a metric that moved in it."""
        found, last = list[Finding](), max(0, size - CHUNK)
        own = np.array([place for place in places.tolist() if self._is_compared(place, ranks, last)], np.int64)
        measured = self._measure(own, ranks, last) if len(own) else None
        if measured is not None and last and measured.now.moved.any():
            moved = measured.now.moved.any((0, 1))
            for begin in range(0, size, CHUNK):
                found += self._compare_own(self._measure(own[moved], ranks, begin))
            measured = self._measure(own[~moved], ranks, last) if not moved.all() else None
        if measured is not None:
            found += self._compare_own(measured)
        self._compared[places] = self._steps[size - 1, places]
        return found

    def _alike(self, values: NDArray[np.float64], places: NDArray[np.int64]) -> int:
        """Return how many rows come before the first in which a copy differs."""
        copy_of, of_these = self._copy_of[: values.shape[1], places], values[:, :, places]
        first = np.take_along_axis(of_these, np.maximum(copy_of, 0)[None], 1)
        differs = (copy_of >= 0) & (of_these != first) & ~np.isnan(of_these) & ~np.isnan(first)
        rows = differs.any((1, 2))
        return int(rows.argmax()) if rows.any() else len(rows)

    def _is_compared(self, place: int, ranks: int, begin: int) -> bool:
        """Return whether a metric, of which a chunk is full, is each rank's own; what is neither is asked seldom."""
        if self._chunks[place] >= WARM_CHUNKS:
            return True
        copied = self._learn_copies(place, begin)
        own = not copied and self._is_own(place, ranks, begin)
        self._need[place] = 0 if copied or own or _is_checksum(self._name(place)) else len(self._chunk)
        return own

    def _make_room(self, ranks: int, metrics: int) -> None:
        """Have a place for each rank and metric; ranks come one by one: for a quarter more."""
        have = self._place.shape
        if ranks <= have[0] and metrics <= have[1]:
            return
        room = have[0] or 8
        while room < ranks:
            room += room // 4
        more = (room - have[0], max(0, metrics - have[1]))
        for name, fill in _BY_METRIC.items():
            setattr(self, name, np.pad(getattr(self, name), (0, more[1]), constant_values=fill))
        for name, value in _BY_RANK.items():
            setattr(self, name, np.pad(getattr(self, name), ((0, more[0]), (0, more[1])), constant_values=value))
        chunks = min(GATHERED_CHUNKS, max(1, MOST_GATHERED // (CHUNK * room * max(1, metrics))))
        rows, kept = CHUNK * chunks, min(len(self._chunk), CHUNK * chunks)
        new = ((0, rows - kept), (0, more[0]), (0, more[1]))
        self._chunk = np.pad(self._chunk[:kept], new, constant_values=np.nan)
        self._steps = np.pad(self._steps[:kept], (new[0], new[2]))
        self._need = np.minimum(self._need, rows)
        self._filled[self._filled >= np.where(self._need > 0, self._need, CHUNK)] = 0
        self._know()

    def _name(self, place: int) -> str:
        return list(self._rows.metrics)[place]

    def _size(self, place: int) -> int:
        return int(self._sizes[place])

    # --- copies ---------------------------------------------------------------------------------------------------

    def _learn_copies(self, place: int, begin: int) -> bool:
        """Return whether a metric has copies, after the ranks that were equal throughout a chunk became ones."""
        count, size = len(self._rows.ranks), self._size(place)
        chunk, copy_of = self._chunk[begin : begin + size, :count, place], self._copy_of[:count, place]
        known = bool((copy_of >= 0).any())
        whole = ~np.isnan(chunk).any(0)
        if (whole & (copy_of < 0)).any() and len(np.unique(chunk[0, whole])) < whole.sum():
            groups: dict[bytes, list[int]] = {}
            for rank in np.flatnonzero(whole):
                groups.setdefault(chunk[:, rank].tobytes(), []).append(int(rank))
            for ranks in groups.values():
                if len(ranks) > 1 and _is_telling(chunk[:, ranks[0]], _is_checksum(self._name(place))):
                    copy_of[ranks] = min(ranks) if (copy_of[ranks] < 0).all() else copy_of[ranks].max()
                    known = True
        self._copied[place] = known
        if known:
            self._level[:count, place] = chunk[-1]
            with np.errstate(invalid="ignore"):  # of infinite ones nothing is known
                self._sigma[:count, place] = np.abs(np.diff(chunk, axis=0)).mean(0)
        return known

    def _forget_copies(self, place: int) -> None:
        self._copy_of[:, place] = -1
        self._copied[place] = False
        self._chunks[place] = self._need[place] = 0
        self._place[:, place] = self._sigma[:, place] = self._level[:, place] = np.nan

    def _compare_copies(self, row: NDArray[np.float64], step: int, shared: NDArray[np.int64]) -> list[Finding]:
        values, copy_of = row[:, shared], self._copy_of[: len(row), shared]
        first = np.take_along_axis(values, np.maximum(copy_of, 0), 0)
        differs = (copy_of >= 0) & ~np.isnan(values) & ~np.isnan(first) & (values != first)
        found, apart = list[Finding](), set[tuple[str, int | None]]()
        for place in shared[differs.any(0)]:
            name, odd = self._name(place), self._odd_copies(row, int(place))
            if odd is None:
                self._forget_copies(int(place))
                continue
            ranks, others, expected = odd
            for rank in ranks:
                number = None if rank is None else list(self._rows.ranks)[rank]
                apart.add((name, number))
                found += self._copy_apart(row, step, name, number, rank, others, expected)
        compared = {self._name(place) for place, copies in zip(shared, copy_of.T, strict=True) if (copies >= 0).any()}
        for event in list(self._events):
            for name in compared & event.quiet.keys():
                found += self._follow(event, name, step, apart=(name, event.rank) in apart)
        return found

    def _odd_copies(self, row: NDArray[np.float64], place: int) -> tuple[list[int | None], list[int], float] | None:
        """Return the ranks whose copy differs, all that are compared, and the others' value; None: they are no copies.

        Of two that differ the one that left its own past, where one of them did; else neither is named.
        """
        values, copy_of = row[:, place], self._copy_of[: len(row), place]
        there = (copy_of >= 0) & ~np.isnan(values)
        groups = [np.flatnonzero(there & (copy_of == first)) for first in np.unique(copy_of[there])]
        apart = [ranks for ranks in groups if len(np.unique(values[ranks])) > 1]
        if len(apart) != 1:
            return None
        [ranks] = apart
        name, (expected, most) = self._name(place), Counter(values[ranks].tolist()).most_common(1)[0]
        is_open = any(name in event.quiet for event in self._events)
        near = np.ptp(values[ranks]) <= ROUNDING * abs(expected) if np.isfinite(values[ranks]).all() else False
        if near and not is_open and not _is_checksum(name):
            return None
        odd = [int(rank) for rank in ranks if values[rank] != expected]
        if 2 * most > len(ranks) and len(odd) <= max(1, len(ranks) // 8):
            return list(odd), ranks.tolist(), expected
        return ([self._left_its_past(row, place, ranks)], ranks.tolist(), math.nan) if len(ranks) == 2 else None

    def _left_its_past(self, row: NDArray[np.float64], place: int, ranks: NDArray[np.int64]) -> int | None:
        if _is_checksum(self._name(place)):
            return None
        usual = 8 * self._sigma[ranks, place] * (self._filled[place] + 1)
        with np.errstate(invalid="ignore", over="ignore"):
            moves = np.abs(row[ranks, place] - self._level[ranks, place]) / np.maximum(usual, 1e-300)
            moves[np.isnan(moves)] = 0.0
        far = int(moves.argmax())
        return int(ranks[far]) if moves[far] > 1 > 2 * moves[1 - far] else None

    def _copy_apart(
        self, row: NDArray[np.float64], step: int, name: str, number: int | None, rank: int | None,
        others: list[int], expected: float,
    ) -> list[Finding]:  # fmt: skip
        numbers = list(self._rows.ranks)
        place = self._rows.metrics[name]
        if rank is not None and math.isnan(expected):  # of two
            expected = float(row[next(one for one in others if one != rank), place])
        value = float(row[others[0] if rank is None else rank, place])
        if rank is None:
            expected = float(row[others[1], place])
        ranks = sorted(numbers[one] for one in others)
        event = self._event_of(number, ranks)
        whole = int(self._steps[(self._filled[place] or self._size(place)) - 1, place])
        steps = [*(event.steps if event else ()), step][-AGAIN:]
        often = len(steps) == AGAIN and steps[-1] - steps[0] <= max(AGAIN_STEPS, AGAIN * self.context.interval)
        state = _is_checksum(name) or bool(_STATE.search(name))
        severity: Severity = "critical" if state else "warning" if often else "info"
        new = _Apart(name, step, step, severity, number, [numbers[one] for one in others], value, expected, whole=whole)
        return self._report(event, new, step, steps)

    def _is_own(self, place: int, ranks: int, begin: int) -> bool:
        """Return whether the chunk has measured values: no checksums, and no counts or settings."""
        if _is_checksum(self._name(place)):
            return False
        values = self._chunk[begin : begin + CHUNK, :ranks, place]
        values = values[:, ~np.isnan(values).any(0)]
        with np.errstate(invalid="ignore"):  # two infinite values have no difference
            counts = (values == np.floor(values)) & (np.diff(values, axis=0, prepend=values[:1]) >= 0)
        return bool(not counts.all() and _has_digits(values[~np.isnan(values)]))

    # --- values of a rank's own -----------------------------------------------------------------------------------

    def _measure(self, places: NDArray[np.int64], count: int, begin: int) -> _Measured:
        rows = slice(begin, begin + CHUNK)
        chunk = self._chunk[rows, :count, places]
        signed = self._signed[places] | (chunk < 0).any((0, 1))
        good = (chunk > 0) & np.isfinite(chunk) & ~signed
        logs = np.log(np.where(good, chunk, 1.0))
        logs[~good] = np.nan
        logs.swapaxes(1, 2)[np.count_nonzero(good, axis=1) < OWN_RANKS] = np.nan
        place, sigma = self._place[:count, places], self._sigma[:count, places]
        new = np.isnan(place)
        centre = _median(logs - place)
        centre = np.where(np.isnan(centre), _median(logs), centre)
        place = np.where(new, _median((logs - centre[:, None]).swapaxes(0, 1)), place)
        away = logs - centre[:, None] - place
        size = _median(np.abs(away).swapaxes(0, 1))
        sigma = np.where(new, size, sigma)
        warm = (self._chunks[places] >= WARM_CHUNKS) & ~new
        moved, outside = self._outside(place, sigma, away, warm)
        expected = np.exp(centre[:, None] + place)
        before = self._steps[begin - 1, places] if begin else self._compared[places]
        now = _Compared(places, self._steps[rows, places], before, chunk, logs, expected, away, moved, outside)
        return _Measured(now, place, sigma, new, size)

    def _compare_own(self, measured: _Measured) -> list[Finding]:
        now, place, sigma, new, size = measured
        places, count = now.places, now.values.shape[1]
        away, logs = now.away, now.logs
        self._signed[places] |= (now.values < 0).any((0, 1))
        found, again = self._take_turns(now)
        still = self._moved[:count, places] == 0
        part = np.maximum(LEARNED_PART, 1 / (self._chunks[places] + 1.0))
        middle = np.nan_to_num(_median(away.swapaxes(0, 1)))
        ill = self._ill(places, count) | ~still
        shift = np.where(ill | new, 0.0, part * np.clip(middle, -sigma, sigma))
        grow = np.clip(np.where(size > 0, size, 1e-300) / np.maximum(sigma, 1e-300), 0.5, 2.0) ** part
        self._sigma[:count, places] = np.where(ill | new | np.isnan(size), sigma, sigma * grow)
        self._place[:count, places] = np.where(again, np.nan, place + shift)
        own = _median(logs.swapaxes(0, 1))
        level = self._level[:count, places]
        calm = still.all(0) & ~np.isnan(own)
        self._level[:count, places] = np.where(np.isnan(level), own, np.where(calm, (level + own) / 2, level))
        self._chunks[places] += 1
        return found

    def _outside(
        self, place: NDArray[np.float64], sigma: NDArray[np.float64], away: NDArray[np.float64], warm: NDArray[np.bool_]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which values are further from a rank's place than its own are, and which of these beyond all ranks."""
        spread = MAD_TO_SIGMA * np.maximum(sigma, ROUNDING / 10)
        ordered = np.sort(np.where(np.isnan(place), -np.inf, place), axis=0)[::-1]
        highest, second = ordered[0], ordered[1]
        rising = np.sort(np.where(np.isnan(place), np.inf, place), axis=0)
        lowest, next_one = rising[0], rising[1]
        apart = (1 + 4 / len(place)) * (highest - lowest)  # the fewer there are, the less they show how far ranks go
        usual = _median(spread[None])[0]
        least = np.clip(TIMES_SPREAD * (apart + usual), LEAST, MOST) / self._sensitivity
        moved = warm & (np.abs(away) > np.maximum(SIGMAS * spread / self._sensitivity, least))
        above = np.where(place == highest, second, highest) + apart
        below = np.where(place == lowest, next_one, lowest) - apart
        return moved, moved & ((place + away > above) | (place + away < below))

    def _ill(self, places: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
        """Return which ranks have an open event of which metrics."""
        ill = np.zeros((count, len(places)), np.bool_)
        at = {self._name(int(place)): column for column, place in enumerate(places)}
        for event in self._events:
            numbers = event.ranks if event.rank is None else [event.rank]
            ranks = [self._rows.ranks[number] for number in numbers]
            for name in event.quiet.keys() & at.keys():
                ill[ranks, at[name]] = True
        return ill

    def _take_turns(self, now: _Compared) -> tuple[list[Finding], NDArray[np.bool_]]:
        """Count the rows in which ranks are outside, in a row; return what is news, and whose place is learnt anew."""
        count, places = now.values.shape[1], now.places
        box = np.ix_(np.arange(count), places)
        ill, again, found = self._ill(places, count), np.zeros((count, len(places)), np.bool_), list[Finding]()
        restless = now.moved.any((0, 1)) | self._moved[box].any(0) | ill.any(0)
        self._need[places] = np.where(restless | (self._chunks[places] < WARM_CHUNKS), 0, len(self._chunk))
        if not restless.any():
            self._usual[box] += (~np.isnan(now.away)).sum(0)
            return found, again
        for at in range(len(now.values)):
            seen, out = ~np.isnan(now.away[at]) & ~again, now.outside[at] & ~again
            found += self._follow_own(now, at, seen)
            seen, out = seen & ~ill, out & ~ill
            before = self._out[box]
            ended = seen & ~out & (before > 0)
            self._turns[box] += ended
            self._turn_rows[box] += np.where(ended, before, 0)
            self._usual[box] += seen & ~out
            begins, last = out & (before == 0), now.steps[at - 1] if at else now.before
            self._onset[box] = np.where(begins, now.steps[at], self._onset[box])
            self._whole[box] = np.where(begins, last, self._whole[box])
            self._out[box] = np.where(seen, np.where(out, before + 1, 0), before)
            moves = self._moved[box]
            self._moved[box] = np.where(seen, np.where(now.moved[at], moves + 1, 0), moves)
        at = len(now.values) - 1  # at the end of a chunk it is known best whether others move as well
        out = now.outside[at] & ~ill & ~again
        proven = {int(column) for rank, column in np.argwhere(out) if self._is_no_chance(rank, places[column], count)}
        for column in sorted(proven):
            found += self._proven(now, at, column, ill, again)
        again |= (self._moved[box] >= ACCEPTED) & (self._out[box] == 0) & ~ill
        self._out[box], self._moved[box] = np.where(again, 0, self._out[box]), np.where(again, 0, self._moved[box])
        return found, again

    def _is_no_chance(self, rank: int, place: int, count: int) -> bool:
        """Return whether fewer than FALSE_A_VALUE of a healthy rank's values begin a stretch as long as this one.

        A rank is a chain of two states, outside or not. How often a stretch begins is known by Laplace's rule of
        succession. How likely it goes on is not known but has a distribution (beta: before anything was seen four of
        five stretches end with each row), of which the mean of its powers is taken: while few stretches were seen, even
        a long one may be the nature of the data. The larger chance counts, of the rank's own past and of all ranks'.
        """
        rows, chance = int(self._out[rank, place]), 0.0
        for ranks in (slice(rank, rank + 1), slice(0, count)):
            usual, turns, lasted = (int(one[ranks, place].sum()) for one in (self._usual, self._turns, self._turn_rows))
            went_on, ended = 1 + lasted - turns, STRETCHES_END + turns
            power = math.lgamma(went_on + rows - 1) - math.lgamma(went_on + rows - 1 + ended)
            power += math.lgamma(went_on + ended) - math.lgamma(went_on)
            chance = max(chance, (turns + 1) / (usual + 2) * math.exp(power))
        return chance <= FALSE_A_VALUE

    def _proven(
        self, now: _Compared, at: int, column: int, ill: NDArray[np.bool_], again: NDArray[np.bool_]
    ) -> list[Finding]:
        """Report the rank that is alone outside; where others move as well, their places are learnt anew.

        Nothing is reported while the model moves, that is, while the ranks together leave their levels.
        """
        place, count = int(now.places[column]), now.values.shape[1]
        out = self._out[:count, place]
        rank = int(np.where(now.outside[at, :, column], out, 0).argmax())
        rows = slice(max(0, at + 1 - int(out[rank])), at + 1)
        there = np.flatnonzero(~np.isnan(now.logs[at, :, column]))
        moves = np.abs(_median((now.logs[rows, :, column] - self._level[:count, place])[None])[0])
        others = there[there != rank]
        part = MOVES_TOO * min(1.0, (len(there) / FEW_RANKS) ** 2)  # by chance two stay while all get other data
        sigmas = CENTRE_ERROR * SIGMAS * MEDIAN_ERROR * MAD_TO_SIGMA / math.sqrt(rows.stop - rows.start)
        error = sigmas * self._sigma[others, place]
        if not np.median(moves[others]) <= max(float(np.median(error)), part * moves[rank]):
            return []
        away = np.abs(_median(now.away[rows, :, column][None])[0])
        too = others[away[others] > np.maximum(error, part * away[rank])]
        if len(too):
            again[[rank, *too], column] = True
            return []
        ill[rank, column] = True
        number_of, step = list(self._rows.ranks), int(now.steps[at, column])
        onset = int(self._onset[rank, place])
        new = _Apart(
            self._name(place), onset, step, "warning", number_of[rank], sorted(number_of[one] for one in there),
            float(now.values[at, rank, column]), float(now.expected[at, rank, column]),
            math.exp(now.away[at, rank, column]), int(out[rank]), whole=int(self._whole[rank, place]),
        )  # fmt: skip
        self._out[:count, place], self._moved[:count, place] = 0, 0
        return self._report(self._event_of(new.rank, new.ranks), new, step, [])

    def _follow_own(self, now: _Compared, at: int, seen: NDArray[np.bool_]) -> list[Finding]:
        found = list[Finding]()
        for column, place in enumerate(now.places):
            name = self._name(int(place))
            for event in [one for one in self._events if name in one.quiet]:
                rank = self._rows.ranks[event.ranks[0] if event.rank is None else event.rank]
                if seen[rank, column]:
                    apart = bool(now.moved[at, rank, column])
                    found += self._follow(event, name, int(now.steps[at, column]), apart=apart)
        return found

    # --- its events -----------------------------------------------------------------------------------------------

    def _event_of(self, rank: int | None, ranks: list[int]) -> _Apart | None:
        """Return the open event of a rank, or of two of which either may be wrong."""
        return next((e for e in self._events if e.rank == rank and (rank is not None or e.ranks == ranks)), None)

    def _report(self, event: _Apart | None, new: _Apart, step: int, steps: list[int]) -> list[Finding]:
        """Open an event, or take more of the same rank into it; return what is news."""
        if event is None:
            if len(self._events) >= MAX_NAMED:
                return []
            event = new
            self._events.append(event)
        worse = SEVERITIES.index(new.severity) > SEVERITIES.index(event.severity)
        known = event is not new and (new.metric in event.quiet or len(event.quiet) >= MAX_NAMED)
        event.severity = new.severity if worse else event.severity
        event.steps = steps or event.steps
        if not known or new.metric in event.quiet:
            event.quiet[new.metric] = 0
        if event.metric == new.metric:
            event.rows += event is not new
            event.value, event.expected = new.value, new.expected
        return [] if known and not worse else [self._finding(event, step)]

    def _follow(self, event: _Apart, name: str, step: int, *, apart: bool) -> list[Finding]:
        """Advance one metric of an event by a row; it is over when each has been with the others for a chunk."""
        event.quiet[name] = 0 if apart else event.quiet[name] + 1
        event.back = step if event.quiet[name] == 1 else event.back
        if event.quiet[name] < self._size(self._rows.metrics[name]) or any(not rows for rows in event.quiet.values()):
            return []
        self._events.remove(event)
        return [self._finding(event, step, over=True)]

    def _finding(self, event: _Apart, step: int, *, over: bool = False) -> Finding:
        found = self.finding(
            event, step, "recovered" if over else "open", title=_title(event), text=_text(event, over=over),
            rank=event.rank, recovered_step=event.back if over else None, score=min(abs(event.times or 1.0), 1e9),
            evidence={
                "level_before": event.expected, "level_after": event.value, "ranks": event.ranks[:MAX_NAMED],
                "copy": not event.times,
                "whole_until": event.whole, "times": event.times or None, "score_unit": "times what is expected",
                "also": [name for name in event.quiet if name != event.metric],
            },
        )  # fmt: skip
        return replace(
            found, key=f"{found.key}:{'-'.join(map(str, event.ranks)) if event.rank is None else event.rank}"
        )


#: What each array of state holds at the places of new ranks and metrics.
_BY_METRIC: Mapping[str, int] = {"_filled": 0, "_chunks": 0, "_need": 0, "_compared": -1, "_signed": 0}
_BY_RANK: Mapping[str, float] = {
    "_copy_of": -1, "_place": math.nan, "_sigma": math.nan, "_level": math.nan, "_out": 0, "_moved": 0, "_onset": 0,
    "_whole": -1, "_usual": 0, "_turns": 0, "_turn_rows": 0,
}  # fmt: skip


def _title(event: _Apart) -> str:
    if event.rank is None:
        one, other = event.ranks[:2]
        return f"Ranks {one} and {other} disagree about {event.metric} since step {event.onset}"
    how = f" ({event.times:.3g} times as expected)" if event.times else ""
    what = f"left the others in {event.metric}" if event.times else f"has another {event.metric} than the others"
    return f"Rank {event.rank} {what} since step {event.onset}{how}"


def _text(event: _Apart, *, over: bool) -> str:
    others = len(event.ranks) - 1
    peers = "the other rank" if others == 1 else f"the other {others} ranks"
    value, expected = _shown(event.value, event.expected)
    if event.rank is None:
        one, other = event.ranks[:2]
        text = f"{event.metric} was equal on ranks {one} and {other}, and differs since step {event.onset}: {value}"
        text += f" against {expected} at step {event.seen}."
        text += " Two ranks alone do not tell which of them is wrong."
    elif event.times:
        verb, wrong = "was" if over else "is", f"{value} instead of {expected} at step {event.seen}"
        text = f"{event.metric} of rank {event.rank} {verb} {event.times:.3g} times what its own past and {peers} lead"
        text += f" to expect, since step {event.onset}: {wrong}. {_capital(peers)} did not move."
        text += " Other data on this rank alone looks the same: a suspect, not a proof."
    else:
        text = f"{event.metric} was equal on the ranks that compute the same, and differs on rank {event.rank} since"
        text += f" step {event.onset}: {value}, where {peers} had {expected}."
    also = [name for name in event.quiet if name != event.metric]
    if also:
        text += f" {', '.join(also[:4])} {'shows' if len(also) == 1 else 'show'} it too."
    return text + (f" It is with the others again since step {event.back}." if over else "")


def _shown(value: float, expected: float) -> tuple[str, str]:
    """Return two numbers with as many digits as tell them apart."""
    digits = next((n for n in (4, 7, 17) if f"{value:.{n}g}" != f"{expected:.{n}g}"), 17)
    return f"{value:.{digits}g}", f"{expected:.{digits}g}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _median(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the median of what is not NaN along the second axis; NaN where nothing is."""
    ordered = np.sort(values, axis=1)  # NaN comes last
    count = (~np.isnan(ordered)).sum(1, keepdims=True)
    low, high = np.maximum((count - 1) // 2, 0), np.minimum(count // 2, ordered.shape[1] - 1)
    found: NDArray[np.float64] = (np.take_along_axis(ordered, low, 1) + np.take_along_axis(ordered, high, 1))[:, 0] / 2
    return found


def _is_telling(values: NDArray[np.float64], checksum: bool) -> bool:
    """Return whether ranks that have all these values compute the same: no constant, count or line, and many digits."""
    if len(np.unique(values)) < len(values) or not np.isfinite(values).all():
        return False
    if checksum:
        return True
    moves = np.diff(values)
    counts = (values == np.floor(values)).all() and (moves > 0).all()
    line = (np.abs(np.diff(moves)) <= ROUNDING * np.abs(moves[1:])).all()
    return not counts and not line and _has_digits(values)


def _has_digits(values: NDArray[np.float64]) -> bool:
    """Return whether most values have more than 12 bits, as measured ones do."""
    with np.errstate(invalid="ignore"):  # of what is infinite
        return bool(((np.frexp(values)[0] * 2.0**12) % 1 != 0).mean() >= 0.75) if len(values) else False


@lru_cache(maxsize=NAMES_REMEMBERED)
def _is_checksum(name: str) -> bool:
    return bool(_CHECKSUM.search(name))


@lru_cache(maxsize=NAMES_REMEMBERED)
def _is_of_machine(name: str) -> bool:
    return of_machine(name)
