"""W&B's offline files (``run-<id>.wandb``): the history rows of a run, and its facts.

The file is a log of protobuf records in blocks of 32 KiB: header ``:W&B`` (7 bytes), then per piece CRC-32 of type and
data u32, length u16,
type u8 (whole, first, middle, last). The messages are those of the package wandb; its own reader of this log left the
package with 0.20.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from stabilitybackend.base.errors import BadRequest
from stabilityclient.step_names import STEP_NAMES, names_steps, whole
from stabilityplugins.importers.base import FilePart, Importer, ImportPlan, message_class
from stabilityplugins.importers.batches import PAUSE, Batch, Grouper, Who
from stabilityplugins.importers.problems import Reading
from stabilityplugins.importers.rows.cells import NotAStep, as_number, as_step, as_time, row_of
from stabilityplugins.importers.rows.opened import open_bytes

__all__ = ["WandbImporter"]

_MAGIC = b":W&B"
_HEADER_BYTES = 7
_PIECE = struct.Struct("<IHB")
_BLOCK_BYTES = 32 * 1024
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
#: Longest message, bytes; W&B's own limit is lower.
MAX_MESSAGE_BYTES = 256 << 20
#: Records looked at for the run's name: it is in the second one.
_SNIFFED_RECORDS = 50
#: Records in which the step of the training is looked for: as many as an import of a file that grows has seen before.
_STEP_RECORDS = 2_000
#: W&B's additions to each row. The step is its count of log calls.
_STEP, _TIME, _OWN = "_step", "_timestamp", "_"


@dataclass
class _Run:
    """A file's facts of its run; started in unix seconds."""

    run_id: str = ""
    project: str = ""
    name: str = ""
    host: str = ""
    started: float = 0.0
    config: dict[str, Any] = field(default_factory=dict)


def _record_class() -> Any:
    return message_class("wandb.proto.wandb_internal_pb2", "Record", "W&B files")


def _run_of(path: Path) -> _Run:
    """Return the file's facts of the run.

    Raises:
        BadRequest: it does not say so at its beginning.
        StabilityBoardError: W&B is not installed.
    """
    record_of = _record_class().FromString
    for number, _, data in _messages(path, Reading()):
        assert data is not None
        if number > _SNIFFED_RECORDS:
            break
        record = record_of(data)
        if record.WhichOneof("record_type") == "run":
            run = record.run
            config: dict[str, Any] = {}
            for item in run.config.update:
                key = item.key or ".".join(item.nested_key)
                if not key.startswith("_"):
                    config[key] = _value(item.value_json)
            started = run.start_time.seconds + run.start_time.nanos / 1e9
            return _Run(run.run_id, run.project, run.display_name, run.host, started, config)
    raise BadRequest(f"{path} does not say which run it is in its first {_SNIFFED_RECORDS} records", hint="is it cut?")


class WandbImporter(Importer):
    """W&B's offline files; each resume of a run writes another."""

    name: ClassVar[str] = "wandb"
    label: ClassVar[str] = "W&B"
    known: ClassVar[str] = "W&B offline files (run-*.wandb)"
    suffixes: ClassVar[tuple[str, ...]] = (".wandb",)
    by_name: ClassVar[bool] = True
    follows: ClassVar[bool] = True

    def takes(self, path: Path, head: bytes) -> bool:
        return head.startswith(_MAGIC)

    def sniff(self, path: Path) -> object:
        return _run_of(path)

    def plans(self, paths: list[Path], root: Path) -> list[ImportPlan]:
        runs = [(path, _run_of(path)) for path in paths]
        return [
            ImportPlan(self, [FilePart((path,))], run.name or run.run_id, run.run_id, run.project, run.config)
            for path, run in runs
        ]

    def joined(self, plans: list[ImportPlan]) -> list[ImportPlan]:
        """Put the files of one run together, by the time at which they were begun."""
        runs: dict[str | None, ImportPlan] = {}
        for plan in plans:
            known = runs.setdefault(plan.run_id, plan)
            if known is not plan:
                known.parts += plan.parts
                known.refused += plan.refused
                known.parts.sort(key=lambda part: _run_of(part.paths[0]).started)
        return list(runs.values())

    def read(
        self, path: Path, number: int, reading: Reading, *, rank: int = 0, prefix: str = "", step_key: str | None = None
    ) -> Iterator[Batch]:
        wanted = step_key or _training_step(path, reading)
        record_of = _record_class().FromString
        groups, who = Grouper(reading), Who(number, rank)
        others: Counter[str] = Counter()
        time, item, step = _run_of(path).started, 0, 0
        for item, offset, data in _messages(path, reading):
            if data is None:
                yield from groups.flush()
                yield PAUSE
                continue
            try:
                record = record_of(data)
            except Exception as error:  # protobuf's DecodeError; its class moved between versions
                reading.problem(path, f"byte {offset}", f"record {item} is no W&B record: {error}")
                continue
            kind = record.WhichOneof("record_type")
            if kind == "exit":
                reading.ended[number] = record.exit.exit_code
            if kind != "history":
                others[kind or "unknown"] += 1
                continue
            row = {entry.key or ".".join(entry.nested_key): _value(entry.value_json) for entry in record.history.item}
            place = f"record {item} (byte {offset})"
            own = row.pop(_STEP, record.history.step.num)
            given = own if wanted == _STEP else row.pop(wanted, None)
            if given is None and step_key is None:
                given = step  # apart from the training: an evaluation, say
            try:
                step = as_step(given)
            except NotAStep as error:
                reading.problem(path, place, str(error))
                continue
            time = as_time(row.pop(_TIME, None)) or time
            # Sorted: W&B writes the keys of each row in another order.
            pairs = sorted((prefix + key, value) for key, value in row.items() if not key.startswith(_OWN))
            names, values = row_of(pairs, reading, path, place)
            yield from groups.add(who, item, names, step, time, values)
        yield from groups.flush()
        reading.end_of_file(path, groups.numeric)
        if others["stats"]:
            reading.note(f"{path}: {others['stats']} rows of W&B's system metrics are left out: they have no step")
        better = next((name for name in STEP_NAMES if "global_step" in name and name in groups.numeric), None)
        if wanted == _STEP and better is not None:
            reading.note(
                f"{path}: the step is W&B's own count of log calls; for the training step: --step-key {better}"
            )


