"""Reads files that are one JSON document: a list of rows or of ``[time, step, value]``, columns, or Trainer's state."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from stabilitybackend.base.errors import BadRequest
from stabilityplugins.importers.batches import PAUSE, Batch
from stabilityplugins.importers.jsonl import flat
from stabilityplugins.importers.problems import Reading, shown
from stabilityplugins.importers.rows.lanes import by_lane
from stabilityplugins.importers.rows.layout import ROW_NUMBER, Group, groups_of, layout_of, names_loss
from stabilityplugins.importers.rows.opened import open_text, read_piece
from stabilityplugins.importers.rows.table import TableRows
from stabilityplugins.importers.rows.wide_runs import CURVE_COLUMNS, curve_name

__all__ = ["MAX_FILE_BYTES", "document_in", "rows_of", "table_of"]

#: The file is read whole: it is one JSON value. A million log entries are about 150 MiB.
MAX_FILE_BYTES = 256 << 20
#: Fewer values in a row are no curve.
_MIN_ROWS = 2


def document_in(path: Path) -> Any:
    """Return the value in a file.

    Raises:
        BadRequest: it is too large, nested too deeply, or no JSON.
    """
    with open_text(path) as file:
        data, broken = read_piece(file, MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise BadRequest(
            f"{path} has more than {MAX_FILE_BYTES >> 20} MiB, expected at most as much for one JSON document",
            hint="write one JSON object a line",
        )
    try:
        return json.loads(data)
    except ValueError as error:
        hint = "was it cut while it was written?"
        raise BadRequest(f"{path} is no JSON: {broken or error}", hint=hint) from error
    except RecursionError as error:
        raise BadRequest(f"{path} is no JSON that can be read: it is nested too deeply") from error


def rows_of(content: Any, path: Path) -> list[Any] | None:
    """Return the rows in a document, None of an unsupported one."""
    if isinstance(content, dict):
        content = content["log_history"] if "log_history" in content else _rows_of_columns(content)
    if not isinstance(content, list):
        return None
    if content and all(isinstance(row, list) and len(row) == len(CURVE_COLUMNS) for row in content):
        names = (*CURVE_COLUMNS[:2], curve_name(path))
        return [dict(zip(names, row, strict=True)) for row in content]
    return content if any(isinstance(row, dict) for row in content) else None


def _rows_of_columns(content: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Return the rows of columns: lists of one length (``History`` of Keras), or objects by row number (pandas)."""
    columns = {key: column for key, value in content.items() if (column := _column(value)) is not None}
    if not any(map(names_loss, columns)):
        return None
    (length, _), *_ = Counter(map(len, columns.values())).most_common()
    columns = {key: column for key, column in columns.items() if len(column) == length}
    if length < _MIN_ROWS or not any(map(names_loss, columns)):
        return None
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    return [{**row, ROW_NUMBER: at} for at, row in enumerate(rows)]


def _column(value: Any) -> list[Any] | None:
    if isinstance(value, dict) and all(key.isdecimal() for key in value):
        value = list(value.values())
    return value if isinstance(value, list) and len(value) >= _MIN_ROWS else None


def table_of(
    path: Path,
    entries: Sequence[Any],
    what: str,
    number: int,
    reading: Reading,
    rank: int,
    prefix: str,
    step_key: str | None,
) -> Iterator[Batch]:
    """Yield the rows of a document. ``what``: display name of its list."""
    place = f"{what}[{{}}]".format
    for at, entry in enumerate(entries):
        if not isinstance(entry, dict):
            reading.problem(path, place(at), f"{shown(entry)} is no object")
    layout = layout_of(path, _groups(entries, rank), step_key)
    base = 0.0 if layout.time is not None else reading.base(number, path, len(entries))
    rows = TableRows(
        path, number, reading, layout, rank=rank, prefix=prefix, base=base, place=lambda item: place(item - 1)
    )
    yield from rows.batches(_groups(entries, rank))
    while reading.following:
        yield PAUSE
    reading.bytes_read += path.stat().st_size
    rows.close()


def _groups(entries: Sequence[Any], rank: int) -> Iterator[Group]:
    rows = by_lane([(item, flat(entry)) for item, entry in enumerate(entries, 1) if isinstance(entry, dict)], rank)
    yield from groups_of([item for item, _ in rows], [row for _, row in rows])
