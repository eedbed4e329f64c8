"""``stabilityboard runs``, and how a command is followed from a terminal."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from typing import Annotated, Any

import typer
from msgspec import UNSET
from rich.text import Text

from stabilitybackend.base.api_client import ApiClient, run_path
from stabilitybackend.base.errors import Unavailable
from stabilitybackend.cli.options import ApiKey, AsJson, DataDir, Url, connect, show_json
from stabilitybackend.cli.tables import Column, print_table
from stabilitybackend.schema.commands import END_STATES, WORDS, Command, CommandRequest, read_command

__all__ = ["follow", "issue", "list_runs"]

_POLL_S = 0.2
_TONE_STYLE = {"critical": "red", "warning": "yellow", "info": "blue", "good": "green"}
#: The state is the one of the pages, the loss the metric that is watched as one.
_COLUMNS = (
    Column("run", 0, "id"), Column("state"), Column("step", 2), Column("loss", 3), Column("incidents", 4),
    Column("updated", 5), Column("name", 6, "short"), Column("project", 7, "short"), Column("ranks", 8),
    Column("rollbacks", 9),
)  # fmt: skip


def list_runs(
    limit: Annotated[int, typer.Option(min=0, help="At most so many; 0 shows all.")] = 200,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
) -> None:
    """Show the runs, newest first."""
    with connect(url, api_key, data_dir) as client:
        runs, total = client.runs(limit or None)
    if as_json:
        show_json({"runs": runs, "total": total})
        return
    if not runs:
        typer.echo(f"no runs yet at {client.url}")
        return
    print_table(_COLUMNS, [_row(run) for run in runs])
    if len(runs) < total:
        typer.echo(f"the newest {len(runs)} of {total} runs; all: stabilityboard runs --limit 0")


def issue(client: ApiClient, run_id: str, request: CommandRequest, *, quiet: bool = False) -> Command:
    """Send a command once, also where the call is repeated; say under which id it goes unless quiet, and return it."""
    request = replace(request, idempotency_key=uuid.uuid4().hex)
    command = read_command(client.call("POST", f"{run_path(run_id)}/commands", request.given()))
    if not quiet:
        typer.echo(f"command {command.command_id}: {WORDS[command.state]}")
    if command.warning is not UNSET:
        typer.echo(command.warning, err=True)
    return command


def follow(client: ApiClient, command: Command, timeout_s: float, *, quiet: bool = False) -> Command:
    """Print each new state of the command unless quiet, until it stays in one; return it."""
    shown, deadline = 0, time.monotonic() + timeout_s
    while True:
        for entry in () if quiet else command.history[shown:]:
            who = "" if entry.rank is None else f" rank {entry.rank}"
            at = "" if entry.step is None else f" at step {entry.step}"
            detail = f": {entry.detail}" if entry.detail else ""
            typer.echo(f"  {_word(entry.state)}{who}{at}{detail}")
        shown = max(shown, len(command.history))
        if command.state in END_STATES:
            return command
        if time.monotonic() > deadline:
            raise Unavailable(
                f"command {command.command_id} is still {WORDS[command.state]}",
                hint="it goes on or expires by itself; see the run's page",
            )
        time.sleep(_POLL_S)
        command = read_command(client.get(f"{run_path(command.run_id)}/commands/{command.command_id}"))


def _word(state: str) -> str:
    """Return the word for a state of a command; a rank or agent may report one that is none of a command."""
    words = {str(known): word for known, word in WORDS.items() if known != "acted"}
    return words.get(state, state)


def _row(run: dict[str, Any]) -> list[str | Text]:
    state, loss = run["state"], run["latest"].get(run["loss_metric"])
    return [
        run["run_id"],
        Text(state["word"], _TONE_STYLE.get(state["tone"], "")),
        "" if run["last_step"] is None else str(run["last_step"]),
        f"{loss:.4g}" if isinstance(loss, int | float) else str(loss or ""),
        str(run["open_incidents"]),
        _ago(run["updated"]),
        run["name"],
        run["project"],
        _ranks(run),
        str(run["rollbacks"]),
    ]


def _ranks(run: dict[str, Any]) -> Text:
    """Return how many ranks the job has, and of how many where it is fewer than before."""
    now, before = run["world"]["now"], run["world"]["before"]
    return Text(f"{now} of {before}", "yellow") if before is not None and now < before else Text(str(now))


def _ago(seconds: float) -> str:
    age = max(0.0, time.time() - seconds)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if age >= length:
            return f"{age / length:.0f} {unit} ago"
    return f"{age:.0f} s ago"
