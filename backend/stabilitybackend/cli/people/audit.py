"""``stabilityboard audit``: who ordered, changed, deleted and saw what on a server; as a table or a file."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Annotated
from urllib.parse import urlencode

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stabilitybackend.cli.options import ApiKey, AsJson, DataDir, Url, connect, show_json

__all__ = ["audit"]


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
    table = Table("when", "who", "key", "what", "run", "of", "more")
    for one in found["entries"]:
        shown = (one["who"], one["key_id"] or "", one["action"], one["run"], one["target"], one["detail"])
        table.add_row(time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one["time"])), *map(escape, shown))
    Console().print(table)
