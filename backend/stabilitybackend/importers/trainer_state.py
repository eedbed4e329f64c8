"""Reads ``trainer_state.json`` of Hugging Face's Trainer: the entries of its ``log_history``, ``eval_`` keys and
all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from stabilitybackend.errors import BadRequest
from stabilitybackend.importers.base import FilePart, Importer, ImportPlan, name_below
from stabilitybackend.importers.batches import PAUSE, Batch, Grouper, Who
from stabilitybackend.importers.cells import NotAStep, as_step, row_of
from stabilitybackend.importers.jsonl import BLANK, has_objects
from stabilitybackend.importers.troubles import Reading, shown

__all__ = ["MAX_FILE_BYTES", "TrainerStateImporter", "trainer_state"]

#: The file is read whole: it is one JSON object. A million log entries are about 150 MiB.
MAX_FILE_BYTES = 1 << 30


def trainer_state(path: Path) -> dict[str, Any]:
    """Return the file's content.

    Raises:
        BadRequest: it is too large, no JSON, or has no ``log_history``.
    """
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise BadRequest(
            f"{path} has {size >> 20} MiB, expected at most {MAX_FILE_BYTES >> 20} MiB for one JSON object"
        )
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise BadRequest(f"{path} is no JSON: {error}", hint="was it cut while it was written?") from error
    if not isinstance(content, dict) or not isinstance(content.get("log_history"), list):
        raise BadRequest(f"{path} has no list log_history, expected the trainer_state.json of Hugging Face's Trainer")
    return content


class TrainerStateImporter(Importer):
    """The state that Hugging Face's Trainer saves with each checkpoint; each holds the history up to it."""

    name: ClassVar[str] = "trainer_state"
    label: ClassVar[str] = "Hugging Face trainer_state"
    known: ClassVar[str] = "trainer_state.json of Hugging Face"
    by_name: ClassVar[bool] = True
    follows: ClassVar[bool] = True
    rewritten: ClassVar[bool] = True

    def named(self, path: Path) -> bool:
        return path.name == "trainer_state.json"

    def place(self, plan: ImportPlan) -> Path:
        return _output_folder(plan.paths[0].resolve())

    def takes(self, path: Path, head: bytes) -> bool:
        is_object = head.lstrip(BLANK).startswith(b"{")
        if self.named(path) or (is_object and (b'"log_history"' in head or not has_objects(path))):
            trainer_state(path)
            return True
        return False

    def sniff(self, path: Path) -> object:
        return trainer_state(path)

    def plans(self, paths: list[Path], root: Path) -> list[ImportPlan]:
        return [ImportPlan(self.name, [FilePart((path,))], name_below(_output_folder(path), root)) for path in paths]

    def joined(self, plans: list[ImportPlan]) -> list[ImportPlan]:
        """Of the states in one output folder take the longest."""
        longest: dict[Path, ImportPlan] = {}
        for plan in plans:
            folder = _output_folder(plan.paths[0].resolve())
            known = longest.get(folder)
            if known is None:
                longest[folder] = plan
                continue
            kept, other = sorted((known, plan), key=lambda each: len(trainer_state(each.paths[0])["log_history"]))[::-1]
            longest[folder] = kept
            kept.notes = [f"{kept.paths[0]} is taken: of the states in {folder.name} it has the longest history"]
            kept.name = other.name
            kept.refused = known.refused + plan.refused
        return list(longest.values())

    def read(
        self, path: Path, number: int, reading: Reading, *, rank: int = 0, prefix: str = "", step_key: str | None = None
    ) -> Iterator[Batch]:
        history = trainer_state(path)["log_history"]
        groups = Grouper(reading, timed=False)
        base = path.stat().st_mtime - len(history)
        for item, entry in enumerate(history, 1):
            place = f"log_history[{item - 1}]"
            if not isinstance(entry, dict):
                reading.trouble(path, place, f"{shown(entry)} is no object")
                continue
            try:
                step = as_step(entry.get(step_key or "step"))
            except NotAStep as error:
                reading.trouble(path, place, str(error))
                continue
            pairs = ((prefix + key, value) for key, value in entry.items() if key != (step_key or "step"))
            names, values = row_of(pairs, reading, path, place)
            yield from groups.add(Who(number, rank), item, names, step, base + item, values)
        yield from groups.flush()
        while reading.following:
            yield PAUSE
        reading.bytes_read += path.stat().st_size
        reading.end_of_file(path, groups.numeric)
        reading.note(f"{path}: no times, so each entry counts one second, up to when the file was last written")


def _output_folder(path: Path) -> Path:
    return path.parent.parent if path.parent.name.startswith("checkpoint-") else path.parent
