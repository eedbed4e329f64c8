"""Reads ``trainer_state.json`` of Hugging Face's Trainer: the entries of its ``log_history``, ``eval_`` keys and
all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from stabilitybackend.base.errors import BadRequest
from stabilityplugins.importers.base import FilePart, Importer, ImportPlan, name_below
from stabilityplugins.importers.batches import Batch
from stabilityplugins.importers.jsonl import objects_in
from stabilityplugins.importers.problems import Reading
from stabilityplugins.importers.rows.document import document_in, table_of

__all__ = ["TrainerStateImporter", "trainer_state"]


def trainer_state(path: Path) -> dict[str, Any]:
    """Return the file's content.

    Raises:
        BadRequest: it is too large, no JSON, or has no ``log_history``.
    """
    content = document_in(path)
    if not isinstance(content, dict) or not isinstance(content.get("log_history"), list):
        raise BadRequest(f"{path} has no list log_history, expected the trainer_state.json of Hugging Face's Trainer")
    return content


#: How a JSON object begins; a dictionary that Python printed does not.
_OBJECT = re.compile(rb'\s*\{\s*(["}]|$)')


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
        is_object = _OBJECT.match(head) is not None
        if not self.named(path) and (not is_object or objects_in(path) > 1):
            return False  # many objects are JSON lines, also where one of them has a log_history
        if self.named(path) or b'"log_history"' in head or not objects_in(path, 1):
            trainer_state(path)
            return True
        return False

    def sniff(self, path: Path) -> object:
        return trainer_state(path)

    def plans(self, paths: list[Path], root: Path) -> list[ImportPlan]:
        return [ImportPlan(self, [FilePart((path,))], name_below(_output_folder(path), root)) for path in paths]

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
        yield from table_of(path, history, "log_history", number, reading, rank, prefix, step_key)


def _output_folder(path: Path) -> Path:
    return path.parent.parent if path.parent.name.startswith("checkpoint-") else path.parent
