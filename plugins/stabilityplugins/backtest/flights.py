"""``stabilityboard backtest --autopilot``: what it would have done in past runs, as a table or as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

if TYPE_CHECKING:
    from stabilityplugins.backtest.autopilot import Assumed, Flight

__all__ = ["report_flights"]

#: Width of a table that nobody's terminal bounds, characters.
_FREE_WIDTH = 160


def report_flights(flights: Iterable[Flight], assumed: Assumed, as_json: bool) -> bool:
    """Print what became of each log; return whether all could be judged."""
    good, won, lost, rolled = True, 0.0, 0.0, 0
    for flight in flights:
        if flight.error:
            hint = f" ({flight.hint})" if flight.hint else ""
            typer.echo(f"{flight.name}: can't be judged: {flight.error}{hint}", err=True)
            good = False
            continue
        for one in flight.done:
            hours = one.gpu_hours or 0.0
            won, lost = won + max(0.0, hours), lost - min(0.0, hours)
            rolled += one.entry.action == "roll_back"
            if as_json:
                typer.echo(json.dumps({"file": flight.name, **one.as_json()}))
        typer.echo(_facts(flight, assumed), err=as_json)
        if flight.done and not as_json:
            console = Console(highlight=False)
            console = console if console.is_terminal else Console(highlight=False, width=_FREE_WIDTH)
            console.print(_table(flight))
    typer.echo(
        f"{rolled} rollbacks it would have made: {won:.1f} GPU-hours won, {lost:.1f} lost, against a person who goes "
        f"back as advised {assumed.reaction_s / 60:g} minutes after the alarm, and only if it is still open then",
        err=as_json,
    )
    return good


def _facts(flight: Flight, assumed: Assumed) -> str:
    saved = "its own checkpoints" if flight.own_checkpoints else (
        f"a verified checkpoint each {assumed.checkpoint_every:,} steps assumed, the log has none"
    )  # fmt: skip
    done = f"{len(flight.done)} actions" if flight.done else "it would have done nothing"
    return f"{flight.name}: {flight.rows:,} rows, {flight.step_s:.3g} s a step, {assumed.gpus:,} GPUs, {saved}: {done}"


def _table(flight: Flight) -> Table:
    table = Table(
        Column("step", justify="right", no_wrap=True), "would have", "about", "in the log",
        Column("steps won", justify="right"), Column("GPU-hours", justify="right"), Column("why", ratio=1),
    )  # fmt: skip
    for one in flight.done:
        entry = one.entry
        changes = [
            "left out batches" if entry.skip_range or entry.skip_batches else "",
            f"LR x {entry.lr_scale:g}" if entry.lr_scale is not None else "",
            "a new seed" if entry.seed is not None else "",
        ]
        what = "asked people"
        if entry.to_step is not None:
            what = ", ".join([f"rolled back to {entry.to_step:,}", *filter(None, changes)])
        table.add_row(
            f"{entry.step:,}", what, f"{entry.kind} of step {entry.onset_step:,}", one.end,
            "" if one.steps is None else f"{one.steps:+,}", "" if one.gpu_hours is None else f"{one.gpu_hours:+.1f}",
            escape(entry.text),
        )  # fmt: skip
    return table