def _training_step(path: Path, reading: Reading) -> str:
    """Return which value of the rows is the step of the training, W&B's own count where none is.

    Declared by ``define_metric``, or of a usual name; a falling one without declaration is none. As in the tee.
    """
    record_of = _record_class().FromString
    declared: list[str] = []
    seen: dict[str, list[int]] = {}
    for number, _, data in _messages(path, Reading()):
        assert data is not None
        if number > _STEP_RECORDS:
            break
        try:
            record = record_of(data)
        except Exception:  # reported when the rows are read
            continue
        metric = record.metric
        if metric.step_metric and (metric.glob_name == "*" or names_steps(metric.step_metric)):
            declared.append(metric.step_metric)
        for entry in record.history.item:
            name = entry.key or ".".join(entry.nested_key)
            if (name in STEP_NAMES or name in declared) and (step := whole(_value(entry.value_json))) is not None:
                seen.setdefault(name, []).append(step)
    for name in (*declared, *STEP_NAMES):
        steps = seen.get(name)
        if steps and (name in declared or steps == sorted(steps)):
            reading.note(f"{path}: the step is {name}; for W&B's own count of log calls: --step-key {_STEP}")
            return name
    return _STEP


def _value(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    number = as_number(value)
    if number is None or (isinstance(value, str) and math.isfinite(number)):
        return value
    return number


class _Parts:
    """Puts the pieces of records together."""

    def __init__(self, path: Path, reading: Reading) -> None:
        self._path = path
        self._reading = reading
        self._parts: list[bytes] = []
        self.begun = 0

    def add(self, kind: int, data: bytes, offset: int) -> bytes | None:
        """Take the piece at byte ``offset``; return the record that it completes."""
        if kind in (_WHOLE, _FIRST):
            self._parts = []
            self.begun = offset
        self._parts.append(data)
        if kind in (_WHOLE, _LAST) and (kind == _WHOLE or len(self._parts) > 1):
            return self.drop()
        if sum(map(len, self._parts)) > MAX_MESSAGE_BYTES:
            what = f"a record of more than {MAX_MESSAGE_BYTES >> 20} MiB"
            self._reading.problem(self._path, f"byte {self.begun}", what)
            self.drop()
        return None

    def drop(self) -> bytes:
        """Forget the pieces so far; return them as one."""
        data = b"".join(self._parts)
        self._parts = []
        return data

    def end(self) -> None:
        """Report a record that the file ends in."""
        if self._parts:
            self._reading.problem(self._path, f"byte {self.begun}", "the last record is cut")


def _first_block(path: Path, file: Any) -> bytes:
    block: bytes = file.read(_BLOCK_BYTES)
    if block[:4] != _MAGIC:
        raise BadRequest(f"{path} begins with {block[:4]!r}, expected {_MAGIC!r}: no W&B file")
    return block


def _messages(path: Path, reading: Reading) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield number from 1, place and data of each whole record; damage is noted and skipped up to the next block.

    No data: of a file that is followed there is nothing more for now.
    """
    before = reading.bytes_read
    number = 0
    parts = _Parts(path, reading)
    with open_bytes(path) as file:
        block = _first_block(path, file)
        base = 0
        at = _HEADER_BYTES
        while block or reading.following:
            newest = len(block) < _BLOCK_BYTES
            while len(block) - at >= _PIECE.size:
                check, length, kind = _PIECE.unpack_from(block, at)
                offset = base + at
                data = block[at + _PIECE.size : at + _PIECE.size + length]
                if (check, length, kind) == (0, 0, 0):
                    break  # the rest of the block is empty
                if len(data) < length and newest:
                    if not reading.following:
                        reading.problem(
                            path, f"byte {offset}", f"the last record is cut: {len(data)} of {length} bytes"
                        )
                        parts.drop()
                        at = len(block)
                    break
                if zlib.crc32(data, zlib.crc32(bytes([kind]))) != check or not _WHOLE <= kind <= _LAST:
                    if newest and reading.following:
                        break  # it may be half written
                    number += 1
                    reading.problem(path, f"byte {offset}", f"damaged; skipped to byte {base + len(block)}")
                    parts.drop()
                    break
                at += _PIECE.size + length
                if (record := parts.add(kind, data, offset)) is not None:
                    number += 1
                    yield number, parts.begun, record
            reading.bytes_read = before + base + len(block)
            if newest and reading.following:
                yield number, base + at, None
                file.seek(base)  # the block again: it has grown, or it is the last one
            else:
                base += len(block)
                at = 0
            block = file.read(_BLOCK_BYTES)
    parts.end()
