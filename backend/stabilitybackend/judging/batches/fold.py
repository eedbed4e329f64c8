"""Batches of each step of a run: a fold over the ``batch`` events of all ranks. Pure.

A rank reports the id of its part of a step's batch (``run.data``, ``run.batch``). The parts of one step are added up
(``ids.py``), and the step is judged once as many ranks as usual reported (``repeats.py``).

A batch belongs to the segment of its process's rows. A process without rows, or one whose steps went back, may be about
to open a segment: its batches wait until its rows are placed.
"""

from __future__ import annotations

import hashlib
import math
from base64 import b64decode
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.judging.batches.ids import BatchIds
from stabilitybackend.judging.batches.positions import Position, Positions
from stabilitybackend.judging.batches.repeats import (
    CONFIRM_STEPS,
    DETECTOR,
    STUCK_STEPS,
    Repeats,
    Resumption,
    StepBatch,
)
from stabilitybackend.judging.detectors.engine.base import Finding, Severity, State
from stabilitybackend.lineage.batch import Batch
from stabilitybackend.lineage.changes import Forked, LineageEvent
from stabilitybackend.lineage.consumer import Consumer, Effects
from stabilitybackend.lineage.fold import LineageFold
from stabilitybackend.lineage.lineage import Lineage
from stabilitybackend.lineage.tree import PathRange

__all__ = ["BatchFold"]

# Ranks that read the same data: samplers that lost their rank, one seed or one shard for all.
#
# Ranks of one data-parallel replica (tensor or pipeline parallel) get the same batch by design, from the first step on.
# So the event is a drop of the number of different batches a step below the run's usual one.

#: Counted different batches of a step: enough to see fewer than before.
MAX_DIFFERENT = 64


class RanksAlike(Stateful):
    """Number of different batches of the ranks of a step; the parts of a step are one rank's each."""

    _parts: int = 0
    _usual: int = 0
    _steps: int = 0
    _began: bool = False
    _first: int = 0
    _few: int = 0
    _many: int = 0
    #: Onset, step of the detection, and different batches a step; empty without an event.
    _event: tuple[int, ...] = ()

    def began(self, step: int) -> None:
        """Take the first step of a new process or branch."""
        self._began, self._few, self._many = True, 0, 0
        self._event = self._event if self._event and self._event[0] < step else ()

    def take(self, step: int, parts: int, different: int) -> Finding | None:
        """Take a complete step, and return its finding.

        Args:
            parts: ranks with a batch. different: of their batches, at most MAX_DIFFERENT.
        """
        if parts > self._parts or (self._began and parts != self._parts):
            self._parts, self._usual, self._steps, self._event = parts, 0, 0, ()
        self._began = False
        if parts < self._parts or parts < 2:
            return None  # a rank is missing
        if self._steps < STUCK_STEPS:
            self._usual, self._steps = max(self._usual, different), self._steps + 1
            return None
        few = different < self._usual
        self._first = self._first if few and self._few else step
        self._few, self._many = (self._few + 1, 0) if few else (0, self._many + 1)
        if not self._event and self._few == STUCK_STEPS:
            self._event = (self._first, step, different)
            return self._finding(step, None)
        if self._event and self._many == CONFIRM_STEPS:
            found, self._event = self._finding(step, step - CONFIRM_STEPS + 1), ()
            return found
        return None

    def _finding(self, step: int, ended: int | None) -> Finding:
        onset, seen, different = self._event
        text = f"Since step {onset} only {different} of the {self._parts} batches that the ranks hand over at a step"
        text += (
            f" differ from each other, before it was {self._usual}: ranks read the same data. Does each sampler have"
        )
        text += " its rank, and a seed or a shard of its own?"
        text += f" It ended before step {ended}." if ended is not None else ""
        evidence = {
            "what": "ranks", "ranks": self._parts, "different_batches": different, "different_before": self._usual,
            "recovered_at": ended, "score_unit": "ranks with the data of another one",
        }  # fmt: skip
        return Finding(
            DETECTOR, f"{DETECTOR}:ranks:{onset}", "repeat_data", "open" if ended is None else "recovered", "warning",
            f"Ranks read the same data since step {onset}", text, onset, seen, step, recovered_step=ended,
            score=float(self._usual - different), evidence=evidence,
        )  # fmt: skip


