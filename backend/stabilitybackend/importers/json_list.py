"""Reads JSON lists: a dumped ``log_history``, or TensorBoard's download of a curve, ``[[time, step, value], ...]``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from stabilitybackend.errors import BadRequest
from stabilitybackend.importers.base import Importer
from stabilitybackend.importers.batches import Batch
from stabilitybackend.importers.rows.document import document_in, rows_of, table_of
from stabilitybackend.importers.troubles import Reading

__all__ = ["JsonListImporter"]


class JsonListImporter(Importer):
    """One JSON list a file."""

    name: ClassVar[str] = "json_list"
    label: ClassVar[str] = "JSON list"
    known: ClassVar[str] = "JSON lists of rows"
    may_hold: ClassVar[tuple[str, ...]] = (".json",)

    def takes(self, path: Path, head: bytes) -> bool:
        if not head.lstrip().startswith(b"["):
            return False
        try:
            return rows_of(document_in(path), path) is not None
        except BadRequest:
            if path.suffix.lower() == ".json":
                raise
            return False  # a text whose lines begin with a time in brackets

    def read(
        self, path: Path, number: int, reading: Reading, *, rank: int = 0, prefix: str = "", step_key: str | None = None
    ) -> Iterator[Batch]:
        rows = rows_of(document_in(path), path) or []
        yield from table_of(path, rows, "entry ", number, reading, rank, prefix, step_key)
