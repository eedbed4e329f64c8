"""``stabilityboard audit``: orders, changes, deletions and views on a server by person; as a table or a file."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Annotated
from urllib.parse import urlencode

import typer

from stabilitybackend.cli.options import ApiKey, AsJson, DataDir, Url, connect, show_json
from stabilitybackend.cli.tables import Column, print_table

__all__ = ["audit"]

_COLUMNS = (
    Column("when"), Column("who", 0, "short"), Column("key", 5), Column("what"), Column("run", 1, "short"),
    Column("of", 4, "short"), Column("more", 3, "sentence"),
)  # fmt: skip


class _Kind(StrEnum):
    """Of the file that ``--export`` writes."""

    csv = "csv"
    jsonl = "jsonl"


def audit(
    count: Annotated[int, typer.Option(help="Newest entries.", min=1, max=10_000)] = 50,
    who: Annotated[str, typer.Option(help="Only what this person or key did.")] = "",
    run: Annotated[str, typer.Option(help="Only of this run, with each change of its commands.")] = "",
    action: Annotated[str, typer.Option(help="Only this, or all that begin with it: command, key, see.output.")] = "",
    export: Annotated[_Kind | None, typer.Option(help="Print all entries as a file instead.")] = None,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
) -> None:
    """Show who did and saw what, newest first. Needs a key with admin."""
    asked = {name: value for name, value in (("who", who), ("run", run), ("action", action)) if value}
    with connect(url, api_key, data_dir) as client:
        if export is not None and not as_json:
            query = {"format": export.value, **asked}
            with client.stream("/api/v1/audit/export", query, 60.0) as answer:
                for text in answer.iter_text():
                    typer.echo(text, nl=False)
            return
        found = client.get(f"/api/v1/audit?{urlencode({'count': count, **asked})}")
    if as_json:
        show_json(found)
        return
    print_table(_COLUMNS, [
        [
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one["time"])), one["who"], one["key_id"] or "",
            one["action"], one["run"], one["target"], one["detail"],
        ]
        for one in found["entries"]
    ])  # fmt: skip
