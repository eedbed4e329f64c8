"""How ``stabilityboard drill`` shows what it found: the verdict first, then a short table; JSON for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

if TYPE_CHECKING:
    from stabilityplugins.drill.job import DrillFailed
    from stabilityplugins.drill.result import Result
    from stabilityplugins.drill.series import Series

__all__ = ["report", "report_failure"]

#: Metrics that are listed one by one, those that differ first; the others are counted.
_LISTED = 6
#: Width of a table that nobody's terminal bounds, characters.
_FREE_WIDTH = 160
_STATE = {True: "[green]restored[/]", False: "[bold red]not restored[/]", None: "[dim]not judged[/]"}
_STYLE = {"identical": "green", "within the job's own noise": "green", "different": "bold red"}


def report(result: Result, as_json: bool) -> None:
    """Print what a drill found."""
    if as_json:
        _print_json({"verdict": "clean" if result.clean else "not_restored", **_plain(result)})
        return
    console = _console()
    console.print(f"[bold {'green' if result.clean else 'red'}]{escape(result.text)}[/]", soft_wrap=True)
    if result.cost:
        console.print(f"cost: {escape(result.cost)}", soft_wrap=True)
    table = Table(Column("what", no_wrap=True), Column("after the resume", no_wrap=True), Column("detail", ratio=1))
    for check in result.checks:
        detail = f"{check.detail} (follows from: {check.follows})" if check.follows else check.detail
        table.add_row(check.name, _STATE[check.restored], escape(detail))
    table.add_section()
    for series in result.series[:_LISTED]:
        style = _STYLE.get(series.verdict, "dim")
        place = f" (rank {series.rank})" if series.rank else ""
        table.add_row(f"{escape(series.name)}{place}", f"[{style}]{series.verdict}[/]", escape(_detail(series)))
    console.print(table)
    rest = result.series[_LISTED:]
    if rest:
        counts = {one.verdict: sum(other.verdict == one.verdict for other in rest) for one in rest}
        console.print("and " + ", ".join(f"{count} more {name}" for name, count in counts.items()), soft_wrap=True)
    for text in result.not_seen:
        console.print(f"not seen: {escape(text)}", soft_wrap=True)


def report_failure(error: DrillFailed, as_json: bool) -> None:
    """Print why a drill could not be run."""
    if as_json:
        _print_json({"verdict": "not_run", "text": error.message, "hint": error.hint})
        return
    console = _console()
    console.print(f"[bold red]COULD NOT RUN:[/] {escape(error.message)}", soft_wrap=True)
    if error.hint:
        console.print(f"[bold]hint:[/] {escape(error.hint)}", soft_wrap=True)


def _detail(series: Series) -> str:
    if series.why:
        return series.why
    if series.mean is None or series.last is None:
        return f"{series.steps} steps" if series.since is None else f"from step {series.since} on"
    since = "" if series.since is None else f"from step {series.since} on, "
    noise = "" if series.noise is None else f"; two straight runs differ by {series.noise:.3g}"
    return f"{since}{series.mean:+.4g} on average, {series.last:+.4g} at the last of {series.steps} steps{noise}"


def _plain(result: Result) -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(result)
    return plain


def _print_json(facts: dict[str, Any]) -> None:
    typer.echo(orjson.dumps(facts, option=orjson.OPT_INDENT_2).decode())


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_FREE_WIDTH)
