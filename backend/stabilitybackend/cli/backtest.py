"""``stabilityboard backtest``: judges logs and stored runs with the code that judges live runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from stabilitybackend.errors import StabilityBoardError

if TYPE_CHECKING:
    from stabilitybackend.backtest import Backtest, Log

__all__ = ["register"]

#: What stands first in each line of ``--json``; the rest of the incident follows.
_FIRST_KEYS = (
    "kind", "step", "onset_step", "peak_step", "recovered_step", "severity", "dataset", "rank", "segment", "evidence",
    "suggestion", "recovery", "state", "metric", "title", "text", "incident_id", "dead", "score", "opened", "resolved",
)  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("backtest")(backtest_command)


def backtest_command(
    paths: Annotated[list[str], typer.Argument(metavar="FILE...", help="Logs, folders of logs, exports.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per incident.")] = False,
    step_key: Annotated[str | None, typer.Option(help="Key or column that holds the step. (default: step)")] = None,
) -> None:
    """Judge past runs with the detectors that judge live ones: JSON lines, TensorBoard, exports, stored runs.

    Leaves with 1 when a file could not be read at all; the others are judged.
    """
    # Here and not above: it loads NumPy and Polars, which no other command waits for.
    from stabilitybackend.backtest import read_files

    good = True
    for path in paths:
        try:
            for log in read_files([Path(path)], step_key=step_key):
                good = _judge(log, as_json) and good
        except (StabilityBoardError, OSError) as error:
            good = False
            _complain(path, error)
    if not good:
        raise typer.Exit(1)


def _judge(log: Log, as_json: bool) -> bool:
    from stabilitybackend.backtest import backtest

    try:
        found = backtest(log.frames(), run_id=log.name)
    except (StabilityBoardError, OSError) as error:
        _complain(log.name, error)
        return False
    _tell_troubles(log)
    for incident in found.incidents:
        typer.echo(_line(log.name, incident))
    _tell_summary(log, found)
    return True


def _line(name: str, incident: dict[str, Any]) -> str:
    return orjson.dumps({"file": name, **{key: incident.get(key) for key in _FIRST_KEYS}}).decode()


def _tell_troubles(log: Log) -> None:
    for note in log.reading.notes:
        typer.echo(f"note: {note}", err=True)
    if log.reading.count:
        typer.echo(f"{log.name}: {log.reading.count} could not be read, the rest is judged:", err=True)
        for trouble in log.reading.named:
            typer.echo(f"  {trouble}", err=True)
        if log.reading.count > len(log.reading.named):
            typer.echo(f"  and {log.reading.count - len(log.reading.named)} more", err=True)


def _tell_summary(log: Log, found: Backtest) -> None:
    typer.echo(
        f"{log.name}: {found.rows:,} rows, {found.points:,} points, {len(found.incidents)} incidents in "
        f"{found.seconds:.1f} s",
        err=True,
    )


def _complain(name: str, error: Exception) -> None:
    hint = f" ({error.hint})" if isinstance(error, StabilityBoardError) and error.hint else ""
    typer.echo(f"{name}: can't be judged: {error}{hint}", err=True)