# Samples of each step: of every data set the same small share, at every step of theirs.
#
# Clients send the hashes of samples that begin with some zero bits (``stabilityclient/data/hashing.py``). So the log is
# complete for some samples and empty for others. Samples seen once, twice or never, and those common to two intervals,
# are counted on these and scaled up. When room is short, one more bit has to be zero, which drops half of the samples
# of the largest data set: bounded for ever, at a calculable error.

#: Bits of a transmitted hash.
HASH_BITS = 48
_HASH_BYTES = HASH_BITS // 8
#: Places of samples in a run, 18 bytes each: 4.5 MiB. The error of a share of half is then 0.1 % to 0.4 %.
MAX_PLACES = 2**18
#: Newest places, kept one by one before they join the others.
OPEN_PLACES = 4_096
#: Data sets of a run; samples of further ones count as those of the last.
MAX_DATASETS = 64

Columns = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.uint32], NDArray[np.uint16]]


def hashes_of(kept: str) -> list[int]:
    """Return the hashes in the text of a ``batch`` event, none for invalid text."""
    try:
        data = b64decode(kept, validate=True)
    except ValueError:
        return []
    starts = range(0, len(data) - _HASH_BYTES + 1, _HASH_BYTES)
    return [int.from_bytes(data[at : at + _HASH_BYTES], "big") for at in starts]


class SampleLog(Stateful):
    """Places of the retained samples: hash, step, segment, data set."""

    names: list[str] = fresh(list)
    #: Leading zero bits of the hashes of each data set; one sample counts for ``2**shift``.
    shifts: list[int] = fresh(list)
    _hashes: NDArray[np.uint64] = fresh(np.empty, 0, np.uint64)
    _steps: NDArray[np.int64] = fresh(np.empty, 0, np.int64)
    _segments: NDArray[np.uint32] = fresh(np.empty, 0, np.uint32)
    _sets: NDArray[np.uint16] = fresh(np.empty, 0, np.uint16)
    _open: list[tuple[int, int, int, int]] = fresh(list)

    def __init__(self) -> None:
        super().__init__()
        self._known: NDArray[np.uint64] | None = None
        self._newest: set[int] = set()
        self._since = 0

    def restored(self) -> None:
        self._known = None

    # --- input ---------------------------------------------------------------------------------------------------

    def add(self, segment: int, step: int, name: str, shift: int, hashes: Sequence[int]) -> list[int]:
        """Add samples of a data set at a step of a rank; return the hashes that are retained."""
        at = self._set(name)
        if shift > self.shifts[at]:
            self._halve(at, shift)
        limit = HASH_BITS - self.shifts[at]
        kept = [one for one in hashes if not one >> limit]
        self._open += [(one, step, segment, at) for one in kept]
        if len(self._open) >= OPEN_PLACES:
            self._close()
        return kept

    def _set(self, name: str) -> int:
        if name not in self.names:
            if len(self.names) == MAX_DATASETS:
                return MAX_DATASETS - 1
            self.names.append(name)
            self.shifts.append(0)
        return self.names.index(name)

    def _close(self) -> None:
        """Merge the newest places into the others, and make room."""
        columns = self._columns()
        self._open = []
        self._hashes, self._steps, self._segments, self._sets = columns
        while len(self._hashes) > MAX_PLACES:
            largest = int(np.bincount(self._sets).argmax())
            self._halve(largest, self.shifts[largest] + 1)

    def _halve(self, at: int, shift: int) -> None:
        self.shifts[at] = shift
        hashes, steps, segments, sets = self._columns()
        keep = (sets != at) | (hashes >> np.uint64(HASH_BITS - shift) == 0)
        self._open, self._known = [], None
        self._hashes, self._steps, self._segments, self._sets = hashes[keep], steps[keep], segments[keep], sets[keep]

    def _columns(self) -> Columns:
        if not self._open:
            return self._hashes, self._steps, self._segments, self._sets
        hashes, steps, segments, sets = zip(*self._open, strict=True)
        return (
            np.concatenate([self._hashes, np.array(hashes, np.uint64)]),
            np.concatenate([self._steps, np.array(steps, np.int64)]),
            np.concatenate([self._segments, np.array(segments, np.uint32)]),
            np.concatenate([self._sets, np.array(sets, np.uint16)]),
        )

    # --- seen batches --------------------------------------------------------------------------------------------

    def forked(self) -> None:
        """Reset for another effective path."""
        self._known = None

    def seen(self, path: Sequence[PathRange], step: int, hashes: Sequence[int], since: int) -> set[int]:
        """Return which of a step's samples occurred at an earlier step of the path, from ``since`` on.

        Call it in the order of steps: each call marks its samples as seen.
        """
        if self._known is None or since != self._since:
            found = self.on(path, since, step - 1)
            self._known, self._newest, self._since = np.sort(found[0]), set(), since
        known = {one for one in hashes if one in self._newest}
        if len(self._known) and hashes:
            asked = np.array(hashes, np.uint64)
            places = np.minimum(np.searchsorted(self._known, asked), len(self._known) - 1)
            known.update(asked[self._known[places] == asked].tolist())
        self._newest.update(hashes)
        if len(self._newest) > OPEN_PLACES:
            newest = np.fromiter(self._newest, np.uint64, len(self._newest))
            self._known, self._newest = np.sort(np.concatenate([self._known, newest])), set()
        return known

    def late(self, hashes: Iterable[int]) -> None:
        """Take samples of a step that was queried already."""
        if self._known is not None:
            self._newest.update(hashes)

    def places(self, path: Sequence[PathRange], name: str, first: int, last: int, since: int) -> tuple[int, int]:
        """Return the first and last step from ``since`` on with earlier samples of a data set in ``first..last``.

        Both are ``first`` for none.
        """
        wanted, _, _, sets = self.on(path, first, last)
        wanted = wanted[sets == self._set(name)]
        hashes, steps, _, _ = self.on(path, since, first - 1)
        found = steps[np.isin(hashes, wanted)]
        return (int(found.min()), int(found.max())) if len(found) else (first, first)

    def on(self, path: Sequence[PathRange], first: int = 0, last: int | None = None) -> Columns:
        """Return the places on a path by step, each sample once a step: hashes, steps, segments, sets.

        Args:
            first, last: steps, both included.
        """
        hashes, steps, segments, sets = self._columns()
        keep = np.zeros(len(hashes), bool)
        for part in path:
            low, high = max(first, part.first), part.last if last is None else last
            if part.last is not None and high is not None:
                high = min(high, part.last)
            inside = (segments == part.segment) & (steps >= low)
            keep |= inside if high is None else inside & (steps <= high)
        hashes, steps, segments, sets = hashes[keep], steps[keep], segments[keep], sets[keep]
        order = np.lexsort((hashes, steps))
        hashes, steps = hashes[order], steps[order]
        again = np.zeros(len(order), bool)
        again[1:] = (hashes[1:] == hashes[:-1]) & (steps[1:] == steps[:-1])  # ranks of one data-parallel group
        return hashes[~again], steps[~again], segments[order][~again], sets[order][~again]


