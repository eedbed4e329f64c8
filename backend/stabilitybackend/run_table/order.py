"""Sorts and groups the runs that a filter lets through."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stabilitybackend.base.errors import BadRequest
from stabilitybackend.run_table.columns import BUILT_IN, Column, column_of, label_of
from stabilitybackend.run_table.rows import TableRun, conditions_of
from stabilitybackend.schema.pages.run_table import RunGroup

__all__ = ["DEFAULT_SORT", "grouped", "ordered", "wanted"]

#: What an order begins with where nothing is asked for: sick runs first, then those under way, then the newest.
DEFAULT_SORT = ("state",)
#: Columns that an order can have one after the other.
MAX_SORTS = 5


def wanted(names: Sequence[str], what: str) -> list[tuple[Column, bool]]:
    """Return the columns that ``sort`` or ``group`` name, and whether each is turned round by a ``-`` before it.

    Raises:
        BadRequest: nothing can be sorted or grouped by one of them.
    """
    if len(names) > MAX_SORTS:
        raise BadRequest(
            f"{len(names)} columns in {what}, expected at most {MAX_SORTS}", hint="leave the last ones out"
        )
    found = list[tuple[Column, bool]]()
    for name in names:
        column = column_of(name.removeprefix("-"))
        if not column.key or column.kind == "curve" or (what == "group" and column.kind == "age"):
            possible = [one.key for one in BUILT_IN.values() if one.kind != "curve"]
            raise BadRequest(
                f"{what} is {name[:80]!r}: runs can't be {'grouped' if what == 'group' else 'sorted'} by that",
                hint=f"possible: {', '.join(possible)}, config.<key>, metric.<name>"
                + ("; no ages" if what == "group" else ""),
            )
        found.append((column, name.startswith("-")))
    return found


def ordered(rows: Sequence[TableRun], sorts: Sequence[tuple[Column, bool]], now: float) -> list[TableRun]:
    """Return the runs in an order; equal ones the newest first; those without a value last, whichever way it goes."""
    found = sorted(rows, key=lambda row: (-row.run.created, row.run.run_id))
    for column, reverse in reversed(sorts):
        of = column.value
        with_key = [(_key(of(row, now)), row) for row in found]
        present = [one for one in with_key if one[0] is not None and one[0][0] >= 0]
        odd = [row for key, row in with_key if key is not None and key[0] < 0]
        missing = [row for key, row in with_key if key is None]
        present.sort(key=lambda one: one[0], reverse=reverse)  # type: ignore[arg-type, return-value]
        found = [row for _, row in present] + odd + missing
    return found


def _key(value: Any) -> tuple[int, float, str] | None:
    """Return by what a value is sorted: numbers before texts; NaN has -1, it is neither large nor small."""
    if value is None or value == "" or value == []:
        return None
    if isinstance(value, int | float):
        number = float(value)
        return (-1, 0.0, "") if math.isnan(number) else (0, number, "")
    if isinstance(value, list):
        value = ", ".join(value)
    return (1, 0.0, str(value).lower())


def grouped(
    rows: Sequence[TableRun], by: tuple[Column, bool] | None, now: float
) -> tuple[list[TableRun], list[RunGroup]]:
    """Return the runs so that equal ones in a column stand together, in their order, and the groups."""
    if by is None:
        return list(rows), []
    column, reverse = by
    together = dict[str, list[TableRun]]()
    keys = dict[str, tuple[int, float, str] | None]()
    for row in rows:
        value = column.value(row, now)
        label = label_of(column, row, value)
        together.setdefault(label, []).append(row)
        keys.setdefault(label, _key(value))
    present = sorted((one for one in together if keys[one] is not None), key=lambda one: keys[one], reverse=reverse)  # type: ignore[arg-type, return-value]
    groups, found = list[RunGroup](), list[TableRun]()
    for label in [*present, *(one for one in together if keys[one] is None)]:
        some = together[label]
        groups.append(RunGroup(label, len(found), len(some), conditions_of(some)))
        found += some
    return found, groups
