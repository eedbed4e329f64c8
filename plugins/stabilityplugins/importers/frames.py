"""Turns batches into wire frames whose numbers follow from the file alone, so that an import can be repeated.

Record n of a file takes the numbers up to 2 n of its stream, the clean exit after record n the number 2 n + 1. So a
grown file continues in place, and rows that the server holds are never sent again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from stabilitybackend.base.errors import BadRequest
from stabilityclient.wire import FRAME_TARGET_BYTES, EventBlock, Frame, PointsBlock, SourceInfo
from stabilityplugins.importers.batches import PAUSE, Batch, Who
from stabilityplugins.importers.names import Names
from stabilityplugins.importers.problems import Reading
from stabilityplugins.importers.row_checks import RowCheck

__all__ = ["ROWS_WITH_NOTES", "FrameMaker", "fingerprint"]

#: Bytes gathered over all ranks before frames leave. A file of many ranks makes bigger rounds, up to this.
MOST_WAITING_BYTES = 16 * 1024 * 1024
#: Most rows of a block whose rows have events (fingerprints of their data): these stand before the block, and the rows
#: kept for evidence (``detection/evidence.py``) have to reach back to before an event in it.
ROWS_WITH_NOTES = 128
#: Approximate size of an event, bytes.
_EVENT_BYTES = 200
_BYTES = 8


@dataclass(slots=True)
class _Stream:
    """One source: a rank in one file."""

    info: SourceInfo
    held: int
    sent: int
    check: RowCheck
    items: int = 0
    #: Step and time of the newest row.
    step: int = -1
    time: float = 0.0
    blocks: list[PointsBlock | EventBlock] = field(default_factory=list)
    size: int = 0


class FrameMaker:
    """Makes the frames of one run.

    Args:
        held: source -> last number that the server holds, of all sources of the run.
        names: the metrics' names at the server.
        reading: gets the places where rows have to be cut.
        paths: the files, for messages. starts: file -> (host, process id) where the file has them.
        checks: source -> the last import's note, see ``checks.py``.

    Attributes:
        rows, values: that went into frames. already: rows that the server held before.
        no_rollbacks: say of each process that its steps which go back are no rollback.
    """

    def __init__(
        self,
        held: Mapping[str, int],
        names: Names,
        reading: Reading,
        paths: Sequence[Path],
        starts: Mapping[int, tuple[str, int]],
        checks: Mapping[str, tuple[int, str]],
    ) -> None:
        self._held = held
        self._names = names
        self._reading = reading
        self._paths = paths
        self._starts = starts
        self._checks = checks
        self._streams: dict[Who, _Stream] = {}
        self._newest: dict[int, Who] = {}
        self._files: dict[int, tuple[str, float, bool]] = {}
        self._waiting: dict[Who, None] = {}
        self._size = 0
        self._world_size = 1
        self.rows = 0
        self.values = 0
        self.already = 0
        self.no_rollbacks = False

    def frames(self, batches: Iterable[Batch]) -> Iterator[Frame | None]:
        """Yield the frames of all batches, and at the end the exit of each rank's newest process: by its log, else
        well.

        None: there is nothing more for now.
        """
        for whole in batches:
            if whole is PAUSE:
                yield from self._flush()
                yield None
                continue
            for batch in whole.parts(_most_rows(whole)):
                if batch.forks:
                    yield from self._flush()
                stream = self._stream(batch)
                if batch.who.rank is not None:
                    self._newest[batch.who.rank] = batch.who
                self._add(stream, batch)
                if batch.forks or self._size >= min(FRAME_TARGET_BYTES * len(self._waiting), MOST_WAITING_BYTES):
                    yield from self._flush()
        yield from self._flush()
        for who in self._newest.values():
            yield from self._finish(self._streams[who], self._reading.ended.get(who.file, 0))

    @property
    def newest(self) -> list[SourceInfo]:
        """The newest process of each rank."""
        return [self._streams[who].info for who in list(self._newest.values())]

    @property
    def exit_code(self) -> int:
        """Exit code of the job as its newest logs have it, 0 where none has another."""
        codes = [self._reading.ended.get(who.file, 0) for who in self._newest.values()]
        return next(filter(None, codes), 0)

    @property
    def behind(self) -> bool:
        """Whether a file has fewer records so far than were imported from it before."""
        return any(stream.check.behind for stream in list(self._streams.values()))

    @property
    def checks(self) -> dict[str, tuple[int, str]]:
        """Notes for the next import: source -> (records, sum)."""
        return {stream.info.source: stream.check.entry for stream in self._streams.values()}

    def _add(self, stream: _Stream, batch: Batch) -> None:
        first = int(np.searchsorted(batch.items, stream.held // 2, side="right"))
        self.already += first if batch.names else 0  # a row without a number is never sent
        stream.check.add(batch)
        stream.items = max(stream.items, batch.last_item)
        if len(batch):
            stream.step, stream.time = int(batch.steps[-1]), float(batch.times[-1])
        names = self._names.of(batch.names)
        if batch.last_item * 2 <= stream.held:
            return
        self._waiting[batch.who] = None
        for fork in batch.forks:
            data = {"key": fork.key, "to_step": fork.to_step, "cause": "declared", **fork.facts}
            stream.blocks.append(EventBlock("segment", fork.created, None, data))
        for note in batch.notes:
            if note.item * 2 > stream.held:
                stream.blocks.append(EventBlock(note.type, note.time, note.step, note.data))
        self._grow(stream, _EVENT_BYTES * (len(batch.forks) + len(batch.notes)))
        if first == len(batch) or not batch.names:
            return
        values = batch.values[:, first:]
        block = PointsBlock(
            list(names),
            batch.steps[first:].astype("<i8").tobytes(),
            batch.times[first:].astype("<f8").tobytes(),
            np.ascontiguousarray(values, "<f8").tobytes(),
        )
        stream.blocks.append(block)
        self._grow(stream, _BYTES * (len(names) + 2) * (len(batch) - first))
        self.rows += len(batch) - first
        self.values += values.size

    def _grow(self, stream: _Stream, size: int) -> None:
        stream.size += size
        self._size += size

    def _flush(self) -> Iterator[Frame]:
        for who in self._waiting:
            stream = self._streams[who]
            yield self._frame(stream, 2 * stream.items)
        self._waiting.clear()
        self._size = 0

    def _frame(self, stream: _Stream, last: int) -> Frame:
        blocks, stream.blocks, stream.size = stream.blocks, [], 0
        if stream.sent == 0:
            begin = ["start", "no_rollbacks"] if self.no_rollbacks and stream.info.rank is not None else ["start"]
            blocks[:0] = [EventBlock(kind, stream.info.started) for kind in begin]
        stream.info.world_size = self._world_size
        frame = Frame(stream.info, stream.sent + 1, last, blocks)
        stream.sent = last
        return frame

    def _finish(self, stream: _Stream, exit_code: int) -> Iterator[Frame]:
        stream.check.settle()
        last = 2 * stream.items + 1
        if stream.sent < last:
            end = EventBlock("finish", stream.info.started)
            if exit_code:
                info = stream.info
                data = {"source": info.source, "rank": info.rank, "cause": "exit_code", "exit_code": exit_code}
                end = EventBlock("process_death", stream.time, stream.step, data)
            stream.blocks.append(end)
            yield self._frame(stream, last)

    def _stream(self, batch: Batch) -> _Stream:
        known = self._streams.get(batch.who)
        if known is not None:
            return known
        who = batch.who
        if who.file not in self._files:
            self._files[who.file] = fingerprint(batch), float(batch.times[0]) if len(batch) else 0.0, batch.timed
        mark, started, timed = self._files[who.file]
        host, pid = self._starts.get(who.file, ("", 0))
        if who.rank is not None:
            self._world_size = max(self._world_size, who.rank + 1)
        start_ns = max(0, int(started * 1e9)) if timed else 0
        name = self._source(who, start_ns, mark, batch.edition)
        twin = next((other for other, stream in self._streams.items() if stream.info.source == name), None)
        if twin is not None:
            raise BadRequest(
                f"{self._name_of(twin.file)} and {self._name_of(who.file)} begin with the same row: they can't be told "
                "apart in one run",
                hint="import them as runs of their own, without --run-id, or name them by rank (rank0.jsonl, ...)",
            )
        held = self._held.get(name, 0)
        # The start is cut to the id's precision: a grown file without times was written later.
        info = SourceInfo(
            name, rank=who.rank, local_rank=who.rank, node=who.node or host, pid=pid, started=started,
        )  # fmt: skip
        stream = self._streams[who] = _Stream(
            info, held, held, RowCheck(self._name_of(who.file), self._checks.get(name))
        )
        self._reading.cut[who.file] = {held // 2, self._checks.get(name, (0, ""))[0]}
        return stream

    def _name_of(self, file: int) -> str:
        return str(self._paths[file]) if file < len(self._paths) else f"file {file}"

    def _source(self, who: Who, start_ns: int, mark: str, edition: tuple[str, str] | None) -> str:
        """Return the source id, after a look at the server's other sources of this file."""
        kind = "a" if who.rank is None else f"r{who.rank}"
        family = f"{kind}-{start_ns:x}-{mark}"
        if who.rank is None:
            family += "-" + hashlib.sha256(who.node.encode()).hexdigest()[:6]
        last = self._names.mark if edition is None else f"{edition[1]}{self._names.mark}"
        others = [source for source in self._held if source.startswith(family + ".") and source != f"{family}.{last}"]
        if others:
            raise BadRequest(
                f"the server holds another export of this run, or the same file read with other names ({others[0]})",
                hint="import with the same --rename and --step-key as before, or as another run: --run-id NEW",
            )
        return f"{family}.{last}"


def _most_rows(batch: Batch) -> int:
    """Return how many rows of this kind go into one frame."""
    most = max(1, FRAME_TARGET_BYTES // (2 * _BYTES * (len(batch.names) + 2)))
    return min(most, ROWS_WITH_NOTES) if batch.notes else most


def fingerprint(batch: Batch) -> str:
    """Return a file's name by its content: a hash of its first row, which stays while the file grows.

    Exports of this server are named by their run, so that two exports of one run are noticed.
    """
    if batch.edition is not None:
        return "x" + hashlib.sha256(batch.edition[0].encode()).hexdigest()[:9]
    found = hashlib.sha256()
    when = float(batch.times[0]) if batch.timed and len(batch) else None
    cells = sorted(zip(batch.names, batch.values[:, 0].tolist(), strict=True)) if len(batch) else []
    found.update(repr((int(batch.steps[0]) if len(batch) else -1, when, cells)).encode())
    return "i" + found.hexdigest()[:9]