# Samples repeated in other batches: a new order after a resume in the middle of the data.
#
# At each step all earlier places of some samples are on record (``SampleLog``). A first pass over the data repeats
# none; drawing with replacement, and small data sets in a mixture, repeat some at a slowly changing rate. An event is a
# rate above the run's own rate right before, by more than chance: the probability of so many under the rate before is
# below CHANCE, the only threshold.
# Right after a resume it is a warning. Otherwise the data is used up: reported once, as ``info``.

#: One false event in so many judged steps, of which a long run has 10**7.
CHANCE = 1e-9
#: Steps of the rate before, and steps after a resume that are compared with it.
STEPS = 64
#: Events for the run's page, newest ones.
MAX_EVENTS = 64
#: Share of earlier samples right after the onset that marks the end of the data, in one step.
WHOLE = 0.8
#: Newest steps whose rate is compared; three at least, since equal batches are reported at the third one.
WINDOW, LEAST_STEPS = 8, 3


@dataclass
class Reused:
    """Repeated samples.

    Attributes:
        dataset: "" for unnamed.
        onset, seen, newest: first step, step of the detection, and the newest one.
        since, began: the last thing that happened before it, and its step. resumed: whether that was a start of a
            process, or a rollback.
        share: of the samples, at the detection. before: the share right before.
        low, high: their earlier steps.
        whole: since the onset nearly all samples are earlier ones.
        ended: first step of the window in which the share was back; None while it lasts.
    """

    dataset: str
    onset: int
    seen: int
    newest: int
    since: str
    began: int
    resumed: bool
    share: float
    before: float
    low: int
    high: int
    whole: bool
    ended: int | None = None


