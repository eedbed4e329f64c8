"""Puts the rows of several ranks in one file side by side, some rows of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stabilityplugins.importers.rows.cells import NotAStep, as_rank, is_missing

__all__ = ["NODE", "RANK", "SIDE_BY_SIDE_ROWS", "by_lane"]

#: Rows of one rank before those of the next one, where several ranks log side by side: comparisons of ranks
#: forget a step some hundred steps later.
SIDE_BY_SIDE_ROWS = 64
#: Keys of a row's owner.
RANK, NODE = "rank", "node"


def by_lane(rows: Sequence[tuple[int, dict[str, Any]]], rank: int = 0) -> Sequence[tuple[int, dict[str, Any]]]:
    """Return rows with some of each rank together, else as they are: a batch for each row would be slow.

    Args:
        rank: of the rows that name none.
    """
    lanes = [_lane(row, rank) for _, row in rows] if any(RANK in row for _, row in rows) else []
    width = len(set(lanes))
    if width < 2:
        return rows
    window = SIDE_BY_SIDE_ROWS * width
    found: list[tuple[int, dict[str, Any]]] = []
    for first in range(0, len(rows), window):
        together: dict[Any, list[tuple[int, dict[str, Any]]]] = {}
        for lane, row in zip(lanes[first : first + window], rows[first : first + window], strict=True):
            together.setdefault(lane, []).append(row)
        found += [row for lane in together.values() for row in lane]
    return found


def _lane(row: dict[str, Any], rank: int) -> Any:
    given = row.get(RANK)
    try:
        return (row.get(NODE) or rank) if is_missing(given) else as_rank(given)
    except NotAStep:
        return rank
