"""Which batch each step of a run saw: a fold over the ``batch`` events of all ranks. Pure.

A rank hands over the id of its part of a step's batch (``run.data``, ``run.batch``). The parts of one step are added
up (``ids.py``), and the step is judged when as many ranks as usual have handed over theirs (``repeats.py``).

Where a batch belongs is where the rows of its process belong. A process that has logged nothing yet, or one whose steps
went back, may be about to open a segment: its batches wait until its rows are placed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.judging.batches.coverage import Coverage
from stabilitybackend.judging.batches.ids import BatchIds
from stabilitybackend.judging.batches.positions import Position, Positions
from stabilitybackend.judging.batches.ranks_alike import MAX_DIFFERENT, RanksAlike
from stabilitybackend.judging.batches.repeats import DETECTOR, Repeats, Seen
from stabilitybackend.judging.batches.reuse import Reuse
from stabilitybackend.judging.batches.samples import MAX_DATASETS, SampleLog, hashes_of
from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.lineage.changes import LineageEvent
from stabilitybackend.lineage.fold import LineageFold
from stabilitybackend.lineage.tree import FoldedSegment, PathRange

__all__ = ["BatchFold", "batch_id"]

#: Batches of one process that wait for its rows; beyond it the oldest go. A job logs more often than that.
MAX_WAITING = 1_024
#: Processes whose newest batch is remembered; beyond it the oldest go.
MAX_SOURCES = 20_000
#: Newest steps of which the parts are put together: as many as the judge lets wait, and some that are late.
MAX_STEPS = 128
MAX_OF_CHARS = 100

#: What was found, with the time of the event that it was found at, unix seconds.
Found = tuple[float, Finding]


@dataclass
class _Part:
    """What one rank handed over for a step; ``batch`` is None where that is no id, and ``sets`` as in the event."""

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
    """What the parts of a step have together, as far as they came.

    Attributes:
        kept: hashes of samples by data set. different: ids of parts, MAX_DIFFERENT at most.
    """

    parts: int = 0
    samples: int = 0
    tokens: int = 0
    kept: dict[str, list[int]] = field(default_factory=dict)
    different: list[int] = field(default_factory=list)


def batch_id(data: Mapping[str, Any]) -> int | None:
    """Return the 64 bits of a ``batch`` event: those that the client made of ids, else a hash of the text."""
    text = data.get("fingerprint", "")
    if data.get("of") and len(text) == 16:
        try:
            return int(text, 16)
        except ValueError:
            pass
    if not text:
        return None
    return int.from_bytes(hashlib.blake2b(text.encode(errors="replace"), digest_size=8).digest(), "little")


def _part_of(event: LineageEvent, step: int) -> _Part:
    data = event.data
    sets = [(one.get("name", ""), one.get("shift", 0), one.get("kept", "")) for one in data.get("sets") or ()]
    return _Part(
        step, batch_id(data), event.time, str(data.get("of") or "text")[:MAX_OF_CHARS], data.get("samples") or 0,
        data.get("tokens") or 0, data.get("epoch"), data.get("position"), sets,
    )  # fmt: skip


class BatchFold(Stateful):
    """The batches of one run."""

    ids: BatchIds = fresh(BatchIds)
    repeats: Repeats = fresh(Repeats)
    coverage: Coverage = fresh(Coverage)
    #: Where the loader of the lowest rank was at each step, as it says.
    positions: Positions = fresh(Positions)
    samples: SampleLog = fresh(SampleLog)
    #: Data set -> how many of its samples come again.
    reuse: dict[str, Reuse] = fresh(dict)
    alike: RanksAlike = fresh(RanksAlike)
    #: First steps of processes of which known samples were reported, and whether a pass over the data was.
    _reported: list[int] = fresh(list)
    _said: bool = False
    #: Source -> its rank and its batches whose segment is not known yet.
    _waiting: dict[str, tuple[int, list[_Part]]] = fresh(dict)
    #: Source -> segment and newest step of its batches.
    _at: dict[str, tuple[int, int]] = fresh(dict)
    #: The lowest rank that hands ids over, and its process: another one goes on where it begins.
    _rank: int | None = None
    _source: str = ""
    #: The newest steps of the head.
    _steps: dict[int, _Step] = fresh(dict)
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

    @property
    def waits(self) -> bool:
        """Whether there are batches of which rows are to show where they belong."""
        return bool(self._waiting)

    def rows(self, fold: LineageFold) -> Iterator[Found]:
        """Rows were placed: take the batches whose place that shows."""
        for source in list(self._waiting):
            rank, parts = self._waiting[source]
            segment = fold.place_of(source, parts[-1].step)
            if segment is not None:
                yield from self._release(source, rank, segment, fold)

    def forked(self, segment: FoldedSegment) -> None:
        """The head is another segment now."""
        fork_step = segment.kept_step  # what a branch that is returned to had taken is not read again
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
        seen = Seen(batch, known.parts, old, part.time, known.samples, known.tokens, other, part.of)
        judged_to = self.repeats.judged_to
        yield from self.repeats.take(step, seen, lambda: self.ids.first_on(path))
        if step <= judged_to:
            self.samples.late(one for hashes in kept.values() for one in hashes)
        if judged_to < self.repeats.judged_to:
            for one in sorted(at for at in self.repeats.recent if judged_to < at <= self.repeats.judged_to):
                yield from self._judged(one, path)

    def _judged(self, step: int, path: Sequence[PathRange]) -> Iterator[Found]:
        """Take a step of which all is known that will be."""
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
            return  # a known batch, which its id has shown
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
        """Return whether known samples are worth a word: one start of a process, one word; of passes one a run."""
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
        """Another process goes on at ``step``."""
        if not any(one.step == step for one in self.repeats.boundaries):
            self.repeats.began(step, f"the resume at step {step}")
            self.coverage.began()
            self.alike.began(step)
            for one in self.reuse.values():
                one.began(self.repeats.boundaries[-1])

    def _note_source(self, source: str, rank: int, step: int) -> None:
        """Note where another process of the lowest rank goes on."""
        if self._rank is None or rank < self._rank:
            self._rank, self._source = rank, source
        elif rank == self._rank and source != self._source:
            self._source = source
            self._began(step)