class Reuse(Stateful):
    """Share of repeated samples of a data set, step by step; steps with repeated batches are left out."""

    #: (step, samples, of these seen before): the newest steps, and those before the last start of a process.
    _newest: deque[tuple[int, int, int]] = fresh(deque, maxlen=STEPS + WINDOW)
    _before: list[tuple[int, int, int]] = fresh(list)
    _boundary: Resumption | None = None
    events: list[Reused] = fresh(list)
    _lasts: bool = False

    def began(self, boundary: Resumption) -> None:
        """Take a new process or branch."""
        kept = [one for one in self._newest if one[0] < boundary.step]
        # A second start right after the first has no rate of its own: the rate from before both stays.
        if sum(samples for _, samples, _ in kept[-STEPS:]) or not self._before:
            self._before = kept[-STEPS:]
        self._newest.clear()
        self._boundary = boundary
        self.events = [one for one in self.events if one.onset < boundary.step]
        self._lasts = self._lasts and bool(self.events) and self.events[-1].resumed

    def another_epoch(self) -> None:
        """Take the job's report of a new pass over the data: steps before it do not count any more."""
        self._newest.clear()
        self._before, self._boundary, self._lasts = [], None, False

    def take(self, step: int, samples: int, seen: int) -> tuple[float, float] | None:
        """Take the next step; return (share, share before) where an event begins or ends, else None."""
        self._newest.append((step, samples, seen))
        window = list(self._newest)[-WINDOW:]
        if not self._lasts and sum(one[2] > 0 for one in window) < LEAST_STEPS:
            return None
        since = self._boundary is not None and len(self._newest) <= STEPS
        before = self._before if since else list(self._newest)[:-WINDOW]
        n, x = sum(one[1] for one in window), sum(one[2] for one in window)
        n0, x0 = sum(one[1] for one in before), sum(one[2] for one in before)
        if not n0:
            return None
        share, rate = x / max(n, 1), (x0 + 1) / (n0 + 2)
        if self._lasts and self.events:
            event = self.events[-1]
            event.newest = step
            return (share, rate) if len(window) == WINDOW and share < (event.share + event.before) / 2 else None
        return (share, rate) if share > rate and _tail(n, x, rate) < CHANCE else None

    def window(self) -> int:
        """Return the first of the newest steps that are compared."""
        return list(self._newest)[-WINDOW:][0][0]

    def change(
        self, step: int, dataset: str, shares: tuple[float, float], places: tuple[int, int]
    ) -> Iterator[Finding]:
        """Yield the finding of the shares returned by ``take``.

        Args:
            places: first and last earlier step of the newest steps' samples.
        """
        share, before = shares
        window = list(self._newest)[-WINDOW:]
        if self._lasts and self.events:
            event = self.events[-1]
            event.ended, self._lasts = window[0][0], False
            if event.resumed:
                yield _finding(event, step)
            return
        onset = next(at for at, _, seen in window if seen)
        resumed = self._boundary is not None and len(self._newest) <= STEPS
        since = self._boundary if resumed and self._boundary is not None else Resumption(0, "the run's start")
        later = [(samples, known) for at, samples, known in window if at > onset]
        whole = sum(known for _, known in later) > WHOLE * sum(samples for samples, _ in later)
        event = Reused(dataset, onset, step, step, since.text, since.step, resumed, share, before, *places, whole)
        self.events, self._lasts = [*self.events[-(MAX_EVENTS - 1) :], event], True
        yield _finding(event, step)


