"""``stabilityboard checkpoint`` and ``stabilityboard stop``: orders that all ranks obey at one step, or none."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stabilitybackend.base.api_client import run_path
from stabilitybackend.cli.options import ApiKey, AsJson, DataDir, Url, check_unasked, connect, show_json
from stabilitybackend.cli.runs import follow, issue
from stabilitybackend.schema.commands import CommandRequest

__all__ = ["checkpoint", "stop"]

RunId = Annotated[str, typer.Argument(help="The run, see: stabilityboard runs")]
Reason = Annotated[str, typer.Option(help="Why; kept in the run's history.")]
Wait = Annotated[bool, typer.Option(help="Show the states until it is done.")]
Timeout = Annotated[float, typer.Option("--timeout", min=1, help="Seconds to wait.")]


def checkpoint(
    run_id: RunId,
    reason: Reason = "",
    wait: Wait = True,
    timeout_s: Timeout = 600.0,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
) -> None:
    """Have all ranks save a checkpoint now, at one step; training goes on."""
    request = CommandRequest("checkpoint_now", reason=reason)
    _order(run_id, request, wait, timeout_s, as_json, url, api_key, data_dir)


def stop(
    run_id: RunId,
    save: Annotated[bool, typer.Option("--save", help="Save a checkpoint first.")] = False,
    reason: Reason = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Stop it without a question.")] = False,
    wait: Wait = True,
    timeout_s: Timeout = 600.0,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
) -> None:
    """End training on all ranks at one step; the script goes on to its own end, and nobody starts it again."""
    if as_json:
        check_unasked(yes)
    elif not yes:
        _ask(run_id, save, url, api_key, data_dir)
    request = CommandRequest("stop", save=save or None, reason=reason)
    _order(run_id, request, wait, timeout_s, as_json, url, api_key, data_dir)


def _ask(run_id: str, save: bool, url: str | None, api_key: str | None, data_dir: Path | None) -> None:
    with connect(url, api_key, data_dir) as client:
        run_id = client.run(run_id)["run_id"]
        offer = client.get(f"{run_path(run_id)}/orders")
    if not offer["stop"]["possible"]:
        return  # the server's error has the reason and the alternatives
    lost, last = offer["steps_lost"] or 0, offer["last_checkpoint"]
    since = "there is no checkpoint" if last is None else f"since the checkpoint of step {last}"
    what = "a checkpoint is saved first" if save else f"{lost} steps are lost ({since}); --save saves them first"
    ranks = "The rank stops" if offer["ranks"] == 1 else f"All {offer['ranks']} ranks stop"
    typer.confirm(f"{ranks} after one step; {what}. Stop {run_id}?", abort=True)


def _order(
    run_id: str,
    request: CommandRequest,
    wait: bool,
    timeout_s: float,
    as_json: bool,
    url: str | None,
    api_key: str | None,
    data_dir: Path | None,
) -> None:
    with connect(url, api_key, data_dir) as client:
        run_id = client.run(run_id)["run_id"]
        command = issue(client, run_id, request, quiet=as_json)
        if wait:
            command = follow(client, command, timeout_s, quiet=as_json)
        if as_json:
            show_json(command)
        elif wait:
            shown = client.get(f"{run_path(run_id)}/commands/{command.command_id}")
            typer.echo(shown["progress"]["line"], err=command.state != "done")
    if wait and command.state != "done":
        raise typer.Exit(1)
