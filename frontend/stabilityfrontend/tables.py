"""Tables that sort, filter and draw only the rows in sight: dash-ag-grid in the colours of both themes.

A cell's text and its sort key are two things: ``Cell`` has both, and its link. Few rows that never sort
are a :func:`plain_table`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dash import html
from dash_ag_grid import AgGrid

__all__ = ["Cell", "Column", "plain_table", "table"]

#: More rows than these scroll within the table, px being their height together.
_ROWS_IN_SIGHT = 12
_ROW_PX = 34
_ROW_WITH_SUB_PX = 50
_HEAD_PX = 38


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell.

    Attributes:
        value: sort and filter key; None is last.
        text: shown; without it the value.
        sub: a second, quieter line.
        href: address that it leads to.
        tone: ``good``, ``warning``, ``critical`` or ``quiet``.
        title: shown under the pointer.
        moment: the value is a time, unix seconds; the browser writes it in the viewer's time zone.
    """

    value: str | float | None
    text: str | None = None
    sub: str = ""
    href: str = ""
    tone: str = ""
    title: str = ""
    moment: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        field: key in the rows.
        head: words above it.
        number: its values are numbers: right-aligned, filtered as such.
        grow: its share of the width that is left.
        width: least width, px.
        tip: how it is computed, shown under the pointer.
    """

    field: str
    head: str
    number: bool = False
    grow: float = 1
    width: int = 90
    tip: str = ""


def table(
    rows: Sequence[Mapping[str, Cell | str | float | None]],
    columns: Sequence[Column],
    *,
    key: str | None = None,
    id: Any = None,
) -> AgGrid:
    """Return a table.

    Args:
        rows: cells or plain values by the columns' fields.
        columns: from left to right.
        key: field whose values tell rows apart: a row that is still there keeps its place.
        id: of the component, for callbacks.

    Raises:
        ValueError: a column's field is in no row.
    """
    for column in columns:
        if rows and not any(column.field in row for row in rows):
            raise ValueError(f"column {column.field!r} is in no row, the first one has: {', '.join(rows[0])}")
    high = any(isinstance(cell, Cell) and cell.sub for row in rows for cell in row.values())
    row_px = _ROW_WITH_SUB_PX if high else _ROW_PX
    height = _HEAD_PX + row_px * min(max(len(rows), 1), _ROWS_IN_SIGHT) + 4
    given = {"id": id} if id is not None else {}
    if key is not None:
        given["getRowId"] = f"params.data.{key}"
    return AgGrid(
        rowData=[_row(row) for row in rows],
        columnDefs=[_column(column) for column in columns],
        defaultColDef={"sortable": True, "filter": True, "resizable": True, "suppressHeaderMenuButton": True},
        dashGridOptions={
            "rowHeight": row_px,
            "headerHeight": _HEAD_PX,
            "animateRows": False,
            "enableCellTextSelection": True,
            "ensureDomOrder": True,
            "tooltipShowDelay": 400,
        },
        className="grid",
        style={"height": f"{height}px", "width": "100%"},
        **given,
    )


def _row(row: Mapping[str, Cell | str | float | None]) -> dict[str, Any]:
    plain: dict[str, Any] = {"cells": {}}
    for field, cell in row.items():
        if isinstance(cell, Cell):
            looks = {
                "text": cell.text,
                "sub": cell.sub,
                "href": cell.href,
                "tone": cell.tone,
                "title": cell.title,
                "moment": cell.moment,
            }
            plain["cells"][field] = {name: value for name, value in looks.items() if value}
            plain[field] = cell.value
        else:
            plain[field] = cell
    return plain


def _column(column: Column) -> dict[str, Any]:
    look: dict[str, Any] = {
        "field": column.field,
        "headerName": column.head,
        "cellRenderer": "Cell",
        "flex": column.grow,
        "minWidth": column.width,
        "headerTooltip": column.tip or None,
    }
    if column.number:
        look |= {"type": "rightAligned", "filter": "agNumberColumnFilter"}
    return look


def plain_table(
    heads: Sequence[tuple[str, str, bool]], rows: Sequence[html.Tr], place: str, className: str = ""
) -> html.Div:
    """Return a table that scrolls sideways within its panel where it is too wide.

    Args:
        heads: of each column its name, how it is computed (under the pointer), and whether it holds numbers.
        rows: its rows. place: id of the element around it. className: more style of the table.
    """
    cells = [
        html.Th(head or html.Span("Mark", className="unseen"), title=how or None, className="num" if numeric else "")
        for head, how, numeric in heads
    ]
    table = html.Table([html.Thead(html.Tr(cells)), html.Tbody(rows)], className=f"table dense {className}".rstrip())
    return html.Div(table, id=place, className="wide-table")
