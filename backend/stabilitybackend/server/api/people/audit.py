"""The audit log, as pages and as a file. Shapes: docs/api.md."""

from __future__ import annotations

import csv
import io
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response

from stabilitybackend.access.audit import MAX_ENTRIES, AuditQuery
from stabilitybackend.schema.server import Audit, AuditEntry
from stabilitybackend.server.api.access import Administrator, server_of
from stabilitybackend.server.api.answers import answer, answers
from stabilitybackend.server.stages import Access

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["server"])
#: Entries of one answer. The file has all.
MAX_SHOWN = 10_000
_TYPES = {"jsonl": "application/x-ndjson", "csv": "text/csv"}
#: First characters of formulas in spreadsheets.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
Count = Annotated[int, Query(ge=1, le=MAX_SHOWN, description="newest entries")]


def _query(
    who: Annotated[str, Query(max_length=200, description="only what this person or key did")] = "",
    run: Annotated[str, Query(max_length=128, description="only of this run, with its own record")] = "",
    action: Annotated[str, Query(max_length=80, description="only this, or all that begin with it: key, command")] = "",
    before: Annotated[float | None, Query(description="only what is older, unix seconds")] = None,
) -> AuditQuery:
    return AuditQuery(who=who, run=run, action=action, before=before)


Wanted = Annotated[AuditQuery, Depends(_query)]


async def _found(request: Request, administrator: Administrator, wanted: AuditQuery, count: int) -> list[AuditEntry]:
    administrator.require_all_projects()
    return await server_of(request)[Access].audit.find(
        AuditQuery(count, wanted.who, wanted.action, wanted.run, wanted.before)
    )


@router.get("/audit", responses=answers(Audit))
async def audit_log(request: Request, administrator: Administrator, wanted: Wanted, count: Count = 100) -> Response:
    """Entries of the audit log, newest first."""
    return answer(Audit(await _found(request, administrator, wanted, count)))


@router.get("/audit/export", response_class=Response, responses=answers(None, media_types=tuple(_TYPES.values())))
async def export(
    request: Request,
    administrator: Administrator,
    wanted: Wanted,
    format: Annotated[Literal["csv", "jsonl"], Query(description="of the file")] = "csv",
) -> Response:
    """All entries of the audit log as one file, newest first."""
    entries = await _found(request, administrator, wanted, MAX_ENTRIES)
    content = _csv(entries) if format == "csv" else b"".join(msgspec.json.encode(one) + b"\n" for one in entries)
    name = {"content-disposition": f'attachment; filename="audit.{format}"'}
    return Response(content, media_type=_TYPES[format], headers=name)


def _csv(entries: list[AuditEntry]) -> bytes:
    out = io.StringIO(newline="")
    rows = csv.writer(out)
    rows.writerow(AuditEntry.__struct_fields__)
    for entry in entries:
        rows.writerow([f"{entry.time:.3f}", *map(_cell, msgspec.structs.astuple(entry)[1:])])
    return out.getvalue().encode()


def _cell(value: str | None) -> str:
    """Return a text that no spreadsheet takes for a formula: names come from anywhere."""
    text = value or ""
    return f"'{text}" if text.startswith(_FORMULA) else text