def _finding(event: Reused, now_step: int) -> Finding:
    severity: Severity = "warning" if event.resumed else "info"
    state: State = "recovered" if event.ended is not None else "open" if event.resumed else "resolved"
    of = f" of {event.dataset}" if event.dataset else ""
    seen = f"{100 * event.share:.0f} % of the samples{of} have been seen before, in other batches"
    if event.resumed:
        title = f"Known samples in a new order since step {event.onset}"
        text = f"Since {event.since} {seen}, between step {event.low} and {event.high}; right before it was"
        text += f" {100 * event.before:.2g} %. The order was made again and begins in the middle: is the state of the"
        text += " sampler (its seed, epoch and place) restored?"
        text += f" It ended before step {event.ended}." if event.ended is not None else ""
    else:
        begins, why = f"Known samples{of} since step", "a part of the data is through, or a worker repeats its shard"
        if event.whole:
            begins, why = f"The data{of} is through at step", "another pass over the data"
        title = f"{begins} {event.onset}"
        text = f"Since step {event.onset} {seen}; no process began there: {why}. This is reported once a run;"
        text += " run.data(epoch=) says it before."
    evidence = {
        "seen_share": round(event.share, 4),
        "share_before": round(event.before, 6),
        "earlier_step": event.low,
        "earlier_last_step": event.high,
        "since": event.since,
        "since_step": event.began,
        "what": "samples",
        "recovered_at": event.ended,
        "score_unit": "share of the samples",
    }
    return Finding(
        DETECTOR, f"{DETECTOR}:samples:{event.dataset}:{event.onset}", "repeat_data", state, severity, title, text,
        event.onset, event.seen, now_step, dataset=event.dataset or None, recovered_step=event.ended,
        score=event.share, evidence=evidence,
    )  # fmt: skip


def _tail(n: int, x: int, rate: float) -> float:
    """Return the probability of ``x`` or more of ``n`` at this rate (binomial)."""
    if rate >= 1.0:
        return 1.0
    log, other = math.log(rate), math.log1p(-rate)
    total = math.lgamma(n + 1)
    terms = (total - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * log + (n - k) * other for k in range(x, n + 1))
    return min(1.0, sum(map(math.exp, terms)))


#: Steps in a row that make another layout: the last batch of an epoch may be smaller, a rank may be late once.
LAYOUT_STEPS = 3
#: Remembered changes of the layout, and of the epoch; the oldest are dropped.
MAX_LAYOUTS, MAX_EPOCHS = 64, 4_096


@dataclass
class IdLayout:
    """Layout of ids from a step on.

    Attributes:
        step: the first one. of: ``ids``, ``tokens[2048]``, or ``text`` (``run.batch``).
        parts: of one step, by ranks and calls. samples: in all of them, 0 for unknown.
    """

    step: int
    of: str
    parts: int
    samples: int

    def like(self, other: IdLayout) -> bool:
        """Return whether ids of both are comparable."""
        return (self.of, self.parts, self.samples) == (other.of, other.parts, other.samples)


class Coverage(Stateful):
    """Layouts, gaps and epochs of the judged steps of the effective path."""

    layouts: list[IdLayout] = fresh(list)
    _next: IdLayout | None = None
    _nexts: int = 0
    #: The newest step with ids, the usual distance of two, and steps between two without any.
    last: int | None = None
    _stride: int = 0
    missing: int = 0
    #: (segment, first step, epoch), from the lowest rank.
    _epochs: list[tuple[int, int, float]] = fresh(list)

    def take(self, step: int, of: str, parts: int, samples: int) -> None:
        """Take the layout of a judged step's batch."""
        if self.last is not None and step > self.last:
            distance = step - self.last
            self._stride = min(self._stride or distance, distance)
            self.missing += distance // self._stride - 1
        self.last = step
        new = IdLayout(step, of, parts, samples)
        if not self.layouts:
            self.layouts.append(new)
        if self.layouts[-1].like(new):
            self._next = None
        elif self._next is None or not self._next.like(new):
            self._next, self._nexts = new, 1
        else:
            self._nexts += 1
            if self._nexts == LAYOUT_STEPS:
                self.layouts, self._next = [*self.layouts, self._next][-MAX_LAYOUTS:], None

    def went_back(self, fork_step: int) -> None:
        """Forget steps after the fork step."""
        kept = [one for one in self.layouts if one.step <= fork_step]
        # A rank that dies in its first steps proves nothing about the job; the first layout stays as the reference.
        self.layouts, self._next = kept or self.layouts[:1], None
        self.last = None

    def began(self) -> None:
        """Take a new process: the steps between the last one and its first are no gap."""
        self.last = None

    # --- epochs --------------------------------------------------------------------------------------------------

    def note_epoch(self, path: Sequence[PathRange], segment: int, step: int, epoch: float) -> None:
        """Take the number of the pass over the data that the lowest rank gives for a step."""
        known, _ = self.epoch_at(path, step)
        if known != epoch:
            self._epochs = [*self._epochs, (segment, step, epoch)][-MAX_EPOCHS:]

    def epoch_at(self, path: Sequence[PathRange], step: int) -> tuple[float | None, int]:
        """Return the epoch of a step of a path and its first step; None and 0 for none."""
        ends = {part.segment: part.last for part in path}
        for segment, first, epoch in reversed(self._epochs):
            if segment in ends and first <= step:
                last = ends[segment]
                if last is None or first <= last:
                    return epoch, first
        return None, 0

    # --- words ---------------------------------------------------------------------------------------------------

    def notes(self) -> Iterator[str]:
        """Yield limits of the detection, a sentence each."""
        for before, after in zip(self.layouts, self.layouts[1:], strict=False):
            since = f"Since step {after.step:,}"
            if before.of != after.of:
                yield (
                    f"{since} ids are made of {after.of}, before of {before.of}: batches before and after can't be "
                    "compared."
                )
            elif before.of == "text" and before.parts != after.parts:
                yield (
                    f"{since} {after.parts} parts make a batch, before {before.parts}: batches before and after can't "
                    "be compared, since run.batch was given one text for each part. run.data(ids=) can be."
                )
            elif before.samples != after.samples:
                yield (
                    f"{since} a batch has {after.samples:,} samples, before {before.samples:,}: batches before and "
                    "after have no equal ids, only their samples are compared."
                )
        if any(one.of.startswith("tokens") for one in self.layouts):
            yield (
                "Ids are made of tokens: with another tokenizer, packing or padding the same text has another id. Ids "
                "of samples do not depend on them."
            )
        if self.missing:
            yield f"{self.missing:,} steps between others have no ids: what they saw is not known."


