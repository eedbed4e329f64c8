"""Reads the event files of one TensorBoard folder: each file is a start of the job, in the order of their names.

``SessionLog.START`` at step s means that the job went back: a segment with fork step s - 1 begins. TensorBoard throws
the points away that it
replaces; here they stay, dead. Steps that go back without it are left to the server, which knows a restart by its
steps.
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from stabilityclient.wire import MAX_NAME_CHARS, MAX_STEP
from stabilityplugins.importers.base import FilePart, Importer, ImportPlan, in_turn, message_class, name_below
from stabilityplugins.importers.batches import PAUSE, Batch, Fork, Grouper, Who
from stabilityplugins.importers.problems import Reading
from stabilityplugins.importers.rows.tfrecords import is_event_file, read_records

__all__ = ["TensorBoardImporter", "event_class"]

#: Two files of one folder whose times overlap by more are two writers at work together and not a restart, seconds.
OVERLAP_S = 60.0
_START = 1  # SessionLog.START
_NAME = re.compile(r"events\.out\.tfevents\.\d+\.(?P<host>.+?)\.(?P<pid>\d+)\.\d+")
#: TensorProto.dtype -> how one value lies in tensor_content.
_LAYOUTS = {1: "<f", 2: "<d", 3: "<i", 9: "<q", 19: "<e"}
_FIELDS = {1: "float_val", 2: "double_val", 3: "int_val", 9: "int64_val"}


class _EventFile(NamedTuple):
    """One file. number: in the run. rank: whose. prefix: put before every tag."""

    path: Path
    number: int
    rank: int
    prefix: str


@dataclass
class _Folder:
    """State of a rank over the files of its folder."""

    high: dict[tuple[int, str], int] = field(default_factory=dict)


def event_class() -> Any:
    """Return TensorBoard's Event message.

    Raises:
        StabilityBoardError: TensorBoard is not installed.
    """
    return message_class("tensorboard.compat.proto.event_pb2", "Event", "event files")


class TensorBoardImporter(Importer):
    """TensorBoard's event files: those of a folder are the starts of one run."""

    name: ClassVar[str] = "tensorboard"
    label: ClassVar[str] = "TensorBoard"
    known: ClassVar[str] = "TensorBoard event files"
    by_name: ClassVar[bool] = True
    by_folder: ClassVar[bool] = True
    follows: ClassVar[bool] = True

    def named(self, path: Path) -> bool:
        return "tfevents" in path.name

    def takes(self, path: Path, head: bytes) -> bool:
        return is_event_file(head) or (self.named(path) and not head)

    def plans(self, paths: list[Path], root: Path) -> list[ImportPlan]:
        folders: dict[Path, list[Path]] = {}
        for path in paths:
            folders.setdefault(path.parent, []).append(path)
        return [ImportPlan(self, [FilePart(tuple(files))], name_below(at, root)) for at, files in folders.items()]

    def prepare(self, parts: Sequence[FilePart], reading: Reading) -> list[_EventFile]:
        """Return the files of a run in order, each with its rank: a second writer in a folder is a rank of its own."""
        found: list[_EventFile] = []
        for part in parts:
            spans: list[tuple[int, float, set[str]]] = []
            for path in sorted(part.paths, key=lambda each: each.name):
                lane = part.rank
                if len(part.paths) > 1:
                    first, last, tags = _span(path)
                    taken = {at for at, end, others in spans if first < end - OVERLAP_S and tags & others}
                    while lane in taken:
                        lane += 1
                    if lane != part.rank:
                        reading.note(
                            f"{path}: written at the same time as another file here, so it is taken as rank {lane}"
                        )
                    spans.append((lane, last, tags))
                found.append(_EventFile(path, len(found), lane, part.prefix))
        return found

    def batches(self, prepared: Sequence[_EventFile], reading: Reading, step_key: str | None) -> Iterator[Batch]:
        folder = _Folder()
        return in_turn((_File(file, reading, folder).rows() for file in prepared), reading)

    def place(self, plan: ImportPlan) -> Path:
        return plan.paths[0].parent

    def start_of_file(self, path: Path) -> tuple[str, int]:
        match = _NAME.match(path.name)
        return (match["host"], int(match["pid"])) if match else ("", 0)


