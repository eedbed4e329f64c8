"""``stabilityboard drill``: stops and resumes a job in a folder of its own, and reports everything not restored."""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from stabilitybackend.base.errors import WRONG_USE, BadRequest

if TYPE_CHECKING:
    from stabilityplugins.drill.job import DrillFailed
    from stabilityplugins.drill.result import Result
    from stabilityplugins.drill.series import Series

__all__ = ["drill"]

#: Metrics that are listed one by one, those that differ first; the others are counted.
_LISTED = 6
#: Width of a table without a terminal's bound, characters.
_FREE_WIDTH = 160
_STATE = {True: "[green]restored[/]", False: "[bold red]not restored[/]", None: "[dim]not judged[/]"}
_STYLE = {"identical": "green", "within the job's own noise": "green", "different": "bold red"}


def report(result: Result, as_json: bool) -> None:
    """Print the result of a drill."""
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


#: Exit codes besides 0: something was not restored; the drill could not be run.
NOT_RESTORED, NOT_RUN = 1, 2


def drill(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="The training command.")],
    resume_args: Annotated[str, typer.Option(help="Added to the command to resume, e.g. --resume-args=--resume.")] = "",
    resume_command: Annotated[str, typer.Option(help="Whole command that resumes. (default: the same command)")] = "",
    ranks: Annotated[int | None, typer.Option(min=1, help="Resume on so many ranks of torchrun.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Stop at the first checkpoint after so many steps.")] = 20,
    copy: Annotated[bool, typer.Option("--copy", help="Run in copies of the working folder.")] = False,
    here: Annotated[bool, typer.Option("--here", help="The job keeps its checkpoints apart by itself.")] = False,
    stop_signal: Annotated[str, typer.Option("--signal", help="KILL (a crash), TERM or INT (a polite stop).")] = "KILL",
    noise: Annotated[bool, typer.Option("--noise", help="Always measure the job's noise by a second run.")] = False,
    allow: Annotated[
        list[str] | None, typer.Option(metavar="THING", help="What may differ, e.g. rng; repeat it.")
    ] = None,
    timeout_s: Annotated[float, typer.Option("--timeout", min=1, help="Seconds that each run may take.")] = 600.0,
    work: Annotated[Path | None, typer.Option(help="Folder for the runs' files. (default: the system's)")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the files of the runs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Stop a job after a checkpoint, resume it, and compare it step by step with one that was not stopped.

    Write {dir} where the command names its checkpoint folder. Exit codes: 0 clean, 1 something is not restored,
    2 the drill could not be run.
    """
    # Here and not above: no other command needs these slow imports.
    from stabilityplugins.drill.command import Commands
    from stabilityplugins.drill.drill import DrillOptions, run_drill
    from stabilityplugins.drill.job import DrillFailed

    commands = Commands(
        command, resume_command=resume_command, resume_args=resume_args, ranks=ranks, copy=copy, here=here
    )
    options = DrillOptions(steps, timeout_s, _signal(stop_signal), noise, _allowed(allow or []))
    folder = Path(tempfile.mkdtemp(prefix="drill-", dir=work))
    before = signal.signal(signal.SIGTERM, _end)  # a CI job that is cancelled leaves no training behind
    try:
        result = run_drill(commands, options, folder, lambda text: typer.echo(text, err=True))
    except DrillFailed as error:
        report_failure(error, as_json)
        raise typer.Exit(NOT_RUN) from error
    finally:
        signal.signal(signal.SIGTERM, before)
        if keep:
            typer.echo(f"kept: {folder}", err=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    report(result, as_json)
    raise typer.Exit(0 if result.clean else NOT_RESTORED)


def _end(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _signal(name: str) -> int:
    known = {"KILL": signal.SIGKILL, "TERM": signal.SIGTERM, "INT": signal.SIGINT}
    number = known.get(name.upper().removeprefix("SIG"))
    if number is None:
        raise BadRequest(f"--signal is {name!r}, expected one of {', '.join(known)}", code=WRONG_USE)
    return int(number)


def _allowed(names: list[str]) -> frozenset[str]:
    from stabilityplugins.drill.result import THINGS

    unknown = [name for name in names if name not in THINGS]
    if unknown:
        raise BadRequest(f"--allow is {unknown[0]!r}, expected some of {', '.join(THINGS)}", code=WRONG_USE)
    return frozenset(THINGS[name] for name in names)
