"""``stabilityboard interruptions``: interruptions of the jobs of this server, as a table."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import urlencode

import orjson
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from stabilitybackend.cli.options import ApiKey, DataDir, Url, connect

__all__ = ["interruptions"]

#: Characters of a line from which on the table also has the visible signs of each category.
_WIDE = 120
#: Interruptions listed under the table; --json gives all that the server lists.
_LISTED = 20
#: Lines of evidence of each of them, the first next to its category.
_EVIDENCE_LINES = 4
_VISIBLE_STYLE = {"direct": "green", "indirect": "yellow", "no": "red"}


def interruptions(
    days: Annotated[float | None, typer.Option(help="Only of the last so many days. (default: all)")] = None,
    project: Annotated[str | None, typer.Option(help="Only of the runs of this project.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the server's whole answer as one JSON object.")
    ] = False,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
) -> None:
    """Show what stopped the jobs, in the categories of Llama 3's published table, and how often."""
    asked = {name: value for name, value in (("days", days), ("project", project)) if value is not None}
    with connect(url, api_key, data_dir) as client:
        answer = client.get("/api/v1/interruptions" + (f"?{urlencode(asked)}" if asked else ""))
    if as_json:
        typer.echo(orjson.dumps(answer, option=orjson.OPT_INDENT_2).decode())
        return
    console = Console(highlight=False)
    console.print(_table(answer, console.width >= _WIDE))
    console.print(_sums(answer), soft_wrap=True)
    for one in answer["interruptions"][:_LISTED]:
        console.print(_line(one), soft_wrap=True)
        for line in one["evidence"][1:_EVIDENCE_LINES]:
            console.print(escape(f"    {line}"), style="dim", soft_wrap=True)


def _table(answer: dict[str, Any], wide: bool) -> Table:
    seen = ["seen from a client"] if wide else []
    table = Table(
        "category", _right("count"), _right("share"), _right("time lost"), _right("Llama 3"), *seen,
    )  # fmt: skip
    for row in answer["table"]:
        published = "" if row["published"] is None else f"{row['published']}  {row['published_share']:>5.1%}"
        table.add_row(
            escape(row["label"]),
            str(row["count"] or ""),
            f"{row['share']:.1%}" if row["share"] else "",
            duration(row["time_lost_s"]) if row["count"] else "",
            published,
            *(
                [f"[{_VISIBLE_STYLE.get(row['visible'], 'default')}]{row['visible']}[/]: {escape(row['sees'])}"]
                if wide
                else []
            ),
        )
    return table


def _right(title: str) -> Column:
    return Column(title, justify="right", no_wrap=True)


def _sums(answer: dict[str, Any]) -> str:
    between = answer["mtbi_s"]
    rate = answer["per_1000_gpu_hours"]
    text = (
        f"{_plural(answer['count'], 'interruption')} of {_plural(answer['runs'], 'run')}, "
        f"{duration(answer['time_lost_s'])} lost; "
        f"ran for {duration(answer['running_s'])}, "
        + (f"{answer['gpu_hours']:.1f} GPU-hours" if answer["gpu_hours"] else "no GPU was seen")
    )
    if between is not None:
        text += f"; {duration(between)} between interruptions"
    if rate is not None and answer["count"]:
        text += f", {rate:.3g} per 1,000 GPU-hours"
    elif answer["gpu_hours"]:
        text += ", too few GPU-hours to say how many per 1,000"
    if answer["not_counted"]:
        text += f"; not counted: {answer['not_counted']} by hand or gone on by itself"
    return text


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _line(one: dict[str, Any]) -> str:
    when = datetime.fromtimestamp(one["since"], UTC).strftime("%Y-%m-%d %H:%M")
    where = f" at step {one['step']}" if one["step"] is not None else ""
    who = f", set by {one['set_by']['who']}" if one["set_by"] else f", {one['confidence']} confidence"
    lost = (
        duration(one["time_lost_s"]) + (" so far" if one["open"] else "") + " lost" if one["counted"] else "not counted"
    )
    why = f": {one['evidence'][0]}" if one["evidence"] else ""
    return escape(f"{when} UTC  {one['run_name']}{where}  {one['label']}{who}  {lost}{why}")


def duration(seconds: float) -> str:
    """Return "3 h 20 min", "12 min", "40 s"."""
    if seconds >= 86_400:
        return f"{seconds // 86_400:.0f} d {seconds % 86_400 // 3_600:.0f} h"
    if seconds >= 3_600:
        return f"{seconds // 3_600:.0f} h {seconds % 3_600 // 60:.0f} min"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