class _File:
    """Reads one event file."""

    def __init__(self, file: _EventFile, reading: Reading, folder: _Folder) -> None:
        self._file = file
        self._reading = reading
        self._folder = folder
        self._who = Who(file.number, file.rank)
        self._groups = Grouper(reading)
        self._left_out: Counter[str] = Counter()
        self._plugins: dict[str, str] = {}
        # The row that grows: consecutive scalars of one step.
        self._step = -1
        self._time = 0.0
        self._last = 0
        self._names: dict[str, None] = {}
        self._values = array("d")
        self._first = True

    def rows(self) -> Iterator[Batch]:
        event_of = event_class().FromString
        path, reading = self._file.path, self._reading
        for record in read_records(path, reading):
            if record is None:
                yield from self._end_row()
                yield from self._groups.flush()
                yield PAUSE
                continue
            try:
                event = event_of(record.data)
            except Exception as error:  # protobuf's DecodeError; its class moved between versions
                reading.problem(path, f"byte {record.offset}", f"record {record.number} is no event: {error}")
                continue
            for value in event.summary.value:
                yield from self._scalar(record.number, event, value, f"byte {record.offset}")
            if event.WhichOneof("what") == "session_log" and event.session_log.status == _START:
                yield from self._end_row()
                yield from self._start(event)
        yield from self._end_row()
        yield from self._groups.flush()
        if self._left_out:
            kinds = ", ".join(f"{count} {kind}" for kind, count in self._left_out.most_common())
            reading.note(f"{path}: left out, for a point is one number: {kinds}")

    def _scalar(self, number: int, event: Any, value: Any, place: str) -> Iterator[Batch]:
        kind = value.WhichOneof("value")
        scalar: float | None
        if kind == "simple_value":
            scalar = value.simple_value
        else:
            plugin = value.metadata.plugin_data.plugin_name
            if plugin:
                self._plugins[value.tag] = plugin
            scalar = _of_tensor(value.tensor) if kind == "tensor" else None
            if scalar is None or self._plugins.get(value.tag, "scalars") != "scalars":
                self._left_out[self._plugins.get(value.tag) or kind or "empty values"] += 1
                return
        assert scalar is not None
        step, name = event.step, self._file.prefix + value.tag
        if not 0 <= step <= MAX_STEP or not 1 <= len(name) <= MAX_NAME_CHARS or not math.isfinite(event.wall_time):
            what = f"step {step}, time {event.wall_time}, tag {name[:40]!r}"
            self._reading.problem(self._file.path, place, f"{what}: one of them can't be stored")
            return
        cut = self._last in self._reading.cut.get(self._file.number, ())
        if step != self._step or name in self._names or cut:
            yield from self._end_row()
            self._step = step
        self._time, self._last = event.wall_time, number
        self._names[name] = None
        self._values.append(scalar)
        if self._first:
            # Alone: the first row names the file, and it must look the same however far the file has grown.
            self._first = False
            yield from self._end_row()
            yield from self._groups.flush()

    def _end_row(self) -> Iterator[Batch]:
        if not self._names:
            return
        names, values = tuple(self._names), self._values
        self._names, self._values = {}, array("d")
        for name in names:
            key = (self._file.rank, name)
            self._folder.high[key] = max(self._folder.high.get(key, -1), self._step)
        yield from self._groups.add(self._who, self._last, names, self._step, self._time, values)

    def _start(self, event: Any) -> Iterator[Batch]:
        """The job reported a new start at ``event.step``: its rows from that step on are dead."""
        rank = self._file.rank
        gone = [key for key, high in self._folder.high.items() if key[0] == rank and high >= event.step]
        if not gone:
            return  # it went on where it was
        for name in gone:
            self._folder.high[name] = event.step - 1
        key = hashlib.sha256(f"{event.wall_time!r}\n{event.step}".encode()).hexdigest()[:16]
        reason = f"TensorBoard SessionLog.START at step {event.step}"
        yield from self._groups.fork([Fork(f"d-{key}", event.step - 1, event.wall_time, {"reason": reason})])


def _of_tensor(tensor: Any) -> float | None:
    """Return the number in a tensor that holds one, None for any other."""
    if any(dim.size != 1 for dim in tensor.tensor_shape.dim):
        return None
    values = getattr(tensor, _FIELDS.get(tensor.dtype, "float_val"))
    if len(values) == 1:
        return float(values[0])
    layout = _LAYOUTS.get(tensor.dtype)
    if layout is None or len(tensor.tensor_content) != struct.calcsize(layout):
        return None
    return float(struct.unpack(layout, tensor.tensor_content)[0])


def _span(path: Path) -> tuple[float, float, set[str]]:
    """Return first and last time of a file's values and their tags; (inf, -inf, none) for one without any."""
    event_of = event_class().FromString
    first, last = math.inf, -math.inf
    tags: set[str] = set()
    for record in filter(None, read_records(path, Reading())):
        try:
            event = event_of(record.data)
        except Exception:  # reported when the file is read
            continue
        if event.summary.value:
            first, last = min(first, event.wall_time), max(last, event.wall_time)
        tags.update(value.tag for value in event.summary.value)
    return first, last, tags
