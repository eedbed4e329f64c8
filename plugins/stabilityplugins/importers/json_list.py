"""Reads JSON lists: a dumped ``log_history``, TensorBoard's download of a curve, ``[[time, step, value], ...]``, or one
list a metric, as Keras' ``History`` has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from stabilitybackend.base.errors import BadRequest
from stabilityplugins.importers.base import Importer
from stabilityplugins.importers.batches import Batch
from stabilityplugins.importers.jsonl import objects_in
from stabilityplugins.importers.problems import Reading
from stabilityplugins.importers.rows.document import document_in, rows_of, table_of

__all__ = ["JsonListImporter"]


class JsonListImporter(Importer):
    """One JSON list a file, or an object of columns."""

    name: ClassVar[str] = "json_list"
    label: ClassVar[str] = "JSON list"
    known: ClassVar[str] = "JSON lists of rows, or one list a metric"
    may_hold: ClassVar[tuple[str, ...]] = (".json",)

    def takes(self, path: Path, head: bytes) -> bool:
        is_object = head.lstrip().startswith(b"{")
        if not (is_object or head.lstrip().startswith(b"[")) or (is_object and objects_in(path) > 1):
            return False
        try:
            content = document_in(path)
            return not (is_object and "log_history" in content) and rows_of(content, path) is not None
        except BadRequest:
            if path.suffix.lower() == ".json" and not is_object:
                raise
            return False  # a text whose lines begin with a time in brackets

    def read(
        self, path: Path, number: int, reading: Reading, *, rank: int = 0, prefix: str = "", step_key: str | None = None
    ) -> Iterator[Batch]:
        rows = rows_of(document_in(path), path) or []
        yield from table_of(path, rows, "entry ", number, reading, rank, prefix, step_key)