#: Batches of one process that wait for its rows; beyond it the oldest are dropped. A job logs more often than that.
MAX_WAITING = 1_024
#: Processes with a remembered newest batch; beyond it the oldest are dropped.
MAX_SOURCES = 20_000
#: Newest steps with open parts: as many as ``Repeats`` lets wait, and some late ones.
MAX_STEPS = 128
MAX_OF_CHARS = 100

#: A finding, with the time of its event, unix seconds.
Found = tuple[float, Finding]


@dataclass
class _RankPart:
    """Part of one rank for a step; ``batch`` is None for an invalid id, and ``sets`` as in the event."""

    step: int
    batch: int | None
    time: float
    of: str
    samples: int
    tokens: int
    epoch: float | None
    position: Position | None
    sets: list[tuple[str, int, str]]


@dataclass
class _Step:
    """Sum of the parts of a step so far.

    Attributes:
        kept: hashes of samples by data set. different: ids of parts, MAX_DIFFERENT at most.
    """

    parts: int = 0
    samples: int = 0
    tokens: int = 0
    kept: dict[str, list[int]] = field(default_factory=dict)
    different: list[int] = field(default_factory=list)


def batch_id(data: Mapping[str, Any]) -> int | None:
    """Return the 64 bits of a ``batch`` event: made by the client of ids, else a hash of the text."""
    text = data.get("fingerprint", "")
    if data.get("of") and len(text) == 16:
        try:
            return int(text, 16)
        except ValueError:
            pass
    if not text:
        return None
    return int.from_bytes(hashlib.blake2b(text.encode(errors="replace"), digest_size=8).digest(), "little")


def _part_of(event: LineageEvent, step: int) -> _RankPart:
    data = event.data
    sets = [(one.get("name", ""), one.get("shift", 0), one.get("kept", "")) for one in data.get("sets") or ()]
    return _RankPart(
        step, batch_id(data), event.time, str(data.get("of") or "text")[:MAX_OF_CHARS], data.get("samples") or 0,
        data.get("tokens") or 0, data.get("epoch"), data.get("position"), sets,
    )  # fmt: skip


