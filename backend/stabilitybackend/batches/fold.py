"""Which batch each step of a run saw: a fold over the ``batch`` events of all ranks. Pure.

A rank hands over the id of its part of a step's batch (``run.data``, ``run.batch``). The parts of one step are added
up (``ids.py``), and the step is judged when as many ranks as usual have handed over theirs (``repeats.py``).

Where a batch belongs is where the rows of its process belong. A process that has logged nothing yet, or one whose steps
went back, may be about to open a segment: its batches wait until its rows are placed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stabilitybackend.batches.ids import BatchIds
from stabilitybackend.batches.repeats import DETECTOR, Repeats, Seen
from stabilitybackend.detectors.engine.base import Finding
from stabilitybackend.lineage.changes import LineageEvent
from stabilitybackend.lineage.fold import LineageFold
from stabilitybackend.lineage.tree import FoldedSegment, PathRange
from stabilitybackend.stateful import Stateful, fresh

__all__ = ["BatchFold", "batch_id"]

#: Batches of one process that wait for its rows; beyond it the oldest go. A job logs more often than that.
MAX_WAITING = 1_024
#: Processes whose newest batch is remembered; beyond it the oldest go.
MAX_SOURCES = 20_000

#: What was found, with the time of the event that it was found at, unix seconds.
Found = tuple[float, Finding]


@dataclass
class _Part:
    """What one rank handed over for a step."""

    step: int
    batch: int
    time: float
    samples: int = 0
    tokens: int = 0


def batch_id(data: Mapping[str, Any]) -> int:
    """Return the 64 bits of a ``batch`` event: those that the client made of ids, else a hash of the text."""
    text = str(data.get("fingerprint", ""))
    if data.get("of") and len(text) == 16:
        try:
            return int(text, 16)
        except ValueError:
            pass
    return int.from_bytes(hashlib.blake2b(text.encode(errors="replace"), digest_size=8).digest(), "little")


class BatchFold(Stateful):
    """The batches of one run."""

    ids: BatchIds = fresh(BatchIds)
    repeats: Repeats = fresh(Repeats)
    #: Source -> its rank and its batches whose segment is not known yet.
    _waiting: dict[str, tuple[int, list[_Part]]] = fresh(dict)
    #: Source -> segment and newest step of its batches.
    _at: dict[str, tuple[int, int]] = fresh(dict)
    #: The lowest rank that hands ids over, and its process: another one goes on where it begins.
    _rank: int | None = None
    _source: str = ""
    #: Step -> parts, samples, tokens of the newest steps of the head.
    _counts: dict[int, tuple[int, int, int]] = fresh(dict)
    #: Batches that waited in vain, or that came for a step that their process had passed.
    passed_over: int = 0

    # --- what is asked -------------------------------------------------------------------------------------------

    def ids_on(self, path: Sequence[PathRange], step: int) -> int | None:
        """Return the id of the batch that ``step`` saw on a path, None where none was handed over. O(log of the run).

        Two steps with one id saw the same data on all ranks together: the same samples where ids of samples were
        handed over (in any order, on any number of ranks), the same texts of ``run.batch`` otherwise. The id of a step
        is a sum over what came so far: one whose ranks have not all reported yet is no id of anything.

        Args:
            path: of the segments from the root, as ``SegmentTree.path(segment)`` returns it; ``tree.path()`` is the
                effective path. A discarded branch is the path of its segment.
            step: any.
        """
        return self.ids.on(path, step)

    def knew(self, finding: Finding) -> bool:
        """Return whether a finding is about repeated data that the ids have shown, exactly and earlier."""
        mine = finding.detector == DETECTOR or finding.kind != "repeat_data"
        return not mine and self.repeats.known(finding.onset_step)

    # --- what happens --------------------------------------------------------------------------------------------

    def event(self, event: LineageEvent, fold: LineageFold) -> Iterator[Found]:
        """Take a ``batch`` event and yield what it shows."""
        source, step = event.source.source, event.step
        if event.source.rank is None or step is None:
            return
        part = _Part(step, batch_id(event.data), event.time, event.data.get("samples") or 0,
                     event.data.get("tokens") or 0)  # fmt: skip
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

    def rows(self, fold: LineageFold) -> Iterator[Found]:
        """Rows were placed: take the batches whose place that shows."""
        for source in list(self._waiting):
            rank, parts = self._waiting[source]
            segment = fold.place_of(source, parts[-1].step)
            if segment is not None:
                yield from self._release(source, rank, segment, fold)

    def forked(self, segment: FoldedSegment) -> None:
        """The head is another segment now."""
        self._counts = {step: known for step, known in self._counts.items() if step <= segment.fork_step}
        if segment.cause == "resume":
            self.repeats.began(segment.fork_step + 1, f"the resume at step {segment.fork_step + 1}")
            return
        how = "restart from" if segment.cause == "restart" else "rollback to"
        self.repeats.went_back(segment.fork_step, f"the {how} step {segment.fork_step}")

    # --- inside --------------------------------------------------------------------------------------------------

    def _release(self, source: str, rank: int, segment: int, fold: LineageFold) -> Iterator[Found]:
        for part in self._waiting.pop(source, (rank, []))[1]:
            yield from self._take(source, rank, segment, part, fold)

    def _take(self, source: str, rank: int, origin: int, part: _Part, fold: LineageFold) -> Iterator[Found]:
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
        batch = self.ids.add(segment, step, part.batch)
        if tree.is_dead(segment, step):
            return
        parts, samples, tokens = self._counts.get(step, (0, 0, 0))
        known = self._counts[step] = (parts + 1, samples + part.samples, tokens + part.tokens)
        while len(self._counts) > MAX_WAITING:
            del self._counts[next(iter(self._counts))]
        path = tree.path()
        old = self.ids.newest(path, batch, step) if batch else None
        seen = Seen(batch, known[0], old, part.time, known[1], known[2])
        yield from self.repeats.take(step, seen, None if old is None else self.ids.first_on(path))

    def _note_source(self, source: str, rank: int, step: int) -> None:
        """Note where another process of the lowest rank goes on."""
        if self._rank is None or rank < self._rank:
            self._rank, self._source = rank, source
        elif rank == self._rank and source != self._source:
            self._source = source
            if not any(one.step == step for one in self.repeats.boundaries):
                self.repeats.began(step, f"the resume at step {step}")
