"""The table of all runs, its rows and possible columns. Shapes: docs/api.md."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from stabilitybackend.run_table.table import MAX_LIMIT, RunTables, TableQuery
from stabilitybackend.schema.pages.run_table import RunColumns, RunTable
from stabilitybackend.server.api.access import Reader
from stabilitybackend.server.api.answers import answer, answers
from stabilitybackend.server.stage import part
from stabilitybackend.server.stages import RunLists

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["runs"])


async def _tables(lists: Annotated[RunLists, part(RunLists)]) -> RunTables:
    return lists.tables


Tables = Annotated[RunTables, Depends(_tables)]


@router.get("/run_table", responses=answers(RunTable))
async def run_table(
    tables: Tables,
    reader: Reader,
    q: Annotated[str, Query(description="a filter, e.g. state:sick project:llm lr>3e-4")] = "",
    sort: Annotated[list[str] | None, Query(description="columns, a - before one turns it round; repeat it")] = None,
    group: Annotated[str, Query(max_length=300, description="a column: runs with one value stand together")] = "",
    column: Annotated[list[str] | None, Query(description="config.<key> or metric.<name>; repeat it")] = None,
    offset: Annotated[int, Query(ge=0, description="place of the first row")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="at most so many rows")] = 100,
    order: Annotated[str | None, Query(max_length=40, description="'order' of an answer: go on in that one")] = None,
) -> Response:
    """Runs, filtered, sorted and grouped by any column, sick ones first; some rows of them, and how many there are."""
    query = TableQuery(reader.project, q, tuple(sort or ()), group)
    return answer(await tables.table(query, column or [], offset, limit, order))


@router.get("/run_columns", responses=answers(RunColumns))
async def run_columns(
    tables: Tables,
    reader: Reader,
    search: Annotated[str, Query(max_length=200, description="part of a name")] = "",
    limit: Annotated[int, Query(ge=1, le=500, description="at most so many")] = 100,
) -> Response:
    """The columns that the table of runs can have: built-in ones, keys of configs, metrics, and values to filter by."""
    return answer(await tables.columns(reader.project, search, limit))