class BatchFold(Stateful, Consumer):
    """The batches of one run."""

    reads = (Lineage,)
    events = frozenset({"batch"})

    ids: BatchIds = fresh(BatchIds)
    repeats: Repeats = fresh(Repeats)
    coverage: Coverage = fresh(Coverage)
    #: Reported position of the lowest rank's loader at each step.
    positions: Positions = fresh(Positions)
    samples: SampleLog = fresh(SampleLog)
    #: Data set -> its repeats.
    reuse: dict[str, Reuse] = fresh(dict)
    alike: RanksAlike = fresh(RanksAlike)
    #: First steps of processes with reported repeats, and whether a pass over the data was reported.
    _reported: list[int] = fresh(list)
    _said: bool = False
    #: Source -> its rank and its batches without a segment yet.
    _waiting: dict[str, tuple[int, list[_RankPart]]] = fresh(dict)
    #: Source -> segment and newest step of its batches.
    _at: dict[str, tuple[int, int]] = fresh(dict)
    #: The lowest rank with ids, and its process: another one continues at its first step.
    _rank: int | None = None
    _source: str = ""
    #: The newest steps of the head.
    _steps: dict[int, _Step] = fresh(dict)
    #: Batches that waited in vain, or that arrived for a passed step.
    passed_over: int = 0

    def __init__(self, lineage: Lineage) -> None:
        super().__init__()
        self._fold = lineage.fold

    def state(self) -> Mapping[str, Stateful]:
        return {"batches": self}

    # --- requests ------------------------------------------------------------------------------------------------

    def knew(self, finding: Finding) -> bool:
        """Return whether a finding is about repeated data that the ids have shown before."""
        mine = finding.detector == DETECTOR or finding.kind != "repeat_data"
        return not mine and self.repeats.known(finding.onset_step)

    # --- events --------------------------------------------------------------------------------------------------

    def event(self, event: LineageEvent, effects: Effects) -> None:
        effects.found += self._seen(event, self._fold)

    def _seen(self, event: LineageEvent, fold: LineageFold) -> Iterator[Found]:
        source, step = event.source.source, event.step
        if event.source.rank is None or step is None:
            return
        part = _part_of(event, step)
        segment = fold.place_of(source, step)
        if waited := segment is None or source in self._waiting:
            _, waiting = self._waiting.setdefault(source, (event.source.rank, []))
            waiting.append(part)
            if len(waiting) > MAX_WAITING:
                del waiting[0]
                self.passed_over += 1
            if len(self._waiting) > MAX_SOURCES:
                del self._waiting[next(iter(self._waiting))]
        if segment is not None:
            yield from self._release(source, event.source.rank, segment, fold)
            if not waited:
                yield from self._take(source, event.source.rank, segment, part, fold)

    def needs_rows_apart(self, batch: Batch) -> bool:
        return bool(self._waiting)  # each row may show where a batch belongs

    def rows(self, batch: Batch, effects: Effects) -> None:
        if self._waiting and not batch.stray:
            effects.found += self._located(self._fold)

    def _located(self, fold: LineageFold) -> Iterator[Found]:
        """Take the batches that waited until rows showed where they belong."""
        for source in list(self._waiting):
            rank, parts = self._waiting[source]
            segment = fold.place_of(source, parts[-1].step)
            if segment is not None:
                yield from self._release(source, rank, segment, fold)

    def forked(self, fork: Forked, effects: Effects) -> None:
        if not fork.is_head:
            return
        segment = fork.segment
        fork_step = segment.kept_step  # batches of a branch that is returned to are not read again
        self._steps = {step: known for step, known in self._steps.items() if step <= fork_step}
        self.samples.forked()
        if segment.cause == "resume":
            self._began(fork_step + 1)
            return
        how = "restart from" if segment.cause == "restart" else "rollback to"
        self.repeats.went_back(fork_step, f"the {how} step {segment.fork_step}")
        self.coverage.went_back(fork_step)
        self._reported = [one for one in self._reported if one <= fork_step]
        self.alike.began(fork_step + 1)
        for one in self.reuse.values():
            one.began(self.repeats.boundaries[-1])

    # --- inside --------------------------------------------------------------------------------------------------

    def _release(self, source: str, rank: int, segment: int, fold: LineageFold) -> Iterator[Found]:
        for part in self._waiting.pop(source, (rank, []))[1]:
            yield from self._take(source, rank, segment, part, fold)

    def _take(self, source: str, rank: int, origin: int, part: _RankPart, fold: LineageFold) -> Iterator[Found]:
        step, tree = part.step, fold.tree
        segment = tree.segment_at(origin, step)
        there, newest = self._at.pop(source, (segment, -1))
        if there == segment and step < newest:
            self._at[source] = (there, newest)
            self.passed_over += 1
            return
        self._at[source] = (segment, step)
        if len(self._at) > MAX_SOURCES:
            del self._at[next(iter(self._at))]
        self._note_source(source, rank, step)
        dead = tree.is_dead(segment, step)
        path = tree.path()
        if part.epoch is not None and not dead and rank == self._rank:
            self.coverage.note_epoch(path, segment, step, part.epoch)
        if part.position is not None and rank == self._rank:
            self.positions.note(segment, step, part.position)
        if part.batch is None:
            return
        batch = self.ids.add(segment, step, part.batch)
        kept = {name: self.samples.add(segment, step, name, shift, hashes_of(text)) for name, shift, text in part.sets}
        if dead:
            return
        known = self._steps.setdefault(step, _Step())
        known.parts, known.samples, known.tokens = (
            known.parts + 1, known.samples + part.samples, known.tokens + part.tokens,
        )  # fmt: skip
        if len(known.different) < MAX_DIFFERENT and part.batch not in known.different:
            known.different.append(part.batch)
        for name, hashes in kept.items():
            known.kept.setdefault(name, []).extend(hashes)
        while len(self._steps) > MAX_STEPS:
            del self._steps[min(self._steps)]
        old = self.ids.newest(path, batch, step) if batch else None
        before = None if old is None else self.coverage.epoch_at(path, old)[0]
        epoch = self.coverage.epoch_at(path, step)[0]
        other = None if before is None or epoch is None else epoch > before
        seen = StepBatch(batch, known.parts, old, part.time, known.samples, known.tokens, other, part.of)
        judged_to = self.repeats.judged_to
        yield from self.repeats.take(step, seen, lambda: self.ids.first_on(path))
        if step <= judged_to:
            self.samples.late(one for hashes in kept.values() for one in hashes)
        if judged_to < self.repeats.judged_to:
            for one in sorted(at for at in self.repeats.recent if judged_to < at <= self.repeats.judged_to):
                yield from self._judged(one, path)

    def _judged(self, step: int, path: Sequence[PathRange]) -> Iterator[Found]:
        """Take a step that is as complete as it gets."""
        seen = self.repeats.recent[step]
        self.coverage.take(step, seen.of, seen.parts, seen.samples)
        known = self._steps.get(step, _Step())
        kept, alike = known.kept, self.alike.take(step, known.parts, len(known.different))
        if alike is not None:
            yield seen.time, alike
        epoch, since = self.coverage.epoch_at(path, step)
        if epoch is not None and since == step:
            for one in self.reuse.values():
                one.another_epoch()
        again = self.samples.seen(path, step, list({one for hashes in kept.values() for one in hashes}), since)
        if seen.old is not None:
            return  # an earlier batch, shown by its id
        for name, hashes in kept.items():
            different = set(hashes)
            reuse = self.reuse.get(name)
            if reuse is None:
                if len(self.reuse) == MAX_DATASETS:
                    continue
                reuse = self.reuse[name] = Reuse()
            shares = reuse.take(step, len(different), len(different & again))
            if shares is not None:
                places = self.samples.places(path, name, reuse.window(), step, since)
                for finding in reuse.change(step, name, shares, places):
                    if self._is_news(finding):
                        yield seen.time, finding

    def _is_news(self, finding: Finding) -> bool:
        """Return whether repeated samples are new: once per start of a process, and once per run of passes."""
        if finding.severity == "info":
            said, self._said = self._said, True
            return not said
        began = finding.evidence["since_step"]
        if finding.state == "open":
            if began in self._reported:
                return False
            self._reported = [*self._reported, began][-MAX_DATASETS:]
        return True

    def _began(self, step: int) -> None:
        """Take the first step of another process."""
        if not any(one.step == step for one in self.repeats.boundaries):
            self.repeats.began(step, f"the resume at step {step}")
            self.coverage.began()
            self.alike.began(step)
            for one in self.reuse.values():
                one.began(self.repeats.boundaries[-1])

    def _note_source(self, source: str, rank: int, step: int) -> None:
        """Take the first step of another process of the lowest rank."""
        if self._rank is None or rank < self._rank:
            self._rank, self._source = rank, source
        elif rank == self._rank and source != self._source:
            self._source = source
            self._began(step)
